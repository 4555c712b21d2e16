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


class Int8TransitionKernels:
    """Transitions of heads, rounded to 8 bits.  up, down: ``[2 hidden, width]`` and ``[width, hidden]``.  embeddings:
    ``[tokens, hidden]``.  epsilon: added to the mean square of an embedding."""

    def __init__(self, up: np.ndarray, down: np.ndarray, embeddings: _engine.Int8Weights, epsilon: float) -> None:
        parts = np.ascontiguousarray(np.split(up, 2), np.float32).swapaxes(1, 2)
        rows = [np.ascontiguousarray(each, np.float32) for each in (parts, down)]
        addresses = (each.ctypes.data for each in rows)
        self._transitions = _engine.Int8Transitions(*addresses, len(down), embeddings, epsilon)

    def pair_scores(self, states: np.ndarray, tokens: np.ndarray, log_probs: np.ndarray) -> np.ndarray:
        """``[rows, slots, hidden]`` states, and each slot's ``[rows, slots, k]`` tokens (int32) and log-probabilities
        -> ``[rows, slots - 1, k, k]``: the log-probability of a token and what transitions add to it after each token of
        the slot before.  All are as `Int8HeadKernels.top_k` returns them."""
        rows, slots, k = tokens.shape
        scores = np.empty((rows, slots - 1, k, k), np.float32)
        given = (each.ctypes.data for each in (states, tokens, log_probs))
        self._transitions.pair_scores(*given, rows, slots, k, scores.ctypes.data, num_threads())
        return scores


class Int8HeadKernels:
    """Feed-forward heads, rounded to 8 bits.  up, down: ``[heads, inputs, inner]`` and ``[heads, inner, hidden]``; the
    first ``hidden`` inputs are the state, which heads add to."""

    def __init__(self, up: np.ndarray, down: np.ndarray) -> None:
        rows = [np.ascontiguousarray(each.swapaxes(1, 2), np.float32) for each in (up, down)]
        (count, inner, self._hidden), inputs = down.shape, up.shape[1]
        self._heads = _engine.Int8Heads(rows[0].ctypes.data, rows[1].ctypes.data, count, inner, self._hidden, inputs)

    def states(self, inputs: np.ndarray, slots: int) -> np.ndarray:
        """``[rows, inputs]`` -> ``[rows, slots, hidden]`` of the first ``slots`` heads."""
        given = np.ascontiguousarray(inputs, np.float32)
        states = np.empty((len(given), slots, self._hidden), np.float32)
        self._heads.states(given.ctypes.data, len(given), slots, states.ctypes.data, num_threads())
        return states

    def top_k(
        self, inputs: np.ndarray, slots: int, projection: _engine.Int8Weights, k: int
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """``[rows, inputs]`` -> the ``k`` best tokens of the first ``slots`` heads, and log-probabilities, ``[rows,
        slots, k]``, and their `states`, in one call: with the projection ``[tokens, hidden]`` and :func:`top_k`."""
        given, shape = np.ascontiguousarray(inputs, np.float32), (len(inputs), slots, k)
        tokens, log_probs = np.empty(shape, np.int32), np.empty(shape, np.float32)
        states = np.empty((len(given), slots, self._hidden), np.float32)
        addresses = tokens.ctypes.data, log_probs.ctypes.data, states.ctypes.data
        self._heads.top_k(given.ctypes.data, len(given), slots, projection, k, *addresses, num_threads())
        return tokens, log_probs, states
