"""Lattices by a network that predicts the token after any prefix: an assistant, or MTP layers.

It reads, level by level, the best ``WIDTH`` prefixes of each length, and its predictions make a lattice whose
transitions hold its distribution after each of them. With w(i) the probability, normalised, of the prefixes that end
with token i,

    log_probs[s, j]          = log sum_i w(i) p(j | prefix of i)
    transitions[s - 1, i, j] = log p(j | prefix of i) - log_probs[s, j]      0 where prefix i was not among the best

so that the score of a path of expanded prefixes is its probability under the network. Best-first search over the
lattice then grows the draft tree, by itself or with n-gram models.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np

from latticebpd.lattices.drafts import ROOT
from latticebpd.lattices.sausage import SausageLattice

WIDTH = 4
"""Prefixes of each length that the network reads."""
Grow: TypeAlias = Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]
"""Each new prefix's text, ascending; the number of the prefix that it continues, in the order in which they were
grown, or ``ROOT``; and its last token -> ``[prefixes, vocab]`` log-probabilities of what follows it."""


def prefix_lattices(scores: np.ndarray, grow: Grow, slots: int, k: int) -> list[SausageLattice]:
    """One lattice for each text, of so many slots with ``k`` arcs each.

    scores: ``[texts, vocab]`` log-probabilities of the token after each text.
    """
    texts, grown = len(scores), 0
    rows = np.arange(texts)  # of the prefixes asked about: their texts, arcs that they end with, weights
    arcs, weights = np.zeros(texts, np.int64), np.zeros(texts)
    numbers = np.full(texts, ROOT)
    drawn = []
    for slot in range(slots):
        tokens, log_probs, following = _slot(scores, rows, weights, texts, k)
        transitions = np.zeros((texts, k, k), np.float32)
        if slot:
            transitions[rows, arcs] = following - log_probs[rows]
        drawn.append((tokens, log_probs, transitions))
        if slot + 1 == slots:
            break
        parents, arcs = _best(following + weights[:, None], rows, texts)
        above, weights = numbers[parents], (following + weights[:, None])[parents, arcs]
        rows = rows[parents]
        scores = grow(rows, above, tokens[rows, arcs])
        numbers, grown = np.arange(grown, grown + len(rows)), grown + len(rows)
    tokens, log_probs, transitions = (np.stack(each, axis=1) for each in zip(*drawn, strict=True))
    return [SausageLattice(tokens[row], log_probs[row], transitions[row, 1:]) for row in range(texts)]


def _slot(
    scores: np.ndarray, rows: np.ndarray, weights: np.ndarray, texts: int, k: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A slot's arcs of every text, best first: tokens and log-probabilities ``[texts, k]``; and ``[prefixes, k]`` the
    log-probabilities of those tokens after each prefix."""
    marginal = np.full((texts, scores.shape[1]), -np.inf, np.float32)
    for text in range(texts):
        own = rows == text
        share = weights[own] - np.logaddexp.reduce(weights[own])
        marginal[text] = np.logaddexp.reduce(scores[own] + share[:, None].astype(np.float32), axis=0)
    tokens = np.sort(np.argpartition(-marginal, k - 1, axis=1)[:, :k], axis=1)
    order = np.argsort(-np.take_along_axis(marginal, tokens, axis=1), axis=1, kind="stable")
    tokens = np.take_along_axis(tokens, order, axis=1)
    return tokens, np.take_along_axis(marginal, tokens, axis=1), np.take_along_axis(scores, tokens[rows], axis=1)


def _best(scores: np.ndarray, rows: np.ndarray, texts: int) -> tuple[np.ndarray, np.ndarray]:
    """The prefixes to go on with: each text's ``WIDTH`` best, one for each arc; their parents and arcs."""
    parents, arcs = [], []
    for text in range(texts):
        own = np.flatnonzero(rows == text)
        best = own[scores[own].argmax(axis=0)]  # of the prefixes that end with one arc, the best
        chosen = np.argsort(-scores[best, np.arange(scores.shape[1])], kind="stable")[:WIDTH]
        parents.append(best[chosen])
        arcs.append(chosen)
    return np.concatenate(parents), np.concatenate(arcs)
