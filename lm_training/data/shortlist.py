"""The tokens that a model's own text uses, for heads that know those alone.

A head's cost is its projection to the vocabulary; of the vocabulary a model writes only a part. Tokens that are not on
the list are never drafted, which costs calls and no text.
"""

from __future__ import annotations

import hashlib

import numpy as np

from latticebpd.lattices.texts import Texts


def label_counts(texts: Texts, vocab_size: int) -> np.ndarray:
    """``[vocab]``: how often each token follows a prompt."""
    behind = np.ones(len(texts.tokens), dtype=bool)
    for begin, length in zip(texts.starts[:-1].tolist(), texts.prompt_lengths.tolist(), strict=True):
        behind[begin : begin + length] = False
    return np.bincount(texts.tokens[behind], minlength=vocab_size)


def shortlist_of(texts: Texts, vocab_size: int, size: int) -> np.ndarray:
    """``[n]`` int64, ascending: the tokens that follow prompts, at most ``size``, the most frequent ones; of ties the
    lower ids."""
    counts = label_counts(texts, vocab_size)
    best = np.argsort(-counts, kind="stable")[:size]
    return np.sort(best[counts[best] > 0]).astype(np.int64)


def coverage(texts: Texts, shortlist: np.ndarray) -> float:
    """Share of the tokens behind prompts that the list has; NaN where there are none."""
    counts = label_counts(texts, int(shortlist[-1]) + 1)
    return float(counts[shortlist].sum() / counts.sum()) if counts.sum() else float("nan")


def fingerprint(shortlist: np.ndarray | None) -> str | None:
    """How many tokens the list has, and a hash of them; None for no list."""
    return (
        None
        if shortlist is None
        else f"{len(shortlist)} tokens, {hashlib.sha256(shortlist.tobytes()).hexdigest()[:16]}"
    )
