"""Drafters that know the answer: upper bounds, and material for tests."""

from __future__ import annotations

from collections.abc import Sequence

from latticebpd.drafting.base import State
from latticebpd.drafting.heads import HasHeads, HeadsDrafter
from latticebpd.lattices.drafts import DraftTree
from latticebpd.lattices.sausage import SausageLattice, oracle_path


class OracleDrafter(HeadsDrafter):
    """The lattice's best path in hindsight: what perfect rescoring would draft (Kim 2024, section 6.3).

    Args:
        continuations: the base model's own output after the prompt, known beforehand: one for every row of the batch,
            or, for a single prompt, just its tokens.
    """

    def __init__(self, model: HasHeads, continuations: Sequence[int] | Sequence[Sequence[int]], k: int = 16) -> None:
        super().__init__(model, k)
        self.continuations = by_row(continuations)

    def draft(self, lattices: list[SausageLattice], states: Sequence[State]) -> list[DraftTree]:
        return [
            DraftTree.from_paths([oracle_path(lattice, remaining(self.continuations, state)).tolist()], lattice)
            for lattice, state in zip(lattices, states, strict=True)
        ]


class GoldDrafter:
    """A known text, ``block_size`` tokens at a time: every draft is right if the base model writes that text.

    Args:
        continuations: as for ``OracleDrafter``; a row whose text has run out drafts nothing.
        block_size: tokens drafted per call.
    """

    def __init__(self, continuations: Sequence[int] | Sequence[Sequence[int]], block_size: int = 8) -> None:
        self.continuations, self.block_size = by_row(continuations), block_size

    def propose(self, states: Sequence[State]) -> list[DraftTree]:
        return [DraftTree.from_paths([remaining(self.continuations, state)[: min(self.block_size, state.max_depth)]]) for state in states]

    def observe(self, rows: Sequence[int], tokens: Sequence[Sequence[int]]) -> None:
        pass


def by_row(continuations: Sequence[int] | Sequence[Sequence[int]]) -> list[list[int]]:
    """One token list per row; a flat list is a single row's."""
    if all(isinstance(entry, int) for entry in continuations):
        return [[int(token) for token in continuations]]  # type: ignore[arg-type]
    return [list(row) for row in continuations]  # type: ignore[arg-type]


def remaining(continuations: list[list[int]], state: State) -> list[int]:
    """What a row's known text still holds after the tokens committed so far."""
    return continuations[state.row][len(state.tokens) - state.prompt_length :]
