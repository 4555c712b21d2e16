"""Bootstrap intervals, 95 %: texts are drawn anew 2,000 times, the same ones for both systems of a pair."""

from __future__ import annotations

import numpy as np

RESAMPLES = 2000


def interval(
    tokens: np.ndarray, calls: np.ndarray, other: tuple[np.ndarray, np.ndarray] | None = None
) -> tuple[float, float, float]:
    """Pooled tokens per call of texts ``[texts]``, low and high; or how much more, as a share, than those of another system."""
    drawn = np.random.default_rng(0).integers(0, len(calls), (RESAMPLES, len(calls)))

    def efficiency(tokens: np.ndarray, calls: np.ndarray) -> tuple[float, np.ndarray]:
        return tokens.sum() / max(1, calls.sum()), tokens[drawn].sum(axis=1) / calls[drawn].sum(axis=1).clip(min=1)

    value, values = efficiency(tokens, calls)
    if other is not None:
        theirs, all_of_theirs = efficiency(*other)
        value, values = value / theirs - 1, values / all_of_theirs - 1
    low, high = np.quantile(values, [0.025, 0.975])
    return float(value), float(low), float(high)
