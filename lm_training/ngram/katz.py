"""Katz's smoothing: what words seen after a context lose to words not seen there is what Good and Turing say.

With n_r n-grams of an order seen r times, and counts above the cutoff k taken at their word,

    p̂(w | h) = d_r r / c(h)    for an n-gram seen r times, c(h) counting all words after h, and
    A = (k+1) n_{k+1} / n_1,    d_r = ((r+1) n_{r+1} / (r n_r) - A) / (1 - A)  for 1 ≤ r ≤ k,    d_r = 1 above.

Real counts do not always allow that: a d_r may come out above 1, below 0 or undefined.  What to do then is what
the classes here differ in.

(Katz 1987; Chen and Goodman 1998, section 2.5.)
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from lm_training.ngram.backoff import NO_MASS, Estimator, OrderCounts, Smoothing
from lm_training.ngram.discounting import absolute_discount

logger = logging.getLogger(__name__)

MAX_CUTOFF = 100
"""Counts this high need no discount; the counts of counts tell them apart up to some way above."""


def good_turing_discounts(counts_of_counts: np.ndarray, cutoff: int) -> np.ndarray:
    """``[cutoff + 1]`` factors d_r by the formula above, as it comes (nan or inf where it divides by 0); entry 0 is 1."""
    n = np.zeros(cutoff + 2)
    known = counts_of_counts[: cutoff + 2]
    n[: len(known)] = known
    r = np.arange(1, cutoff + 1)
    with np.errstate(divide="ignore", invalid="ignore"):
        common = (cutoff + 1) * n[cutoff + 1] / n[1]
        factors = ((r + 1) * n[r + 1] / (r * n[r]) - common) / (1 - common)
    return np.concatenate([[1.0], factors])


def _check_cutoff(cutoff: int) -> None:
    if not 0 <= cutoff <= MAX_CUTOFF:
        raise ValueError(f"expected a cutoff from 0 to {MAX_CUTOFF}, got {cutoff}; 5 to 7 are usual")


@dataclass(frozen=True)
class Katz(Smoothing):
    """Katz's estimate for any corpus.

    Where some d_r up to the cutoff k is no discount, 0 < d_r < 1, the order falls back to the largest smaller k for
    which all are; where none is left (subword corpora have no rare unigrams, small ones no smooth counts of counts), to
    absolute discounting (``lm_training.ngram.discounting``).
    A context that would leave no mass to unseen words gets one more unit in its denominator.
    """

    cutoff: int = 5

    def __post_init__(self) -> None:
        _check_cutoff(self.cutoff)

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


@dataclass(frozen=True)
class OpenGrmKatz(Smoothing):
    """Katz as OpenGrm NGram estimates it, entry for entry.

    One cutoff for all orders; d_r = 0.999 above it and wherever the formula gives nothing between 0 and 1.  Unigrams
    are not discounted.  A context that leaves no mass gets one more unit in its denominator.  One that has seen every
    word, which has none to leave it to, leaves it to ``</s>``.
    """

    cutoff: int = 5

    def __post_init__(self) -> None:
        _check_cutoff(self.cutoff)

    def fit(self, order: int, counts_of_counts: np.ndarray) -> Estimator:
        if order == 1:
            return lambda seen: seen.counts / seen.spread(seen.totals)
        factors = good_turing_discounts(counts_of_counts, self.cutoff)
        factors = np.append(np.where((factors > 0) & (factors < 1), factors, 0.999), 0.999)

        def probabilities(seen: OrderCounts) -> np.ndarray:
            discounted = seen.counts * factors[np.minimum(seen.counts, self.cutoff + 1)]
            left = seen.totals - seen.sums(discounted)
            discounted += seen.closing * seen.spread(np.where(seen.exhaustive, left, 0.0))
            totals = seen.totals + np.where(~seen.exhaustive & (left <= seen.totals * NO_MASS), 1.0, 0.0)
            probs: np.ndarray = discounted / seen.spread(totals)
            return probs

        return probabilities


@dataclass(frozen=True)
class SrilmKatz(Smoothing):
    """Katz by the rules of SRILM's ``ngram-count``.

    Cutoffs differ by order.  With n_1 = 0 nothing is discounted; a cutoff k with n_{k+1} = 0 is lowered until there are
    such n-grams.  A factor that is no discount, or that more n-grams of r + 1 than of r occurrences would make
    meaningless, is 1.  The denominator of a context that leaves no mass, though words are missing there, grows by ones
    until it does.  Unigrams are discounted too; what they leave is shared equally by the words not seen, or by all.
    """

    unigram_cutoff: int = 1
    cutoff: int = 7

    least_mass: ClassVar[float] = 3e-6
    """What SRILM takes for 0."""

    def __post_init__(self) -> None:
        _check_cutoff(self.unigram_cutoff)
        _check_cutoff(self.cutoff)

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
