"""Interpolated models against the mixture of the two recursive definitions."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lm_training.ngram.interpolation import best_weight, interpolate
from lm_training.ngram.perplexity import table_log_probs
from tests.helpers.backoff_reference import as_dict, assert_proper, log_prob, zipf_text
from tests.helpers.sentence_models import estimate, estimate_sentences

models = st.builds(
    lambda ids, order: estimate(np.array(ids), order, min_counts=(1,), vocab_size=5),
    st.lists(st.integers(0, 4), min_size=1, max_size=40),
    st.integers(1, 4),
)


@settings(deadline=None)
@given(models, models, st.sampled_from([0.1, 0.5, 0.9]))
def test_every_ngram_of_either_model_gets_the_mixture(first, second, weight):
    mixed = interpolate(first, second, weight)
    entries, ours, theirs = as_dict(mixed), as_dict(first), as_dict(second)
    assert entries.keys() == ours.keys() | theirs.keys()
    for (*context, token), (log_prob_mixed, _) in entries.items():
        expected = weight * math.exp(log_prob(ours, tuple(context), token)) + (1 - weight) * math.exp(
            log_prob(theirs, tuple(context), token)
        )
        assert math.exp(log_prob_mixed) == pytest.approx(expected, rel=1e-6)
    assert_proper(mixed)


def test_words_that_only_one_model_knows_keep_their_share():
    first = estimate_sentences([np.array([1, 2])], 2, min_counts=(1,))
    second = estimate_sentences([np.array([1, 3, 3])], 3, min_counts=(1,))
    mixed = interpolate(first, second, 0.25)
    assert math.exp(log_prob(mixed, (), 2)) == pytest.approx(0.25 * math.exp(log_prob(first, (), 2)))
    assert math.exp(log_prob(mixed, (), 3)) == pytest.approx(0.75 * math.exp(log_prob(second, (), 3)))
    assert_proper(mixed)


def test_best_weight_is_no_worse_than_its_neighbours():
    tokens = zipf_text(6000)
    first = estimate(tokens[:2000], 2, min_counts=(1,), vocab_size=61, end_of_text=None)
    second = estimate(np.arange(3000) % 61, 2, min_counts=(1,), vocab_size=61, end_of_text=None)
    held_out = np.concatenate([tokens[4000:5000], np.arange(500) % 61])
    weight = best_weight(first, second, held_out)
    assert 0.05 < weight < 0.95
    ours, theirs = table_log_probs(first, held_out), table_log_probs(second, held_out)

    def log_likelihood(share: float) -> float:
        return np.logaddexp(np.log(share) + ours, np.log(1 - share) + theirs).sum()

    assert log_likelihood(weight) > max(log_likelihood(weight - 1e-3), log_likelihood(weight + 1e-3))
    mixtures = [table_log_probs(interpolate(first, second, share), held_out).sum() for share in (0.05, weight, 0.95)]
    assert mixtures[1] == max(mixtures)


@pytest.mark.parametrize("weight", [0, 1, -0.5, math.nan])
def test_weight_that_mixes_nothing_is_refused(weight):
    table = estimate(np.array([1, 0]), 2, vocab_size=2)
    with pytest.raises(ValueError, match="weight between 0 and 1"):
        interpolate(table, table, weight)


def test_models_of_different_vocabularies_are_refused():
    table = estimate(np.array([1, 0]), 2, vocab_size=2)
    with pytest.raises(ValueError, match="fingerprints a and b"):
        interpolate(replace(table, fingerprint="a"), replace(table, fingerprint="b"), 0.5)
    with pytest.raises(ValueError, match="same words"):
        interpolate(replace(table, symbols=["x", "y"]), replace(table, symbols=["y", "x"]), 0.5)


def test_weight_cannot_be_learnt_from_unknown_words():
    table = estimate(np.array([1, 0]), 2, vocab_size=2)
    with pytest.raises(ValueError, match="got none among 2"):
        best_weight(table, table, np.array([7, 8]))
