"""Draft trees cut to the nodes that pay off, and no drafts while none would.

A verified token costs part of a pass, and making drafts takes time of its own; how much depends on the machine and on
how many texts share the pass. With one text on a CPU a token more costs little next to the weights, which are read
anyway; with many, nearly as much as a token of the text, and only drafts that are nearly certain pay.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from latticebpd.drafters.accepted_share import AcceptedShare
from latticebpd.drafters.cost_curve import CostCurve
from latticebpd.drafters.drafter import Drafter, State, needs_hidden, needs_layers
from latticebpd.lattices.drafts import DraftTree

Costs = CostCurve | Callable[[], tuple[Drafter, CostCurve]]
"""Of calls, or what measures them when they are first needed, and returns the drafter that pays off by them."""


class DraftingBudget:
    """Time budget: drafting is skipped while predicted savings minus drafting cost are negative.

    Each call adds 1 % of its time to the budget, up to the time of a few calls. So unprofitable drafting costs at most
    1 % of decode time, those calls, and the last draft. With less, a few drafts without a likely token end drafting
    that pays off overall.

    calls: how many.  left: in calls without drafts, to which each draft's savings are added.
    """

    SHARE, CALLS = 0.01, 8.0

    def __init__(self, calls: float = CALLS) -> None:
        self.left = self.calls = calls

    def allows(self) -> bool:
        """Whether to draft at this call."""
        self.left = min(self.left + self.SHARE, self.calls)
        return self.left > 0


class CostAwareDrafter:
    """Another drafter's trees, cut over all rows to the nodes that promise the most tokens a second; none for a while
    where drafting does not pay for so many rows. Probabilities count by what share of them each text accepts.

    drafter: its trees tell probabilities; one that ``costs`` returns has the same needs.
    """

    def __init__(self, drafter: Drafter, costs: Costs) -> None:
        self.drafter, self._costs = drafter, costs
        self.needs_hidden, self.needs_layers = needs_hidden(drafter), needs_layers(drafter)
        self.source = getattr(drafter, "source", None)
        self._budgets: dict[int, DraftingBudget] = {}  # by the number of rows
        self._shares: dict[int, AcceptedShare] = {}  # by row, of those that drafts were made for last
        self._trees: dict[int, DraftTree] = {}

    @property
    def costs(self) -> CostCurve:
        if callable(self._costs):
            self.drafter, self._costs = self._costs()
        return self._costs

    def propose(self, states: Sequence[State]) -> list[DraftTree]:
        rows = len(states)
        budget, seconds = self._budgets.setdefault(rows, DraftingBudget()), float(self.costs.up_to(rows, 0)[0])
        known = {state.row: self._shares.get(state.row) for state in states if not state.is_first}
        self._shares, self._trees = {state.row: known.get(state.row) or AcceptedShare() for state in states}, {}
        if not budget.allows():
            return [DraftTree.empty()] * rows
        trees = self.drafter.propose(states)
        proposed = zip(states, trees, strict=True)
        likely = [self._shares[state.row].log_probs(tree) if len(tree) else np.empty(0) for state, tree in proposed]
        kept, saved = nodes_that_pay(likely, self.costs)
        budget.left += saved / seconds
        cut = [tree.subtree(keep) for tree, keep in zip(trees, kept, strict=True)]
        self._trees = {state.row: tree for state, tree in zip(states, cut, strict=True)}
        return cut

    def observe(self, rows: Sequence[int], tokens: Sequence[Sequence[int]]) -> None:
        for row, new in zip(rows, tokens, strict=True):
            if row in self._trees:
                self._shares[row].add(self._trees[row], new)
        self.drafter.observe(rows, tokens)


def nodes_that_pay(log_probs: Sequence[np.ndarray | None], costs: CostCurve) -> tuple[list[np.ndarray], float]:
    """Of every row's tree, which nodes to verify for the most tokens a second; of equal choices the fewest.

    And the predicted savings in seconds against calls without drafts that commit as many tokens. A call is expected to
    commit a token a row and as many more as the kept nodes' probabilities sum to. Where rows are packed, the likeliest
    nodes of all rows are kept; where they are padded to the widest row, a node up to its width costs nothing, so equal
    sizes for all rows are the best.

    log_probs: of every row ``[nodes]``; no node is likelier than its parent, which comes before it. ValueError for
        trees that do not tell probabilities.
    Returns for every row ``[nodes]`` bool.
    """
    known = [np.exp(each) for each in log_probs if each is not None]
    if len(known) < len(log_probs):
        raise ValueError("expected trees that tell probabilities to cut them by their costs, got some without")
    rows, gains = len(known), np.concatenate(known)
    ranks = _ranks(gains) if costs.packed else np.concatenate(list(map(_ranks, known)))
    expected = rows + np.concatenate([[0.0], np.cumsum(np.bincount(ranks, gains))])
    seconds = costs.of_calls(rows, np.arange(len(expected)), expected)
    most = int(np.argmax(expected / seconds))
    ends = np.cumsum([len(each) for each in known])
    return np.split(ranks < most, ends[:-1]), float(expected[most] / rows * costs.up_to(rows, 0)[0] - seconds[most])


def _ranks(gains: np.ndarray) -> np.ndarray:
    """``[n]`` each number's rank, 0 for the highest; of equal ones the first ranks higher."""
    return np.argsort(np.argsort(-gains, kind="stable"))
