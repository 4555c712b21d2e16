"""Katz's smoothing for any corpus."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from lm_training.ngram.smoothing.absolute import absolute_discount
from lm_training.ngram.smoothing.base import NO_MASS, Estimator, OrderCounts, Smoothing
from lm_training.ngram.smoothing.good_turing import check_cutoff, good_turing_discounts

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Katz(Smoothing):
    """Where some d_r up to the cutoff k is no discount, 0 < d_r < 1, the order falls back to the largest smaller k for
    which all are; where none is left (subword corpora have no rare unigrams, small ones no smooth counts of counts), to
    absolute discounting (``absolute``).
    A context that would leave no mass to unseen words gets one more unit in its denominator.
    """

    cutoff: int = 5

    def __post_init__(self) -> None:
        check_cutoff(self.cutoff)

    def fit(self, order: int, counts_of_counts: np.ndarray) -> Estimator:
        discount = self._discount(order, counts_of_counts)

        def probabilities(seen: OrderCounts) -> np.ndarray:
            discounted = discount(seen.counts)
            totals = seen.totals.astype(np.float64)
            totals[seen.sums(discounted) > totals * (1 - NO_MASS)] += 1
            probs: np.ndarray = discounted / seen.spread(totals)
            return probs

        return probabilities

    def _discount(self, order: int, counts_of_counts: np.ndarray) -> Callable[[np.ndarray], np.ndarray]:
        for cutoff in range(self.cutoff, 0, -1):
            factors = good_turing_discounts(counts_of_counts, cutoff)
            if np.all((factors[1:] > 0) & (factors[1:] < 1)):
                shown = ", ".join(f"{factor:.3f}" for factor in factors[1:])
                fallen = f" (cutoff {self.cutoff} is not possible)" if cutoff < self.cutoff else ""
                logger.info("%d-grams: Good-Turing discounts of counts 1 to %d%s: %s", order, cutoff, fallen, shown)
                table, last = np.append(factors, 1.0), cutoff + 1
                return lambda counts: counts * table[np.minimum(counts, last)]
        amount = absolute_discount(counts_of_counts)
        logger.info("%d-grams: counts of counts allow no Good-Turing discount; absolute discounting by %.3f", order, amount)
        return lambda counts: counts.astype(np.float64) - amount
