"""Absolute discounting: p̂(w | h) = (c(h w) - D) / c(h) (Chen and Goodman 1998, section 2.7)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from lm_training.ngram.smoothing.base import Estimator, Smoothing


def absolute_discount(counts_of_counts: np.ndarray) -> float:
    """D = n_1 / (n_1 + 2 n_2), the leaving-one-out estimate (Ney, Essen and Kneser 1994); 1/2 if n_1 or n_2 is 0."""
    ones, twos = (int(n) for n in np.append(counts_of_counts, [0, 0, 0])[1:3])
    return ones / (ones + 2 * twos) if ones and twos else 0.5


@dataclass(frozen=True)
class AbsoluteDiscounting(Smoothing):
    """Every count loses the same: ``discount``, or D by the counts of counts of each order."""

    discount: float | None = None

    def __post_init__(self) -> None:
        if self.discount is not None and not 0 < self.discount < 1:
            raise ValueError(f"expected a discount between 0 and 1, got {self.discount}")

    def fit(self, order: int, counts_of_counts: np.ndarray) -> Estimator:
        amount = absolute_discount(counts_of_counts) if self.discount is None else self.discount
        return lambda seen: (seen.counts - amount) / seen.spread(seen.totals)
