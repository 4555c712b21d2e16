"""What sources of lattices by prediction heads share, whatever computes the heads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from latticebpd.checks import expect
from latticebpd.drafters.drafter import State
from latticebpd.lattices.sausage import SausageLattice


class HeadSource:
    """Heads read one hidden state per row, all rows at once.  A subclass computes ``_drawn``.

    heads: they tell ``num_heads``, the target's own output included, the ``layers`` that they read, and whether they
    have transitions.  k: arcs per slot.  slots: ask the first so many heads only; None asks all.  bigram: use the
    transitions.
    """

    needs_hidden = True
    owner = "the model"
    shares_lm = True

    def __init__(self, heads: Any, k: int, slots: int | None, bigram: bool) -> None:
        expect(slots is None or slots >= 1, "slots >= 1, or None for all", slots)
        self.heads, self.k, self.slots, self.bigram = heads, k, slots, bigram
        self.needs_layers = tuple(layer - 1 for layer in heads.layers)
        self.has_transitions = bool(bigram and k > 1 and heads.has_transitions)

    def lattices(self, states: Sequence[State]) -> list[SausageLattice | None]:
        read = [[vars(state)["hidden"]] for state in states]
        wanted = "states with the hidden state that predicted the last token, which heads read"
        expect(not any(parts[0] is None for parts in read), wanted, "some without")
        if self.needs_layers:
            layers = [vars(state)["layers"] for state in states]
            missing = any(each is None or not len(each) for each in layers)
            expect(not missing, f"states of layers {self.needs_layers} (from 0), which heads read", "some without")
            read = [[*parts, each[-1]] for parts, each in zip(read, layers, strict=True)]
        reachable = max(state.max_depth for state in states)
        last = [state.tokens[-1] for state in states]
        drawn = self._drawn(read, last, reachable if self.slots is None else min(reachable, self.slots))
        return [lattice.first_slots(state.max_depth) for lattice, state in zip(drawn, states, strict=True)]

    def _drawn(self, read: list[list[Any]], last: list[int], slots: int) -> Sequence[SausageLattice]:
        """Lattices of at most ``slots`` slots after each row's states, arrays or tensors to be joined, and the tokens
        that these predicted."""
        raise NotImplementedError

    @property
    def num_slots(self) -> int:
        return len(range(self.heads.num_heads - 1)[: self.slots])

    def default_system(self, rescored: bool) -> str:
        return "copies+{n}-tree"
