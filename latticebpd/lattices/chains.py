"""Lattices of a Markov chain over each slot's arcs (DSpark, DFlash 2, LiLiCorr; heads with a transition network)."""

from __future__ import annotations

import numpy as np


def chain_weights(log_probs: np.ndarray, start: np.ndarray, pairs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The ``log_probs`` and ``transitions`` of lattices whose arcs have scores after the arcs before them.

    Softmax over j of the scores makes a chain of them, p(j | i). With m_s the probability of the arcs of slot s
    together, as the drafter gives it,

        log_probs[0, j]           = log m_0 + log p(j)
        log_probs[s + 1, j]       = log m_(s + 1) + log sum_i w_i p(j | i)     w: the same sum of slot s
        transitions[s, i, j]      = log m_(s + 1) + log p(j | i) - log_probs[s + 1, j]

    so that a path's log_probs and transitions add up to its log-probability in the chain, and the mass of a slot's arcs
    is that of the drafter.

    Args:
        log_probs: ``[rows, slots, k]`` of the drafter's marginals; only their sums matter.
        start: ``[rows, k]`` scores of the first slot's arcs.
        pairs: ``[rows, slots - 1, k, k]`` scores of arc j of slot s + 1 after arc i of slot s.

    Returns:
        ``[rows, slots, k]`` and ``[rows, slots - 1, k, k]``, of the arguments' type.
    """
    masses = np.logaddexp.reduce(log_probs, axis=-1, keepdims=True)
    given = pairs - np.logaddexp.reduce(pairs, axis=-1, keepdims=True)
    marginals = [start - np.logaddexp.reduce(start, axis=-1, keepdims=True)]
    for slot in range(given.shape[1]):
        marginals.append(np.logaddexp.reduce(marginals[-1][..., None] + given[:, slot], axis=1))
    arcs = np.stack(marginals, axis=1)
    return arcs + masses, given - arcs[:, 1:, None]
