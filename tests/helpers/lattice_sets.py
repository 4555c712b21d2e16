"""Sets of lattices: drawn at random, one whose numbers can be worked out on paper, and the calls of their decodes."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from latticebpd.lattices.lattice_set import LatticeSet
from latticebpd.lattices.sausage import PADDING

VOCAB = 7


@st.composite
def lattice_sets(draw: st.DrawFn, min_size: int = 1, transitions: bool = False) -> LatticeSet:
    """Ragged lattices of a few texts; tied and impossible arcs, texts that end inside a lattice; with transitions, some
    masked."""
    n, slots, k = draw(st.integers(min_size, 12)), draw(st.integers(1, 4)), draw(st.integers(1, 4))
    tokens = np.full((n, slots, k), PADDING, np.int32)
    log_probs = np.zeros((n, slots, k), np.float32)
    continuation = np.full((n, slots), PADDING, np.int32)
    for i in range(n):
        for slot in range(slots):
            ids = draw(st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=k, unique=True))
            tokens[i, slot, : len(ids)] = ids
            log_probs[i, slot, : len(ids)] = draw(
                st.lists(st.sampled_from([-0.5, -1, -2]), min_size=len(ids), max_size=len(ids))
            )
        text = draw(st.lists(st.integers(0, VOCAB - 1), max_size=slots))
        continuation[i, : len(text)] = text
    sequence = np.sort(np.array(draw(st.lists(st.integers(0, 3), min_size=n, max_size=n))))
    gains = None
    if transitions:
        size = n * (slots - 1) * k * k
        values = draw(st.lists(st.sampled_from([0.0, 0.5, -1.0, -np.inf]), min_size=size, max_size=size))
        gains = np.array(values, draw(st.sampled_from([np.float16, np.float32]))).reshape(n, slots - 1, k, k)
    return LatticeSet(tokens, log_probs, continuation, np.zeros((n, 1), np.int32), sequence=sequence, transitions=gains)


def by_hand() -> LatticeSet:
    """One text of four positions; two slots of two arcs; the right token is 1 wherever a slot has it."""
    tokens = np.array([[[1, 2], [2, 1]], [[2, 3], [1, 2]], [[1, 2], [1, 2]], [[2, 1], [3, 2]]], np.int32)
    log_probs = np.tile(np.array([-0.5, -1.0], np.float32), (4, 2, 1))
    continuation = np.array([[1, 1], [1, 1], [1, 1], [1, PADDING]], np.int32)
    return LatticeSet(tokens, log_probs, continuation, np.zeros((4, 1), np.int32), sequence=np.zeros(4, np.int64))


def calls(lengths: list[int]) -> list[int]:
    """What each call of a decode accepts, of a text's lengths by position."""
    position, accepted = 0, []
    while position < len(lengths):
        accepted.append(lengths[position])
        position += lengths[position] + 1
    return accepted


def decode(lengths: list[int]) -> int:
    """How many calls a decode makes."""
    return len(calls(lengths))
