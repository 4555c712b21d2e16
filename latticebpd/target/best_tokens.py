"""The target model's greedy tokens at the nodes of draft trees, for those that acceptance asks for."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from latticebpd.lattices.drafts import DraftTree

Pair = tuple[int, int]


class BestTokens:
    """Called with rows and columns; computes those that are not known yet.

    best: rows and columns -> their tokens.  trees: one for each row, none after a prompt; column ``n + 1`` is node
    ``n``.  together: columns that take hardly longer than one. As many are computed at once; what is not asked for goes
    to the likeliest nodes below, which acceptance may ask for next.
    """

    def __init__(
        self,
        best: Callable[[Sequence[int], Sequence[int]], list[int]],
        trees: Sequence[DraftTree],
        together: int,
    ) -> None:
        self.best, self.trees, self.together = best, trees, together
        self.known: dict[Pair, int] = {}

    def __call__(self, rows: Sequence[int], columns: Sequence[int]) -> list[int]:
        asked = list(zip(rows, columns, strict=True))
        missing = [pair for pair in asked if pair not in self.known]
        if missing:
            for pair in missing[:]:
                for below in self._below(*pair) if self.trees else ():
                    if len(missing) >= self.together:
                        break
                    missing.append(below)
            self.known.update(zip(missing, self.best(*zip(*missing, strict=True)), strict=True))
        return [self.known[pair] for pair in asked]

    def _below(self, row: int, column: int) -> Iterator[Pair]:
        """A column's descendants, likeliest first, or in the tree's order."""
        tree, reached = self.trees[row], {column}
        for node, parent in enumerate(tree.parents.tolist(), 1):
            if parent + 1 in reached:
                reached.add(node)
        nodes = np.array(sorted(reached - {column}), np.int64)
        if tree.log_probs is not None:
            nodes = nodes[np.argsort(-tree.log_probs[nodes - 1], kind="stable")]
        return ((row, node) for node in nodes.tolist())
