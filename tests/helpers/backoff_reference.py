"""The recursive definition of a backoff model, over dictionaries, for tests to compare with; texts to count; golden
files.

Golden models, made by OpenGrm NGram from a text that may not be bundled, are read from the directory that the
environment variable LATTICEBPD_GOLDEN names.
"""

from __future__ import annotations

import lzma
import math
import os
from pathlib import Path

import numpy as np
import pytest

from fst.table import BOS, EOS, NgramTable
from lm_training.ngram.trie import NgramTrie

Gram = tuple[int, ...]


def as_dict(table: NgramTable) -> dict[Gram, tuple[float, float]]:
    """Natural log probability and backoff of every n-gram."""
    return {
        tuple(row): (log_prob, backoff)
        for rows, log_probs, backoffs in zip(table.ngrams, table.log_probs, table.backoffs, strict=True)
        for row, log_prob, backoff in zip(rows.tolist(), log_probs.tolist(), backoffs.tolist(), strict=True)
    }


def log_prob(table: NgramTable | dict[Gram, tuple[float, float]], context: Gram, token: int) -> float:
    """Natural log p(token | context)."""
    entries = as_dict(table) if isinstance(table, NgramTable) else table
    if (*context, token) in entries:
        return entries[(*context, token)][0]
    return entries.get(context, (0.0, 0.0))[1] + log_prob(entries, context[1:], token)


def assert_proper(table: NgramTable) -> None:
    """Closed, finite, and summing to 1 over the vocabulary after every context."""
    NgramTrie.of(table.ngrams)
    for rows, log_probs, backoffs in zip(table.ngrams, table.log_probs, table.backoffs, strict=True):
        assert np.isfinite(log_probs[rows[:, -1] != BOS]).all()
        assert np.isfinite(backoffs).all()
    entries = as_dict(table)
    vocabulary = table.ngrams[0][:, 0].tolist()
    for context in {gram[:-1] for gram in entries}:
        total = math.fsum(math.exp(log_prob(entries, context, token)) for token in vocabulary)
        assert total == pytest.approx(1, abs=1e-6), context


def zipf_text(size: int = 3000) -> np.ndarray:
    """Ids from 1 to 60 whose counts of counts fall smoothly: Zipf's law, and a third of the tokens follow from the
    last."""
    rng = np.random.default_rng(3)
    ranks = np.minimum(rng.zipf(1.35, size), 60)
    return np.where(rng.random(size) < 0.3, (np.roll(ranks, 1) * 7) % 60 + 1, ranks)


def golden_file(name: str) -> Path:
    """A golden file; the test is skipped if it is missing."""
    path = Path(os.environ.get("LATTICEBPD_GOLDEN", "")) / name
    if "LATTICEBPD_GOLDEN" not in os.environ or not path.exists():
        pytest.skip("set LATTICEBPD_GOLDEN to the directory of OpenGrm's golden models")
    return path


def golden_sentences() -> tuple[list[np.ndarray], list[str]]:
    """The golden text as ids, and the word of each id."""
    with lzma.open(golden_file("a.txt.xz"), "rt") as file:
        lines = [line.split() for line in file]
    words = sorted({word for line in lines for word in line})
    ids = {word: i for i, word in enumerate(words)}
    return [np.array([ids[word] for word in line], dtype=np.int32) for line in lines], words


def golden_table(name: str, words: list[str]) -> dict[Gram, tuple[float, float]]:
    """Natural log probability and backoff of every n-gram of a golden ARPA file, -99 read as log 0."""
    ids = {word: i for i, word in enumerate(words)} | {"<s>": BOS, "</s>": EOS}
    entries: dict[Gram, tuple[float, float]] = {}
    with lzma.open(golden_file(name), "rt") as file:
        for line in file:
            log10_prob, *rest = line.rstrip("\n").split("\t")
            if rest:
                log_prob = -math.inf if log10_prob == "-99" else float(log10_prob) * math.log(10)
                backoff = float(rest[1]) * math.log(10) if len(rest) > 1 else 0.0
                entries[tuple(ids[word] for word in rest[0].split())] = (log_prob, backoff)
    return entries
