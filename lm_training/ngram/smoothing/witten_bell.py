"""Witten-Bell smoothing: p̂(w | h) = c(h w) / (c(h) + T(h)), with T(h) different words seen after h (Chen and Goodman
1998, section 2.6).
"""

from __future__ import annotations

import numpy as np

from lm_training.ngram.smoothing.base import Estimator, Smoothing


class WittenBell(Smoothing):
    """The mass of new words is estimated from how often the word after a context was new."""

    def fit(self, order: int, counts_of_counts: np.ndarray) -> Estimator:
        return lambda seen: seen.counts / seen.spread(seen.totals + seen.types)
