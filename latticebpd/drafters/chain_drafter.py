"""The best path of another drafter's tree, for hosts that verify one draft a call."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from latticebpd.drafters.drafter import Drafter, State, needs_hidden, needs_layers
from latticebpd.lattices.drafts import ROOT, DraftTree


class ChainDrafter:
    """Of another drafter's tree the path on which the most tokens are accepted on average; without probabilities the
    first one, which is a search's best."""

    def __init__(self, drafter: Drafter) -> None:
        self.drafter = drafter
        self.needs_hidden, self.needs_layers = needs_hidden(drafter), needs_layers(drafter)

    def propose(self, states: Sequence[State]) -> list[DraftTree]:
        trees = self.drafter.propose(states)
        return [best_chain(tree.pruned(state.max_depth)) for tree, state in zip(trees, states, strict=True)]

    def observe(self, rows: Sequence[int], tokens: Sequence[Sequence[int]]) -> None:
        self.drafter.observe(rows, tokens)


def best_chain(tree: DraftTree) -> DraftTree:
    """The path from the root with the highest sum of its prefixes' probabilities, which is the expected number of
    accepted tokens; of equal ones the first. Without probabilities the first path of the tree."""
    if not len(tree):
        return tree
    if tree.log_probs is None:
        leaf = 0
        while len(children := tree.children(leaf)):
            leaf = int(children[0])
    else:
        expected = [0.0] * (len(tree) + 1)  # the last entry is the root's
        for node, (parent, gain) in enumerate(zip(tree.parents.tolist(), np.exp(tree.log_probs).tolist(), strict=True)):
            expected[node] = expected[parent] + gain
        expected[ROOT] = -1.0
        leaf = int(np.argmax(expected))
    keep = np.zeros(len(tree), bool)
    keep[tree.path(leaf)] = True
    return tree.subtree(keep)
