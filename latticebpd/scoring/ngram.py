"""Rescoring with an n-gram model (Kim 2024, section 7.2): exact searches, in the compiled core of ``fst``."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

import fst
from fst.automaton import MAX_ORDER
from latticebpd.lattices.drafts import Drafts, DraftTree
from latticebpd.lattices.sausage import PADDING, SausageLattice


class NgramRescorer:
    """Exact search over lattice and n-gram model; without a model, over the lattice alone (the paper's 0-gram).

    alpha: the model's weight wherever none is given.
    """

    def __init__(self, lm: fst.NgramModel | None, alpha: float = 1.0) -> None:
        self.lm, self.alpha = lm, alpha

    def rescore(self, lattice: SausageLattice, p: int, alpha: float, context: Sequence[int]) -> Drafts:
        return Drafts(*fst.nbest_paths(lattice.tokens, lattice.log_probs, self.lm, p=p, alpha=alpha, context=_recent(context)))

    def draft_tree(
        self, lattice: SausageLattice, num_nodes: int, alpha: float, context: Sequence[int], kept_log_mass: np.ndarray | None
    ) -> DraftTree:
        return DraftTree(
            *fst.best_first_tree(
                lattice.tokens,
                lattice.log_probs,
                self.lm,
                num_nodes=num_nodes,
                alpha=alpha,
                context=_recent(context),
                kept_log_mass=kept_log_mass,
            )
        )

    def rescore_batch(
        self, lattices: Sequence[SausageLattice], p: int, alpha: float, contexts: Sequence[Sequence[int] | np.ndarray]
    ) -> list[Drafts]:
        found: dict[int, Drafts] = {}
        for rows in _of_one_shape(lattices):
            arrays = _stacked([lattices[row] for row in rows])
            paths, scores, counts = fst.nbest_paths_batch(
                *arrays, self.lm, p=p, alpha=alpha, contexts=_padded([contexts[row] for row in rows])
            )
            found |= {
                row: Drafts(paths[i, :count], scores[i, :count]) for i, (row, count) in enumerate(zip(rows, counts.tolist(), strict=True))
            }
        return [found[row] for row in range(len(lattices))]

    def draft_tree_batch(
        self,
        lattices: Sequence[SausageLattice],
        num_nodes: int,
        alpha: float,
        contexts: Sequence[Sequence[int] | np.ndarray],
        kept_log_mass: np.ndarray | None = None,
    ) -> list[DraftTree]:
        found: dict[int, DraftTree] = {}
        for rows in _of_one_shape(lattices):
            arrays = _stacked([lattices[row] for row in rows])
            kept = None if kept_log_mass is None else kept_log_mass[rows, : lattices[rows[0]].slots]
            tokens, parents, log_probs, counts = fst.best_first_tree_batch(
                *arrays, self.lm, num_nodes=num_nodes, alpha=alpha, contexts=_padded([contexts[row] for row in rows]), kept_log_mass=kept
            )
            for i, (row, count) in enumerate(zip(rows, counts.tolist(), strict=True)):
                found[row] = DraftTree(tokens[i, :count], parents[i, :count], log_probs[i, :count], lattices[row])
        return [found[row] for row in range(len(lattices))]


def _of_one_shape(lattices: Sequence[SausageLattice]) -> list[list[int]]:
    """The lattices' indices, those of one shape together."""
    rows: dict[tuple[int, ...], list[int]] = {}
    for row, lattice in enumerate(lattices):
        rows.setdefault(lattice.tokens.shape, []).append(row)
    return list(rows.values())


def _stacked(lattices: Sequence[SausageLattice]) -> tuple[np.ndarray, np.ndarray]:
    return np.stack([lattice.tokens for lattice in lattices]), np.stack([lattice.log_probs for lattice in lattices])


def _padded(contexts: Sequence[Sequence[int] | np.ndarray]) -> np.ndarray:
    """``[n, c]``, -1 on the left."""
    histories = [_recent(context) for context in contexts]
    width = max(map(len, histories))
    return np.array([[PADDING] * (width - len(history)) + history for history in histories], dtype=np.int64).reshape(len(histories), width)


def _recent(context: Sequence[int] | np.ndarray) -> list[int]:
    """As much of the context as any n-gram model can look back on, so that a long text costs no more than a short one."""
    return [int(token) for token in context[-MAX_ORDER:]]
