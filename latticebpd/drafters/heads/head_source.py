"""What sources of lattices by prediction heads share, whatever computes the heads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from latticebpd.checks import expect
from latticebpd.drafters.drafter import State
from latticebpd.lattices.sausage import SausageLattice


class HeadSource:
    """Heads read one hidden state per row, all rows at once.  A subclass computes ``_drawn`` and counts ``_num_heads``.

    k: arcs per slot.  slots: ask the first so many heads only; None asks all.
    """

    needs_hidden = True
    owner = "the model"
    has_transitions = False
    shares_lm = True

    def __init__(self, k: int, slots: int | None) -> None:
        expect(slots is None or slots >= 1, "slots >= 1, or None for all", slots)
        self.k, self.slots = k, slots

    def lattices(self, states: Sequence[State]) -> list[SausageLattice | None]:
        hidden = [vars(state)["hidden"] for state in states]
        wanted = "states with the hidden state that predicted the last token, which heads read"
        expect(not any(each is None for each in hidden), wanted, "some without")
        reachable = max(state.max_depth for state in states)
        drawn = self._drawn(hidden, reachable if self.slots is None else min(reachable, self.slots))
        return [lattice.first_slots(state.max_depth) for lattice, state in zip(drawn, states, strict=True)]

    def _drawn(self, hidden: list[Any], slots: int) -> Sequence[SausageLattice]:
        """Lattices of at most ``slots`` slots after hidden states, arrays or tensors ``[hidden]``."""
        raise NotImplementedError

    @property
    def _num_heads(self) -> int:
        raise NotImplementedError

    @property
    def num_slots(self) -> int:
        return self._num_heads if self.slots is None else min(self.slots, self._num_heads)

    def default_system(self, rescored: bool) -> str:
        return "copies+{n}-tree"
