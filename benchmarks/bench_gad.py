"""GAD and GAD++ on a translation test set (Xia 2022): models and sentences, and translations by several systems, which
`gad_recipe.py` compares.

Systems take turns sentence by sentence, so that a drift of the machine's speed affects all alike.  Under exact
acceptance every text must equal `generate()`'s.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import sacrebleu
from tokenizers import Tokenizer

from benchmarks import common
from benchmarks.decodes import Decoded, System, decode
from fst.fingerprint import vocabulary_fingerprint
from latticebpd import Exact
from latticebpd.drafters import LatticeDrafter, MaskLattices, Vanilla
from latticebpd.drafters.masks.mask_network import NonAutoregressiveModel, check_pair, load_verifier

MAX_NEW = 96
GAD_PLUS = ((3, 1.0), (5, 3.0))
"""Beta and tau."""
BEAM, GREEDY = "beam 5, generate()", "greedy, generate()"


def gad_drafter(model: Any, block: int) -> LatticeDrafter:
    return LatticeDrafter(MaskLattices(model, 1, block), Vanilla())


@dataclass
class Setting:
    """Models, and the test set in tokens and text."""

    verifier: Any
    drafter: NonAutoregressiveModel
    tokenizer: Tokenizer
    sources: list[list[int]]
    references: list[str]
    block_size: int
    clock: common.Clock

    def first(self, count: int | None) -> Setting:
        """The same with fewer sentences."""
        return replace(self, sources=self.sources[:count], references=self.references[:count])

    def bleu(self, rows: Sequence[Sequence[int]]) -> float:
        texts = [self.tokenizer.decode(list(row)).strip() for row in rows]
        return float(sacrebleu.corpus_bleu(texts, [self.references[: len(rows)]]).score)

    def decoded(self, system: System, rows: int = 25, sources: slice = slice(None)) -> Decoded:
        """Translations in batches."""
        return decode(self.verifier, self.sources[sources], system, MAX_NEW, rows, self.clock, trace=False)

    def gad(self, block: int | None = None, rule: Any = None) -> System:
        """Drafts of best tokens."""
        return partial(gad_drafter, self.drafter, block or self.block_size), rule or Exact()


def compared(setting: Setting, chosen: Mapping[str, System], rows: int) -> dict[str, Decoded]:
    """Every system on every batch, in turns."""
    found = {name: Decoded() for name in chosen}
    for system in chosen.values():
        setting.decoded(system, rows, slice(rows))  # warms up
    for first in range(0, len(setting.sources), rows):
        print(f"\rbatches of {rows}: {first} of {len(setting.sources)} sentences", end="", file=sys.stderr, flush=True)
        for name, system in chosen.items():
            found[name].add(setting.decoded(system, rows, slice(first, first + rows)))
    print("\r\033[K", end="", file=sys.stderr)
    return found


def check_exact(chosen: Mapping[str, System], found: Mapping[str, Decoded]) -> None:
    """ValueError where exact acceptance wrote another text than `generate()`."""
    for name, system in chosen.items():
        if not isinstance(system, dict) and isinstance(system[1], Exact) and found[name].rows != found[GREEDY].rows:
            different = sum(one != two for one, two in zip(found[name].rows, found[GREEDY].rows, strict=True))
            raise ValueError(f"{name}: expected generate()'s texts, got {different} others")


def read(arguments: argparse.Namespace, drafter: Path) -> Setting:
    verifier, model = load_verifier(arguments.verifier), NonAutoregressiveModel.from_pretrained(drafter)
    tokenizer = Tokenizer.from_file(str(arguments.verifier / "tokenizer.json"))
    check_pair(verifier, model, vocabulary_fingerprint(tokenizer.get_vocab()))
    lines = [line for path in arguments.pairs for line in common.read_lines(path)][: arguments.limit]
    sources = [encoded.ids for encoded in tokenizer.encode_batch([line[arguments.source] for line in lines])]
    references = [line[arguments.target] for line in lines]
    block, clock = min(arguments.block_size, model.block_size), common.Clock(arguments.clock, verifier.device)
    return Setting(verifier, model, tokenizer, sources, references, block, clock)
