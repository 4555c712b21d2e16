"""Katz smoothing as in OpenGrm NGram, entry for entry."""

from __future__ import annotations

import numpy as np

from lm_training.ngram.smoothing.base import ContextCounts, Estimator
from lm_training.ngram.smoothing.good_turing import GoodTuring, good_turing_discounts


class OpenGrmKatz(GoodTuring):
    """One cutoff for all orders; d_r = 0.999 above it and wherever the formula gives nothing between 0 and 1.  Unigrams
    are not discounted.  A context that has seen every word leaves its mass to ``</s>``.
    """

    def fit(self, order: int, counts_of_counts: np.ndarray) -> Estimator:
        if order == 1:
            return lambda seen: seen.counts / seen.spread(seen.totals)
        factors = good_turing_discounts(counts_of_counts, self.cutoff)
        factors = np.append(np.where((factors > 0) & (factors < 1), factors, 0.999), 0.999)

        def probabilities(seen: ContextCounts) -> np.ndarray:
            discounted = seen.counts * factors[np.minimum(seen.counts, self.cutoff + 1)]
            left = seen.totals - seen.sums(discounted)
            discounted += seen.closing * seen.spread(np.where(seen.exhaustive, left, 0.0))
            return discounted / seen.spread(seen.totals)

        return probabilities
