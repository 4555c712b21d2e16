"""The weight of a language model, swept (Kim 2024, appendix E, table 8)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from latticebpd.drafters.system_names import strategy_named
from latticebpd.lattices.lattice_set import LatticeSet
from latticebpd.measuring.comparison import describe
from latticebpd.measuring.lattice_files import first_and_all
from latticebpd.measuring.mergeable_counts import block_efficiency
from latticebpd.measuring.replay import DecodeReplay
from latticebpd.measuring.signature import Signature
from latticebpd.measuring.systems import outcome
from latticebpd.scoring.rescoring import LanguageModel
from latticebpd.scoring.weights import DECODE, POSITION

ALPHAS = (0.1, 0.5, 0.75, 0.9, 1.0, 1.1, 1.5, 2.0, 5.0, 10.0)
"""The paper's grid."""


@dataclass(frozen=True, eq=False)
class AlphaSweep:
    """One system at several weights, on the same lattices.

    alphas: rising. counts: ``[alphas, slots + 1]`` positions by accepted drafted tokens.
    walked: ``[alphas, 3]`` tokens, calls, fewest calls of decodes; zero where texts are not known.
    """

    system: str
    alphas: tuple[float, ...]
    counts: np.ndarray
    walked: np.ndarray
    signature: Signature

    @property
    def by(self) -> str:
        """``decode``, or ``position`` where texts are not known."""
        return DECODE if self.walked[0, 1] else POSITION

    @property
    def block_efficiency(self) -> np.ndarray:
        """``[alphas]`` tokens per call of decodes, or by position where texts are not known."""
        return block_efficiency(self.by, self.counts, self.walked)

    @property
    def best(self) -> float:
        """The weight of the greatest block efficiency; of equal ones the smallest."""
        return self.alphas[int(np.argmax(self.block_efficiency))]

    def __add__(self, other: AlphaSweep) -> AlphaSweep:
        """The weights of both, on the same lattices."""
        alphas = (*self.alphas, *other.alphas)
        order = np.argsort(alphas, kind="stable")
        counts = np.concatenate([self.counts, other.counts])[order]
        walked = np.concatenate([self.walked, other.walked])[order]
        return replace(self, alphas=tuple(sorted(alphas)), counts=counts, walked=walked)


def sweep_alpha(
    blocks: Iterable[LatticeSet],
    system: str,
    lm: LanguageModel,
    alphas: Sequence[float] = ALPHAS,
    threads: int | None = None,
) -> AlphaSweep:
    """Run a system at every weight, in one pass over the lattices.

    Args:
        blocks: lattices to leave out of results at the best weight.
        system: as ``latticebpd.drafters.system_names`` has it.
        lm: its language model.
        alphas: weights to try, each >= 0.

    Raises:
        ValueError: no weight, a negative one, or no lattice.
    """
    if not alphas or not min(alphas) >= 0:
        raise ValueError(f"expected weights >= 0, got {list(alphas)}")
    alphas = sorted(set(alphas))
    strategies = [strategy_named(system, lm, alpha) for alpha in alphas]
    first, blocks = first_and_all(block for block in blocks if len(block))
    signature = Signature.of(first, lm=describe(lm), alpha=",".join(f"{alpha:g}" for alpha in alphas))
    slots = first.tokens.shape[1]
    counts, walked = np.zeros((len(alphas), slots + 1), np.int64), np.zeros((len(alphas), 3), np.int64)
    replay = DecodeReplay(walked)
    for block in blocks:
        signature.check(block)
        lengths = np.stack([outcome(strategy, block, threads).lengths for strategy in strategies], axis=1)
        for row in range(len(alphas)):
            counts[row] += np.bincount(lengths[:, row], minlength=slots + 1)
        if block.sequence is not None:
            replay.add(block.sequence, lengths)
    return AlphaSweep(system, tuple(alphas), counts, walked, signature)
