"""Counts and models of token ids, and of sentences, as `latticebpd lm train` makes them of files."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fst.table import UNK, NgramTable
from lm_training.ngram.backoff import estimate_backoff
from lm_training.ngram.counts import MIN_COUNTS, SEPARATOR, NgramCounts, TokenStream, count_ngrams
from lm_training.ngram.pruning import prune
from lm_training.ngram.smoothing import Katz, Smoothing


def estimate(
    tokens: Sequence[int] | np.ndarray,
    order: int = 4,
    smoothing: Smoothing | None = None,
    min_counts: Sequence[int] = MIN_COUNTS,
    max_ngrams: int | None = None,
    vocab_size: int | None = None,
    end_of_text: int | None = 0,
) -> NgramTable:
    """A model of one stream of ids, pruned to at most ``max_ngrams``."""
    counts = count_ngrams(TokenStream.of(np.asarray(tokens), end_of_text), order, min_counts)
    vocabulary = None if vocab_size is None else np.arange(vocab_size)
    table = estimate_backoff(counts, smoothing or Katz(), vocabulary)
    return table if max_ngrams is None else prune(table, max_ngrams=max_ngrams)


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
