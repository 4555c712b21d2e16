"""Katz estimation against the textbook, computed the slow way on texts small enough to enumerate."""

from __future__ import annotations

import logging
import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fst.table import BOS, EOS
from lm_training.ngram.array_store import ArrayStore
from lm_training.ngram.backoff import estimate_backoff
from lm_training.ngram.counts import TokenStream, count_ngrams
from lm_training.ngram.smoothing import SMOOTHINGS, Katz, OpenGrmKatz
from lm_training.ngram.smoothing.base import NO_MASS, ContextCounts, Smoothing
from lm_training.ngram.smoothing.good_turing import good_turing_discounts
from lm_training.ngram.smoothing.katz import absolute_discount
from tests.helpers.backoff_reference import as_dict, assert_proper, golden_sentences, golden_table, zipf_text
from tests.helpers.sentence_models import estimate, estimate_sentences

backoff_weights = Smoothing.backoff_weights
streams = st.lists(st.integers(0, 5), min_size=1, max_size=60).map(lambda ids: np.array(ids, dtype=np.uint16))


class WittenBell(Smoothing):
    """A method that needs how many different words were seen: p̂(w | h) = c(h w) / (c(h) + T(h))."""

    def fit(self, order, counts_of_counts):
        return lambda seen: seen.counts / seen.spread(seen.totals + seen.types)


smoothings = st.sampled_from([*SMOOTHINGS.values(), Katz(cutoff=0), Katz(cutoff=2), WittenBell()])


@settings(deadline=None, max_examples=150)
@given(
    streams,
    st.integers(1, 4),
    smoothings,
    st.lists(st.integers(1, 3), min_size=1, max_size=4),
    st.sampled_from([None, 6, 8]),
)
def test_every_context_of_any_stream_sums_to_one(tokens, order, smoothing, min_counts, vocab_size):
    table = estimate(tokens, order, smoothing, min_counts, vocab_size=vocab_size)
    assert table.order == order
    assert_proper(table)


@settings(deadline=None, max_examples=80)
@given(
    st.lists(st.lists(st.integers(0, 3), max_size=6), min_size=1, max_size=12),
    st.integers(1, 4),
    smoothings,
    st.booleans(),
)
def test_every_context_of_any_sentences_sums_to_one(sentences, order, smoothing, unknown_word):
    table = estimate_sentences(
        [np.array(s, dtype=np.int32) for s in sentences], order, smoothing, unknown_word=unknown_word
    )
    assert_proper(table)


def test_explicit_probabilities_are_discounted_relative_frequencies():
    tokens = zipf_text()
    table = estimate(tokens, 3, Katz(cutoff=3), (1,), end_of_text=None)
    text = tokens.tolist()
    for order in (2, 3):
        grams = Counter(tuple(text[i : i + order]) for i in range(len(text) - order + 1))
        totals = Counter()
        for gram, count in grams.items():
            totals[gram[:-1]] += count
        n = Counter(grams.values())
        common = 4 * n[4] / n[1]
        discounted = {
            gram: r * (((r + 1) * n[r + 1] / (r * n[r]) - common) / (1 - common) if r <= 3 else 1)
            for gram, r in grams.items()
        }
        masses = Counter()
        for gram, mass in discounted.items():
            masses[gram[:-1]] += mass
        for row, value in zip(map(tuple, table.ngrams[order - 1].tolist()), table.log_probs[order - 1], strict=True):
            total = totals[row[:-1]] + (masses[row[:-1]] == totals[row[:-1]])  # one more where no mass would be left
            assert math.exp(value) == pytest.approx(discounted[row] / total)
        assert len(table.ngrams[order - 1]) == len(grams)


def test_dropped_ngrams_stay_in_the_denominator():
    tokens = np.array([1, 2] * 4 + [1, 3], dtype=np.int32)
    table = estimate(tokens, 2, Katz(cutoff=0), (1, 2), end_of_text=None)
    assert table.ngrams[1].tolist() == [[1, 2], [2, 1]]
    # Five bigrams begin with 1, four of them continue with 2; absolute discounting takes 1/2.
    assert math.exp(table.log_probs[1][0]) == pytest.approx(3.5 / 5)


def test_default_minimum_counts_are_one_for_bigrams_two_for_trigrams_and_four_for_4grams():
    tokens = zipf_text(2000)
    table, text = estimate(tokens, 4, end_of_text=None), tokens.tolist()
    for order, minimum in ((2, 1), (3, 2), (4, 4)):
        grams = Counter(tuple(text[i : i + order]) for i in range(len(text) - order + 1))
        expected = sorted(gram for gram, count in grams.items() if count >= minimum)
        assert list(map(tuple, table.ngrams[order - 1].tolist())) == expected


def test_ngrams_above_the_minimum_count_leave_with_the_ngrams_they_contain():
    tokens = np.array([1, 2, 3, 0] * 3, dtype=np.int32)
    table = estimate(tokens, 3, min_counts=(1, 4, 2), vocab_size=4)
    assert table.num_ngrams == [4, 0, 0]


def test_impossible_discounts_fall_back_and_say_so(caplog):
    tokens = np.repeat(np.arange(1, 5), 2)  # every unigram twice
    with caplog.at_level(logging.INFO, logger="lm_training"):
        table = estimate(tokens, 1, vocab_size=6, end_of_text=None)
    assert "1-grams: counts of counts allow no Good-Turing discount; absolute discounting by 0.500" in caplog.text
    assert np.exp(table.log_probs[0]).sum() == pytest.approx(1)


def test_unseen_token_never_overtakes_a_seen_one():
    tokens = np.array([1] * 50 + [2] * 2)
    table = estimate(tokens, 1, vocab_size=4, end_of_text=None)
    probs = np.exp(table.log_probs[0])
    assert probs[0] == probs[3] <= probs[2] < probs[1]
    # D = 1/2 leaves 1/2 to the one unseen token, and 1/6 to each seen one.
    np.testing.assert_allclose(np.exp(estimate([1, 2, 3], 1, vocab_size=4, end_of_text=None).log_probs[0]), 1 / 4)


def test_unigrams_all_seen_are_relative_frequencies():
    table = estimate(np.array([1, 1, 1, 0]), 1, vocab_size=2)
    np.testing.assert_allclose(np.exp(table.log_probs[0]), [0.25, 0.75])


def test_discounts_match_the_formula_on_paper():
    # n_1..n_3 = 6, 2, 1 and k = 2: A = 3*1/6 = 1/2; d_1 = (2*2/6 - 1/2)/(1/2) = 1/3; d_2 = (3*1/4 - 1/2)/(1/2) = 1/2.
    np.testing.assert_allclose(good_turing_discounts(np.array([0, 6, 2, 1]), 2), [1, 1 / 3, 1 / 2])


def test_context_that_saw_all_words_is_rescaled():
    weights, explicit = backoff_weights(np.array([0.5, 0.3]), np.array([0.6, 0.4]), np.array([0]))
    assert weights.tolist() == [1.0]
    np.testing.assert_allclose(explicit, [0.625, 0.375])


def test_context_that_gave_away_too_much_keeps_a_positive_backoff():
    weights, explicit = backoff_weights(np.array([0.8, 0.4]), np.array([0.3, 0.2]), np.array([0]))
    assert weights[0] * 0.5 == pytest.approx(NO_MASS)
    assert explicit.sum() + weights[0] * 0.5 == pytest.approx(1)


def test_mass_within_the_tolerance_of_one_is_scaled_to_leave_the_tolerance():
    weights, explicit = backoff_weights(np.array([0.5, 0.5 - NO_MASS / 2]), np.array([0.3, 0.2]), np.array([0]))
    assert 1 - explicit.sum() == pytest.approx(NO_MASS, rel=1e-5)
    assert weights[0] == pytest.approx(NO_MASS / 0.5, rel=1e-5)


def test_context_that_leaves_little_mass_keeps_its_probabilities():
    weights, explicit = backoff_weights(np.array([0.5, 0.49999]), np.array([0.3, 0.2]), np.array([0]))
    np.testing.assert_allclose(weights, [1e-5 / 0.5])
    assert explicit.tolist() == [0.5, 0.49999]


@pytest.mark.parametrize("tokens", [[0], [7], [0, 0, 0], [7] * 30, [7, 0], [0, 7]])
def test_degenerate_corpora_give_proper_models(tokens):
    assert_proper(estimate(np.array(tokens), 4, vocab_size=9))
    for smoothing in SMOOTHINGS.values():
        assert_proper(estimate(np.array(tokens), 4, smoothing, (1,)))


def test_empty_corpus_is_refused():
    with pytest.raises(ValueError, match="is the corpus empty"):
        estimate(np.zeros(0, dtype=np.uint16), 2, end_of_text=None)


def test_minimum_count_below_one_is_refused():
    with pytest.raises(ValueError, match=r"minimum count of at least 1 .* got \[1, 0\]"):
        estimate(np.array([7]), 2, min_counts=(1, 0))


@pytest.mark.parametrize("order", [3, 4])
def test_opengrm_models_are_reproduced_entry_for_entry(order):
    """The oracle is OpenGrm NGram 1.3.6."""
    sentences, words = golden_sentences()
    table = as_dict(estimate_sentences(sentences, order, OpenGrmKatz(), (1,)))
    expected = golden_table(f"a{order}.katz.arpa.xz", words)
    assert table.keys() == expected.keys()
    for gram, (prob, backoff) in expected.items():
        assert table[gram] == (pytest.approx(prob, abs=2e-3), pytest.approx(backoff, abs=2e-3)), gram


def test_opengrm_conventions_on_paper():
    # <s> a </s>, <s> a b </s>: bigrams <s>a 2, a</s> 1, ab 1, b</s> 1; so n_1 = 3, n_2 = 1, no n_6, and A = 0:
    # d_1 = 2 * 1 / 3 = 2/3; d_2 = 3 * 0 / 2 = 0 is no discount, and 0.999 replaces it.
    table = as_dict(estimate_sentences([np.array([0]), np.array([0, 1])], 2, OpenGrmKatz(), (1,)))
    expected = {
        (EOS,): (2 / 5, 1),  # unigrams as they are, <s> not counted
        (0,): (2 / 5, (1 - 2 / 3) / (1 - 3 / 5)),
        (1,): (1 / 5, (1 - 2 / 3) / (1 - 2 / 5)),
        (BOS,): (0, (1 - 0.999) / (1 - 2 / 5)),
        (BOS, 0): (0.999, 1),
        (0, EOS): (1 / 3, 1),
        (0, 1): (1 / 3, 1),
        (1, EOS): (2 / 3, 1),
    }
    assert table.keys() == expected.keys()
    for gram, (prob, weight) in expected.items():
        assert (math.exp(table[gram][0]), math.exp(table[gram][1])) == pytest.approx((prob, weight)), gram


def test_opengrm_context_of_all_words_leaves_its_mass_to_the_end():
    # <s> a a </s>: after a come a and </s>, the complete vocabulary, once each.
    table = as_dict(estimate_sentences([np.array([0, 0])], 2, OpenGrmKatz(), (1,)))
    discount = 0.999  # n_1 = 3 and n_2 = 0: d_1 = 0 is no discount
    assert math.exp(table[(0, 0)][0]) == pytest.approx(discount / 2)
    assert math.exp(table[(0, EOS)][0]) == pytest.approx(1 - discount / 2)
    assert table[(0,)][1] == 0


def context_of(counts, total):
    """One context with these counts, and ``total`` - sum(counts) occurrences of dropped n-grams."""
    starts, types = np.array([0]), np.array([len(counts)])
    return ContextCounts(
        np.array(counts), starts, np.array([total]), types, np.zeros(len(counts), dtype=bool), np.array([False])
    )


@pytest.mark.parametrize(
    ("counts_of_counts", "discounted"),
    [
        # n_4 = 0 makes d_3 = 0; k = 2: A = 3*1/6 = 1/2, d_1 = (4/6 - 1/2)/(1/2) = 1/3, d_2 = (3/4 - 1/2)/(1/2) = 1/2.
        ([0, 6, 2, 1], [1 / 3, 1, 3, 4]),
        # k = 3: A = 4*1/10, d_1 = (12/10 - 4/10)/(6/10) > 1; k = 2: d_1 > 1 again; k = 1: d_1 = 0; D = 10/(10 + 2*6).
        ([0, 10, 6, 3, 1], [6 / 11, 17 / 11, 28 / 11, 39 / 11]),
        # k = 1: d_1 = 0 always; k = 2 with n_3 = 0: d_2 = 0; D = 8/(8 + 2*3).
        ([0, 8, 3], [3 / 7, 10 / 7, 17 / 7, 24 / 7]),
    ],
)
def test_katz_uses_the_largest_cutoff_with_possible_discounts(counts_of_counts, discounted):
    probs = Katz().fit(2, np.array(counts_of_counts))(context_of([1, 2, 3, 4], 12))
    np.testing.assert_allclose(probs, np.array(discounted) / 12)


@pytest.mark.parametrize("smoothing", [Katz(), OpenGrmKatz()])
def test_counts_up_to_five_are_discounted_by_default(smoothing):
    # r n_r = 840 * 2^(8-r): (r+1) n_{r+1} / (r n_r) = 1/2 and A = 6 n_6 / n_1 = 1/32, so d_r = (1/2 - 1/32)/(31/32).
    counts_of_counts = np.array([0, *(840 * 2 ** (8 - r) // r for r in range(1, 9))])
    probs = smoothing.fit(2, counts_of_counts)(context_of([1, 4, 5, 6, 7], 100))
    above = 0.999 if isinstance(smoothing, OpenGrmKatz) else 1
    np.testing.assert_allclose(probs, np.array([15 / 31, 4 * 15 / 31, 5 * 15 / 31, 6 * above, 7 * above]) / 100)


def test_opengrm_replaces_impossible_discounts_of_longer_ngrams_only():
    # k = 3: A = 4*1/10, d_1 = (12/10 - A)/(6/10) > 1, d_2 = (9/12 - A)/(6/10) = 7/12, d_3 = (4/9 - A)/(6/10) = 2/27.
    counts_of_counts, contexts = np.array([0, 10, 6, 3, 1]), context_of([1, 2, 3, 4], 12)
    probs = OpenGrmKatz(3).fit(2, counts_of_counts)(contexts)
    np.testing.assert_allclose(probs, np.array([0.999, 2 * 7 / 12, 3 * 2 / 27, 4 * 0.999]) / 12)
    np.testing.assert_allclose(OpenGrmKatz(3).fit(1, counts_of_counts)(contexts), np.array([1, 2, 3, 4]) / 12)


def test_unseen_words_share_one_occurrence_if_the_method_leaves_nothing():
    probs, each = OpenGrmKatz().unigrams(context_of([3, 6], 9), np.zeros(7), unseen=2)
    np.testing.assert_allclose([*probs, each], np.array([3 / 9, 6 / 9, 1 / 10 / 2]) / (1 + 1 / 10))


def test_unseen_word_gets_no_more_than_a_seen_one():
    probs, each = WittenBell().unigrams(context_of([1, 1], 2), np.array([0, 2]), unseen=1)  # 1/4, 1/4 and 1/2 by itself
    np.testing.assert_allclose([*probs, each], [1 / 3, 1 / 3, 1 / 3])


def test_absolute_discount_leaves_one_out():
    assert absolute_discount(np.array([0, 6, 3, 1])) == 6 / 12
    assert absolute_discount(np.array([0, 0, 3])) == absolute_discount(np.zeros(0)) == 0.5
    probs = Katz(cutoff=0).fit(2, np.array([0, 6, 1]))(context_of([1, 3], 5))
    np.testing.assert_allclose(probs, [0.05, 0.45])


def test_words_dropped_for_rarity_still_count_as_kinds_for_witten_bell():
    tokens = np.array([1, 2] * 3 + [1, 3, 1, 4])
    table = estimate(tokens, 2, WittenBell(), (1, 2), end_of_text=None)
    assert math.exp(as_dict(table)[(1, 2)][0]) == pytest.approx(3 / (5 + 3))


@pytest.mark.parametrize("method", [Katz, OpenGrmKatz])
@pytest.mark.parametrize("cutoff", [-1, 101])
def test_cutoff_out_of_range_is_refused(method, cutoff):
    with pytest.raises(ValueError, match=f"cutoff from 0 to 100, got {cutoff}"):
        method(cutoff=cutoff)


def test_any_object_with_probabilities_is_a_smoothing_method():
    class HalfForTheUnseen(Smoothing):
        def fit(self, order, counts_of_counts):
            return lambda seen: seen.counts / seen.spread(seen.totals) / 2

    table = estimate(zipf_text(500), 3, HalfForTheUnseen(), (1,), end_of_text=None)
    first = table.ngrams[1][:, 0] == 1
    assert np.exp(table.log_probs[1][first]).sum() == pytest.approx(0.5)
    assert_proper(table)


def test_method_sees_the_counts_of_its_contexts():
    seen: dict[int, ContextCounts] = {}

    class Spy(WittenBell):
        def fit(self, order, counts_of_counts):
            estimator = super().fit(order, counts_of_counts)

            def probabilities(contexts):
                seen[order] = contexts
                return estimator(contexts)

            return probabilities

        def unigrams(self, contexts, counts_of_counts, unseen):
            seen[1] = contexts
            return super().unigrams(contexts, counts_of_counts, unseen)

    estimate_sentences([[1, 2], [1, 2], [1]], 2, Spy(), (1, 2))  # bigrams <s>1 3, 1</s> 1 (dropped), 12 2, 2</s> 2
    bigrams = {name: array.tolist() for name, array in vars(seen[2]).items()}
    assert bigrams == {
        "counts": [3, 2, 2], "starts": [0, 1, 2], "totals": [3, 3, 2], "types": [1, 2, 1],
        "closing": [False, False, True], "exhaustive": [False, False, False],
    }  # fmt: skip
    unigrams = {name: array.tolist() for name, array in vars(seen[1]).items()}  # </s> 3, 1 3, 2 2
    assert unigrams == {
        "counts": [3, 3, 2], "starts": [0], "totals": [8], "types": [3],
        "closing": [True, False, False], "exhaustive": [True],
    }  # fmt: skip
    estimate_sentences([[0, 0]], 2, Spy(), (1,))
    assert seen[2].exhaustive.tolist() == [False, True]  # after 0 come 0 and </s>


@pytest.mark.parametrize("smoothing", SMOOTHINGS)
@pytest.mark.parametrize("min_counts", [(1,), (1, 1, 2)])
def test_contexts_estimated_in_groups_come_out_the_same_to_the_bit(monkeypatch, tmp_path, smoothing, min_counts):
    """Cut anywhere between contexts, on any number of threads, in memory or in files."""
    counts = count_ngrams(TokenStream.of(zipf_text(4000), None), 4, min_counts)
    reference = estimate_backoff(counts, SMOOTHINGS[smoothing], np.arange(64))
    for group, threads, store in ((1, 1, ArrayStore()), (40, 2, ArrayStore(tmp_path)), (1000, 3, ArrayStore())):
        monkeypatch.setattr("lm_training.ngram.trie.GROUP", group)
        parts = estimate_backoff(counts, SMOOTHINGS[smoothing], np.arange(64), store, threads)
        for name in ("ngrams", "log_probs", "backoffs"):
            for ours, theirs in zip(getattr(parts, name), getattr(reference, name), strict=True):
                np.testing.assert_array_equal(ours, theirs)
