"""Shortlists: the tokens that a model's own text uses, for heads and drafters that predict only these.

The cost of a head is mostly its projection to the vocabulary, and a model writes only a part of its vocabulary. Other
tokens are never drafted, which costs verification passes and changes no text.
"""

from __future__ import annotations

import hashlib

import numpy as np

from latticebpd.lattices.texts import Texts


def label_counts(texts: Texts, vocab_size: int) -> np.ndarray:
    """``[vocab]``: how often each token occurs after a prompt."""
    label = np.ones(len(texts.tokens), dtype=bool)
    for begin, length in zip(texts.starts[:-1].tolist(), texts.prompt_lengths.tolist(), strict=True):
        label[begin : begin + length] = False
    return np.bincount(texts.tokens[label], minlength=vocab_size)


def shortlist_of(texts: Texts, vocab_size: int, size: int) -> np.ndarray:
    """``[n]`` int64, ascending: the ``size`` most frequent tokens after prompts, lower ids first among equals."""
    counts = label_counts(texts, vocab_size)
    best = np.argsort(-counts, kind="stable")[:size]
    return np.sort(best[counts[best] > 0]).astype(np.int64)


def coverage(texts: Texts, shortlist: np.ndarray) -> float:
    """Share of the tokens after prompts that are on the list; NaN for texts without any."""
    counts = label_counts(texts, int(shortlist[-1]) + 1)
    return float(counts[shortlist].sum() / counts.sum()) if counts.sum() else float("nan")


def shortlist_indices(vocab_size: int, shortlist: np.ndarray | None) -> np.ndarray:
    """``[vocab]``: index of each token in the shortlist, -1 for others; without a list the token ids."""
    if shortlist is None:
        return np.arange(vocab_size)
    indices = np.full(vocab_size, -1)
    indices[shortlist] = np.arange(len(shortlist))
    return indices


def fingerprint(shortlist: np.ndarray | None) -> str | None:
    """The list's length and a hash of its tokens; None for no list."""
    if shortlist is None:
        return None
    return f"{len(shortlist)} tokens, {hashlib.sha256(shortlist.tobytes()).hexdigest()[:16]}"
