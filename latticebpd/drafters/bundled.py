"""The bundled example: a small blockwise model, its tokenizer, a 4-gram and held-out prompts.

``assets/README.md`` says where each came from; ``python -m benchmarks.bundled.make`` makes them again.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from tokenizers import Tokenizer

import fst
from latticebpd.drafters.heads.blockwise import BlockwiseLM

ASSETS = Path(__file__).parent.parent / "assets"
MODEL = ASSETS / "model"
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


@dataclass(frozen=True)
class Bundle:
    """Everything the demo needs.

    lm_file: the n-gram model's file; passed as ``lm``, the weights count that are stored beside it, which were tuned on
    documents that are not among the prompts.
    """

    model: BlockwiseLM
    tokenizer: Tokenizer
    lm: fst.NgramModel
    prompts: list[Prompt]
    lm_file: Path = LM


def load_prompts() -> list[Prompt]:
    """The bundled prompts."""
    return [Prompt(**json.loads(line)) for line in PROMPTS.read_text(encoding="utf-8").splitlines()]


def load_bundle() -> Bundle:
    """Load the bundled model (in float32), tokenizer, n-gram model and prompts."""
    return Bundle(
        model=BlockwiseLM.from_pretrained(MODEL),
        tokenizer=Tokenizer.from_file(str(TOKENIZER)),
        lm=fst.NgramModel.load(LM),
        prompts=load_prompts(),
    )
