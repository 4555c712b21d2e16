"""Sausage lattices as OpenFst acceptors, and back.

A sausage of ``slots`` slots is the linear acceptor with states 0..slots, start 0 and final state ``slots``; slot ``t``
is the arcs from state ``t`` to ``t + 1``: label = token + 1 (0 is OpenFst's epsilon), weight = -log p, natural.
As everywhere, token -1 pads a slot, and an arc of log-probability -1e30 or below is none.

With transitions (`fst.search`) there is a state for each slot and column behind the start, all of the last slot final, and an arc
weighs -(log p + transition).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pywrapfst

from fst._core import LARGEST_WEIGHT
from fst.automaton import LARGEST_TOKEN

Ints = npt.NDArray[np.int32]
Floats = npt.NDArray[np.float64]


def slots_of(tokens: npt.ArrayLike, log_probs: npt.ArrayLike) -> list[list[tuple[int, float]]]:
    """The arcs of each slot, (token, log p), without padding; ValueError where the arrays are no lattice.

    tokens, log_probs: ``[slots, k]``.
    """
    token_array, log_prob_array = np.asarray(tokens), np.asarray(log_probs, np.float64)
    if token_array.ndim != 2 or token_array.shape != log_prob_array.shape:
        raise ValueError(f"expected tokens and log_probs of one shape [slots, k], got {token_array.shape} and {log_prob_array.shape}")
    if token_array.dtype.kind not in "iu":
        raise ValueError(f"expected tokens as integers, got {token_array.dtype}")
    slots = []
    for slot, (slot_tokens, slot_log_probs) in enumerate(zip(token_array.tolist(), log_prob_array.tolist(), strict=True)):
        arcs = [(token, log_prob) for token, log_prob in zip(slot_tokens, slot_log_probs, strict=True) if token != -1]
        for token, log_prob in arcs:
            if not 0 <= token <= LARGEST_TOKEN:
                raise ValueError(f"slot {slot}: expected token ids from 0 to {LARGEST_TOKEN}, or -1 as padding, got {token}")
            if not log_prob <= LARGEST_WEIGHT:
                raise ValueError(f"slot {slot}: expected a log-probability of at most {LARGEST_WEIGHT:g} for token {token}, got {log_prob}")
        arcs = [arc for arc in arcs if arc[1] > -LARGEST_WEIGHT]
        if not arcs:
            raise ValueError(f"slot {slot}: expected at least one token of positive probability, got none")
        if len({token for token, _ in arcs}) < len(arcs):
            raise ValueError(f"slot {slot}: expected every token once, got {sorted(token for token, _ in arcs)}")
        slots.append(arcs)
    return slots


Arc = tuple[int, float, int]
"""A token, its log-probability with the transition to it, its column."""
START = -1
"""The column before the first slot."""


def followers(tokens: npt.ArrayLike, log_probs: npt.ArrayLike, transitions: npt.ArrayLike | None = None) -> Callable[[int, int], list[Arc]]:
    """Of a slot and the column before it (`START` at the first slot), the arcs that may follow, by rising token.

    tokens, log_probs: ``[slots, k]``. transitions: ``[slots - 1, k, k]``; without them the column before does not matter. ValueError
    where the arrays are no lattice.
    """
    slots, ids = slots_of(tokens, log_probs), np.asarray(tokens)
    arcs = [
        [(token, log_prob, int(np.argmax(ids[slot] == token))) for token, log_prob in sorted(found)] for slot, found in enumerate(slots)
    ]
    if transitions is None:
        return lambda slot, before: arcs[slot]
    gains = checked_transitions(transitions, (ids != -1) & (np.asarray(log_probs) > -LARGEST_WEIGHT)).astype(np.float64)

    def following(slot: int, before: int) -> list[Arc]:
        if slot == 0:
            return arcs[0]
        row = gains[slot - 1, before].tolist()
        return [(token, log_prob + row[column], column) for token, log_prob, column in arcs[slot] if row[column] > -np.inf]

    return following


def checked_transitions(transitions: npt.ArrayLike, arcs: npt.NDArray[np.bool_]) -> npt.NDArray[Any]:
    """Transitions ``[..., slots - 1, k, k]`` as float16 where they are that, else float32; -inf where masked.

    arcs: ``[..., slots, k]`` whether there is one; what stands between others does not matter. ValueError for wrong shapes, NaN and
    what is above 1e30.
    """
    *batch, slots, k = arcs.shape
    given = np.asarray(transitions)
    if given.shape != (*batch, max(slots - 1, 0), k, k):
        names = "[n, slots - 1, k, k]" if batch else "[slots - 1, k, k]"
        raise ValueError(f"expected transitions {names} {(*batch, max(slots - 1, 0), k, k)}, got {given.shape}")
    if given.dtype.kind not in "fiu":
        raise ValueError(f"expected real transitions, got {given.dtype}")
    with np.errstate(over="ignore"):  # what is beyond float32 is beyond the largest weight
        gains = np.ascontiguousarray(given, given.dtype if given.dtype == np.float16 else np.float32)
    least, most = (-LARGEST_WEIGHT, LARGEST_WEIGHT) if gains.dtype == np.float32 else (-np.inf, float(np.finfo(np.float16).max))
    if gains.min(initial=0) > least and gains.max(initial=0) <= most:  # NaN fails too
        return gains
    between = arcs[..., :-1, :, None] & arcs[..., 1:, None, :]
    if (bad := between & ~(gains <= most)).any():
        *row, slot, before, arc = map(int, np.argwhere(bad)[0])
        raise ValueError(
            f"{f'lattice {row[0]}, ' if row else ''}slot {slot + 1}, arc {arc} behind arc {before}: expected a transition of at most "
            f"{LARGEST_WEIGHT:g}, got {gains[*row, slot, before, arc]}"
        )
    return np.where(between & (gains > least), gains, gains.dtype.type(-np.inf))


def lattice_to_fst(tokens: npt.ArrayLike, log_probs: npt.ArrayLike, transitions: npt.ArrayLike | None = None) -> pywrapfst.VectorFst:
    """The acceptor of a lattice, ``tokens [slots, k]`` ids and ``log_probs [slots, k]`` natural logs; linear without transitions."""
    if transitions is not None:
        return _branching(followers(tokens, log_probs, transitions), len(np.asarray(tokens)))
    slots = slots_of(tokens, log_probs)
    automaton = pywrapfst.VectorFst()
    automaton.add_states(len(slots) + 1)
    automaton.set_start(0)
    automaton.set_final(len(slots))
    for slot, arcs in enumerate(slots):
        for token, log_prob in sorted(arcs):
            automaton.add_arc(slot, pywrapfst.Arc(token + 1, token + 1, -log_prob, slot + 1))
    return automaton


def _branching(following: Callable[[int, int], list[Arc]], slots: int) -> pywrapfst.VectorFst:
    """The acceptor with a state for each column."""
    automaton = pywrapfst.VectorFst()
    states = {START: automaton.add_state()}  # by column
    automaton.set_start(states[START])
    for slot in range(slots):
        behind: dict[int, int] = {}
        for before, state in states.items():
            for token, log_prob, column in following(slot, before):
                if column not in behind:
                    behind[column] = automaton.add_state()
                automaton.add_arc(state, pywrapfst.Arc(token + 1, token + 1, -log_prob, behind[column]))
        states = behind
    for state in states.values():
        automaton.set_final(state)
    return automaton


def fst_to_lattice(automaton: Any) -> tuple[Ints, Floats]:
    """The lattice of a linear acceptor (pywrapfst or pynini): ``tokens [slots, k]`` int32, ``log_probs [slots, k]`` float64.

    The arcs of a slot come best first, ties by token, padded with token -1 and log-probability -inf. Raises ValueError
    for automata that are no sausage: ones that branch, end early, loop, transduce, hold epsilons or repeat a label.
    """
    if automaton.arc_type() != "standard":
        raise ValueError(f"expected tropical weights (arc type standard), got arc type {automaton.arc_type()}; use arcmap to convert them")
    state = automaton.start()
    if state < 0:
        raise ValueError("expected a linear acceptor, got an automaton without a start state")
    slots: list[list[tuple[float, int]]] = []
    visited = set()
    while True:
        visited.add(state)
        arcs = list(automaton.arcs(state))
        final = float(automaton.final(state))
        if not arcs:
            break
        if final != np.inf:
            raise ValueError(f"expected all paths of one length, got state {state} that is final and has arcs")
        next_states = {arc.nextstate for arc in arcs}
        if len(next_states) > 1:
            raise ValueError(f"expected a linear acceptor, got arcs from state {state} to {len(next_states)} states; it is no sausage")
        for arc in arcs:
            if arc.ilabel != arc.olabel:
                raise ValueError(f"expected an acceptor, got an arc {arc.ilabel}:{arc.olabel} at state {state}; project it")
            if arc.ilabel <= 0:
                raise ValueError(f"expected labels above 0, got {arc.ilabel} at state {state}; remove epsilons with rmepsilon")
        if len({arc.ilabel for arc in arcs}) < len(arcs):
            raise ValueError(f"expected every label once in a slot, got one twice at state {state}; determinize it")
        slots.append(sorted((float(arc.weight), arc.ilabel - 1) for arc in arcs))
        state = next_states.pop()
        if state in visited:
            raise ValueError(f"expected a linear acceptor, got a cycle through state {state}")
    if final == np.inf or not slots:
        raise ValueError("expected a linear acceptor with at least one arc and a final state at its end")
    slots[-1] = [(cost + final, token) for cost, token in slots[-1]]
    k = max(map(len, slots))
    tokens, log_probs = np.full((len(slots), k), -1, np.int32), np.full((len(slots), k), -np.inf)
    for slot, costs in enumerate(slots):
        log_probs[slot, : len(costs)] = [-cost for cost, _ in costs]
        tokens[slot, : len(costs)] = [token for _, token in costs]
    return tokens, log_probs
