"""Random n-gram tables for hypothesis, their numbers exact in binary."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from fst import NgramTable
from fst.table import UNK

VOCAB = 6
EXACT = st.integers(-320, 0).map(lambda n: n / 64)
EXACT_BACKOFF = st.integers(-128, 96).map(lambda n: n / 64)  # above and below 1


@st.composite
def tables(draw: st.DrawFn, max_order: int = 4) -> NgramTable:
    """A closed n-gram table over some of the tokens 0..VOCAB - 1, at times with <unk>."""
    order = draw(st.integers(1, max_order))
    known = draw(st.lists(st.integers(0, VOCAB - 1), min_size=1, unique=True))
    words = sorted([*known, *([UNK] if draw(st.booleans()) else [])])
    ngrams: set[tuple[int, ...]] = {(word,) for word in words}
    for n in range(2, order + 1):
        for row in draw(st.lists(st.tuples(*[st.sampled_from(words)] * n), max_size=14)):
            ngrams |= {row[i:j] for i in range(n) for j in range(i + 1, n + 1)}
    by_order = [sorted(row for row in ngrams if len(row) == n) for n in range(1, order + 1)]
    by_order = [rows for rows in by_order if rows]
    log_probs = [np.array(draw(st.lists(EXACT, min_size=len(rows), max_size=len(rows)))) for rows in by_order]
    backoffs = [np.array(draw(st.lists(EXACT_BACKOFF, min_size=len(rows), max_size=len(rows)))) for rows in by_order]
    contexts = {row[:-1] for row in ngrams}
    for rows, weights in zip(by_order, backoffs, strict=True):
        weights[[row not in contexts for row in rows]] = 0
    return NgramTable([np.array(rows, dtype=np.int32).reshape(len(rows), -1) for rows in by_order], log_probs, backoffs)
