"""Katz by the rules of SRILM's ``ngram-count``."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from lm_training.ngram.smoothing.base import Estimator, OrderCounts, Smoothing
from lm_training.ngram.smoothing.good_turing import MAX_CUTOFF, check_cutoff, good_turing_discounts

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class SrilmKatz(Smoothing):
    """Cutoffs differ by order.  With n_1 = 0 nothing is discounted; a cutoff k with n_{k+1} = 0 is lowered until there are
    such n-grams.  A factor that is no discount, or that more n-grams of r + 1 than of r occurrences would make
    meaningless, is 1.  The denominator of a context that leaves no mass, though words are missing there, grows by ones
    until it does.  Unigrams are discounted too; what they leave is shared equally by the words not seen, or by all.
    """

    unigram_cutoff: int = 1
    cutoff: int = 7

    least_mass: ClassVar[float] = 3e-6
    """What SRILM takes for 0."""

    def __post_init__(self) -> None:
        check_cutoff(self.unigram_cutoff)
        check_cutoff(self.cutoff)

    def fit(self, order: int, counts_of_counts: np.ndarray) -> Estimator:
        factors = np.append(self._factors(order, counts_of_counts), 1.0)

        def probabilities(seen: OrderCounts) -> np.ndarray:
            discounted = seen.counts * factors[np.minimum(seen.counts, len(factors) - 1)]
            sums = seen.sums(discounted)
            spent = ~seen.exhaustive & (sums > seen.totals * (1 - self.least_mass))
            totals = np.where(spent, np.maximum(seen.totals + 1, np.ceil(sums / (1 - self.least_mass))), seen.totals)
            probs: np.ndarray = discounted / seen.spread(totals)
            return probs

        return probabilities

    def unigrams(self, seen: OrderCounts, counts_of_counts: np.ndarray, unseen: int) -> tuple[np.ndarray, float]:
        probs = self.fit(1, counts_of_counts)(seen)
        left = 1 - float(probs.sum())
        if left < 0:  # factors above 1, where there is no one to take from
            return probs / probs.sum(), 0.0
        return (probs, left / unseen) if unseen else (probs + left / len(probs), 0.0)

    def _factors(self, order: int, counts_of_counts: np.ndarray) -> np.ndarray:
        cutoff = self.unigram_cutoff if order == 1 else self.cutoff
        n = np.append(counts_of_counts, np.zeros(MAX_CUTOFF + 2, dtype=np.int64)).astype(np.float64)
        while cutoff > 0 and n[cutoff + 1] == 0:
            cutoff -= 1
        if n[1] == 0 or cutoff == 0:
            logger.info("%d-grams: counts of counts allow no Good-Turing discount; none made", order)
            return np.ones(1)
        factors = good_turing_discounts(n, cutoff)
        r = np.arange(1, cutoff + 1)
        with np.errstate(divide="ignore", invalid="ignore"):
            undiscounted = (r + 1) * n[2 : cutoff + 2] / (r * n[1 : cutoff + 1])
        possible = np.isfinite(factors[1:]) & (factors[1:] > self.least_mass) & (undiscounted <= 1)
        if not possible.all():
            logger.info("%d-grams: no Good-Turing discount for counts %s", order, ", ".join(map(str, r[~possible])))
        factors[1:][~possible] = 1.0
        return factors
