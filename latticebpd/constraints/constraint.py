"""What users pass as a constraint, and what becomes of it in a decode."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from latticebpd.checks import expect
from latticebpd.constraints.model_tokens import ModelTokens
from latticebpd.constraints.token_automaton import TokenAutomaton


class Constraint(Protocol):
    """What a text may be: immutable, compiled once for each model's tokens, shared by texts and threads."""

    def automaton(self, tokens: ModelTokens, eos_ids: Sequence[int]) -> TokenAutomaton:
        """For one text; ``eos_ids``, the tokens that may end it. ValueError where it does not fit the tokens."""


Constraints = Constraint | Sequence[Constraint | None] | None
"""One for all rows of a batch, one for each, or none."""


def of_rows(constraint: Constraints, rows: int) -> list[Constraint | None]:
    """One for each row; ValueError for another number of constraints, or for something else."""
    each = list(constraint) if isinstance(constraint, Sequence) else [constraint] * rows
    expect(len(each) == rows, f"one constraint for all rows, or one for each of {rows}", len(each))
    for one in each:
        is_constraint = one is None or callable(getattr(one, "automaton", None))
        expect(is_constraint, "a constraint, such as json_schema(...) or regex(...)", type(one).__name__)
    return each
