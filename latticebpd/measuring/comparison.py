"""Systems side by side on the same lattices: every difference is paired.

Counted are *steps*: by decode the calls of each system's own decode of each text ("decode time steps", Kim 2024,
section 6.1), by position all positions. At each step a system wins against the vanilla draft of the same lattice, ties
with it or loses to it (table 5).

All sums are integers, and resampling weights depend only on the seed and the number of the text. Counts of parts of the
data therefore add up exactly to the counts of all of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from latticebpd.drafters.strategies import BestTree, NBestPaths, Strategy
from latticebpd.drafters.system_names import NO_MODEL, ORACLE, VANILLA, Models, strategy_named
from latticebpd.lattices.lattice_set import LatticeSet
from latticebpd.lattices.sausage import PADDING
from latticebpd.measuring.lattice_files import Shard, first_and_all
from latticebpd.measuring.mergeable_counts import MergeableCounts, block_efficiency, ratio
from latticebpd.measuring.oracle_tally import losses, ranks
from latticebpd.measuring.replay import DecodeReplay, Outcome, outcome
from latticebpd.measuring.signature import Signature, counted_by
from latticebpd.scoring.ngram import NgramScorer
from latticebpd.scoring.rescoring import LanguageModel, as_scorer
from latticebpd.scoring.weights import DECODE

RESAMPLES = 1000


@dataclass(frozen=True, eq=False)
class Comparison(MergeableCounts):
    """Sums over steps for every system; the first is vanilla, the last the oracle.

    systems: names. counts: ``[systems, slots + 1]`` steps by accepted drafted tokens.
    nodes: ``[systems]`` verified tokens.
    outcomes: ``[systems, 3]`` steps where a system accepts more than vanilla, as many, fewer.
    repetition_changes: ``[systems, 3, 2]`` of these, steps whose vanilla draft repeats a token and whose first draft
        does not, and the reverse.
    repeats: ``[systems, 3]`` equal neighbours in the first drafts, all neighbours, sum of each draft's longest run. As
        in the paper, a draft begins with head 1's token: the last of the context.
    lost: ``[systems, 4]`` steps where the drafts end before the lattice does, by cause: see ``oracle_tally.losses``.
    decode_totals: ``[systems, 3]`` tokens, calls, fewest calls of decodes; texts: ``[1]`` number of them; zero by
        position.
    resampled: ``[RESAMPLES, systems, 2]`` tokens and steps over texts resampled with Poisson weights.
    """

    KIND: ClassVar[str] = "comparison"
    COMMAND: ClassVar[str] = "latticebpd compare"

    systems: tuple[str, ...]
    counts: np.ndarray
    nodes: np.ndarray
    outcomes: np.ndarray
    repetition_changes: np.ndarray
    repeats: np.ndarray
    lost: np.ndarray
    decode_totals: np.ndarray
    texts: np.ndarray
    resampled: np.ndarray

    @classmethod
    def shapes(cls, keys: Mapping[str, tuple[Any, ...]], slots: int) -> dict[str, tuple[int, ...]]:
        size = len(keys["systems"])
        return {
            "counts": (size, slots + 1), "nodes": (size,), "outcomes": (size, 3), "repetition_changes": (size, 3, 2),
            "repeats": (size, 3), "lost": (size, 4), "decode_totals": (size, 3), "texts": (1,),
            "resampled": (RESAMPLES, size, 2),
        }  # fmt: skip

    @property
    def num_lattices(self) -> int:
        return int(self.decode_totals[0, 0] if self.signature.by == DECODE else self.counts[0].sum())

    @property
    def steps(self) -> np.ndarray:
        """``[systems]`` calls of a decode, or positions."""
        return self.counts.sum(axis=1)

    @property
    def block_efficiency(self) -> np.ndarray:
        """``[systems]`` tokens per call of a decode; by position accepted drafted tokens, and the free one."""
        return block_efficiency(self.signature.by, self.counts, self.decode_totals)

    @property
    def block_efficiency_with_prefill(self) -> np.ndarray:
        """``[systems]`` the same with each text's prefill as a call, and the token that it yields; NaN by position."""
        tokens, calls = self.decode_totals[:, 0], self.decode_totals[:, 1]
        return ratio(tokens + self.texts, (calls + self.texts) * (calls > 0))

    @property
    def verified_tokens(self) -> np.ndarray:
        """``[systems]`` verified tokens per step."""
        return ratio(self.nodes, self.steps)

    @property
    def headroom_recovered(self) -> np.ndarray:
        """``[systems]`` (system - vanilla) / (oracle - vanilla); NaN where there is no headroom.

        It can exceed 1: the oracle takes the longest prefix at every call, which need not give the fewest calls.
        """
        efficiency = self.block_efficiency
        return ratio(efficiency - efficiency[0], efficiency[-1] - efficiency[0])

    @property
    def consecutive_repeats(self) -> np.ndarray:
        """``[systems]`` equal neighbours in the first drafts, % of all ("% Consec"); 0 for drafts of one token."""
        return ratio(100 * self.repeats[:, 0], self.repeats[:, 1].clip(min=1))

    @property
    def longest_run(self) -> np.ndarray:
        """``[systems]`` mean over first drafts of the longest run of one token ("Max run")."""
        return ratio(self.repeats[:, 2], self.steps)

    @property
    def outcome_share(self) -> np.ndarray:
        """``[systems, 3]`` wins, ties and losses against vanilla, % of steps."""
        return ratio(100 * self.outcomes, self.steps[:, None])

    @property
    def lost_share(self) -> np.ndarray:
        """``[systems, 4]`` where drafts end, by cause, % of steps."""
        return ratio(100 * self.lost, self.steps[:, None])

    def repetition_shares(self, outcome: int) -> np.ndarray:
        """``[systems, 2]`` % of wins (outcome 0), ties (1) or losses (2) that repair a repetition, or make one."""
        return ratio(100 * self.repetition_changes[:, outcome], self.outcomes[:, outcome, None])

    def gain_interval(self, level: float = 0.95) -> np.ndarray:
        """``[systems, 2]`` paired bootstrap interval over texts of the gain in block efficiency over vanilla.

        NaN where only one unit (a text, or a file's lattices if texts are not numbered) was resampled."""
        drawn = self.resampled[(self.resampled[:, :, 1] > 0).all(axis=1)]
        efficiency = drawn[:, :, 0] / drawn[:, :, 1]
        if (efficiency == efficiency[:1]).all():
            return np.full((len(self.systems), 2), np.nan)
        return np.quantile(efficiency - efficiency[:, :1], [(1 - level) / 2, (1 + level) / 2], axis=0).T


def compare(
    blocks: Iterable[LatticeSet],
    systems: Sequence[str],
    lm: Models = None,
    alpha: float | None = None,
    seed: int = 0,
    threads: int | None = None,
    by: str | None = None,
    shard: Shard | None = None,
) -> Comparison:
    """Run systems over lattices of one shape in one pass; vanilla and the oracle are added where they are not named.

    systems: names, see ``latticebpd.drafters.system_names``. alpha: the weight of all language models; None takes each
    system's stored weight, and 1 where there is none. seed: of the intervals. threads: they do not change the result.
    by: as for `counted_by`. shard: count this part only. Raises ValueError for an unknown system, no lattice, several
    shapes or origins, or missing texts.
    """
    names = (VANILLA, *dict.fromkeys(name for name in systems if name not in (VANILLA, ORACLE)), ORACLE)
    strategies = [strategy_named(name, lm, alpha) for name in names]
    (first, _), parts = first_and_all((shard or Shard()).units(blocks))
    settings = {"lm": _description(lm), "alpha": _weights(strategies), "seed": seed}
    signature = Signature.of(first, by=counted_by(by, first), **settings)
    result = Comparison.zero(signature, shard, systems=names)
    replay = DecodeReplay(result.decode_totals)
    for block, numbers in parts:
        signature.check(block)
        outcomes = [outcome(strategy, block, threads) for strategy in strategies]
        stepped, tokens = replay.steps(signature.by, block, np.stack([each.lengths for each in outcomes], axis=1))
        result.texts[0] = replay.texts
        _add(result, block, outcomes, stepped)
        counted = np.stack([tokens, stepped], axis=2)
        for unit in np.unique(numbers).tolist():  # each text Poisson(1) times: the bootstrap of streams
            times = np.random.default_rng((seed, unit)).poisson(1, len(result.resampled))
            result.resampled[:] += times[:, None, None] * counted[numbers == unit].sum(axis=0)
    return result


def _description(lm: Models) -> str | None:
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
    scorers = [strategy.scorer for strategy in strategies if isinstance(strategy, NBestPaths | BestTree)]
    weighted = [scorer for scorer in scorers if not (isinstance(scorer, NgramScorer) and scorer.lm is None)]
    return ",".join(dict.fromkeys(f"{scorer.alpha:g}" for scorer in weighted)) or None


def _add(result: Comparison, block: LatticeSet, outcomes: Sequence[Outcome], stepped: np.ndarray) -> None:
    """stepped: ``[n, systems]`` whether a system makes a step at a lattice."""
    vanilla, rank = outcomes[0], ranks(block)
    head_1 = block.context[:, -1:]
    looped = _repeats(np.hstack([head_1, vanilla.first]))[0] > 0
    for row, (system, here) in enumerate(zip(outcomes, stepped.T, strict=True)):
        result.counts[row] += np.bincount(system.lengths[here], minlength=result.counts.shape[1])
        result.nodes[row] += system.nodes[here].sum()
        equal, neighbours, longest = _repeats(np.hstack([head_1, system.first]))
        repaired, regressed = looped & (equal == 0), ~looped & (equal > 0)
        better = np.sign(system.lengths - vanilla.lengths)
        for column, alike in enumerate((better > 0, better == 0, better < 0)):
            result.outcomes[row, column] += (here & alike).sum()
            result.repetition_changes[row, column] += [
                (here & alike & repaired).sum(),
                (here & alike & regressed).sum(),
            ]
        result.repeats[row] += [equal[here].sum(), neighbours[here].sum(), longest[here].sum()]
        rows, _, causes = losses(block, rank, system.lengths, system.cut)
        result.lost[row] += np.bincount(causes[here[rows]], minlength=result.lost.shape[1])


def _repeats(drafts: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """``[n]`` each of drafts ``[n, tokens]``: equal neighbours, neighbours, longest run (Kim 2024, table 3)."""
    is_token = drafts != PADDING
    equal = (drafts[:, 1:] == drafts[:, :-1]) & is_token[:, 1:]
    run = longest = is_token[:, 0].astype(np.int64)
    for slot in range(equal.shape[1]):
        run = np.where(equal[:, slot], run + 1, is_token[:, slot + 1].astype(np.int64))
        longest = np.maximum(longest, run)
    return equal.sum(axis=1), (is_token[:, 1:] & is_token[:, :-1]).sum(axis=1), longest
