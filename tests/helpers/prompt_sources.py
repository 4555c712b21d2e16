"""Small sources of prompts, as the benchmarks' programs read them."""

from __future__ import annotations

import json
import lzma
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from benchmarks.smollm2.prompts import SOURCES

WORDS: Any = SimpleNamespace(prompt_of=lambda messages: " ".join(each["content"] for each in messages).split())
"""A chat template without tokens: a conversation is its words."""


def save_sources(folder: Path) -> None:
    """Fill a folder with a few records of every source."""
    sentence = "The river {} runs slowly past old mills and quiet fields on its way to the sea, and people fish in it. "
    for name, path in SOURCES.items():
        rows = []
        for n in range(12):
            text = f"# The Long River {n} of {name}\n\n" + "\n\n".join(sentence.format(n) * 4 for _ in range(6))
            body = "\n".join(f"    total += value * {n} + {line}" for line in range(6))
            source = (
                ("openstax/biology-book", "openstax/history", "factbook/africa", "somebody/news")[n % 4]
                if name == "news"
                else name
            )
            fact = "\n".join(f"Fact {line}: so many of them, {n}" for line in range(12)) if "factbook" in source else ""
            code = f"def add_{n}(value, total):\n{body}\n    return total\n"
            row = {
                "id": f"{name}-{n}",
                "source": source,
                "text": code if name == "code" else text + fact,
                "context": text[:400],
            }
            rows.append(
                row
                | {
                    "question": f"What is {n}?",
                    "answer": f"number {n}",
                    "document": "\n".join(f"#Person{line % 2 + 1}#: {n}, {line}?" for line in range(6)),
                    "de": f"ein Satz {n}",
                    "en": f"a sentence {n}",
                }
            )
        (folder / path).parent.mkdir(exist_ok=True)
        with lzma.open(folder / path, "wt") if path.endswith(".xz") else open(folder / path, "w") as file:
            file.writelines(json.dumps(row) + "\n" for row in rows)
