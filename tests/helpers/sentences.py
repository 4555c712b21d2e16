"""Sentences of a few words, and what each is in German, as files that translators learn from in no time."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

WORDS = {
    "a": "ein",
    "dog": "Hund",
    "cat": "Kater",
    "runs": "rennt",
    "sleeps": "schläft",
    "big": "großer",
    "red": "roter",
}


def sentence_files(directory: Path, train: int, validation: int, test: int) -> list[str]:
    """So many sentences each, as JSONL; the options that name the files."""
    rng, options = np.random.default_rng(0), []
    for name, count in (("train", train), ("validation", validation), ("test", test)):
        sentence_file(directory / f"{name}.jsonl", count, rng)
        options += [f"--{name}", str(directory / f"{name}.jsonl")]
    return options


def sentence_file(path: Path, count: int, seed: int | np.random.Generator) -> None:
    rng = np.random.default_rng(seed)
    chosen = [rng.choice([*WORDS], rng.integers(2, 6)) for _ in range(count)]
    lines = [{"en": " ".join(words), "de": " ".join(WORDS[word] for word in words)} for words in chosen]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
