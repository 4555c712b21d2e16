"""Systems side by side on the same lattices: every difference is paired.

All sums are integers, and resampling weights depend on the seed and the number of the text alone; so tallies of parts of
the data add up to the tally of the whole, exactly.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from latticebpd.analysis.oracle import Walk, losses, ranks
from latticebpd.analysis.signature import Signature
from latticebpd.analysis.systems import Outcome, outcome
from latticebpd.drafting.names import NO_MODEL, ORACLE, VANILLA, Models, strategy_named
from latticebpd.drafting.strategies import Best, Strategy, Tree
from latticebpd.lattices.lattice_set import LatticeSet
from latticebpd.lattices.sausage import PADDING
from latticebpd.scoring.ngram import NgramScorer
from latticebpd.scoring.rescoring import LanguageModel, as_scorer

RESAMPLES = 1000
UNIT = 256
"""Lattices that are resampled together where texts are not known: neighbours are alike."""


@dataclass(frozen=True, eq=False)
class Comparison:
    """Sums over lattices for every system; the first is vanilla, the last the oracle.

    systems: names. counts: ``[systems, slots + 1]`` positions by accepted drafted tokens. nodes: ``[systems]`` verified tokens.
    outcomes: ``[systems, 3]`` positions where a system accepts more than vanilla, as many, fewer.
    mended: ``[systems, 3, 2]`` of the positions in ``outcomes``, those whose vanilla draft repeats a token and the system's first
        draft does not, and the reverse.
    repeats: ``[systems, 3]`` equal neighbours in the first drafts, neighbours in all, sum of each draft's longest run. As in the
        paper, a draft begins with head 1's token: the last of the context.
    lost: ``[systems, 3]`` positions where the drafts end before the lattice does: at a slot that holds the right token (misranked,
        or cut by the budget of nodes), at one that lacks it, at the end of the text.
    walked: ``[systems, 3]`` tokens, calls, fewest calls of decodes; zero where texts are not known.
    resampled: ``[RESAMPLES, systems + 1]`` accepted drafted tokens of every system, and lattices, under Poisson weights.
    signature: what the numbers depend on.
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
    signature: Signature

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
        """``[systems]`` (system - vanilla) / (oracle - vanilla), by position; NaN where there is no headroom."""
        return _recovered(self.block_efficiency)

    @property
    def decoded_headroom_recovered(self) -> np.ndarray:
        """``[systems]`` the same of decodes; above 1 where a system happens to need fewer calls than the oracle."""
        return _recovered(self.decoded_block_efficiency)

    @property
    def consecutive_repeats(self) -> np.ndarray:
        """``[systems]`` equal neighbours in the first drafts, % of all neighbours ("% Consec"); 0 where drafts have no neighbours."""
        share: np.ndarray = 100 * self.repeats[:, 0] / self.repeats[:, 1].clip(min=1)
        return share

    @property
    def longest_run(self) -> np.ndarray:
        """``[systems]`` mean over first drafts of the longest run of one token ("Max run")."""
        run: np.ndarray = self.repeats[:, 2] / self.num_lattices
        return run

    def mended_share(self, outcome: int) -> np.ndarray:
        """``[systems, 2]`` % of a system's wins (outcome 0), ties (1) or losses (2) that repair a repetition, and that make one."""
        total = self.outcomes[:, outcome, None]
        share: np.ndarray = np.divide(100.0 * self.mended[:, outcome], total, out=np.full((len(self.systems), 2), np.nan), where=total > 0)
        return share

    def gain_interval(self, level: float = 0.95) -> np.ndarray:
        """``[systems, 2]`` bootstrap interval of the gain in block efficiency over vanilla: texts drawn anew, systems paired."""
        drawn = self.resampled[self.resampled[:, -1] > 0]
        if not len(drawn):
            return np.full((len(self.systems), 2), np.nan)
        gains = (drawn[:, :-1] - drawn[:, :1]) / drawn[:, -1:]
        interval: np.ndarray = np.quantile(gains, [(1 - level) / 2, (1 + level) / 2], axis=0).T
        return interval


def _recovered(efficiency: np.ndarray) -> np.ndarray:
    headroom = efficiency[-1] - efficiency[0]
    return (efficiency - efficiency[0]) / headroom if headroom > 0 else np.full(len(efficiency), np.nan)


def compare(
    blocks: Iterable[LatticeSet],
    systems: Sequence[str],
    lm: Models = None,
    alpha: float | None = None,
    seed: int = 0,
    threads: int | None = None,
) -> Comparison:
    """Run systems over lattices of one shape in one pass; vanilla and the oracle are added where they are not named.

    Args:
        blocks: as ``latticebpd.analysis.stream.blocks`` yields them.
        systems: names, see ``latticebpd.drafting.names``.
        lm: language model, or several by name.
        alpha: the weight of all of them; None takes for each system what is stored with its model, and 1 where nothing is.
        seed: of the intervals.
        threads: of the searches; the result does not depend on it.

    Raises:
        ValueError: a name that is no system's, no lattice at all, or lattices of several shapes or origins.
    """
    names = (VANILLA, *dict.fromkeys(name for name in systems if name not in (VANILLA, ORACLE)), ORACLE)
    strategies = [strategy_named(name, lm, alpha) for name in names]
    result: Comparison | None = None
    walk: Walk | None = None
    seen = 0
    for block in blocks:
        if not len(block):
            continue
        if result is None:
            size, slots = len(names), block.tokens.shape[1]
            shapes = {
                "counts": (size, slots + 1), "nodes": (size,), "outcomes": (size, 3), "mended": (size, 3, 2), "repeats": (size, 3),
                "lost": (size, 3), "walked": (size, 3), "resampled": (RESAMPLES, size + 1),
            }  # fmt: skip
            arrays: dict[str, Any] = {name: np.zeros(shape, np.int64) for name, shape in shapes.items()}
            result = Comparison(names, **arrays, signature=Signature.of(block, lm=_described(lm), alpha=_weights(strategies), seed=seed))
            walk = Walk(result.walked)
        result.signature.check(block)
        outcomes = [outcome(strategy, block, threads) for strategy in strategies]
        _add(result, block, outcomes)
        lengths = np.stack([found.lengths for found in outcomes], axis=1)
        units = block.sequence if block.sequence is not None else (seen + np.arange(len(block))) // UNIT
        _resample(result.resampled, units, lengths, seed)
        if block.sequence is not None and walk is not None:
            walk.go_on(block.sequence, lengths)
        seen += len(block)
    if result is None:
        raise ValueError("expected at least one lattice, got files without any")
    return result


def _described(lm: Models) -> str | None:
    """Language models in words."""
    models = lm if isinstance(lm, Mapping) else {"": lm}
    words = [f"{name} {describe(model)}".strip() for name, model in models.items() if model is not None]
    return ", ".join(words) or None


def describe(lm: LanguageModel) -> str:
    """A language model in words."""
    scorer = as_scorer(lm)
    if not isinstance(scorer, NgramScorer):
        return type(scorer).__name__
    return NO_MODEL if scorer.lm is None else f"{scorer.lm.order}-gram of {sum(scorer.lm.num_ngrams)} n-grams"


def _weights(strategies: Sequence[Strategy]) -> str | None:
    scorers = [strategy.scorer for strategy in strategies if isinstance(strategy, Best | Tree)]
    found = dict.fromkeys(f"{scorer.alpha:g}" for scorer in scorers if not (isinstance(scorer, NgramScorer) and scorer.lm is None))
    return ",".join(found) or None


def _add(result: Comparison, block: LatticeSet, outcomes: Sequence[Outcome]) -> None:
    vanilla, place = outcomes[0], ranks(block)
    head_1 = block.context[:, -1:]
    looped = _repeats(np.hstack([head_1, vanilla.first]))[0] > 0
    for row, found in enumerate(outcomes):
        result.counts[row] += np.bincount(found.lengths, minlength=result.counts.shape[1])
        result.nodes[row] += found.nodes.sum()
        equal, neighbours, longest = _repeats(np.hstack([head_1, found.first]))
        repaired, regressed = looped & (equal == 0), ~looped & (equal > 0)
        better = np.sign(found.lengths - vanilla.lengths)
        for column, here in enumerate((better > 0, better == 0, better < 0)):
            result.outcomes[row, column] += here.sum()
            result.mended[row, column] += [(here & repaired).sum(), (here & regressed).sum()]
        result.repeats[row] += [equal.sum(), neighbours.sum(), longest.sum()]
        result.lost[row] += np.bincount(losses(block, place, found.lengths)[1], minlength=3)


def _repeats(drafts: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Of every draft ``[n, tokens]``: equal neighbours, neighbours in all, tokens of the longest run (Kim 2024, table 3)."""
    there = drafts != PADDING
    equal = (drafts[:, 1:] == drafts[:, :-1]) & there[:, 1:]
    run = longest = there[:, 0].astype(np.int64)
    for slot in range(equal.shape[1]):
        run = np.where(equal[:, slot], run + 1, there[:, slot + 1].astype(np.int64))
        longest = np.maximum(longest, run)
    return equal.sum(axis=1), (there[:, 1:] & there[:, :-1]).sum(axis=1), longest


def _resample(resampled: np.ndarray, units: np.ndarray, lengths: np.ndarray, seed: int) -> None:
    """A text's lattices are drawn together, Poisson(1) times: the bootstrap of streams."""
    for unit in np.unique(units).tolist():
        own = lengths[units == unit]
        weights = np.random.default_rng((seed, unit)).poisson(1, len(resampled))
        resampled += weights[:, None] * np.append(own.sum(axis=0), len(own))
