"""Counting against a plain loop over the text."""

from __future__ import annotations

import tracemalloc
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fst.table import BOS, EOS, UNK
from lm_training.ngram.counts import PIECE, NgramCounts, TokenStream, count_ngrams
from tests.helpers.sentence_models import assert_same_counts, sentence_stream


def count_stream(tokens: np.ndarray, order: int, end_of_text: int | None, *options: object) -> NgramCounts:
    return count_ngrams(TokenStream.of(tokens, end_of_text), order, *options)


def as_counter(counts: NgramCounts, order: int) -> dict[tuple[int, ...], int]:
    rows = [tuple(row) for row in counts[order - 1].ngrams.tolist()]
    assert rows == sorted(set(rows))
    return dict(zip(rows, counts[order - 1].counts.tolist(), strict=True))


def windows(text: list[int], order: int) -> Counter:
    return Counter(tuple(text[i : i + order]) for i in range(len(text) - order + 1))


@settings(deadline=None)
@given(
    st.lists(st.sampled_from([0, 0, 1, 2, 3, 40_000, 2**31 - 3]), max_size=40),
    st.integers(1, 6),
    st.sampled_from([0, 2, None]),
)
def test_stream_counts_stop_at_the_end_of_each_document(ids, order, end_of_text):
    # Ids of 31 bits make windows of more than 64, so this runs the staged packing as well.
    counts = count_stream(np.array(ids, dtype=np.int64), order, end_of_text)
    assert len(counts) == order
    texts: list[list[int]] = [[]] if end_of_text is None else [[end_of_text]]
    for token in ids:
        texts[-1].append(token)
        if token == end_of_text:
            texts.append([token])
    for o in range(1, order + 1):
        expected: Counter = Counter()
        for text in texts:
            expected += windows(text, o)
        if o == 1 and end_of_text is not None:
            expected = Counter((token,) for token in [end_of_text, *ids])
            expected[(end_of_text,)] -= 1  # known though it may be missing, and then only as the start of the text
        assert as_counter(counts, o) == dict(expected)


@settings(deadline=None)
@given(st.lists(st.lists(st.sampled_from([UNK, 0, 1, 2, 70_000]), max_size=6), max_size=8), st.integers(1, 5))
def test_sentence_counts_have_boundaries_at_their_ends_only(sentences, order):
    counts = count_ngrams(sentence_stream(sentences), order)
    for o in range(1, order + 1):
        expected: Counter = Counter()
        for sentence in sentences:
            expected += windows([BOS, *sentence, EOS], o)
        if o == 1 and not sentences:
            expected = Counter({(BOS,): 0, (EOS,): 0})
        assert as_counter(counts, o) == dict(expected)


def test_types_of_id_arrays_count_alike():
    ids = np.array([5, 6, 5, 6, 0])
    expected = as_counter(count_stream(ids, 3, 0), 3)
    for dtype in (np.uint8, np.uint16, np.uint32, np.int32, np.int64):
        assert as_counter(count_stream(ids.astype(dtype), 3, 0), 3) == expected


def test_wide_and_narrow_packing_agree():
    rng = np.random.default_rng(0)
    ids = rng.integers(0, 50, 2000)
    narrow = count_stream(ids, 5, 0)
    wide = count_stream(np.append(ids, 2**31 - 2), 5, 0)  # one huge id makes every code 32 bits wide
    for order in range(1, 6):
        more = as_counter(wide, order)
        assert as_counter(narrow, order) == {gram: count for gram, count in more.items() if gram[-1] != 2**31 - 2}


@pytest.mark.parametrize(
    ("tokens", "message"),
    [
        (np.zeros((2, 2), dtype=np.int32), "flat array of integer token ids"),
        (np.zeros(2), "got float64"),
        (np.array([-1, 3]), "got -1 to 3"),
        (np.array([2**31]), "token ids from 0 to 2147483646"),
    ],
)
def test_what_is_no_token_array_is_refused(tokens, message):
    with pytest.raises(ValueError, match=message):
        count_stream(tokens, 2, 0)


def test_order_below_one_is_refused():
    with pytest.raises(ValueError, match="order of at least 1, got 0"):
        count_stream(np.array([1]), 0, 0)


@settings(deadline=None)
@given(
    st.lists(st.sampled_from([0, 0, 1, 2, 3, 2**31 - 3]), max_size=60),
    st.lists(st.integers(1, 3), min_size=1, max_size=3),
    st.sampled_from([0, None]),
    st.integers(1, 3),
)
def test_cutoffs_hide_rows_but_not_their_mass(ids, min_counts, end_of_text, threads):
    """Whatever the cutoffs and the number of threads: totals, kinds and counts of counts are those of all n-grams."""
    tokens = np.array(ids, dtype=np.int64)
    everything = count_stream(tokens, 3, end_of_text)
    cut = count_stream(tokens, 3, end_of_text, min_counts, 4 << 30, threads)
    for order in range(1, 4):
        least = 1 if order == 1 else min_counts[min(order, len(min_counts)) - 1]
        kept = everything[order - 1].counts >= (least if order > 1 else 0)
        rows = everything[order - 1].ngrams[kept]
        assert cut[order - 1].ngrams.tolist() == rows.tolist()
        assert cut[order - 1].counts.tolist() == everything[order - 1].counts[kept].tolist()
        numbers = dict(
            zip(map(tuple, everything[order - 1].ngrams.tolist()), everything[order - 1].counts.tolist(), strict=True)
        )
        contexts = list(dict.fromkeys(tuple(row[:-1]) for row in rows.tolist()))
        after = [[number for gram, number in numbers.items() if gram[:-1] == context] for context in contexts]
        assert cut[order - 1].totals.tolist() == [sum(seen) for seen in after]
        assert cut[order - 1].types.tolist() == [np.count_nonzero(seen) for seen in after]
        assert cut[order - 1].counts_of_counts.tolist() == np.bincount(list(numbers.values()), minlength=1001).tolist()


def test_little_memory_means_more_passes_and_the_same_counts():
    rng = np.random.default_rng(0)
    ids = rng.zipf(1.3, 300_000) % 5000
    passes = []
    one, many = (
        count_stream(ids, 4, 0, (1, 1, 2), memory, 1, lambda done, total: passes.append(total))
        for memory in (4 << 30, 1 << 20)
    )
    assert passes[0] == 1
    assert passes[-1] >= 3
    assert_same_counts(many, one)


def test_memory_stays_under_the_option():
    """What counting holds at its peak: all windows in one pass, the option and the pieces worked on in several."""
    ids = np.random.default_rng(0).integers(0, 500, 6_000_000).astype(np.uint16)
    peaks = {}
    for memory in (1 << 30, 8 << 20):
        tracemalloc.start()
        count_stream(ids, 4, 0, (1, 5, 50, 500), memory)
        peaks[memory] = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peaks[1 << 30] > 8 * len(ids)
    assert peaks[8 << 20] < (8 << 20) + 120 * PIECE < 8 * len(ids)
