"""Characters of growing answers: those of the decoded text, up to the first stop string, whatever the pieces."""

from __future__ import annotations

from functools import cache
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from latticebpd.drafters import bundled
from latticebpd.models.load_target import load_tokenizer
from latticebpd.serving.answer_text import AnswerText
from tests.helpers.tokenizers import letters


@cache
def bytes_and_words() -> Any:
    """The bundled model's, whose first tokens are bytes."""
    return load_tokenizer(bundled.MODEL)


def written(answer: AnswerText, tokens: list[int], sizes: list[int]) -> list[str]:
    """What is sent when so many tokens arrive at a time, as long as there is no stop string."""
    sent, at = [], 0
    for size in sizes:
        answer.add_up_to(tokens[: at + size])
        at += size
        if answer.stopped or at >= len(tokens):
            break
        sent.append(answer.take())
    answer.add_up_to(tokens)
    return [*sent, answer.take_rest()]


@given(st.lists(st.integers(0, 600), max_size=12), st.lists(st.integers(1, 4), max_size=12))
def test_pieces_are_the_decoded_text(tokens: list[int], sizes: list[int]) -> None:
    """Characters of several tokens, and bytes that are none, included."""
    tokenizer = bytes_and_words()
    sent = written(AnswerText(tokenizer), tokens, sizes)
    assert "".join(sent) == tokenizer.decode(tokens, skip_special_tokens=True)


@given(
    st.lists(st.integers(0, 2), max_size=14),
    st.lists(st.integers(1, 4), max_size=14),
    st.lists(st.text("abc", min_size=1, max_size=4), max_size=3),
)
@example([0, 1, 2], [1], ["bc", "abc"])  # two are complete at once
def test_the_text_ends_before_the_first_stop_string(tokens: list[int], sizes: list[int], stops: list[str]) -> None:
    text = "".join("abc"[token] for token in tokens)
    answer = AnswerText(letters(), stops)
    sent = written(answer, tokens, sizes)
    assert answer.stopped == any(stop in text for stop in stops)
    # Of several stop strings, that which is complete first ends the text.
    complete = [next(n for n in range(len(text) + 1) if stop in text[:n]) for stop in stops if stop in text]
    first = text[: min(complete)] if complete else text
    begins = [first.find(stop) for stop in stops if stop in first]
    assert "".join(sent) == first[: min(begins, default=len(first))]


def test_what_may_become_a_stop_string_is_held_back() -> None:
    answer = AnswerText(letters(), ["abc"])
    answer.add([0])
    assert answer.take() == ""
    answer.add([1])
    assert answer.take() == ""
    answer.add([3])
    assert answer.take() == "abd"
    answer.add([0, 1])
    assert answer.take() == ""
    assert answer.take_rest() == "ab"


def test_a_text_that_has_stopped_holds_nothing_back() -> None:
    answer = AnswerText(letters(), ["abc"])
    answer.add([3, 0, 0, 1, 2])
    assert answer.stopped
    assert answer.take() == "da"
