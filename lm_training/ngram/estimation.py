"""From token ids to an n-gram model: count, estimate, prune."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fst.table import NgramTable
from lm_training.ngram.backoff import estimate_backoff
from lm_training.ngram.counts import MIN_COUNTS, TokenStream, count_ngrams
from lm_training.ngram.pruning import prune, require_probabilities
from lm_training.ngram.smoothing import Katz, Smoothing


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
        smoothing: by default ``Katz()``.
        min_counts: of each order the count from which on n-grams are kept; the last also of higher orders.
        max_ngrams: the most n-grams that the model may have.
        prune_theta: drop n-grams whose loss raises perplexity by less than this ratio.
        vocab_size: every id below it gets a probability; by default only those that occur.
        end_of_text: the id between documents; None without one.

    Raises:
        ValueError: the stream is empty, or holds ids outside the vocabulary, or an option is out of range.
    """
    vocabulary, smoothing = None, smoothing or Katz()
    pruned = max_ngrams is not None or prune_theta is not None
    if pruned:
        require_probabilities(smoothing)
    if vocab_size is not None:
        highest = int(np.max(tokens, initial=0))
        if highest >= vocab_size:
            raise ValueError(
                f"expected token ids below {vocab_size}, the vocabulary's size, got {highest}; "
                "was another tokenizer used?"
            )
        vocabulary = np.arange(vocab_size)
    counts = count_ngrams(TokenStream.of(tokens, end_of_text), order, min_counts)
    table = estimate_backoff(counts, smoothing, vocabulary)
    return prune(table, prune_theta, max_ngrams) if pruned else table
