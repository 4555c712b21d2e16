"""The target model's greedy tokens at the nodes of draft trees, for those that acceptance asks for."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from latticebpd.lattices.drafts import ROOT, DraftTree

Pair = tuple[int, int]


class BestTokens:
    """Called with rows and columns; computes those that are not known yet.

    best: rows and columns -> their tokens.  trees: one for each row, none after a prompt; column ``n + 1`` is node
    ``n``.  together: columns that take hardly longer than one. As many are computed at once; what is not asked for goes
    to the likeliest descendants, which acceptance may ask for next.
    """

    def __init__(
        self, best: Callable[[Sequence[int], Sequence[int]], list[int]], trees: Sequence[DraftTree], together: int
    ) -> None:
        self.best, self.trees, self.together = best, trees, together
        self.known: dict[Pair, int] = {}

    def __call__(self, rows: Sequence[int], columns: Sequence[int]) -> list[int]:
        asked = list(zip(rows, columns, strict=True))
        missing = [pair for pair in asked if pair not in self.known]
        if missing:
            for pair in missing[:] if self.trees else ():
                if (room := self.together - len(missing)) <= 0:
                    break
                missing += self._likeliest_descendants(*pair)[:room]
            self.known.update(zip(missing, self.best(*zip(*missing, strict=True)), strict=True))
        return [self.known[pair] for pair in asked]

    def _likeliest_descendants(self, row: int, column: int) -> list[Pair]:
        """Likeliest first, or in the tree's order if it has no probabilities."""
        tree, node = self.trees[row], column - 1
        nodes = np.arange(len(tree)) if node == ROOT else np.flatnonzero(tree.ancestors[:, node])
        nodes = nodes[nodes != node]
        if tree.log_probs is not None:
            nodes = nodes[np.argsort(-tree.log_probs[nodes], kind="stable")]
        return [(row, each + 1) for each in nodes.tolist()]
