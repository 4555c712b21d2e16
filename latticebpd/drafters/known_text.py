"""A drafter that knows the answer: an upper bound, and material for tests."""

from __future__ import annotations

from collections.abc import Sequence

from latticebpd.drafters.drafter import Drafter, State
from latticebpd.lattices.drafts import DraftTree


class ReferenceDrafter(Drafter):
    """A known text, ``block_size`` tokens at a time: every draft is right if the base model writes that text.

    continuations: the base model's own output after the prompt: one for every row of the batch, or, for a single
        prompt, just its tokens; a row whose text has run out drafts nothing.
    """

    needs_hidden = False

    def __init__(self, continuations: Sequence[int] | Sequence[Sequence[int]], block_size: int = 8) -> None:
        self.continuations, self.block_size = by_row(continuations), block_size

    def propose(self, states: Sequence[State]) -> list[DraftTree]:
        return [
            DraftTree.from_paths([remaining(self.continuations, state)[: min(self.block_size, state.max_depth)]])
            for state in states
        ]


def by_row(continuations: Sequence[int] | Sequence[Sequence[int]]) -> list[list[int]]:
    """One token list per row; a flat list is a single row's."""
    if all(isinstance(entry, int) for entry in continuations):
        return [[int(token) for token in continuations]]  # type: ignore[arg-type]
    return [list(row) for row in continuations]  # type: ignore[arg-type]


def remaining(continuations: list[list[int]], state: State) -> list[int]:
    """What a row's known text still holds after the tokens committed so far."""
    return continuations[state.row][len(state.tokens) - state.prompt_length :]
