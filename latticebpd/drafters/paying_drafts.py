"""Draft trees that share a pass, cut to the nodes that pay off together.

On the CPU engine rows are not padded: a pass costs by its tokens, whosever they are. With one row a token more costs
little next to the weights, which are read anyway; with many, nearly as much as a token of the text, and only drafts
that are nearly certain pay.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from latticebpd.drafters.cost_curve import CostCurve
from latticebpd.drafters.drafter import Drafter, State, needs_hidden, needs_layers
from latticebpd.drafters.strategies import DraftingBudget
from latticebpd.lattices.drafts import DraftTree


class PayingDrafter:
    """Another drafter's trees, cut over all rows to the nodes that promise the most tokens a second; none for a while
    where drafting does not pay for so many rows.

    drafter: its trees tell probabilities.  costs: of a pass over one row.
    """

    def __init__(self, drafter: Drafter, costs: CostCurve) -> None:
        self.drafter, self.costs = drafter, costs
        self.needs_hidden, self.needs_layers = needs_hidden(drafter), needs_layers(drafter)
        self._budgets: dict[int, DraftingBudget] = {}  # by the number of rows

    def propose(self, states: Sequence[State]) -> list[DraftTree]:
        rows = len(states)
        budget = self._budgets.setdefault(rows, DraftingBudget())
        if not budget.allows(float(self.costs.of(1, np.array([rows]))[0])):
            return [DraftTree.empty()] * rows
        trees = self.drafter.propose(states)
        kept, saved = paying_nodes([tree.log_probs if len(tree) else np.empty(0) for tree in trees], self.costs)
        budget.credit(saved)
        return [tree.subtree(keep) for tree, keep in zip(trees, kept, strict=True)]

    def observe(self, rows: Sequence[int], tokens: Sequence[Sequence[int]]) -> None:
        self.drafter.observe(rows, tokens)


def paying_nodes(log_probs: Sequence[np.ndarray | None], costs: CostCurve) -> tuple[list[np.ndarray], float]:
    """Of every row's tree, which nodes to verify for the most tokens a second; of equal choices the fewest.

    And the predicted savings in seconds against calls without drafts that commit as many tokens.

    Args:
        log_probs: of every row ``[nodes]``; no node is likelier than its parent, which comes before it.

    Returns:
        For every row ``[nodes]`` bool.

    Raises:
        ValueError: trees that do not tell probabilities.
    """
    known = [each for each in log_probs if each is not None]
    if len(known) < len(log_probs):
        raise ValueError("expected trees that tell probabilities to cut them by their costs, got some without")
    rows, gains = len(known), np.exp(np.concatenate(known))
    order = np.argsort(-gains, kind="stable")
    expected = rows + np.concatenate([[0.0], np.cumsum(gains[order])])
    passes = costs.of(1, rows + np.arange(len(gains) + 1))
    seconds = passes + costs.drafting_of(rows)
    most = int(np.argmax(expected / seconds))
    kept = np.zeros(len(gains), bool)
    kept[order[:most]] = True
    ends = np.cumsum([len(each) for each in known])
    return np.split(kept, ends[:-1]), float(expected[most] / rows * passes[0] - seconds[most])
