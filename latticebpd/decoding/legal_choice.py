"""The next token of a node among those that a constraint allows, with as few logits as the choice needs.

Where one token is legal no logit is computed; where few are, only theirs. Greedy decoding first asks for the best of
all tokens, which is mostly legal, and only otherwise for all logits. The result is always that of all logits, with
-infinity in place of those of illegal tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from latticebpd.constraints.token_automaton import TokenAutomaton
from latticebpd.drafters.legal_drafts import tree_states
from latticebpd.lattices.drafts import ROOT, DraftTree
from latticebpd.lattices.values import as_tensor
from latticebpd.verification.verifier import Verified

if TYPE_CHECKING:
    from torch import Tensor

FEW = 1 / 64
"""Of the vocabulary: logits of so many tokens cost less than a search for the best of all."""


class LegalChoice:
    """Called with rows and nodes of their trees, of legal drafts; returns tokens.

    positions: for each row its automaton and the state before its tree, or None where every token is legal.
    is_greedy: by row, whether it takes the token of the highest logit, as the model computes it.
    is_adjusted: by row, whether ``adjusted`` changes its logits.
    adjusted: applied to logits ``[n, vocab]`` of rows and nodes before the mask.
    by_rules: chooses by the rows' acceptance rules.
    """

    def __init__(
        self,
        trees: Sequence[DraftTree],
        positions: Sequence[tuple[TokenAutomaton, int] | None],
        verified: Verified,
        is_greedy: Sequence[bool],
        is_adjusted: Sequence[bool],
        adjusted: Callable[[Sequence[int], Sequence[int], Any], Any],
        by_rules: Callable[[Sequence[int], Sequence[int], Any], list[int]],
    ) -> None:
        self.positions, self.is_greedy, self.is_adjusted = positions, is_greedy, is_adjusted
        self.adjusted, self.by_rules = adjusted, by_rules
        self.verified = verified if verified.only is None else verified.only(self._needs_all_logits)
        self.states = [
            None if position is None else tree_states(tree, *position)
            for tree, position in zip(trees, positions, strict=True)
        ]
        self._nodes: dict[tuple[int, int], _Node] = {}

    def __call__(self, rows: Sequence[int], nodes: Sequence[int]) -> list[int]:
        asked = [self._node(*pair) for pair in zip(rows, nodes, strict=True)]
        self._by_few_logits([each for each in asked if each.token is None])
        self._by_best([each for each in asked if each.token is None])
        self._by_all_logits([each for each in asked if each.token is None])
        return [each.token for each in asked if each.token is not None]

    def _node(self, row: int, node: int) -> _Node:
        if (known := self._nodes.get((row, node))) is None:
            position, states = self.positions[row], self.states[row]
            automaton, state = (None, 0) if position is None else position
            state = state if node == ROOT or states is None else int(states[node])
            known = self._nodes[row, node] = _Node(row, node, automaton, state)
        return known

    def _needs_all_logits(self, row: int, column: int) -> bool:
        """Whether logits of a tree's column are worth computing in advance."""
        return not self._node(row, column - 1).is_narrow

    def _by_few_logits(self, asked: Sequence[_Node]) -> None:
        compute = self.verified.some_logits_of
        asked = [each for each in asked if each.is_narrow and not self.is_adjusted[each.row]]
        if compute is None or not asked:
            return
        tokens = [np.flatnonzero(each.legal) for each in asked]
        rows, columns = [each.row for each in asked], [each.node + 1 for each in asked]
        for each, own, logits in zip(asked, tokens, compute(rows, columns, tokens), strict=True):
            scores = logits - each.costs(own)
            if self.is_greedy[each.row]:
                each.token = int(own[np.argmax(scores)])
            else:
                line = np.full((1, len(each.legal)), -np.inf, np.float32)
                line[0, own] = scores
                (each.token,) = self.by_rules([each.row], [each.node], as_tensor(line))

    def _by_best(self, asked: Sequence[_Node]) -> None:
        asked = [each for each in asked if self.is_greedy[each.row] and not each.weighted]
        if self.verified.best_of is None or not asked:
            return

        rows, columns = [each.row for each in asked], [each.node + 1 for each in asked]
        for each, token in zip(asked, self.verified.best_of(rows, columns), strict=True):
            if each.automaton is None or each.legal[token]:
                each.token = token

    def _by_all_logits(self, asked: Sequence[_Node]) -> None:
        if not asked:
            return
        rows, nodes = [each.row for each in asked], [each.node for each in asked]
        logits = self.verified.logits_of(rows, [node + 1 for node in nodes])
        masked = _masked(asked, self.adjusted(rows, nodes, logits))
        if any(self.is_adjusted[row] for row in rows):  # processors may have ruled out all that is legal
            lost = masked.amax(dim=-1) == -float("inf")
            masked[lost] = _masked(asked, logits)[lost].to(masked.dtype)
        for each, token in zip(asked, self.by_rules(rows, nodes, masked), strict=True):
            each.token = token


class _Node:
    """Of a row's tree.  token: None until it is chosen.  legal: ``[vocab]`` bool, where there is an automaton."""

    def __init__(self, row: int, node: int, automaton: TokenAutomaton | None, state: int) -> None:
        self.row, self.node, self.automaton, self.state = row, node, automaton, state
        self.token: int | None = None
        self.legal = np.ones(0, bool) if automaton is None else automaton.legal(state)
        count = np.count_nonzero(self.legal)
        self.is_narrow = automaton is not None and count < FEW * len(self.legal)
        self.weighted = automaton is not None and automaton.weighted
        if automaton is not None and count <= 1:  # none after an end: what is chosen there is not committed
            self.token = int(np.argmax(self.legal))

    def costs(self, tokens: np.ndarray) -> Any:
        """What legal tokens cost, 0 in an unweighted automaton."""
        return self.automaton.costs(self.state, tokens) if self.automaton is not None and self.weighted else 0


def _masked(asked: Sequence[_Node], logits: Tensor) -> Tensor:
    """``[n, vocab]`` logits less the costs of legal tokens, -infinity at the others; a copy."""
    masked = logits.clone()
    for line, each in zip(masked, asked, strict=True):
        if each.weighted:
            tokens = np.flatnonzero(each.legal)
            line[as_tensor(tokens).to(line.device)] -= as_tensor(each.costs(tokens)).to(line)
        if each.automaton is not None:
            line[as_tensor(~each.legal).to(line.device)] = -float("inf")
    return masked
