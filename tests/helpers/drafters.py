"""The drafters that tests hold to ``generate()``, and one that does what a test says."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from fst import FEATURES
from latticebpd import (
    Drafter,
    DraftTree,
    LatticeDrafter,
    MixtureDrafter,
    NoDrafter,
    PathsDrafter,
    PromptNgramDrafter,
    ReferenceDrafter,
    State,
    TreeDrafter,
    VanillaDrafter,
)
from latticebpd.drafters import HeadLattices, MaskLattices, SavedTopK, drafter_named
from latticebpd.drafters.lattice_drafter import OracleDrafter
from latticebpd.drafters.strategies import BestTree, Vanilla
from latticebpd.scoring.calibrated import CalibratedScorer
from latticebpd.scoring.calibration import Calibration
from latticebpd.scoring.ngram import NgramScorer
from tests.helpers.trigrams import trigram

LM = trigram()
_DRAWN = tuple(map(tuple, np.random.default_rng(1).normal(0, 1, (3, len(FEATURES))).tolist()))
WEIGHTS = Calibration(_DRAWN, "text", (), 0, "sha256:00", 5, further=True)
"""Of no use, but of every feature."""

DRAFTERS: dict[str, Callable[[Any, list[list[int]]], Drafter]] = {
    "none": lambda heads, texts: NoDrafter(),
    "vanilla": lambda heads, texts: VanillaDrafter(heads),
    "paths, no language model": lambda heads, texts: PathsDrafter(heads, None, p=4, k=3),
    "paths": lambda heads, texts: PathsDrafter(heads, LM, p=4, alpha=0.7, k=3),
    "tree": lambda heads, texts: TreeDrafter(heads, LM, num_nodes=20, k=5),
    "calibrated tree": lambda heads, texts: LatticeDrafter(
        HeadLattices(heads, 5), BestTree(CalibratedScorer(NgramScorer(LM), WEIGHTS), 20)
    ),
    "oracle": lambda heads, texts: oracle_drafter(heads, texts, k=6),
    "all right": lambda heads, texts: ReferenceDrafter(texts, 4),
    "copies": lambda heads, texts: PromptNgramDrafter(block_size=5, num_nodes=8),
    "copies and tree": lambda heads, texts: MixtureDrafter(
        PromptNgramDrafter(), TreeDrafter(heads, LM, num_nodes=12, k=4), num_nodes=12
    ),
}
"""Prediction heads and every row's right text -> a drafter, of 23 tokens. A line here and the losslessness tests run
it."""


def gad_drafter(model: Any, block_size: int | None = None) -> LatticeDrafter:
    """The best token of every mask (Xia 2022)."""
    return LatticeDrafter(MaskLattices(model, 1, block_size), Vanilla())


def gad_paths_drafter(model: Any, lm: Any, p: int = 16, alpha: float | None = None, k: int = 16) -> Drafter:
    return drafter_named(f"{p}-best", MaskLattices(model, k), lm, alpha)


def gad_tree_drafter(model: Any, lm: Any, num_nodes: int = 64, alpha: float | None = None, k: int = 16) -> Drafter:
    return drafter_named(f"{num_nodes}-tree", MaskLattices(model, k), lm, alpha)


def oracle_drafter(heads: Any, continuations: Any, k: int = 16) -> OracleDrafter:
    """The best path of the heads' lattices in hindsight."""
    return OracleDrafter(HeadLattices(heads, k), continuations)


def saved_tree_drafter(lattices: Any, lm: Any = None, num_nodes: int = 64, alpha: float | None = None) -> Any:
    return drafter_named(f"{num_nodes}-tree", SavedTopK(lattices), lm, alpha)


class ScriptedDrafter:
    """Drafts whatever ``script(state)`` says and remembers what it observed."""

    def __init__(self, script: Callable[[State], DraftTree]) -> None:
        self.script = script
        self.observed: list[int] = []

    def propose(self, states: Sequence[State]) -> list[DraftTree]:
        return [self.script(state) for state in states]

    def observe(self, rows: Sequence[int], tokens: Sequence[Sequence[int]]) -> None:
        for row in tokens:
            self.observed += row
