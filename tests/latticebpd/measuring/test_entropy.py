"""Entropies of heads: bounds against every distribution that fits, means by hand, correlation against numpy."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from latticebpd.lattices.lattice_set import LatticeSet
from latticebpd.lattices.sausage import PADDING, SausageLattice
from latticebpd.measuring import entropy_bounds, h_max, head_entropy, regress
from latticebpd.measuring.entropy import BIN
from tests.helpers.lattice_sets import by_hand


def lattice_set(log_probs: np.ndarray, **optional: np.ndarray) -> LatticeSet:
    """``[n, slots, k]`` weights as lattices whose tokens are 0..k - 1."""
    n, slots, k = log_probs.shape
    tokens = np.broadcast_to(np.arange(k, dtype=np.int32), (n, slots, k)).copy()
    continuation = np.zeros((n, slots), np.int32)
    return LatticeSet(tokens, log_probs.astype(np.float32), continuation, np.zeros((n, 1), np.int32), **optional)


@given(st.lists(st.integers(1, 40), min_size=2, max_size=12), st.integers(1, 12))
def test_the_true_entropy_lies_between_the_bounds(weights: list[int], k: int) -> None:
    p = np.sort(np.array(weights) / sum(weights))[::-1]
    k = min(k, len(p))
    low, high = entropy_bounds(lattice_set(np.log(p[None, None, :k])), len(p))
    true = -(p * np.log(p)).sum()
    assert low[0, 0] - 1e-5 <= true <= high[0, 0] + 1e-5
    if k == len(p):
        np.testing.assert_allclose([low[0, 0], high[0, 0]], true, atol=1e-5)


@given(st.lists(st.integers(1, 20), min_size=1, max_size=3), st.integers(2, 5))
def test_bounds_are_reached(weights: list[int], others: int) -> None:
    """The least and the greatest entropy are those of distributions that have these arcs at the top."""
    top = np.sort(np.array(weights, float))[::-1]
    rest = top[-1] * (others - 0.5)  # fits on the others, none of them above the last arc
    total = top.sum() + rest
    concentrated = np.append(np.full(others - 1, top[-1]), 0.5 * top[-1])
    spread = np.full(others, rest / others)
    entropies = []
    for tail in (concentrated, spread):
        p = np.append(top, tail) / total
        entropies.append(-(p * np.log(p)).sum())
    low, high = entropy_bounds(lattice_set(np.log(top / total)[None, None]), len(top) + others)
    np.testing.assert_allclose([low[0, 0], high[0, 0]], entropies, atol=1e-5)


def test_bounds_of_one_arc_by_hand() -> None:
    # One arc of 1/2; the rest on one other token, or on four of 1/8 each.
    low, high = entropy_bounds(lattice_set(np.log([[[0.5]]])), 5)
    np.testing.assert_allclose([low[0, 0], high[0, 0]], [np.log(2), 0.5 * np.log(2) + 0.5 * np.log(8)], rtol=1e-6)


def test_no_other_token_is_likelier_than_the_last_arc() -> None:
    # Arcs of 0.5 and 0.1, as of another vocabulary: the two other tokens have at most 0.1 each.
    low, high = entropy_bounds(lattice_set(np.log([[[0.5, 0.1]]])), 4)
    np.testing.assert_allclose([low[0, 0], high[0, 0]], [-0.5 * np.log(0.5) - 0.3 * np.log(0.1)] * 2, rtol=1e-6)


def test_padding_and_impossible_arcs_have_no_entropy() -> None:
    tokens = np.array([[[3, PADDING, 4]]], np.int32)
    lattices = LatticeSet(
        tokens, np.array([[[0.0, 7.0, -np.inf]]], np.float32), np.zeros((1, 1), np.int32), np.zeros((1, 1), np.int32)
    )
    low, high = entropy_bounds(lattices, 9)
    assert low.tolist() == high.tolist() == [[0]]


def test_weights_that_are_no_log_probabilities_are_refused() -> None:
    with pytest.raises(ValueError, match=r"sum to at most 1, got 2 in lattice 0, slot 1"):
        entropy_bounds(lattice_set(np.array([[[np.log(0.5)] * 2, [0.0, 0.0]]])), 5)
    with pytest.raises(ValueError, match="vocabulary of at least 2 tokens"):
        entropy_bounds(lattice_set(np.log(np.full((1, 1, 2), 0.5))), 1)


def test_h_max_by_hand() -> None:
    assert h_max(np.array([1.0, 2, 2, 3, 2.5, 4])) == (4, 4)
    assert h_max(np.array([3.0, 1])) == (1, 1)
    assert h_max(np.array([2.0])) == (1, 1)
    # Bounds that overlap leave it open; those that do not decide it.
    assert h_max(np.array([1.0, 1.5, 4.0]), np.array([2.0, 3.0, 5.0])) == (1, 3)
    assert h_max(np.array([1.0, 2.5, 0.1]), np.array([2.0, 3.0, 0.2])) == (2, 2)
    with pytest.raises(ValueError, match="at least one head"):
        h_max(np.array([]))


@given(st.lists(st.integers(0, 5), min_size=1, max_size=9), st.lists(st.integers(0, 3), min_size=9, max_size=9))
def test_h_max_equals_its_definition(low: list[int], gap: list[int]) -> None:
    def definition(values: list[int]) -> int:
        return max(k for k in range(1, len(values) + 1) if all(values[i] <= values[i + 1] for i in range(k - 1)))

    assert h_max(np.array(low)) == (definition(low), definition(low))
    high = [a + b for a, b in zip(low, gap, strict=False)]
    least, most = h_max(np.array(low), np.array(high))
    assert least <= min(definition(low), definition(high))
    assert most >= max(definition(low), definition(high))


def test_means_histograms_and_texts_by_hand() -> None:
    lattices = by_hand()  # four positions, two slots; vanilla accepts 1, 0, 2, 0
    entropy = np.array([[3, 1, 0.1], [5, 1, 0.3], [4, 2, 0.2], [4, 0, 0.2]], np.float32)
    lattices = replace(lattices, entropy=entropy, sequence=np.array([7, 7, 8, 8]))
    blocks = [lattices.take(np.arange(3)), lattices.take(np.array([3]))]  # a text across two blocks
    result = head_entropy(blocks, by="position")
    assert result.heads == (1, 2, 3)
    assert result.exact
    np.testing.assert_allclose(result.low, [4, 1, 0.2], rtol=1e-6)
    assert result.h_max == (1, 1)
    assert result.histogram[0].nonzero()[0].tolist() == [int(3 / BIN), int(4 / BIN), int(5 / BIN)]
    assert result.histogram[2][:2].tolist() == [3, 1]
    assert result.histogram.sum(axis=1).tolist() == [4, 4, 4]
    np.testing.assert_allclose(result.text_means, [[4, 1, 0.2], [4, 1, 0.2]], rtol=1e-6)
    assert result.text_efficiency.tolist() == [1.5, 2.0]
    assert result.text_h_max().tolist() == [1, 1]
    decoded = head_entropy(blocks)  # vanilla calls at 0, where 1 more is accepted, and at 2, where 2 are
    np.testing.assert_allclose(decoded.low, [3.5, 1.5, 0.15], rtol=1e-6)
    np.testing.assert_allclose(decoded.text_means, [[3, 1, 0.1], [4, 2, 0.2]], rtol=1e-6)
    assert decoded.text_efficiency.tolist() == [2, 2]
    assert decoded.histogram.sum(axis=1).tolist() == [2, 2, 2]
    rising = replace(lattices, entropy=np.sort(entropy, axis=1))
    assert head_entropy([rising]).text_h_max().tolist() == [3, 3]
    assert head_entropy([replace(lattices, entropy=entropy[:, [0, 2, 1]])]).text_h_max(2).tolist() == [3, 3]


def test_the_last_bin_has_all_greater_entropies() -> None:
    entropy = np.array([[15.9, 16, 40]], np.float32)
    histogram = head_entropy([replace(by_hand().take(np.array([0])), entropy=entropy)], by="position").histogram
    assert [row.nonzero()[0].tolist() for row in histogram] == [[histogram.shape[1] - 1]] * 3


def test_files_without_entropies_give_bounds_of_the_drafting_heads() -> None:
    logits = np.random.default_rng(0).normal(size=(40, 3, 30)) * 2
    lattices = [SausageLattice.from_logits(rows, k=8) for rows in logits]
    tokens, log_probs = np.stack([x.tokens for x in lattices]), np.stack([x.log_probs for x in lattices])
    lattice_set = LatticeSet(tokens, log_probs, np.zeros((40, 3), np.int32), np.zeros((40, 1), np.int32))
    p = np.exp(logits) / np.exp(logits).sum(axis=2, keepdims=True)
    true = -(p * np.log(p)).sum(axis=2).mean(axis=0)
    result = head_entropy([lattice_set], vocab_size=30)
    assert result.heads == (2, 3, 4)
    assert not result.exact
    assert (result.low <= true).all()
    assert (true <= result.high).all()
    assert result.h_max[0] <= result.h_max[1]
    by_text = replace(result, text_means=np.array([[3.0, 1.0, 2.0]]))
    assert [by_text.text_h_max(first).tolist() for first in (1, 2, 3, 4)] == [[2], [2], [4], [4]]
    with pytest.raises(ValueError, match="got neither"):
        head_entropy([lattice_set])
    with pytest.raises(ValueError, match="got both kinds"):
        head_entropy([lattice_set, replace(lattice_set, entropy=np.zeros((40, 4), np.float32))], vocab_size=30)
    with pytest.raises(ValueError, match="at least one lattice"):
        head_entropy([])


@given(st.lists(st.tuples(st.integers(-9, 9), st.integers(-9, 9)), min_size=2, max_size=20))
def test_regression_equals_numpys(points: list[tuple[int, int]]) -> None:
    x, y = np.array(points, float).T
    regression = regress(x, y)
    if len(set(x)) == 1:
        assert np.isnan([regression.slope, regression.r]).all()
        return
    slope, intercept = np.polyfit(x, y, 1)
    np.testing.assert_allclose([regression.slope, regression.intercept], [slope, intercept], atol=1e-8)
    if len(set(y)) > 1:
        np.testing.assert_allclose(regression.r, np.corrcoef(x, y)[0, 1], atol=1e-8)


def test_regression_wants_two_points() -> None:
    with pytest.raises(ValueError, match="at least 2"):
        regress(np.array([1.0]), np.array([1.0]))
