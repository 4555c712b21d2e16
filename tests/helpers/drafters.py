"""A drafter that does what a test says."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from latticebpd import DraftTree, State


class ScriptedDrafter:
    """Drafts whatever ``script(state)`` says and remembers what it observed."""

    def __init__(self, script: Callable[[State], DraftTree]) -> None:
        self.script = script
        self.observed: list[int] = []

    def propose(self, states: Sequence[State]) -> list[DraftTree]:
        return [self.script(state) for state in states]

    def observe(self, rows: Sequence[int], tokens: Sequence[Sequence[int]]) -> None:
        for row in tokens:
            self.observed += row
