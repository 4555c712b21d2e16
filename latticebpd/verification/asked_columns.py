"""What the output projection says of the nodes of draft trees, for those that acceptance asks for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

import numpy as np

from latticebpd.lattices.drafts import ROOT, DraftTree

Pair = tuple[int, int]
Wanted = Callable[[int, int], bool]
Result = TypeVar("Result")


class AskedColumns(Generic[Result]):
    """Called with rows and columns; computes those that are not known yet.

    compute: rows and columns -> of each its next token, or its logits.
    trees: one for each row, none after a prompt; column ``n + 1`` is node ``n``.
    together: columns that take hardly longer than one. As many are computed at once; what is not asked for goes to the
        likeliest descendants, which acceptance may ask for next. Where that is more than one, all descendants of a
        probability above a 16th are computed too: a further column takes no larger share of a call's time.
    wanted: of which rows and columns what is not asked for may be computed; by default of all.
    """

    def __init__(
        self,
        compute: Callable[[Sequence[int], Sequence[int]], Sequence[Result]],
        trees: Sequence[DraftTree],
        together: int,
        wanted: Wanted | None = None,
    ) -> None:
        self.compute, self.trees, self.together, self.wanted = compute, trees, together, wanted
        self.known: dict[Pair, Result] = {}

    def __call__(self, rows: Sequence[int], columns: Sequence[int]) -> list[Result]:
        asked = list(zip(rows, columns, strict=True))
        missing = [pair for pair in asked if pair not in self.known]
        if missing:
            for pair in missing[:] if self.trees and self.together > 1 else ():
                missing += self._likeliest_descendants(*pair, max(self.together - len(missing), 0))
            self.known.update(zip(missing, self.compute(*zip(*missing, strict=True)), strict=True))
        return [self.known[pair] for pair in asked]

    def _likeliest_descendants(self, row: int, column: int, room: int) -> list[Pair]:
        """At least ``room``, likeliest first, or in the tree's order if it has no probabilities."""
        tree, node = self.trees[row], column - 1
        nodes = np.arange(len(tree)) if node == ROOT else np.setdiff1d(np.flatnonzero(tree.ancestors[:, node]), node)
        if tree.log_probs is not None:
            with np.errstate(invalid="ignore"):  # below a node of no probability, which none is likelier than
                log_probs = tree.log_probs[nodes] - (0 if node == ROOT else tree.log_probs[node])
            nodes = nodes[np.argsort(-log_probs, kind="stable")]
            room = max(room, int(np.count_nonzero(log_probs > np.log(1 / 16))))
        likely = [(row, each + 1) for each in nodes[:room].tolist()]
        return [pair for pair in likely if self.wanted is None or self.wanted(*pair)]
