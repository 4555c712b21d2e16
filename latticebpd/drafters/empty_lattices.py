"""Lattices without slots: for models without heads, for which the n-gram model and the text draft alone."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from latticebpd.drafters.drafter import State
from latticebpd.lattices.sausage import SausageLattice

EMPTY = SausageLattice.trusted(np.empty((0, 1), np.int32), np.empty((0, 1), np.float32))
"""The lattice without slots."""


class EmptyLattices:
    """A source whose lattices have no slots. Calibrated trees go on after a lattice's last slot, so here they begin
    there: with copies of the text and with what the n-gram model proposes.

    fingerprint, vocab_size: hash and size of the target's vocabulary, None where they are not known.
    """

    needs_hidden = False
    vocabulary_name = "the model"

    def __init__(self, vocab_size: int | None = None, fingerprint: str | None = None) -> None:
        self.vocab_size, self.fingerprint = vocab_size, fingerprint

    def lattices(self, states: Sequence[State]) -> list[SausageLattice | None]:
        return [EMPTY] * len(states)
