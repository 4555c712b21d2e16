"""Sausages that Hypothesis draws for the core's searches, and results of searches as lists."""

from __future__ import annotations

import math

import numpy as np
from hypothesis import strategies as st

from tests.helpers.random_tables import EXACT, VOCAB


@st.composite
def lattices(draw: st.DrawFn, max_slots: int = 4, max_k: int = 4) -> tuple[np.ndarray, np.ndarray]:
    """Tokens and log-probabilities [slots, k], shuffled and padded; some tokens unknown to the model."""
    slots, k = draw(st.integers(1, max_slots)), draw(st.integers(1, max_k))
    tokens = np.full((slots, k), -1, dtype=np.int32)
    log_probs = np.zeros((slots, k))
    for t in range(slots):
        ids = draw(st.lists(st.integers(0, VOCAB + 1), min_size=1, max_size=k, unique=True))
        at = draw(st.permutations(range(k)))[: len(ids)]
        tokens[t, at] = ids
        log_probs[t, at] = draw(st.lists(EXACT, min_size=len(ids), max_size=len(ids)))
        if draw(st.booleans()):
            log_probs[t, at[1:2]] = -math.inf
    return tokens, log_probs


@st.composite
def lattices_with_transitions(
    draw: st.DrawFn, max_slots: int = 4, max_k: int = 4
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The same, and transitions: some masked, ties, and anything where no column is."""
    tokens, log_probs = draw(lattices(max_slots, max_k))
    slots, k = tokens.shape
    size = (slots - 1) * k * k
    values = draw(
        st.lists(st.sampled_from([0.0, 0.0, 0.5, -0.25, -1.0, -3.0, -math.inf, -1e30]), min_size=size, max_size=size)
    )
    transitions = np.array(values).reshape(slots - 1, k, k)
    there = (tokens >= 0) & (log_probs > -math.inf)
    transitions[~(there[:-1, :, None] & there[1:, None, :])] = draw(st.sampled_from([0.0, math.nan, math.inf]))
    return tokens, log_probs, transitions


def masked(transitions: np.ndarray) -> np.ndarray:
    return np.where(transitions <= -1e30, -math.inf, transitions)


CONTEXTS = st.lists(st.integers(0, VOCAB + 1), max_size=5)
ALPHAS = st.sampled_from([0.0, 0.5, 1.0, 2.0])


def as_list(tokens: np.ndarray, scores: np.ndarray) -> list[tuple[tuple[int, ...], float]]:
    return [(tuple(path), score) for path, score in zip(tokens.tolist(), scores.tolist(), strict=True)]


def prefixes(tokens: np.ndarray, parents: np.ndarray, log_probs: np.ndarray) -> list[tuple[tuple[int, ...], float]]:
    out: list[tuple[int, ...]] = []
    for i, (token, parent) in enumerate(zip(tokens.tolist(), parents.tolist(), strict=True)):
        assert -1 <= parent < i
        out.append((*(out[parent] if parent >= 0 else ()), token))
    return list(zip(out, log_probs.tolist(), strict=True))
