"""Two drafters in one tree: the second drafts what the first leaves open.

Copying from the text costs next to nothing and is right for long where the text repeats itself; heads cost a vocabulary
projection each and guess anything.  A mixture spends its nodes on whichever is likelier.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from latticebpd.checks import expect
from latticebpd.drafters.drafter import Drafter, State, needs_hidden, needs_layers
from latticebpd.lattices.drafts import ROOT, DraftTree


class MixtureDrafter:
    """Spends ``num_nodes`` on the likeliest drafts of two drafters.

    The remainder of a draft tree is 1 minus the probability of its first tokens. The mixture's probability of a prefix
    is the first drafter's plus its remainder times the second's. If the first drafter's tokens have ``sure`` or more,
    the second is not asked, which saves its cost.

    first: a cheap drafter whose trees have probabilities, such as a ``PromptNgramDrafter``.
    second: another one whose trees have probabilities, such as a ``TreeDrafter``.
    sure: first-token probability from which only the first drafter drafts; above 1 both always draft.
    """

    def __init__(self, first: Drafter, second: Drafter, num_nodes: int = 16, sure: float = 0.8) -> None:
        expect(num_nodes >= 1, "num_nodes >= 1", num_nodes)
        self.first, self.second, self.num_nodes, self.sure = first, second, num_nodes, sure
        self.needs_hidden = needs_hidden(first) or needs_hidden(second)
        self.needs_layers = needs_layers(first, second)
        self.source = getattr(second, "source", None)

    def propose(self, states: Sequence[State]) -> list[DraftTree]:
        trees = list(self.first.propose(states))
        claims = [float(np.exp(_log_probs(tree, self.first)[tree.parents == ROOT]).sum()) for tree in trees]
        open_rows = [row for row, claim in enumerate(claims) if claim < self.sure]
        if open_rows:
            for row, other in zip(open_rows, self.second.propose([states[row] for row in open_rows]), strict=True):
                if not len(trees[row]):
                    trees[row] = other
                    continue
                own = np.exp(_log_probs(trees[row], self.first))
                left = (1 - claims[row]) * np.exp(_log_probs(other, self.second))
                trees[row] = _union(trees[row], own, other, left)
        return [_likeliest(tree, self.num_nodes) for tree in trees]

    def observe(self, rows: Sequence[int], tokens: Sequence[Sequence[int]]) -> None:
        self.first.observe(rows, tokens)
        self.second.observe(rows, tokens)


def _log_probs(tree: DraftTree, drafter: Drafter) -> np.ndarray:
    wanted, got = "a drafter whose trees tell probabilities", type(drafter).__name__
    expect(tree.log_probs is not None or not len(tree), wanted, got, "it cannot be mixed")
    return np.zeros(0) if tree.log_probs is None else tree.log_probs


def _union(one: DraftTree, one_probs: np.ndarray, two: DraftTree, two_probs: np.ndarray) -> DraftTree:
    """All prefixes of both trees; a prefix of both has the sum of their probabilities."""
    nodes, probs, index_of = dict(one.edges), dict(enumerate(one_probs.tolist())), {ROOT: ROOT}
    for ((parent, token), node), prob in zip(two.edges.items(), two_probs.tolist(), strict=True):
        index_of[node] = joint = nodes.setdefault((index_of[parent], token), len(nodes))
        probs[joint] = probs.get(joint, 0.0) + prob
    with np.errstate(divide="ignore"):  # of probabilities too small for a float
        return DraftTree.of_edges(nodes, np.log([*probs.values()]), two.lattice)


def _likeliest(tree: DraftTree, num_nodes: int) -> DraftTree:
    """The tree's likeliest nodes; ties go to the earlier ones, so that a node never goes without its parent."""
    if tree.log_probs is None or len(tree) <= num_nodes:
        return tree
    order = np.argsort(-tree.log_probs, kind="stable")
    return tree.subtree(np.argsort(order) < num_nodes)
