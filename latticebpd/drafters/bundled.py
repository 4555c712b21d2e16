"""The bundled example: a small blockwise model, its tokenizer, a 4-gram and held-out prompts.

``assets/README.md`` says where each came from; ``python -m benchmarks.bundled.make`` makes them again.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from latticebpd.models import catalogue

ASSETS, MODEL = catalogue.ASSETS, catalogue.BUNDLED_FOLDER
TOKENIZER = MODEL / "tokenizer.json"
LM = ASSETS / "lm.fst"
PROMPTS = ASSETS / "prompts.jsonl"


@dataclass(frozen=True)
class Prompt:
    """A passage that no part of the bundle has been trained on, and where it is from."""

    id: str
    source: str
    licence: str
    text: str


def load_prompts() -> list[Prompt]:
    """The bundled prompts."""
    return [Prompt(**json.loads(line)) for line in PROMPTS.read_text(encoding="utf-8").splitlines()]
