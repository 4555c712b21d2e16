"""The automaton over tokens that every constraint becomes, and that searches and verification compose with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

ILLEGAL = -1
"""In place of a state: the token is not legal there."""


class TokenAutomaton(Protocol):
    """A deterministic automaton over the tokens of one model, of which states are made as they are reached.

    States are integers from 0 on, and equal states are equal numbers wherever the constraint can tell that they are; a
    state that was made keeps its number until ``release`` gives it up. End-of-text tokens are tokens like others: legal
    where the text may end.  One automaton serves one text; constraints share what is compiled.

    start: the state of the text before its first new token.
    vocab_size: tokens are numbers below it.
    weighted: whether ``costs`` may be other than 0.
    """

    start: int
    vocab_size: int
    weighted: bool

    def legal(self, state: int) -> np.ndarray:
        """``[vocab_size]`` bool: the tokens that may follow."""

    def successors(self, state: int, tokens: np.ndarray) -> np.ndarray:
        """``[n]`` int64: the state after each of ``n`` tokens, ILLEGAL for those that may not follow."""

    def costs(self, state: int, tokens: np.ndarray) -> np.ndarray:
        """``[n]`` float32: what each of ``n`` legal tokens costs (-ln; negative for boosted ones), 0 if unweighted."""

    def forced(self, state: int) -> np.ndarray:
        """``[n]`` int64: the tokens that spell the bytes that must follow, as the model's tokenizer writes them; empty
        where there is a choice.  Other tokens may spell the same bytes, so that they are likely rather than certain."""

    def release(self, state: int) -> None:
        """States that ``state`` cannot reach are asked for no more."""


def legal_path(automaton: TokenAutomaton, state: int, tokens: Sequence[int]) -> tuple[list[int], int]:
    """Tokens from a state on, as far as they are legal, and the state after them; ILLEGAL if one of them is not."""
    for number, token in enumerate(tokens):
        if (state := after(automaton, state, token)) == ILLEGAL:
            return [*tokens[:number]], ILLEGAL
    return [*tokens], state


def after(automaton: TokenAutomaton, state: int, token: int) -> int:
    """The state after one token, or ILLEGAL."""
    return int(automaton.successors(state, np.array([token], np.int64))[0])
