"""From token ids to an n-gram model: count, estimate, prune.

``estimate(tokens, order=4, vocab_size=8192, max_ngrams=150_000)`` is the whole way.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from fst.table import UNK, NgramTable
from lm_training.ngram.backoff import estimate_backoff
from lm_training.ngram.counts import NgramCounts, count_sentences, count_stream
from lm_training.ngram.pruning import prune
from lm_training.ngram.smoothing import Katz, Smoothing

MIN_COUNTS = (1, 1, 2, 4)
"""The cutoffs of the paper's models: bigrams are kept from 1 occurrence, trigrams from 2, 4-grams from 4."""


def estimate(
    tokens: np.ndarray,
    order: int = 4,
    smoothing: Smoothing | None = None,
    min_counts: Sequence[int] = MIN_COUNTS,
    max_ngrams: int | None = None,
    prune_theta: float | None = None,
    vocab_size: int | None = None,
    end_of_text: int | None = 0,
) -> NgramTable:
    """Estimate a model of a token stream.

    Args:
        tokens: ``[n]`` ids, every document closed by ``end_of_text``.
        order: the longest n-grams.
        smoothing: the smoothing method, ``Katz()`` by default.
        min_counts: for each order the count from which on an n-gram is kept; the last entry serves higher orders.
        max_ngrams: at most how many n-grams the model may have.
        prune_theta: leave out n-grams whose loss raises perplexity by less than this ratio.
        vocab_size: every id below it gets a probability; by default only those that occur.
        end_of_text: the id between documents; None where there is none.

    Raises:
        ValueError: the stream is empty, or holds ids outside the vocabulary, or an option is out of range.
    """
    vocabulary = None
    if vocab_size is not None:
        highest = int(np.max(tokens, initial=0))
        if highest >= vocab_size:
            raise ValueError(f"expected token ids below {vocab_size}, the vocabulary's size, got {highest}; was another tokenizer used?")
        vocabulary = np.arange(vocab_size)
    counts = count_stream(tokens, order, end_of_text, min_counts)
    return from_counts(counts, smoothing, max_ngrams, prune_theta, vocabulary)


def estimate_sentences(
    sentences: Iterable[np.ndarray],
    order: int = 4,
    smoothing: Smoothing | None = None,
    min_counts: Sequence[int] = MIN_COUNTS,
    max_ngrams: int | None = None,
    prune_theta: float | None = None,
    unknown_word: bool = False,
) -> NgramTable:
    """Estimate a model of sentences, one array of ids each, between ``<s>`` and ``</s>``.

    With ``unknown_word`` the model has the unigram ``<unk>``, and mass for it, whether it occurs or not.
    The other arguments are those of ``estimate``.
    """
    vocabulary = np.array([UNK]) if unknown_word else None
    counts = count_sentences(sentences, order, min_counts)
    return from_counts(counts, smoothing, max_ngrams, prune_theta, vocabulary)


def from_counts(
    counts: NgramCounts,
    smoothing: Smoothing | None = None,
    max_ngrams: int | None = None,
    prune_theta: float | None = None,
    vocabulary: np.ndarray | None = None,
) -> NgramTable:
    """Estimate and prune; the arguments are those of ``estimate``, and ``vocabulary`` ids that must get a probability."""
    smoothing = smoothing or Katz()
    pruned = max_ngrams is not None or prune_theta is not None
    if pruned:
        refuse_scores(smoothing)
    table = estimate_backoff(counts, smoothing, vocabulary)
    return prune(table, theta=prune_theta, max_ngrams=max_ngrams) if pruned else table


def refuse_scores(smoothing: Smoothing) -> None:
    """Raise ValueError for a smoothing whose models entropy says nothing about."""
    if not smoothing.normalised:
        raise ValueError(
            "expected a model of probabilities to prune by entropy, got the scores of stupid backoff; raise the minimum counts"
        )
