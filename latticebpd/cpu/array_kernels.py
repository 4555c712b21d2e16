"""The compiled kernels on NumPy arrays, float32."""

from __future__ import annotations

import numpy as np

from latticebpd.cpu import _engine
from latticebpd.machine import num_threads


def top_k(logits: np.ndarray, k: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """``[rows, slots, tokens]`` logits -> each row's ``k`` best tokens and their log-probabilities, ``[slots, k]``.

    k >= 1, more than all tokens count as all; ties go to the lower token. PyTorch's top-k takes four times as long.
    """
    given = np.ascontiguousarray(logits)
    rows, slots, tokens = given.shape
    k = min(k, tokens)
    values, indices = np.empty((rows, slots, k), np.float32), np.empty((rows, slots, k), np.int32)
    totals = np.empty((rows, slots, 1), np.float32)
    x, values_at, indices_at, totals_at = (each.ctypes.data for each in (given, values, indices, totals))
    _engine.top_k(x, rows * slots, tokens, k, values_at, indices_at, totals_at, num_threads())
    return list(zip(indices, values - totals, strict=True))


def chain_weights(log_probs: np.ndarray, start: np.ndarray, pairs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The ``log_probs`` and ``transitions`` of lattices whose arcs have scores after the arcs before them: those of a
    Markov chain (DSpark, DFlash 2, LiLiCorr; heads with a transition network).

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
        ``[rows, slots, k]`` and ``[rows, slots - 1, k, k]``.
    """
    return _engine.chain_weights(log_probs, start, pairs)


class Int8HeadKernels:
    """Feed-forward heads, quantized to int8.  up, down: ``[heads, inputs, inner]`` and ``[heads, inner, hidden]``; the
    first ``hidden`` inputs are the state, which heads add to."""

    def __init__(self, up: np.ndarray, down: np.ndarray) -> None:
        rows = [np.ascontiguousarray(each.swapaxes(1, 2), np.float32) for each in (up, down)]
        (count, inner, self._hidden), inputs = down.shape, up.shape[1]
        self.kernels = _engine.Int8Heads(rows[0].ctypes.data, rows[1].ctypes.data, count, inner, self._hidden, inputs)

    def states(self, inputs: np.ndarray, slots: int) -> np.ndarray:
        """``[rows, inputs]`` -> ``[rows, slots, hidden]`` of the first ``slots`` heads."""
        given = np.ascontiguousarray(inputs, np.float32)
        states = np.empty((len(given), slots, self._hidden), np.float32)
        self.kernels.states(given.ctypes.data, len(given), slots, states.ctypes.data, num_threads())
        return states
