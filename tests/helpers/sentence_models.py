"""Counts and models of sentences, each an array of word ids, as `latticebpd lm train --words` makes them from text."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fst.table import UNK, NgramTable
from lm_training.ngram.backoff import estimate_backoff
from lm_training.ngram.counts import MIN_COUNTS, SEPARATOR, NgramCounts, TokenStream, count_ngrams
from lm_training.ngram.smoothing import Katz, Smoothing


def sentence_stream(sentences: Sequence[Sequence[int] | np.ndarray]) -> TokenStream:
    """Sentences without their ``<s>`` and ``</s>``."""
    ids = [token for sentence in sentences for token in (*sentence, SEPARATOR)]
    return TokenStream.of(np.array(ids, dtype=np.int32), SEPARATOR)


def estimate_sentences(
    sentences: Sequence[Sequence[int] | np.ndarray],
    order: int = 4,
    smoothing: Smoothing | None = None,
    min_counts: Sequence[int] = MIN_COUNTS,
    unknown_word: bool = False,
) -> NgramTable:
    vocabulary = np.array([UNK]) if unknown_word else None
    counts = count_ngrams(sentence_stream(sentences), order, min_counts)
    return estimate_backoff(counts, smoothing or Katz(), vocabulary)


def assert_same_counts(ours: NgramCounts, theirs: NgramCounts) -> None:
    """Equal to the bit, types included."""
    for order, (one, other) in enumerate(zip(ours, theirs, strict=True), 1):
        for name, array in vars(one).items():
            np.testing.assert_array_equal(array, getattr(other, name), err_msg=f"{name} of order {order}")
            assert array.dtype == getattr(other, name).dtype, name
