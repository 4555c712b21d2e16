"""Small random trigram models."""

from __future__ import annotations

import numpy as np

import fst


def trigram(vocab: int = 23, seed: int = 5) -> fst.NgramModel:
    """A small random trigram model over the tiny model's vocabulary, backoff weights on both sides of 1."""
    rng = np.random.default_rng(seed)
    unigrams = np.arange(vocab, dtype=np.int32)[:, None]
    pairs = np.unique(rng.integers(0, vocab, (120, 2), dtype=np.int32), axis=0)
    triples = np.unique(
        np.concatenate([pairs[rng.integers(0, len(pairs), 150)], rng.integers(0, vocab, (150, 1), dtype=np.int32)], 1),
        axis=0,
    )
    known = {tuple(row) for row in pairs.tolist()}
    triples = np.array([row for row in triples.tolist() if tuple(row[1:]) in known], dtype=np.int32).reshape(-1, 3)
    ngrams = [unigrams, pairs, triples]
    return fst.NgramModel.from_table(
        fst.NgramTable(
            ngrams,
            [np.log(rng.uniform(0.01, 0.9, len(rows))) for rows in ngrams],
            [rng.normal(0, 0.5, len(unigrams)), rng.normal(0, 0.5, len(pairs)), np.zeros(len(triples))],
        )
    )


def good_model(seed: int = 0, vocab: int = 9) -> fst.NgramModel:
    """A small random trigram model, every context and suffix present."""
    rng = np.random.default_rng(seed)
    unigrams = np.arange(vocab, dtype=np.int32)[:, None]
    pairs = np.unique(rng.integers(0, vocab, (30, 2), dtype=np.int32), axis=0)
    known = set(map(tuple, pairs.tolist()))
    triples = [(a, b, c) for a, b in known for c in range(vocab) if (b, c) in known and rng.random() < 0.4]
    ngrams = [unigrams, pairs, np.array(sorted(triples), dtype=np.int32).reshape(-1, 3)]
    return fst.NgramModel.from_table(
        fst.NgramTable(
            ngrams,
            [np.log(rng.uniform(0.01, 0.9, len(rows))) for rows in ngrams],
            [rng.normal(0, 0.5, len(rows)) for rows in ngrams[:2]] + [np.zeros(len(ngrams[2]))],
        )
    )
