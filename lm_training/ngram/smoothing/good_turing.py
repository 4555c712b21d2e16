"""Good-Turing discounts, by which Katz smoothing reserves mass for the words not seen after a context.

With n_r n-grams of an order seen r times, and counts above the cutoff k not discounted,

    p̂(w | h) = d_r r / c(h)    for an n-gram seen r times, c(h) counting all words after h, and
    A = (k+1) n_{k+1} / n_1,    d_r = ((r+1) n_{r+1} / (r n_r) - A) / (1 - A)  for 1 ≤ r ≤ k,    d_r = 1 above.

Some counts of counts make a d_r greater than 1, negative or undefined; ``katz`` and ``katz_opengrm`` differ in what
they do then.

(Katz 1987; Chen and Goodman 1998, section 2.5.)
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from lm_training.ngram.smoothing.base import Smoothing

MAX_CUTOFF = 100
"""Well below the count from which on the counts of counts are pooled."""


@dataclass(frozen=True)
class GoodTuring(Smoothing):
    """Base of Katz's variants; ``cutoff`` is k."""

    cutoff: int = 5

    def __post_init__(self) -> None:
        if not 0 <= self.cutoff <= MAX_CUTOFF:
            raise ValueError(f"expected a cutoff from 0 to {MAX_CUTOFF}, got {self.cutoff}; 5 to 7 are usual")


def good_turing_discounts(counts_of_counts: np.ndarray, cutoff: int) -> np.ndarray:
    """``[cutoff + 1]`` factors d_r by the formula above, nan or inf if it divides by 0; entry 0 is 1."""
    n = np.append(counts_of_counts, np.zeros(cutoff + 2))[: cutoff + 2]
    r = np.arange(1, cutoff + 1)
    with np.errstate(divide="ignore", invalid="ignore"):
        common = (cutoff + 1) * n[cutoff + 1] / n[1]
        factors = ((r + 1) * n[r + 1] / (r * n[r]) - common) / (1 - common)
    return np.concatenate([[1.0], factors])
