"""Witten and Bell's smoothing: with T(h) different words seen c(h) times in all after h, p̂(w | h) = c(h w) / (c(h) + T(h)).

(Chen and Goodman 1998, section 2.6.)
"""

from __future__ import annotations

import numpy as np

from lm_training.ngram.smoothing.base import Estimator, Smoothing


class WittenBell(Smoothing):
    """A context gives new words as much as if each kind of word seen there had been new once."""

    def fit(self, order: int, counts_of_counts: np.ndarray) -> Estimator:
        return lambda seen: seen.counts / seen.spread(seen.totals + seen.types)
