"""What rescoring makes of a lattice's arcs: their posteriors under lattice and language model (Kim 2024, figure 4).

A path's probability is ``exp(score) / Z``, with `fst.search`'s score and ``Z`` the sum over all paths.  An arc's posterior
is the probability of the paths that take it.  The product of lattice and model has states ``(slot, history)``, or
``(slot, history, column)`` where the lattice has transitions; forward and backward sums over it give the posteriors exactly,
however many paths there are.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from fst._core import LARGEST_WEIGHT
from fst.automaton import LOG_ZERO, Automaton
from fst.lattices import checked_transitions, slots_of
from fst.model import NgramModel

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


def arc_posteriors(
    tokens: npt.ArrayLike,
    log_probs: npt.ArrayLike,
    lm: NgramModel | None = None,
    alpha: float = 1.0,
    context: Sequence[int] = (),
    transitions: npt.ArrayLike | None = None,
) -> Floats:
    """``[slots, k]`` natural log of each arc's posterior; -inf where there is no arc, or no path that takes it.

    tokens, log_probs, lm, alpha, context, transitions: as for `fst.nbest_paths`.
    """
    slots_of(tokens, log_probs)  # refuses what is no lattice
    ids, weights = np.asarray(tokens), np.where(np.asarray(tokens) < 0, -np.inf, np.asarray(log_probs, np.float64))
    automaton = lm.automaton if lm is not None and alpha else None
    states = np.array([0 if lm is None else lm.core.state_of(np.asarray(context, np.int64))])
    gains = None if transitions is None else checked_transitions(transitions, weights > -LARGEST_WEIGHT).astype(np.float64)
    columns = np.zeros(1, int)  # of the slot before; where there are transitions they are part of a state
    layers: list[tuple[Ints, Floats]] = []  # of each slot ``[histories, k]``: the history that follows, the weight
    forward = [np.zeros(1)]
    for slot, row in enumerate(ids):
        costs, targets = (np.zeros(1), np.zeros(1, int)) if automaton is None else _followed(automaton, states, row + 1)
        weight = np.broadcast_to(weights[slot] - alpha * costs, (len(states), len(row)))
        targets = np.broadcast_to(targets, weight.shape)
        if gains is None:
            states, following = np.unique(targets, return_inverse=True)
        else:
            weight = weight if slot == 0 else weight + gains[slot - 1, columns]
            reached, following = np.unique(targets * len(row) + np.arange(len(row)), return_inverse=True)
            states, columns = reached // len(row), reached % len(row)
        layers.append((following.reshape(weight.shape), weight))
        forward.append(_summed(forward[-1][:, None] + weight, layers[-1][0], len(states)))
    found = np.full(ids.shape, -np.inf)
    backward = np.zeros(len(states))
    total = np.logaddexp.reduce(forward[-1])
    if total == -np.inf:
        return found  # masked transitions leave no path
    for slot in range(len(layers) - 1, -1, -1):
        paths = layers[slot][1] + backward[layers[slot][0]]
        found[slot] = np.logaddexp.reduce(forward[slot][:, None] + paths, axis=0) - total
        backward = np.logaddexp.reduce(paths, axis=1)
    return found


def _summed(log_values: Floats, groups: Ints, count: int) -> Floats:
    """``[count]`` logarithms of the sums of each group."""
    sums = np.full(count, -np.inf)
    np.logaddexp.at(sums, groups, log_values)
    return sums


def _followed(automaton: Automaton, histories: Ints, labels: Ints) -> tuple[Floats, Ints]:
    """``[histories, labels]``: the cost of each label after each history, and the history after it, failure arcs taken where needed."""
    arcs, unigram_state = automaton.arcs, automaton.unigram_state
    known = _arc_labelled(automaton, np.full(len(labels), unigram_state), labels) >= 0
    label = np.tile(np.where(known, labels, automaton.unk_label), len(histories))
    state = np.repeat(histories, len(labels))
    cost, target = np.zeros(len(state)), np.full(len(state), unigram_state)
    going_on = np.arange(len(state))
    while going_on.size:
        arc = _arc_labelled(automaton, state[going_on], label[going_on])
        hit = going_on[arc >= 0]
        cost[hit] += arcs["weight"][arc[arc >= 0]]
        target[hit] = arcs["nextstate"][arc[arc >= 0]]
        going_on = going_on[arc < 0]
        at_end = state[going_on] == unigram_state
        cost[going_on[at_end]] -= LOG_ZERO
        going_on = going_on[~at_end]
        failure = automaton.states["pos"][state[going_on]]
        cost[going_on] += arcs["weight"][failure]
        state[going_on] = arcs["nextstate"][failure]
    shape = len(histories), len(labels)
    return cost.reshape(shape), target.reshape(shape)


def _arc_labelled(automaton: Automaton, states: Ints, labels: Ints) -> Ints:
    """``[n]`` the arc of each state with its label, above 0; -1 where there is none.  A state's arcs are sorted by label."""
    of_arcs = automaton.arcs["ilabel"]
    low = automaton.states["pos"][states].astype(np.int64)
    high = end = low + automaton.states["narcs"][states]
    while (low < high).any():
        middle = (low + high) // 2
        before = (low < high) & (of_arcs[np.minimum(middle, len(of_arcs) - 1)] < labels)
        low, high = np.where(before, middle + 1, low), np.where(before, high, middle)
    hit = (labels > 0) & (low < end)
    hit[hit] = of_arcs[low[hit]] == labels[hit]
    return np.where(hit, low, -1)
