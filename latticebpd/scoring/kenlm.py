"""Scoring with a ``kenlm.Model`` (optional extra): exact, through KenLM's own scorer.

KenLM's Python module answers one query at a time, so this is for models that exist only as KenLM binaries. For an ARPA
file ``fst.NgramModel`` gives the same scores from compiled code.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

import fst
from latticebpd.checks import expect_count
from latticebpd.lattices.drafts import ROOT, Drafts, DraftTree
from latticebpd.lattices.sausage import SausageLattice
from latticebpd.scoring.scorer import Context, listed
from latticebpd.scoring.weights import checked_alpha

if TYPE_CHECKING:
    import kenlm

LN_10 = math.log(10.0)


@dataclass(frozen=True, eq=False)
class KenlmScorer:
    """Ranks a lattice's paths with KenLM.

    model: a ``kenlm.Model``, of any of KenLM's formats.
    words: the model's word for each token id, by default the id in decimal digits; an id without a word is ``<unk>``.
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
        try:
            return str(token) if self.words is None else self.words[token]
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
        expect_count("p", p)
        drafts = []
        for lattice, context in zip(lattices, contexts, strict=True):  # exact, by the core's search of the product
            automaton = fst.Lattice.from_sausage(lattice.tokens, lattice.log_probs, lattice.transitions)
            tokens, scores = self.compose(automaton, context)[0].nbest_paths(p=p)
            drafts.append(Drafts(tokens.reshape(len(tokens), lattice.slots), scores))
        return drafts

    def trees(self, lattices: Sequence[SausageLattice], contexts: Sequence[Context], num_nodes: int) -> list[DraftTree]:
        expect_count("num_nodes", num_nodes)
        return [self._tree(lattice, context, num_nodes) for lattice, context in zip(lattices, contexts, strict=True)]

    def compose(self, lattice: fst.Lattice, context: Context) -> tuple[fst.Lattice, np.ndarray]:
        """The product of a lattice and the model: its arcs carry both weights, a state is a lattice state and a KenLM
        state.  ``[arcs]`` the lattice's arc of each."""
        histories: list[dict[Any, int]] = [{} for _ in range(lattice.num_states)]
        histories[0][self.state_after(listed(context))] = 0
        rank: dict[int, int] = {}  # of product states in the order of their lattice states, which is topological
        offsets, finals = [0], list[float]()
        arcs: list[tuple[int, float, int, int]] = []  # token, weight, target, arc of the lattice
        added = 1
        for state in range(lattice.num_states):
            for history, number in histories[state].items():
                rank[number] = len(finals)
                for arc, (token, log_prob, target) in enumerate(lattice.arcs(state), int(lattice.offsets[state])):
                    after, lm_log_prob = self.step(history, token) if token >= 0 else (history, 0.0)
                    following = histories[target].setdefault(after, added)
                    added += following == added
                    arcs.append((token, log_prob + self.alpha * lm_log_prob, following, arc))
                offsets.append(len(arcs))
                finals.append(float(lattice.finals[state]))
        tokens, weights, targets, origins = zip(*arcs, strict=True) if arcs else ((), (), (), ())
        ranks = np.array([rank[target] for target in targets], np.int32)
        columns = (np.array(tokens, np.int32), np.array(weights, np.float64), ranks)
        return fst.Lattice(np.array(offsets), *columns, np.array(finals)), np.array(origins, np.int64)

    def _tree(self, lattice: SausageLattice, context: Context, num_nodes: int) -> DraftTree:
        """Exact best-first tree: the most probable prefix leaves a heap, and its continuations enter it."""
        automaton = fst.Lattice.from_sausage(lattice.tokens, lattice.log_probs, lattice.transitions)
        heap: list[tuple[float, tuple[int, ...], int, int, Any]] = []
        nodes: list[tuple[int, int, float]] = []  # token, parent, log-probability

        def expand(node: int, cost: float, path: tuple[int, ...], at: int, state: Any) -> None:
            if not (following := automaton.arcs(at)):
                return
            pairs = [(arc, self.step(state, arc[0])) for arc in following]
            values = np.array([log_prob + self.alpha * lm for (_, log_prob, _), (_, lm) in pairs])
            top = values.max()
            norm = top + np.log(np.exp(values - top).sum())
            for ((token, _, reached), (after, _)), value in zip(pairs, (norm - values).tolist(), strict=True):
                heapq.heappush(heap, (cost + value, (*path, token), node, reached, after))

        expand(ROOT, 0.0, (), 0, self.state_after(listed(context)))
        while heap and len(nodes) < num_nodes:
            cost, path, parent, at, state = heapq.heappop(heap)
            nodes.append((path[-1], parent, -cost))
            expand(len(nodes) - 1, cost, path, at, state)
        tokens, parents, log_probs = np.array(nodes).reshape(-1, 3).T
        return DraftTree(tokens.astype(np.int32), parents.astype(np.int32), log_probs, lattice)
