"""Good and Turing's discounts, which Katz's smoothing takes from the words seen after a context for those not seen there.

With n_r n-grams of an order seen r times, and counts above the cutoff k taken at their word,

    p̂(w | h) = d_r r / c(h)    for an n-gram seen r times, c(h) counting all words after h, and
    A = (k+1) n_{k+1} / n_1,    d_r = ((r+1) n_{r+1} / (r n_r) - A) / (1 - A)  for 1 ≤ r ≤ k,    d_r = 1 above.

Real counts do not always allow that: a d_r may come out above 1, below 0 or undefined.  What to do then is what
``katz``, ``katz_opengrm`` and ``katz_srilm`` differ in.

(Katz 1987; Chen and Goodman 1998, section 2.5.)
"""

from __future__ import annotations

import numpy as np

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


def check_cutoff(cutoff: int) -> None:
    if not 0 <= cutoff <= MAX_CUTOFF:
        raise ValueError(f"expected a cutoff from 0 to {MAX_CUTOFF}, got {cutoff}; 5 to 7 are usual")
