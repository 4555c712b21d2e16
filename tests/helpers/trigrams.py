"""Small random trigram models, with backoff weights on both sides of 1."""

from __future__ import annotations

import numpy as np

import fst


def trigram(vocab: int = 23, seed: int = 5) -> fst.NgramModel:
    """A model over the tiny model's vocabulary."""
    rng = np.random.default_rng(seed)
    pairs = np.unique(rng.integers(0, vocab, (120, 2), dtype=np.int32), axis=0)
    last = rng.integers(0, len(pairs), 150), rng.integers(0, vocab, (150, 1), dtype=np.int32)
    triples = np.unique(np.concatenate([pairs[last[0]], last[1]], 1), axis=0)
    known = {tuple(row) for row in pairs.tolist()}
    return _random_model(rng, vocab, pairs, [row for row in triples.tolist() if tuple(row[1:]) in known])


def good_model(seed: int = 0, vocab: int = 9) -> fst.NgramModel:
    """A model of few tokens, with triples of two known pairs each."""
    rng = np.random.default_rng(seed)
    pairs = np.unique(rng.integers(0, vocab, (30, 2), dtype=np.int32), axis=0)
    known = set(map(tuple, pairs.tolist()))
    triples = [(a, b, c) for a, b in known for c in range(vocab) if (b, c) in known and rng.random() < 0.4]
    return _random_model(rng, vocab, pairs, sorted(triples))


def _random_model(
    rng: np.random.Generator, vocab: int, pairs: np.ndarray, triples: list[tuple[int, int, int]]
) -> fst.NgramModel:
    unigrams = np.arange(vocab, dtype=np.int32)[:, None]
    ngrams = [unigrams, pairs, np.array(triples, dtype=np.int32).reshape(-1, 3)]
    log_probs = [np.log(rng.uniform(0.01, 0.9, len(rows))) for rows in ngrams]
    backoffs = [rng.normal(0, 0.5, len(rows)) for rows in ngrams[:2]] + [np.zeros(len(ngrams[2]))]
    return fst.NgramModel.from_table(fst.NgramTable(ngrams, log_probs, backoffs))
