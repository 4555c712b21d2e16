"""Smoothing methods: probabilities of the words seen after a context, which leave mass to all others."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

NO_MASS = 1e-9
"""Tolerance of sums of probabilities that should be 0 or 1."""


@dataclass(frozen=True, eq=False)
class ContextCounts:
    """Some contexts of one order with their n-grams.

    counts: ``[n]`` int64, of the n-grams of the model, context after context.
    starts: ``[contexts]`` index of the first n-gram of each context.
    totals: ``[contexts]`` int64 c(h), the tokens seen after the context, those of dropped n-grams included.
    types: ``[contexts]`` int64 number of different ones.
    closing: ``[n]`` bool, whether the n-gram ends in ``</s>``.
    exhaustive: ``[contexts]`` bool, whether every word of the vocabulary was seen after the context.
    """

    counts: np.ndarray
    starts: np.ndarray
    totals: np.ndarray
    types: np.ndarray
    closing: np.ndarray
    exhaustive: np.ndarray

    def sums(self, values: np.ndarray) -> np.ndarray:
        """``[contexts]`` sums of ``values`` ``[n]`` over the n-grams of each context."""
        return np.add.reduceat(values, self.starts) if len(self.starts) else np.zeros(0, dtype=values.dtype)

    def spread(self, values: np.ndarray) -> np.ndarray:
        """``[n]``: for each n-gram the entry of its context in ``values`` ``[contexts]``."""
        return np.repeat(values, np.diff(self.starts, append=len(self.counts)))


Estimator = Callable[[ContextCounts], np.ndarray]
"""Returns ``[n]`` p̂(w | h) of each n-gram; what a context has left of 1 goes to the words not seen after it."""


class Smoothing(ABC):
    """How the mass after a context is divided between the words seen after it and all others."""

    @abstractmethod
    def fit(self, order: int, counts_of_counts: np.ndarray) -> Estimator:
        """The estimator of an order.

        counts_of_counts: ``[m]`` int64, entry r the number of n-grams seen r times, dropped ones included.
        """

    def unigrams(self, seen: ContextCounts, counts_of_counts: np.ndarray, unseen: int) -> tuple[np.ndarray, float]:
        """``[n]`` p(w) of the words seen, and p of each of the ``unseen`` others; their sum is 1.

        If all words were seen, p is the relative frequency.  Otherwise the unseen share equally what the smoothing
        leaves, and none of them gets more than a word that was seen.
        """
        if not unseen:
            return seen.counts / seen.counts.sum(), 0.0
        probs = self.fit(1, counts_of_counts)(seen)
        left = 1 - probs.sum()
        if left <= NO_MASS:
            left = 1 / (seen.counts.sum() + 1)
        each = min(left / unseen, probs.min())
        total = probs.sum() + each * unseen
        return probs / total, each / total

    @staticmethod
    def backoff_weights(explicit: np.ndarray, lower: np.ndarray, starts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """``[contexts]`` α and the explicit probabilities, rescaled where no α makes the context sum to 1.

        If h' gives all its mass to the words seen after h (the denominator is 0), the explicit probabilities are scaled
        to sum to 1; α, which multiplies 0, is 1.  If they leave nothing to other words of h' (as in rounded models),
        they are scaled to leave ``NO_MASS``, so that α is positive.

        explicit: ``[n]`` p̂(w | h), context after context.
        lower: ``[n]`` p(w | h') of the same words.
        starts: ``[contexts]`` index of the first n-gram of each context.
        """
        if not len(starts):
            return np.zeros(0), explicit
        sums = np.add.reduceat(explicit, starts)
        unseen = 1 - np.add.reduceat(lower, starts)
        complete = unseen <= NO_MASS
        greedy = ~complete & (sums > 1 - NO_MASS)
        targets = np.where(complete, 1.0, np.where(greedy, 1 - NO_MASS, sums))
        if (complete | greedy).any():
            explicit = explicit * np.repeat(targets / sums, np.diff(starts, append=len(explicit)))
        return np.divide(1 - targets, unseen, out=np.ones(len(sums)), where=~complete), explicit
