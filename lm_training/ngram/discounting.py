"""Smoothing methods other than Katz's: Witten and Bell's, absolute discounting, and stupid backoff.

With c(h w) occurrences of an n-gram, c(h) tokens after its context and T(h) different ones,

    Witten-Bell   p̂(w | h) = c(h w) / (c(h) + T(h))
    absolute      p̂(w | h) = (c(h w) - D) / c(h)
    stupid        S(w | h) = c(h w) / c(h), and 0.4 S(w | h') for words not seen after h.

(Chen and Goodman 1998, sections 2.6 and 2.8; Brants et al. 2007, section 4.)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from lm_training.ngram.backoff import Estimator, Smoothing


def absolute_discount(counts_of_counts: np.ndarray) -> float:
    """D = n_1 / (n_1 + 2 n_2), which leaves one out best (Ney, Essen and Kneser 1994); 1/2 where that is not between 0 and 1."""
    ones, twos = (int(n) for n in np.append(counts_of_counts, [0, 0, 0])[1:3])
    return ones / (ones + 2 * twos) if ones and twos else 0.5


class WittenBell(Smoothing):
    """A context gives new words as much as if each kind of word seen there had been new once."""

    def fit(self, order: int, counts_of_counts: np.ndarray) -> Estimator:
        return lambda seen: seen.counts / seen.spread(seen.totals + seen.types)


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


@dataclass(frozen=True)
class StupidBackoff(Smoothing):
    """Relative frequencies, and the same weight for every backoff: scores, which do not sum to 1 beyond the unigrams."""

    weight: float = 0.4
    normalised: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if not 0 < self.weight <= 1:
            raise ValueError(f"expected a backoff weight above 0 and at most 1, got {self.weight}")

    def fit(self, order: int, counts_of_counts: np.ndarray) -> Estimator:
        return lambda seen: seen.counts / seen.spread(seen.totals)

    def backoff_weights(self, explicit: np.ndarray, lower: np.ndarray, starts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return np.full(len(starts), self.weight), explicit
