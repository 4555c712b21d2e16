"""Systems side by side on the same lattices: every difference is paired.

All sums are integers, and resampling weights depend on the seed and the number of the text alone; so tallies of parts of
the data add up to the tally of the whole, exactly.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

import fst
from latticebpd.analysis.oracle import Walk, losses, ranks
from latticebpd.analysis.systems import ORACLE, VANILLA, Outcome, check_system, run_system
from latticebpd.lattice import PADDING, LatticeSet

RESAMPLES = 1000
UNIT = 256
"""Lattices that are resampled together where texts are not known: neighbours are alike."""


@dataclass(frozen=True)
class Comparison:
    """Sums over lattices for every system; the first is vanilla, the last the oracle.

    systems: names. counts: ``[systems, slots + 1]`` positions by accepted drafted tokens. nodes: ``[systems]`` verified tokens.
    outcomes: ``[systems, 3]`` positions where a system accepts more than vanilla, as many, fewer.
    mended: ``[systems, 2]`` positions whose vanilla draft repeats a token and the system's first draft does not, and the reverse.
    repeats: ``[systems, 3]`` equal neighbours in the first drafts, neighbours in all, sum of each draft's longest run.
    lost: ``[systems, 3]`` positions where the drafts end before the lattice does: at a slot that holds the right token (misranked,
        or cut by the budget of nodes), at one that lacks it, at the end of the text.
    walked: ``[systems, 3]`` tokens, calls, fewest calls of decodes; zero where texts are not known.
    resampled: ``[RESAMPLES, systems + 1]`` accepted drafted tokens of every system, and lattices, under Poisson weights.
    """

    systems: tuple[str, ...]
    counts: np.ndarray
    nodes: np.ndarray
    outcomes: np.ndarray
    mended: np.ndarray
    repeats: np.ndarray
    lost: np.ndarray
    walked: np.ndarray
    resampled: np.ndarray

    @property
    def num_lattices(self) -> int:
        return int(self.counts[0].sum())

    @property
    def block_efficiency(self) -> np.ndarray:
        """``[systems]`` tokens a call, by position."""
        efficiency: np.ndarray = self.counts @ np.arange(self.counts.shape[1]) / self.num_lattices + 1
        return efficiency

    @property
    def decoded_block_efficiency(self) -> np.ndarray:
        """``[systems]`` tokens a call of a decode; NaN where texts are not known."""
        calls = self.walked[:, 1]
        efficiency: np.ndarray = np.divide(self.walked[:, 0], calls, out=np.full(len(calls), np.nan), where=calls > 0)
        return efficiency

    @property
    def verified_tokens(self) -> np.ndarray:
        """``[systems]`` drafted tokens a call that the verifier sees."""
        verified: np.ndarray = self.nodes / self.num_lattices
        return verified

    @property
    def headroom_recovered(self) -> np.ndarray:
        """``[systems]`` (system - vanilla) / (oracle - vanilla); NaN where there is no headroom."""
        efficiency = self.block_efficiency
        headroom = efficiency[-1] - efficiency[0]
        return (efficiency - efficiency[0]) / headroom if headroom > 0 else np.full(len(efficiency), np.nan)

    def gain_interval(self, level: float = 0.95) -> np.ndarray:
        """``[systems, 2]`` bootstrap interval of the gain in block efficiency over vanilla: texts drawn anew, systems paired."""
        drawn = self.resampled[self.resampled[:, -1] > 0]
        if not len(drawn):
            return np.full((len(self.systems), 2), np.nan)
        gains = (drawn[:, :-1] - drawn[:, :1]) / drawn[:, -1:]
        interval: np.ndarray = np.quantile(gains, [(1 - level) / 2, (1 + level) / 2], axis=0).T
        return interval


def compare(
    blocks: Iterable[LatticeSet], systems: Sequence[str], lm: fst.NgramModel | None = None, alpha: float = 1.0, seed: int = 0
) -> Comparison:
    """Run systems over lattices of one shape in one pass; vanilla and the oracle are added where they are not named.

    Raises:
        ValueError: a name that is no system's, no lattice at all, or lattices of several shapes.
    """
    for name in systems:
        check_system(name)
    names = (VANILLA, *dict.fromkeys(name for name in systems if name not in (VANILLA, ORACLE)), ORACLE)
    result: Comparison | None = None
    walk: Walk | None = None
    seen = 0
    for block in blocks:
        slots = block.tokens.shape[1]
        if result is None:
            size = len(names)
            shapes = ((size, slots + 1), (size,), (size, 3), (size, 2), (size, 3), (size, 3), (size, 3), (RESAMPLES, size + 1))
            result = Comparison(names, *(np.zeros(shape, np.int64) for shape in shapes))
            walk = Walk(result.walked)
        if slots != result.counts.shape[1] - 1:
            raise ValueError(f"expected lattices of {result.counts.shape[1] - 1} slots, as the first, got {slots}")
        outcomes = [run_system(name, block, lm, alpha) for name in names]
        _add(result, block, outcomes)
        lengths = np.stack([outcome.lengths for outcome in outcomes], axis=1)
        units = block.sequence if block.sequence is not None else (seen + np.arange(len(block))) // UNIT
        _resample(result.resampled, units, lengths, seed)
        if block.sequence is not None and walk is not None:
            walk.go_on(block.sequence, lengths)
        seen += len(block)
    if result is None:
        raise ValueError("expected at least one lattice, got files without any")
    return result


def _add(result: Comparison, block: LatticeSet, outcomes: Sequence[Outcome]) -> None:
    vanilla, place = outcomes[0], ranks(block)
    looped = _repeats(vanilla.first)[0] > 0
    for row, outcome in enumerate(outcomes):
        result.counts[row] += np.bincount(outcome.lengths, minlength=result.counts.shape[1])
        result.nodes[row] += outcome.nodes.sum()
        better = np.sign(outcome.lengths - vanilla.lengths)
        result.outcomes[row] += [(better > 0).sum(), (better == 0).sum(), (better < 0).sum()]
        equal, neighbours, longest = _repeats(outcome.first)
        result.mended[row] += [(looped & (equal == 0)).sum(), (~looped & (equal > 0)).sum()]
        result.repeats[row] += [equal.sum(), neighbours.sum(), longest.sum()]
        result.lost[row] += np.bincount(losses(block, place, outcome.lengths)[1], minlength=3)


def _repeats(drafts: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Of every draft ``[n, slots]``: equal neighbours, neighbours in all, tokens of the longest run (Kim 2024, table 3)."""
    there = drafts != PADDING
    equal = (drafts[:, 1:] == drafts[:, :-1]) & there[:, 1:]
    run = longest = there[:, 0].astype(np.int64)
    for slot in range(equal.shape[1]):
        run = np.where(equal[:, slot], run + 1, there[:, slot + 1].astype(np.int64))
        longest = np.maximum(longest, run)
    return equal.sum(axis=1), there[:, 1:].sum(axis=1), longest


def _resample(resampled: np.ndarray, units: np.ndarray, lengths: np.ndarray, seed: int) -> None:
    """A text's lattices are drawn together, Poisson(1) times: the bootstrap of streams."""
    for unit in np.unique(units).tolist():
        own = lengths[units == unit]
        weights = np.random.default_rng((seed, unit)).poisson(1, len(resampled))
        resampled += weights[:, None] * np.append(own.sum(axis=0), len(own))
