"""What a smoothing method is: how much a context gives to each word seen there, and so leaves to all others."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

NO_MASS = 1e-9
"""Probability below which a sum that should be 0 or 1 is one, rounding aside."""


@dataclass(frozen=True, eq=False)
class OrderCounts:
    """What a smoothing method sees of some contexts of one order.

    counts: ``[n]`` int64, the n-grams that the model keeps, context after context.
    starts: ``[contexts]`` where the n-grams of each context begin.
    totals: ``[contexts]`` int64, c(h): all that was seen after the context, dropped n-grams included.
    types: ``[contexts]`` int64, how many different words that was.
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
        sums: np.ndarray = np.add.reduceat(values, self.starts) if len(self.starts) else np.zeros(0, dtype=values.dtype)
        return sums

    def spread(self, values: np.ndarray) -> np.ndarray:
        """``[n]``: to each n-gram the value of its context, of ``values`` ``[contexts]``."""
        return np.repeat(values, self.sizes)

    @property
    def sizes(self) -> np.ndarray:
        """``[contexts]`` how many n-grams each context has."""
        return np.diff(self.starts, append=len(self.counts))


Estimator = Callable[[OrderCounts], np.ndarray]
"""Gives ``[n]`` p̂(w | h) of each n-gram; what they leave of a context's mass goes to the words not seen there."""


class Smoothing(ABC):
    """How the mass after a context is shared between the words seen there and all others."""

    normalised: ClassVar[bool] = True
    """Whether the probabilities after every context sum to 1."""

    @abstractmethod
    def fit(self, order: int, counts_of_counts: np.ndarray) -> Estimator:
        """Settle what all contexts of an order share.

        counts_of_counts: ``[m]`` int64, entry r the number of n-grams seen r times, dropped ones included.
        """

    def unigrams(self, seen: OrderCounts, counts_of_counts: np.ndarray, unseen: int) -> tuple[np.ndarray, float]:
        """``[n]`` p(w) of the words seen, and that of each of the ``unseen`` others; all together 1.

        Where all were seen there is nothing to save mass for, and p is the relative frequency.  Otherwise what the
        smoothing leaves is shared equally by the unseen, none of whom may overtake a word that was seen.
        """
        if not unseen:
            frequencies: np.ndarray = seen.counts / seen.counts.sum()
            return frequencies, 0.0
        probs = self.fit(1, counts_of_counts)(seen)
        left = 1 - probs.sum()
        if left <= NO_MASS:
            left = 1 / (seen.counts.sum() + 1)
        each = min(left / unseen, probs.min())
        total = probs.sum() + each * unseen
        return probs / total, each / total

    def backoff_weights(self, explicit: np.ndarray, lower: np.ndarray, starts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """α of each context, and the explicit probabilities; the arguments are those of the function."""
        return backoff_weights(explicit, lower, starts)


def backoff_weights(explicit: np.ndarray, lower: np.ndarray, starts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """α of each context, and the explicit probabilities, rescaled where no α could make the context sum to 1.

    Args:
        explicit: ``[n]`` p̂(w | h), context after context.
        lower: ``[n]`` p(w | h') of the same words.
        starts: ``[contexts]`` where the n-grams of each context begin.

    Where the words seen after h are all that h' allows (the denominator is 0), the explicit probabilities are scaled
    to sum to 1; α multiplies 0 and is set to 1.  Where they leave nothing to words that h' does allow (as in models
    made elsewhere and rounded), they are scaled to leave ``NO_MASS``, so that α is positive.
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
