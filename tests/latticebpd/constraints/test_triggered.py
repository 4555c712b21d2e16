"""Free text up to a trigger, against the definition: by the text's bytes alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from latticebpd.constraints.token_automaton import ILLEGAL, after
from latticebpd.constraints.triggered import START, Triggered

EOS = 0
SPELLED = [None, b"a", b"b", b"ab", b"ba", b"aab", b"bab", b"abab", b"babx", b"xaba", b"x", b"aba", None]


@dataclass(eq=False)
class Tokens:
    """In place of a model's."""

    spelled = SPELLED
    vocab_size = len(SPELLED)


class Counted:
    """A constraint: up to two tokens "x"; it also is its automaton, whose states count them."""

    start, vocab_size, weighted, ended = 0, len(SPELLED), False, 9

    def automaton(self, tokens: Any, eos_ids: Any) -> Counted:
        return self

    def legal(self, state: int) -> np.ndarray:
        every = np.arange(self.vocab_size)
        return np.asarray(self.successors(state, every) != ILLEGAL)

    def successors(self, state: int, tokens: np.ndarray) -> np.ndarray:
        after = {**({10: state + 1} if state < 2 else {}), EOS: self.ended} if state != self.ended else {}
        return np.array([after.get(token, ILLEGAL) for token in tokens.tolist()])

    def costs(self, state: int, tokens: np.ndarray) -> np.ndarray:
        return np.zeros(len(tokens), np.float32)

    def forced(self, state: int) -> np.ndarray:
        return np.array([EOS] if state == 2 else [], np.int64)

    def release(self, state: int) -> None:
        pass


def is_legal(path: list[int], triggers: list[bytes]) -> bool:
    """By the definition: token after token, free until the bytes so far end with the first trigger."""
    text, begun, count, ended = b"^", False, 0, False
    for token in path:
        if ended:
            return False
        ended = token == EOS
        if begun:
            count += token == 10
            if token not in (EOS, 10) or count > 2:
                return False
        elif not ended:
            text += SPELLED[token] or b""
            begun = text.endswith(tuple(triggers))
            if any(text.find(trigger) not in (-1, len(text) - len(trigger)) for trigger in triggers):
                return False
    return True


TRIGGERS = st.sampled_from(["ab", "aba", "abab", "aab", "b", "^ab", "^abab", "^b", "xa"])


@given(st.lists(TRIGGERS, min_size=1, max_size=3), st.lists(st.integers(0, len(SPELLED) - 1), max_size=9))
def test_legal_paths_are_those_of_the_definition(texts: list[str], path: list[int]) -> None:
    """``^`` is the beginning of a text."""
    triggers, texts = [text.encode() for text in texts], [text.replace("^", START) for text in texts]
    automaton = Triggered(tuple(texts), Counted()).automaton(Tokens(), [EOS])  # type: ignore[arg-type]
    state = automaton.start
    for n, token in enumerate(path):
        expected = np.array([is_legal([*path[:n], other], triggers) for other in range(len(SPELLED))])
        np.testing.assert_array_equal(automaton.legal(state), expected)
        state = after(automaton, state, token)
        assert (state != ILLEGAL) == expected[token]
        if state == ILLEGAL:
            break
        automaton.release(state)


def test_what_must_follow_the_trigger_is_that_of_the_constraint() -> None:
    automaton = Triggered(("ab",), Counted()).automaton(Tokens(), [EOS])  # type: ignore[arg-type]
    state = automaton.start
    for token, forced in ((1, []), (2, []), (10, []), (10, [EOS])):
        assert not automaton.forced(automaton.start).size
        state = after(automaton, state, token)
        assert automaton.forced(state).tolist() == forced
