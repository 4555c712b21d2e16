"""Stupid backoff: S(w | h) = c(h w) / c(h), and 0.4 S(w | h') for words not seen after h (Brants et al. 2007)."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from lm_training.ngram.smoothing.base import Estimator, Smoothing

WEIGHT = 0.4


class StupidBackoff(Smoothing):
    """Relative frequencies and one backoff weight: scores, which sum to 1 only among the unigrams."""

    normalised: ClassVar[bool] = False

    def fit(self, order: int, counts_of_counts: np.ndarray) -> Estimator:
        return lambda seen: seen.counts / seen.spread(seen.totals)

    @staticmethod
    def backoff_weights(explicit: np.ndarray, lower: np.ndarray, starts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return np.full(len(starts), WEIGHT), explicit
