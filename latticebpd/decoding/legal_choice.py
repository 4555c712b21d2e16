"""The next token of a node among those that a constraint allows, with as few logits as the choice needs.

Where one token is legal no logit is computed; where few are, only theirs. Greedy decoding first asks for the best of
all tokens, which is mostly legal, and only otherwise for all logits. The result is always that of all logits, with
-infinity in place of those of illegal tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from latticebpd.constraints.token_automaton import TokenAutomaton
from latticebpd.lattices.values import as_tensor
from latticebpd.verification.verifier import Verified

if TYPE_CHECKING:
    from torch import Tensor

FEW = 1 / 64
"""Of the vocabulary: logits of so many tokens cost less than a search for the best of all."""


@dataclass(frozen=True)
class LegalChoice:
    """Called with rows, nodes and for each its automaton and state, or None where every token is legal; returns tokens.

    is_greedy: by row, whether it takes the token of the highest logit, as the model computes it.
    adjusted: applied to logits ``[n, vocab]`` of rows and nodes before the mask; None: nothing is.
    by_rules: chooses by the rows' acceptance rules.
    """

    verified: Verified
    is_greedy: Sequence[bool]
    adjusted: Callable[[Sequence[int], Sequence[int], Any], Any] | None
    by_rules: Callable[[Sequence[int], Sequence[int], Any], list[int]]

    def __call__(
        self, rows: Sequence[int], nodes: Sequence[int], positions: Sequence[tuple[TokenAutomaton, int] | None]
    ) -> list[int]:
        choices = [_Choice(row, node, position) for row, node, position in zip(rows, nodes, positions, strict=True)]
        self._by_few_logits([each for each in choices if each.token is None])
        self._by_best([each for each in choices if each.token is None])
        self._by_all_logits([each for each in choices if each.token is None])
        return [each.token for each in choices if each.token is not None]

    def _by_few_logits(self, choices: Sequence[_Choice]) -> None:
        compute = self.verified.some_logits_of
        choices = [each for each in choices if self.is_greedy[each.row] and each.is_narrow]
        if compute is None or not choices:
            return
        tokens = [np.flatnonzero(each.legal) for each in choices]
        rows, columns = [each.row for each in choices], [each.node + 1 for each in choices]
        for each, own, logits in zip(choices, tokens, compute(rows, columns, tokens), strict=True):
            each.token = int(own[np.argmax(logits - each.costs(own))])

    def _by_best(self, choices: Sequence[_Choice]) -> None:
        choices = [each for each in choices if self.is_greedy[each.row] and not each.weighted]
        if self.verified.best_of is None or not choices:
            return
        best = self.verified.best_of([each.row for each in choices], [each.node + 1 for each in choices])
        for each, token in zip(choices, best, strict=True):
            if each.position is None or each.legal[token]:
                each.token = token

    def _by_all_logits(self, choices: Sequence[_Choice]) -> None:
        if not choices:
            return
        rows, nodes = [each.row for each in choices], [each.node for each in choices]
        logits = self.verified.logits_of(rows, [node + 1 for node in nodes])
        masked = _masked(choices, logits if self.adjusted is None else self.adjusted(rows, nodes, logits))
        if self.adjusted is not None:  # processors may have ruled out all that is legal
            lost = masked.amax(dim=-1) == -float("inf")
            masked[lost] = _masked(choices, logits)[lost].to(masked.dtype)
        for each, token in zip(choices, self.by_rules(rows, nodes, masked), strict=True):
            each.token = token


class _Choice:
    """At one node.  token: None until it is chosen; legal: ``[vocab]`` bool, where there is a constraint."""

    def __init__(self, row: int, node: int, position: tuple[TokenAutomaton, int] | None) -> None:
        self.row, self.node, self.position = row, node, position
        self.token: int | None = None
        self.legal = np.ones(0, bool)
        if position is not None:
            self.legal = position[0].legal(position[1])
            if np.count_nonzero(self.legal) == 1:
                self.token = int(np.argmax(self.legal))

    @property
    def is_narrow(self) -> bool:
        """Whether few tokens are legal."""
        return self.position is not None and np.count_nonzero(self.legal) < FEW * len(self.legal)

    @property
    def weighted(self) -> bool:
        return self.position is not None and self.position[0].weighted

    def costs(self, tokens: np.ndarray) -> Any:
        """What legal tokens cost, 0 in an unweighted automaton."""
        return self.position[0].costs(self.position[1], tokens) if self.position is not None and self.weighted else 0


def _masked(choices: Sequence[_Choice], logits: Tensor) -> Tensor:
    """``[n, vocab]`` logits less the costs of legal tokens, -infinity at the others; a copy."""
    masked = logits.clone()
    for line, each in zip(masked, choices, strict=True):
        if each.weighted:
            tokens = np.flatnonzero(each.legal)
            line[as_tensor(tokens).to(line.device)] -= as_tensor(each.costs(tokens)).to(line)
        if each.position is not None:
            line[as_tensor(~each.legal).to(line.device)] = -float("inf")
    return masked
