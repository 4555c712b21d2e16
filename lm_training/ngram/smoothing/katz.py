"""Katz smoothing for any corpus."""

from __future__ import annotations

import logging
from collections.abc import Callable

import numpy as np

from lm_training.ngram.smoothing.base import NO_MASS, ContextCounts, Estimator
from lm_training.ngram.smoothing.good_turing import GoodTuring, good_turing_discounts

logger = logging.getLogger(__name__)


def absolute_discount(counts_of_counts: np.ndarray) -> float:
    """D = n_1 / (n_1 + 2 n_2), the leaving-one-out estimate (Ney, Essen and Kneser 1994); 1/2 if n_1 or n_2 is 0."""
    ones, twos = (int(n) for n in np.append(counts_of_counts, [0, 0, 0])[1:3])
    return ones / (ones + 2 * twos) if ones and twos else 0.5


class Katz(GoodTuring):
    """An order uses the largest cutoff up to ``cutoff`` for which all d_r are discounts, 0 < d_r < 1; without one,
    absolute discounting, p̂(w | h) = (c(h w) - D) / c(h) (subword corpora have no rare unigrams, small ones no smooth
    counts of counts; Chen and Goodman 1998, section 2.7).  The denominator of a context that would leave no mass to
    unseen words grows by one.
    """

    def fit(self, order: int, counts_of_counts: np.ndarray) -> Estimator:
        discount = self._discount(order, counts_of_counts)

        def probabilities(seen: ContextCounts) -> np.ndarray:
            discounted = discount(seen.counts)
            totals = seen.totals.astype(np.float64)
            totals[seen.sums(discounted) > totals * (1 - NO_MASS)] += 1
            return discounted / seen.spread(totals)

        return probabilities

    def _discount(self, order: int, counts_of_counts: np.ndarray) -> Callable[[np.ndarray], np.ndarray]:
        for cutoff in range(self.cutoff, 0, -1):
            factors = good_turing_discounts(counts_of_counts, cutoff)
            if np.all((factors[1:] > 0) & (factors[1:] < 1)):
                values = ", ".join(f"{factor:.3f}" for factor in factors[1:])
                lowered = f" (cutoff {self.cutoff} is not possible)" if cutoff < self.cutoff else ""
                logger.info("%d-grams: Good-Turing discounts of counts 1 to %d%s: %s", order, cutoff, lowered, values)
                table, last = np.append(factors, 1.0), cutoff + 1
                return lambda counts: counts * table[np.minimum(counts, last)]
        amount = absolute_discount(counts_of_counts)
        why = "counts of counts allow no Good-Turing discount"
        logger.info("%d-grams: %s; absolute discounting by %.3f", order, why, amount)
        return lambda counts: counts.astype(np.float64) - amount
