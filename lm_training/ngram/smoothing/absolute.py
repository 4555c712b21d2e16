"""Absolute discounting: p̂(w | h) = (c(h w) - D) / c(h) (Chen and Goodman 1998, section 2.7)."""

from __future__ import annotations

import numpy as np

from lm_training.ngram.smoothing.base import Estimator, Smoothing


def absolute_discount(counts_of_counts: np.ndarray) -> float:
    """D = n_1 / (n_1 + 2 n_2), the leaving-one-out estimate (Ney, Essen and Kneser 1994); 1/2 if n_1 or n_2 is 0."""
    ones, twos = (int(n) for n in np.append(counts_of_counts, [0, 0, 0])[1:3])
    return ones / (ones + 2 * twos) if ones and twos else 0.5


class AbsoluteDiscounting(Smoothing):
    """Every count of an order loses the same, D by its counts of counts."""

    def fit(self, order: int, counts_of_counts: np.ndarray) -> Estimator:
        amount = absolute_discount(counts_of_counts)
        return lambda seen: (seen.counts - amount) / seen.spread(seen.totals)
