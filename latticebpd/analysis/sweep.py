"""The weight of a language model, swept (Kim 2024, appendix E, table 8)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from latticebpd.analysis.comparison import describe
from latticebpd.analysis.signature import Signature
from latticebpd.analysis.systems import System
from latticebpd.lattices.lattice_set import LatticeSet
from latticebpd.scoring.rescoring import LanguageModel

ALPHAS = (0.1, 0.5, 0.75, 0.9, 1.0, 1.1, 1.5, 2.0, 5.0, 10.0)
"""The paper's grid."""


@dataclass(frozen=True, eq=False)
class AlphaSweep:
    """One system at several weights, on the same lattices.

    counts: ``[alphas, slots + 1]`` positions by accepted drafted tokens.
    """

    system: str
    alphas: tuple[float, ...]
    counts: np.ndarray
    signature: Signature

    @property
    def block_efficiency(self) -> np.ndarray:
        """``[alphas]`` tokens a call, by position."""
        efficiency: np.ndarray = self.counts @ np.arange(self.counts.shape[1]) / self.counts.sum(axis=1) + 1
        return efficiency

    @property
    def best(self) -> float:
        """The weight of the greatest block efficiency; of equal ones the smallest."""
        lengths = self.counts @ np.arange(self.counts.shape[1])
        return min(alpha for alpha, length in zip(self.alphas, lengths.tolist(), strict=True) if length == lengths.max())


def sweep_alpha(
    blocks: Iterable[LatticeSet],
    system: str,
    lm: LanguageModel,
    alphas: Sequence[float] = ALPHAS,
    threads: int | None = None,
) -> AlphaSweep:
    """Run a system at every weight, in one pass over the lattices.

    Args:
        blocks: lattices that no result is to be reported on afterwards, if the best weight is to be used.
        system: as ``latticebpd.analysis.systems`` names them.
        lm: its language model.
        alphas: weights to try, each >= 0.

    Raises:
        ValueError: no weight, a negative one, or no lattice.
    """
    if not alphas or not min(alphas) >= 0:
        raise ValueError(f"expected weights >= 0, got {list(alphas)}")
    systems = [System.named(system, lm, alpha) for alpha in alphas]
    signature: Signature | None = None
    counts: np.ndarray = np.empty(0)
    for block in blocks:
        if not len(block):
            continue
        slots = block.tokens.shape[1]
        if signature is None:
            signature = Signature.of(block, lm=describe(lm), alpha=",".join(f"{alpha:g}" for alpha in alphas))
            counts = np.zeros((len(alphas), slots + 1), np.int64)
        signature.check(block)
        for row, variant in enumerate(systems):
            counts[row] += np.bincount(variant.run(block, threads).lengths, minlength=slots + 1)
    if signature is None:
        raise ValueError("expected at least one lattice, got files without any")
    return AlphaSweep(system, tuple(alphas), counts, signature)
