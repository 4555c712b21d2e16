"""Drafts from earlier texts: against brute force, within their limit, lossless."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from latticebpd import MixtureDrafter, NoDrafter, PromptNgramDrafter, generate
from latticebpd.drafters.copies.text_history import HistoryDrafter, TextHistory, with_history
from latticebpd.drafters.cost_aware import CostAwareDrafter
from latticebpd.drafters.cost_curve import CostCurve
from latticebpd.drafters.drafter import State
from tests.helpers.engine_models import on_engine

PROMPT = [3, 1, 4, 1, 5, 9, 2, 6]
tokens = st.lists(st.integers(0, 2), max_size=30)


def state(text: Sequence[int], max_depth: int = 50) -> State:
    return State(0, text, 1, None, max_depth)


@given(st.lists(tokens, max_size=6), tokens, st.integers(1, 3), st.integers(3, 6))
def test_matches_are_those_of_brute_force(texts: list[list[int]], text: list[int], least: int, longest: int) -> None:
    history = TextHistory(1000, least, 10_000)
    for each in texts:
        history.add(each)
    expected = []
    for number, each in enumerate(texts):
        for end in range(least, len(each)):
            lengths = [n for n in range(least, min(longest, end, len(text)) + 1) if each[end - n : end] == text[-n:]]
            expected += [(max(lengths), number, end)] if lengths else []
    found = [(length, own, end) for length, own, end in history.matches(text, longest)]
    assert [(length, texts[number], end) for length, number, end in reversed(expected)] == found


@given(st.lists(tokens, max_size=12), st.integers(1, 40))
def test_the_oldest_texts_go_and_leave_nothing(texts: list[list[int]], size: int) -> None:
    history, left = TextHistory(size, 2, 3), list[list[int]]()
    for text in texts:
        history.add(text)
        left.append(text[-size:])
        while sum(map(len, left)) > size:
            del left[0]
        assert history.tokens == sum(map(len, left)) <= size
    known = {tuple(text[i : i + 2]) for text in left for i in range(len(text) - 1)}
    assert {ngram for ngram, places in history._ends.items() if places} <= known
    assert all(0 < len(places) <= 3 for places in history._ends.values())
    assert all(any(text is own for own in history._texts) for places in history._ends.values() for text, _ in places)


def test_the_longest_match_is_drafted_and_then_others() -> None:
    history = TextHistory(100)
    history.add([1, 2, 3, 4, 5, 6, 7])
    history.add([9, 2, 3, 4, 5, 8])
    tree = HistoryDrafter(history, 4).propose([state([0, 1, 2, 3, 4, 5])])[0]
    assert tree.tokens.tolist() == [6, 7, 8]
    assert tree.parents.tolist() == [-1, 0, -1]
    assert HistoryDrafter(history, 1).propose([state([0, 1, 2, 3, 4, 5])])[0].tokens.tolist() == [6]
    assert HistoryDrafter(history, 4).propose([state([0, 1, 2, 3, 4, 5], 1)])[0].tokens.tolist() == [6, 8]
    for text in ([1, 2, 3], [2, 3, 4, 6], [3, 4, 5, 6, 7], []):
        assert not len(HistoryDrafter(history, 4).propose([state(text)])[0])


@pytest.mark.parametrize("other", [NoDrafter, PromptNgramDrafter])
def test_a_text_that_was_written_before_takes_fewer_calls_and_is_the_same(other: type) -> None:
    model, history = on_engine("int8"), TextHistory(200)
    plain = generate(model, PROMPT, NoDrafter(), max_new_tokens=40)
    drafter = with_history(other(), history, 16)
    first = generate(model, PROMPT, drafter, max_new_tokens=40)
    history.add(first.tokens[0].tolist())
    again = generate(model, PROMPT, drafter, max_new_tokens=40)
    assert first.tokens.tolist() == again.tokens.tolist() == plain.tokens.tolist()
    assert again.num_calls <= 5 < first.num_calls


def test_trees_that_are_cut_by_costs_stay_so() -> None:
    history, curve = TextHistory(200), CostCurve((1,), (1, 9), ((1.0, 9.0),))  # a token costs a pass
    history.add([1, 2, 3, 4, 5, 6, 7])
    cut = with_history(CostAwareDrafter(PromptNgramDrafter(), curve), history, 8)
    assert isinstance(cut, CostAwareDrafter)
    assert isinstance(cut.drafter, MixtureDrafter)
    assert not len(cut.propose([state([0, 2, 3, 4, 5])])[0])
    whole = with_history(PromptNgramDrafter(), history, 8).propose([state([0, 2, 3, 4, 5])])[0]
    assert whole.tokens.tolist() == [6, 7]


def test_sizes_are_checked() -> None:
    with pytest.raises(ValueError, match="expected size, least and most >= 1, got 0, 4 and 8"):
        TextHistory(0)
