"""Sausage lattices as OpenFst acceptors, and back.

A sausage of ``slots`` slots is the linear acceptor with states 0..slots, start 0 and final state ``slots``; slot ``t``
is the arcs from state ``t`` to ``t + 1``: label = token + 1 (0 is OpenFst's epsilon), weight = -log p, natural.
Token -1 pads a slot, and an arc of log-probability -1e30 or below is masked.

With transitions (`fst.search`) there is a state for each slot and column after the start, all of the last slot final,
and an arc weighs -(log p + transition).
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import numpy.typing as npt

from fst._core import LARGEST_WEIGHT
from fst.automaton import LARGEST_TOKEN
from fst.const_file import FstFile
from fst.openfst import records_of, refuse_transducer
from fst.printable import expect

ANY_SHAPE = "fst.Lattice reads acyclic lattices of any shape"
Ints = npt.NDArray[np.int32]
Floats = npt.NDArray[np.float64]


def slots_of(tokens: npt.ArrayLike, log_probs: npt.ArrayLike) -> list[list[tuple[int, float]]]:
    """The arcs of each slot, (token, log p), without padding; ValueError where the arrays are no lattice.

    tokens, log_probs: ``[slots, k]``.
    """
    token_array, log_prob_array = np.asarray(tokens), np.asarray(log_probs, np.float64)
    shapes = token_array.shape, log_prob_array.shape
    fits = token_array.ndim == 2 and shapes[0] == shapes[1]
    expect(fits, "tokens and log_probs of one shape [slots, k]", f"{shapes[0]} and {shapes[1]}")
    expect(token_array.dtype.kind in "iu", "tokens as integers", token_array.dtype)
    slots = []
    for slot, padded in enumerate(map(zip, token_array.tolist(), log_prob_array.tolist())):
        arcs = [(token, log_prob) for token, log_prob in padded if token != -1]
        for token, log_prob in arcs:
            if not 0 <= token <= LARGEST_TOKEN:
                wanted = f"token ids from 0 to {LARGEST_TOKEN}, or -1 as padding"
                raise ValueError(f"slot {slot}: expected {wanted}, got {token}")
            if not log_prob <= LARGEST_WEIGHT:
                wanted = f"a log-probability of at most {LARGEST_WEIGHT:g} for token {token}"
                raise ValueError(f"slot {slot}: expected {wanted}, got {log_prob}")
        arcs = [arc for arc in arcs if arc[1] > -LARGEST_WEIGHT]
        expect(arcs, "at least one token of positive probability", of=f"slot {slot}")
        ids = sorted(token for token, _ in arcs)
        expect(len(set(ids)) == len(ids), "every token once", ids, of=f"slot {slot}")
        slots.append(arcs)
    return slots


def warn_of_positive(log_probs: npt.NDArray[np.floating[Any]], stacklevel: int = 3) -> None:
    """A warning that counts the log-probabilities above 0, which scores and costs may be, but no probabilities."""
    if (above := log_probs > 1e-3).any():  # a rounded sum may be a little above
        what = f"{np.count_nonzero(above)} of the lattice's {log_probs.size} log-probabilities are above 0"
        warnings.warn(f"{what}, up to {log_probs.max():g}; are they probabilities or costs?", stacklevel=stacklevel)


def checked_transitions(transitions: npt.ArrayLike, arcs: npt.NDArray[np.bool_]) -> npt.NDArray[Any]:
    """Transitions ``[..., slots - 1, k, k]`` as float16 where they are that, else float32; -inf where masked.

    arcs: ``[..., slots, k]`` whether there is one; values between others do not matter. ValueError for wrong shapes,
    NaN and what is above 1e30.
    """
    *batch, slots, k = arcs.shape
    values = np.asarray(transitions)
    names, shape = "[n, slots - 1, k, k]" if batch else "[slots - 1, k, k]", (*batch, max(slots - 1, 0), k, k)
    expect(values.shape == shape, f"transitions {names} {shape}", values.shape)
    expect(values.dtype.kind in "fiu", "real transitions", values.dtype)
    with np.errstate(over="ignore"):  # what is beyond float32 is beyond the largest weight
        gains = np.ascontiguousarray(values, values.dtype if values.dtype == np.float16 else np.float32)
    least, most = -LARGEST_WEIGHT, LARGEST_WEIGHT
    if gains.dtype == np.float16:
        least, most = -np.inf, float(np.finfo(np.float16).max)
    if gains.min(initial=0) > least and gains.max(initial=0) <= most:  # NaN fails too
        return gains
    between = arcs[..., :-1, :, None] & arcs[..., 1:, None, :]
    if (bad := between & ~(gains <= most)).any():
        *row, slot, before, arc = map(int, np.argwhere(bad)[0])
        at = f"{f'lattice {row[0]}, ' if row else ''}slot {slot + 1}, arc {arc} after arc {before}"
        wanted = f"a transition of at most {LARGEST_WEIGHT:g}"
        raise ValueError(f"{at}: expected {wanted}, got {gains[*row, slot, before, arc]}")
    return np.where(between & (gains > least), gains, gains.dtype.type(-np.inf))


def fst_to_lattice(automaton: Any) -> tuple[Ints, Floats] | tuple[Ints, Floats, Floats]:
    """The sausage that an acceptor spells: ``tokens [slots, k]`` int32, ``log_probs [slots, k]`` float64.

    The arcs of a slot come best first, ties by token, padded with token -1 and log-probability -inf.  Where some slot
    has a state for each of its tokens, as `lattice_to_fst` makes them of transitions, ``transitions [slots - 1, k, k]``
    follow: a slot's ``log_probs`` are then the weights of the best arcs to each token.

    Raises ValueError for automata that are no sausage: paths of several lengths, epsilons, transducers, labels that
    repeat.
    """
    file = records_of(automaton)
    refuse_transducer(file)
    finals = -file.states["final"].astype(np.float64)
    layer = {file.start: 0}  # states, each with its column of the slot before
    slots: list[tuple[list[int], dict[tuple[int, int], float]]] = []  # the tokens, the weight from each column to each
    visited = {file.start}
    while arcs := _arcs_of_layer(file, layer):
        if ends := [state for state in layer if finals[state] > -np.inf]:
            raise ValueError(f"expected all paths of one length, got state {ends[0]} that is final and has arcs")
        targets = {target for _, _, target, _ in arcs}
        if again := targets & visited:
            got = f"a cycle through state {min(again)} or paths of two lengths to it"
            raise ValueError(f"expected paths of one length, got {got}; {ANY_SHAPE}")
        visited |= targets
        tokens = sorted({label - 1 for _, label, _, _ in arcs})
        pairs = {(label, target) for _, label, target, _ in arcs}
        if len(targets) > 1 and not len(pairs) == len(tokens) == len(targets):
            wanted = "a linear acceptor, or one with a state for each token of a slot"
            got = f"{len(targets)} states for {len(tokens)} tokens of slot {len(slots)}; it is no sausage"
            raise ValueError(f"expected {wanted}, got {got}: {ANY_SHAPE}")
        column = {token: at for at, token in enumerate(tokens)}
        slots.append((tokens, {(layer[state], column[label - 1]): weight for state, label, _, weight in arcs}))
        layer = {target: column[label - 1] for label, target in pairs} if len(targets) > 1 else {targets.pop(): -1}
    if not slots or all(finals[state] == -np.inf for state in layer):
        raise ValueError("expected a sausage with at least one arc and a final state at its end")
    last = slots[-1][1]
    for (before, to), weight in last.items():
        last[before, to] = weight + next(finals[state] for state, column in layer.items() if column in (-1, to))
    return _arrays(slots)


def _arcs_of_layer(file: FstFile, layer: dict[int, int]) -> list[tuple[int, int, int, float]]:
    """State, label, target and log-probability of every arc of some states; ValueError where no slot has such arcs."""
    arcs = []
    for state in sorted(layer):
        begin = int(file.states["pos"][state])
        rows = file.arcs[begin : begin + int(file.states["narcs"][state])]
        remedy, is_distinct = "remove epsilons with rmepsilon", len(np.unique(rows["ilabel"])) == len(rows)
        expect((rows["ilabel"] != 0).all(), "labels above 0", f"0 at state {state}", remedy)
        expect(is_distinct, "every label once in a slot", f"one twice at state {state}", "determinize it")
        arcs += [(state, label, target, -weight) for label, _, weight, target in rows.tolist()]
    return arcs


def _arrays(
    slots: list[tuple[list[int], dict[tuple[int, int], float]]],
) -> tuple[Ints, Floats] | tuple[Ints, Floats, Floats]:
    """The arrays of slots whose arcs have weights from column to column; -1 is the one column before all."""
    k = max(len(tokens) for tokens, _ in slots)
    ids, log_probs = np.full((len(slots), k), -1, np.int32), np.full((len(slots), k), -np.inf)
    transitions = np.zeros((len(slots) - 1, k, k))
    rank = {-1: slice(None), 0: slice(None)}  # of the columns of the slot before
    for slot, (tokens, weights) in enumerate(slots):
        best = [max(weight for (_, to), weight in weights.items() if to == column) for column in range(len(tokens))]
        order = sorted(range(len(tokens)), key=lambda column: (-best[column], tokens[column]))
        ids[slot, : len(order)] = [tokens[column] for column in order]
        log_probs[slot, : len(order)] = [best[column] for column in order]
        here = {column: slice(at, at + 1) for at, column in enumerate(order)}
        if slot and -1 not in {before for before, _ in weights}:
            transitions[slot - 1] = -np.inf
            for (before, to), weight in weights.items():
                if best[to] > -np.inf:
                    transitions[slot - 1, rank[before], here[to]] = weight - best[to]
        rank = {**here, -1: slice(None)}
    return (ids, log_probs, transitions) if transitions.any() else (ids, log_probs)
