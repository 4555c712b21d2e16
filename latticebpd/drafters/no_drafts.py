"""No drafts: one token a call, the baseline of everything else."""

from __future__ import annotations

from collections.abc import Sequence

from latticebpd.drafters.drafter import Drafter, State
from latticebpd.lattices.drafts import DraftTree


class NoDrafter(Drafter):
    """Drafts nothing: plain greedy decoding."""

    needs_hidden = False

    def propose(self, states: Sequence[State]) -> list[DraftTree]:
        return [DraftTree.empty()] * len(states)
