"""Shortlists hold the tokens that follow prompts, the most frequent first to get a place."""

from __future__ import annotations

import math

import pytest

from latticebpd.lattices.texts import Texts
from lm_training.data.shortlist import coverage, label_counts, shortlist_of

TEXTS = Texts.of_rows([[7, 7, 7, 4, 1, 4], [6, 1, 4, 2, 0]], [3, 1])


def test_only_tokens_after_prompts_count() -> None:
    assert label_counts(TEXTS, 9).tolist() == [1, 2, 1, 0, 3, 0, 0, 0, 0]


@pytest.mark.parametrize(
    ("size", "expected"),
    [(1, [4]), (2, [1, 4]), (3, [0, 1, 4]), (4, [0, 1, 2, 4]), (9, [0, 1, 2, 4])],
)
def test_the_most_frequent_are_listed_lower_ids_first_among_equals(size: int, expected: list[int]) -> None:
    """And none that never occurs, however long the list may be."""
    assert shortlist_of(TEXTS, 9, size).tolist() == expected


def test_coverage_is_the_share_of_the_tokens_after_prompts() -> None:
    assert coverage(TEXTS, shortlist_of(TEXTS, 9, 2)) == 5 / 7
    assert coverage(TEXTS, shortlist_of(TEXTS, 9, 9)) == 1
    assert coverage(Texts.of_rows([[4, 1, 2]], [1]), shortlist_of(TEXTS, 9, 2)) == 1 / 2
    assert math.isnan(coverage(Texts.of_rows([[3]], [1]), shortlist_of(TEXTS, 9, 1)))
