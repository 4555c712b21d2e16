"""What share of the tokens that a tree expects is accepted, in one text so far.

Calibrated probabilities are of greedy text. A sampled text leaves the likeliest tokens more often, the more so the
higher the temperature; a text of another kind than those of the calibration may as well.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from latticebpd.lattices.drafts import ROOT, DraftTree


class AcceptedShare:
    """Accepted tokens over expected ones, both counted from `PRIOR`; never above 1.

    At every node that a text reached, the drafted tokens below it are expected with the sum of their probabilities.
    """

    PRIOR = 8.0

    def __init__(self) -> None:
        self._expected = self._accepted = self.PRIOR

    @property
    def share(self) -> float:
        return min(1.0, self._accepted / self._expected)

    def log_probs(self, tree: DraftTree) -> np.ndarray | None:
        """``[nodes]`` a tree's log-probabilities (natural), each token's less by the share; None if it has none."""
        return tree.log_probs if tree.log_probs is None else tree.log_probs + tree.depths * np.log(self.share)

    def add(self, tree: DraftTree, tokens: Sequence[int]) -> None:
        """Count a call that verified a tree, with probabilities, and committed these tokens."""
        if tree.log_probs is None:
            return
        node, before = ROOT, 0.0
        for token in tokens:
            below = tree.log_probs[tree.children(node)]
            if not len(below):
                return
            self._expected += float(np.exp(below - before).sum())
            if (child := tree.edges.get((node, token))) is None:
                return
            self._accepted += 1
            node, before = child, float(tree.log_probs[child])
