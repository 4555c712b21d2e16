"""Entropy pruning against divergences computed by enumeration."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fst.table import BOS, EOS, NgramTable
from lm_training.ngram.perplexity import table_log_probs
from lm_training.ngram.pruning import losses, prune
from lm_training.ngram.smoothing import Katz, OpenGrmKatz
from lm_training.ngram.trie import NgramTrie
from tests.helpers.backoff_reference import as_dict, assert_proper, golden_sentences, golden_table, log_prob, zipf_text
from tests.helpers.sentence_models import estimate, estimate_sentences


def rows_of(table: NgramTable) -> set[tuple[int, ...]]:
    return {tuple(row) for rows in table.ngrams for row in rows.tolist()}


def without(table: NgramTable, gram: tuple[int, ...]) -> NgramTable:
    """The table without one n-gram of its highest order that no other needs, the context's backoff recomputed."""
    order = len(gram)
    keep = np.array([tuple(row) != gram for row in table.ngrams[order - 1].tolist()])
    context, lower = gram[:-1], gram[1:-1]
    others = [row[-1] for row in table.ngrams[order - 1][keep].tolist() if tuple(row[:-1]) == context]
    left = 1 - sum(math.exp(log_prob(table, context, word)) for word in others)
    unseen = 1 - sum(math.exp(log_prob(table, lower, word)) for word in others)
    ngrams = [*table.ngrams[: order - 1], table.ngrams[order - 1][keep]]
    log_probs = [*table.log_probs[: order - 1], table.log_probs[order - 1][keep]]
    backoffs = [*table.backoffs[: order - 2], table.backoffs[order - 2].copy(), table.backoffs[order - 1][keep]]
    row_number = table.ngrams[order - 2].tolist().index(list(context))
    backoffs[order - 2][row_number] = math.log(left / unseen)
    return NgramTable(ngrams, log_probs, backoffs)


def test_loss_is_the_relative_entropy_summed_over_the_vocabulary():
    table = estimate(zipf_text(300) % 8, 3, Katz(cutoff=0), (1,), vocab_size=8, end_of_text=None)
    table_losses = losses(table, NgramTrie.of(table.ngrams))[2]
    vocabulary = table.ngrams[0][:, 0].tolist()
    for row, loss in list(zip(table.ngrams[2].tolist(), table_losses.tolist(), strict=True))[::7]:
        u, v, _ = row
        pruned = without(table, tuple(row))
        divergence = sum(
            math.exp(log_prob(table, (u, v), w)) * (log_prob(table, (u, v), w) - log_prob(pruned, (u, v), w))
            for w in vocabulary
        )
        chance = math.exp(log_prob(table, (), u) + log_prob(table, (u,), v))
        assert loss == pytest.approx(math.expm1(chance * divergence), rel=1e-6, abs=1e-12)


def test_history_of_a_sentence_start_counts_as_often_as_its_end():
    table = estimate_sentences([np.array([1, 2]), np.array([1, 3]), np.array([2, 3])], 2, Katz(cutoff=0), (1,))
    table_losses = losses(table, NgramTrie.of(table.ngrams))[1]
    gram = (BOS, 1)
    pruned = without(table, gram)
    vocabulary = [EOS, 1, 2, 3]
    divergence = sum(
        math.exp(log_prob(table, (BOS,), w)) * (log_prob(table, (BOS,), w) - log_prob(pruned, (BOS,), w))
        for w in vocabulary
    )
    row_number = table.ngrams[1].tolist().index(list(gram))
    assert table_losses[row_number] == pytest.approx(math.expm1(math.exp(log_prob(table, (), EOS)) * divergence))


def stepwise(table: NgramTable, theta: float) -> set[tuple[int, ...]]:
    """Stolcke's order of work: from the highest order down, drop what costs too little and nothing left needs."""
    own = losses(table, NgramTrie.of(table.ngrams))
    kept: set[tuple[int, ...]] = set()
    for order in range(table.order, 0, -1):
        needed = {gram[:-1] for gram in kept} | {gram[1:] for gram in kept}
        for row, loss in zip(map(tuple, table.ngrams[order - 1].tolist()), own[order - 1].tolist(), strict=True):
            if loss >= theta or row in needed:
                kept.add(row)
    return kept


models = st.builds(
    lambda ids, order: estimate(np.array(ids), order, min_counts=(1,), vocab_size=5),
    st.lists(st.integers(0, 4), min_size=1, max_size=80),
    st.integers(1, 4),
)


@settings(deadline=None)
@given(models, st.sampled_from([0.0, 1e-4, 1e-3, 1e-2, 1.0]))
def test_threshold_keeps_what_the_stepwise_algorithm_keeps(table, theta):
    pruned = prune(table, theta=theta)
    assert rows_of(pruned) == stepwise(table, theta)
    assert_proper(pruned)


@settings(deadline=None)
@given(models, st.integers(5, 200))
def test_size_limit_is_met_exactly_and_leaves_a_proper_model(table, limit):
    pruned = prune(table, max_ngrams=limit)
    assert sum(pruned.num_ngrams) == min(limit, sum(table.num_ngrams))
    assert_proper(pruned)


def test_size_limit_keeps_the_largest_losses():
    table = estimate(zipf_text(), 3, min_counts=(1,), end_of_text=None)
    larger, smaller = (rows_of(prune(table, max_ngrams=n)) for n in (900, 500))
    assert smaller < larger
    assert rows_of(prune(table, theta=1e-3, max_ngrams=10**9)) == rows_of(prune(table, theta=1e-3))


def test_both_limits_hold_together():
    table = estimate(zipf_text(), 3, min_counts=(1,), end_of_text=None)
    by_theta = prune(table, theta=1e-4)
    assert sum(prune(table, theta=1e-4, max_ngrams=10**6).num_ngrams) == sum(by_theta.num_ngrams)
    assert sum(prune(table, theta=1e-4, max_ngrams=400).num_ngrams) == 400


def test_unpruned_model_keeps_its_probabilities():
    table = estimate(zipf_text(), 3, min_counts=(1,), end_of_text=None)
    pruned = prune(table, max_ngrams=10**6)
    for order in range(3):
        np.testing.assert_allclose(pruned.log_probs[order], table.log_probs[order], atol=1e-12)
        np.testing.assert_allclose(pruned.backoffs[order], table.backoffs[order], atol=1e-9)


def test_pruning_costs_little_perplexity_at_first():
    tokens = zipf_text(20_000)
    table = estimate(tokens[:18_000], 3, min_counts=(1,), vocab_size=61, end_of_text=None)
    half = prune(table, max_ngrams=sum(table.num_ngrams) // 2)
    losses = [-table_log_probs(model, tokens[18_000:]).mean() for model in (half, table)]
    assert losses[0] < losses[1] + math.log(1.1)


def test_limit_below_the_unigrams_is_refused():
    table = estimate(np.array([1, 2, 3]), 2, vocab_size=4)
    with pytest.raises(ValueError, match=r"room for the 4 unigrams, .* got max_ngrams=3"):
        prune(table, max_ngrams=3)


@pytest.mark.parametrize("theta", [-1.0, math.nan])
def test_threshold_that_is_no_threshold_is_refused(theta):
    table = estimate(np.array([1, 2, 3]), 2, vocab_size=4)
    with pytest.raises(ValueError, match="threshold of at least 0"):
        prune(table, theta=theta)


def test_model_with_a_missing_context_is_refused():
    table = NgramTable(
        [np.array([[1], [2]]), np.array([[1, 2]]), np.array([[2, 1, 2]])],
        [np.log([0.5, 0.5]), np.log([0.4]), np.log([0.4])],
        [np.zeros(2), np.zeros(1), np.zeros(1)],
    )
    with pytest.raises(ValueError, match=r"prefix and the suffix of every 3-gram .* first \[2, 1, 2\]"):
        prune(table, theta=0.1)


@pytest.mark.parametrize(("order", "theta"), [(3, "1e-5"), (3, "1e-6"), (4, "1e-6")])
def test_opengrm_pruning_is_reproduced_entry_for_entry(order, theta):
    """The oracle is OpenGrm NGram 1.3.6."""
    sentences, words = golden_sentences()
    table = prune(estimate_sentences(sentences, order, OpenGrmKatz(), (1,)), theta=float(theta))
    ours, expected = as_dict(table), golden_table(f"a{order}.shrunk-{theta}.arpa.xz", words)
    assert ours.keys() == expected.keys()
    for gram, (prob, backoff) in expected.items():
        assert ours[gram] == (pytest.approx(prob, abs=2e-3), pytest.approx(backoff, abs=2e-3)), gram


@pytest.mark.parametrize("group", [1, 30, 10**6])
def test_losses_do_not_depend_on_how_many_contexts_are_worked_on_at_a_time(monkeypatch, group):
    table = estimate(zipf_text(), 4, min_counts=(1,), end_of_text=None)
    expected = losses(table, NgramTrie.of(table.ngrams))
    monkeypatch.setattr("lm_training.ngram.trie.GROUP", group)
    for ours, theirs in zip(losses(table, NgramTrie.of(table.ngrams)), expected, strict=True):
        np.testing.assert_array_equal(ours, theirs)
