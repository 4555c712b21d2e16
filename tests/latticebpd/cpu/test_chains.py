"""Weights of chains against sums over all paths."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from latticebpd.cpu._engine import chain_weights


def test_paths_have_the_chains_probabilities_and_arcs_their_marginals() -> None:
    rng = np.random.default_rng(0)
    rows, slots, k = 5, 4, 3
    log_probs = np.log(rng.dirichlet(np.ones(k + 2), (rows, slots))[..., :k])
    start, pairs = rng.normal(0, 2, (rows, k)), rng.normal(0, 2, (rows, slots - 1, k, k))
    arcs, transitions = chain_weights(log_probs, start, pairs)
    for row in range(rows):
        masses, marginals = np.exp(log_probs[row]).sum(axis=1), np.zeros((slots, k))
        for path in itertools.product(range(k), repeat=slots):
            wanted = np.exp(start[row, path[0]]) / np.exp(start[row]).sum()
            log_prob = arcs[row, 0, path[0]]
            for slot, (i, j) in enumerate(itertools.pairwise(path)):
                scores = np.exp(pairs[row, slot, i])
                wanted *= scores[j] / scores.sum()
                log_prob += arcs[row, slot + 1, j] + transitions[row, slot, i, j]
            np.testing.assert_allclose(log_prob, np.log(wanted * masses.prod()), atol=1e-5)
            marginals[range(slots), path] += wanted
        np.testing.assert_allclose(np.exp(arcs[row]), marginals * masses[:, None], rtol=1e-5)


def test_arrays_of_other_shapes_are_refused() -> None:
    log_probs, start, pairs = np.zeros((2, 3, 4)), np.zeros((2, 4)), np.zeros((2, 2, 4, 4))
    for wrong in (
        (log_probs[0], start, pairs),
        (log_probs[:, :0], start, pairs),
        (log_probs, start[:1], pairs),
        (log_probs, start, pairs[:, :1]),
    ):
        with pytest.raises(ValueError, match="expected"):
            chain_weights(*wrong)


def test_a_single_slot_keeps_its_weights() -> None:
    log_probs = np.log(np.array([[[0.5, 0.2]]], np.float32))
    arcs, transitions = chain_weights(log_probs, log_probs[:, 0], np.zeros((1, 0, 2, 2), np.float32))
    np.testing.assert_allclose(arcs, log_probs, atol=1e-6)
    assert (arcs.dtype, transitions.shape) == (np.float32, (1, 0, 2, 2))
