"""Scoring with a ``kenlm.Model`` (optional extra): exact, through KenLM's own scorer.

KenLM's Python module answers one query at a time, so this is for models that exist only as KenLM binaries.  Where
there is an ARPA file, ``fst.NgramModel`` gives the same scores from compiled code.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from fst.lattices import START, followers
from latticebpd.lattices.drafts import ROOT, Drafts, DraftTree
from latticebpd.lattices.sausage import SausageLattice
from latticebpd.scoring.scorer import Context, checked_count, listed
from latticebpd.scoring.weights import checked_alpha

if TYPE_CHECKING:
    import kenlm

LN_10 = math.log(10.0)


@dataclass(frozen=True, eq=False)
class KenlmScorer:
    """Ranks a lattice's paths with KenLM.

    Args:
        model: a loaded ``kenlm.Model``, of any of KenLM's formats.
        words: the model's word for each token id; by default the id in decimal digits.  An id without a word counts
            as ``<unk>``.
        alpha: its weight.
    """

    model: kenlm.Model
    words: Mapping[int, str] | Sequence[str] | None = None
    alpha: float = 1.0

    def __post_init__(self) -> None:
        checked_alpha(self.alpha)

    def with_alpha(self, alpha: float) -> KenlmScorer:
        return replace(self, alpha=alpha)

    def word(self, token: int) -> str:
        """The model's word for a token id."""
        if self.words is None:
            return str(token)
        try:
            return self.words[token]
        except (KeyError, IndexError):
            return "<unk>"

    def step(self, state: Any, token: int) -> tuple[Any, float]:
        """The next state, and the natural log p(token | state)."""
        import kenlm

        following = kenlm.State()
        return following, self.model.BaseScore(state, self.word(token), following) * LN_10

    def state_after(self, context: Sequence[int]) -> Any:
        """The state of a history without an implied ``<s>``; only its last ``order - 1`` tokens matter."""
        import kenlm

        state = kenlm.State()
        self.model.NullContextWrite(state)
        for token in context[-(self.model.order - 1) :] if self.model.order > 1 else ():
            state, _ = self.step(state, token)
        return state

    def paths(self, lattices: Sequence[SausageLattice], contexts: Sequence[Context], p: int) -> list[Drafts]:
        checked_count("p", p)
        return [self._paths(lattice, listed(context), p) for lattice, context in zip(lattices, contexts, strict=True)]

    def trees(self, lattices: Sequence[SausageLattice], contexts: Sequence[Context], num_nodes: int) -> list[DraftTree]:
        checked_count("num_nodes", num_nodes)
        return [
            self._tree(lattice, listed(context), num_nodes) for lattice, context in zip(lattices, contexts, strict=True)
        ]

    def _paths(self, lattice: SausageLattice, context: list[int], p: int) -> Drafts:
        """Exact p-best: slot by slot, the ``p`` best prefixes of every KenLM state and column, which decide all that
        follows."""
        arcs = followers(lattice.tokens, lattice.log_probs, lattice.transitions)
        beams: dict[tuple[Any, int], list[tuple[float, tuple[int, ...]]]] = {
            (self.state_after(context), START): [(0.0, ())]
        }
        for slot in range(lattice.slots):
            longer: dict[tuple[Any, int], list[tuple[float, tuple[int, ...]]]] = {}
            for (state, before), prefixes in beams.items():
                for token, log_prob, column in arcs(slot, before):
                    following, lm_log_prob = self.step(state, token)
                    gain = log_prob + self.alpha * lm_log_prob
                    reached = following, START if lattice.transitions is None else column
                    longer.setdefault(reached, []).extend((score + gain, (*path, token)) for score, path in prefixes)
            beams = {state: heapq.nsmallest(p, prefixes, key=_rank) for state, prefixes in longer.items()}
        best = heapq.nsmallest(p, (prefix for prefixes in beams.values() for prefix in prefixes), key=_rank)
        tokens = np.array([path for _, path in best], dtype=np.int32).reshape(len(best), lattice.slots)
        return Drafts(tokens, np.array([score for score, _ in best]))

    def _tree(self, lattice: SausageLattice, context: list[int], num_nodes: int) -> DraftTree:
        """Exact best-first tree: the most probable prefix is taken from a heap and its continuations put on it."""
        following_arcs = followers(lattice.tokens, lattice.log_probs, lattice.transitions)
        heap: list[tuple[float, tuple[int, ...], int, int, Any]] = []
        tokens: list[int] = []
        parents: list[int] = []
        log_probs: list[float] = []

        def expand(node: int, weight: float, path: tuple[int, ...], column: int, state: Any) -> None:
            arcs = following_arcs(len(path), column) if len(path) < lattice.slots else []
            if not arcs:
                return
            steps = [self.step(state, token) for token, _, _ in arcs]
            values = np.array(
                [log_prob + self.alpha * lm for (_, log_prob, _), (_, lm) in zip(arcs, steps, strict=True)]
            )
            top = values.max()
            conditionals = values - (top + math.log(np.exp(values - top).sum()))
            for (token, _, reached), (following, _), conditional in zip(
                arcs, steps, conditionals.tolist(), strict=True
            ):
                heapq.heappush(heap, (-(weight + conditional), (*path, token), node, reached, following))

        expand(ROOT, 0.0, (), START, self.state_after(context))
        while heap and len(tokens) < num_nodes:
            cost, path, parent, column, state = heapq.heappop(heap)
            tokens.append(path[-1])
            parents.append(parent)
            log_probs.append(-cost)
            expand(len(tokens) - 1, -cost, path, column, state)
        return DraftTree(
            np.array(tokens, dtype=np.int32), np.array(parents, dtype=np.int32), np.array(log_probs), lattice
        )


def _rank(prefix: tuple[float, tuple[int, ...]]) -> tuple[float, tuple[int, ...]]:
    score, path = prefix
    return -score, path
