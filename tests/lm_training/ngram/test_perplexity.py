"""Perplexity against the recursive definition of a backoff model."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fst.model import NgramModel
from fst.table import BOS, EOS, UNK, NgramTable
from lm_training.ngram.perplexity import Perplexity, perplexity, table_log_probs
from lm_training.ngram.pruning import prune
from tests.helpers.backoff_reference import log_prob, zipf_text
from tests.helpers.sentence_models import estimate, estimate_sentences


def perplexity_of(table: NgramTable, tokens: np.ndarray) -> Perplexity:
    return perplexity(NgramModel.from_table(table), tokens)


def expected_log_prob(table: NgramTable, tokens: np.ndarray) -> float:
    """By the vectorised scores of all tokens that are predicted and known."""
    log_probs = table_log_probs(table, tokens)
    return log_probs[(tokens != BOS) & np.isfinite(log_probs)].sum()


@settings(deadline=None)
@given(
    st.lists(st.integers(0, 4), min_size=1, max_size=60),
    st.integers(1, 4),
    st.lists(st.integers(0, 4), max_size=20),
    st.integers(5, 60),
)
def test_vectorised_scores_equal_the_recursive_definition(text, order, scored, size):
    table = prune(estimate(np.array(text), order, min_counts=(1,), vocab_size=5), max_ngrams=size)
    scores = table_log_probs(table, np.array(scored, dtype=np.int64))
    for i, token in enumerate(scored):
        context = tuple(scored[max(0, i - order + 1) : i])
        assert scores[i] == pytest.approx(log_prob(table, context, token))


def test_uniform_model_has_the_perplexity_of_its_vocabulary():
    table = estimate(np.array([0, 1, 2, 3]), 1, vocab_size=4)
    result = perplexity_of(table, np.array([3, 1, 1]))
    assert result.perplexity == pytest.approx(4)
    assert result.log_prob == pytest.approx(-3 * math.log(4))
    assert result.log10_prob == pytest.approx(-3 * math.log10(4))
    assert (result.num_tokens, result.num_oov) == (3, 0)


def test_stream_scores_the_same_through_the_compiled_core():
    tokens = zipf_text(2000)
    table = prune(estimate(tokens, 3, min_counts=(1,), vocab_size=61, end_of_text=None), max_ngrams=800)
    scored = np.append(tokens, [99, 7, 9, 99])
    result = perplexity_of(table, scored)
    assert (result.num_tokens, result.num_oov) == (2002, 2)
    assert result.log_prob == pytest.approx(expected_log_prob(table, scored), rel=1e-6)


@settings(deadline=None)
@given(st.lists(st.lists(st.integers(0, 4), max_size=5), min_size=1, max_size=5), st.integers(1, 3), st.booleans())
def test_sentences_score_the_same_through_the_compiled_core(sentences, order, unknown_word):
    table = estimate_sentences(
        [np.array([1, 2, 0]), np.array([1, 0])], order, min_counts=(1,), unknown_word=unknown_word
    )
    stream = np.array([token for sentence in sentences for token in (BOS, *sentence, EOS)])
    result, known = perplexity_of(table, stream), (stream <= 2) | unknown_word
    assert (result.num_tokens, result.num_oov) == (sum(known & (stream != BOS)), sum(~known))
    assert result.log_prob == pytest.approx(expected_log_prob(table, stream), abs=1e-4)


def test_unknown_ids_are_counted_apart_and_break_the_context():
    table = estimate(np.array([1, 2, 0, 1, 2, 0]), 2, min_counts=(1,), vocab_size=3)
    result = perplexity_of(table, np.array([1, 99, 2]))
    assert (result.num_tokens, result.num_oov) == (2, 1)
    assert result.log_prob == pytest.approx(log_prob(table, (), 1) + log_prob(table, (), 2))


def test_unknown_ids_are_the_unknown_word_where_the_model_has_it():
    table = estimate_sentences([np.array([1, 2]), np.array([1])], 2, unknown_word=True)
    result = perplexity_of(table, np.array([BOS, 1, 99, EOS]))
    assert (result.num_tokens, result.num_oov) == (3, 0)
    expected = [log_prob(table, (BOS,), 1), log_prob(table, (1,), UNK), log_prob(table, (UNK,), EOS)]
    assert result.log_prob == pytest.approx(sum(expected))


def test_sentence_start_is_a_context_and_not_scored():
    table = estimate_sentences([np.array([1, 2]), np.array([1])], 3, min_counts=(1,))
    result = perplexity_of(table, np.array([BOS, 1, EOS, BOS, 1, EOS]))
    assert result.num_tokens == 4
    assert result.log_prob == pytest.approx(2 * (log_prob(table, (BOS,), 1) + log_prob(table, (BOS, 1), EOS)))


def test_empty_text_has_no_perplexity():
    result = perplexity_of(estimate(np.array([0, 1]), 2, vocab_size=2), np.zeros(0, dtype=np.uint16))
    assert result.num_tokens == 0
    assert math.isnan(result.perplexity)


def test_array_that_is_not_flat_is_refused():
    with pytest.raises(ValueError, match=r"flat array of token ids, got shape \(2, 2\)"):
        perplexity_of(estimate(np.array([0, 1]), 2, vocab_size=2), np.zeros((2, 2), dtype=np.uint16))
