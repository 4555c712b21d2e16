"""Free text up to a trigger, such as the one that begins a tool call; a constraint from there on.

The free states are those of a string matcher (Aho and Corasick 1975): how much of a trigger the text ends with. A
token that completes a trigger must end with it, so that the constraint begins with the next token.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from threading import Lock

import numpy as np

from latticebpd.constraints.constraint import Constraint
from latticebpd.constraints.model_tokens import NO_TEXT, ModelTokens, PerModel
from latticebpd.constraints.token_automaton import ILLEGAL, TokenAutomaton

_LOCK = Lock()
START = NO_TEXT
"""In a trigger, the beginning of the text."""


@dataclass(frozen=True, eq=False)
class Triggered:
    """Any text without a trigger, or one up to the first trigger and then a text of ``constraint``."""

    triggers: tuple[str, ...]
    constraint: Constraint
    _beyond: PerModel = field(default_factory=PerModel, init=False, repr=False)

    def automaton(self, tokens: ModelTokens, eos_ids: Sequence[int]) -> TriggeredAutomaton:
        with _LOCK:
            beyond = self._beyond.setdefault(tokens, {})
        inner = self.constraint.automaton(tokens, eos_ids)
        triggers = [trigger.encode(errors="surrogateescape") for trigger in self.triggers]
        return TriggeredAutomaton(triggers, inner, tokens, eos_ids, beyond)


class TriggeredAutomaton:
    """See `TokenAutomaton`. State ``i < n`` is free text that ends with the ``i``-th of the triggers' ``n`` beginnings,
    and with no longer one; state ``n`` is the end of free text, and ``n + 1 + s`` is the constraint's state ``s``.

    beyond: by state, the tokens that go beyond a trigger's end, as far as known; shared by texts.
    """

    def __init__(
        self,
        triggers: Sequence[bytes],
        inner: TokenAutomaton,
        tokens: ModelTokens,
        eos_ids: Sequence[int],
        beyond: dict[int, np.ndarray],
    ) -> None:
        self.triggers, self.inner, self.tokens, self.vocab_size = triggers, inner, tokens, tokens.vocab_size
        self.weighted, self.eos_ids = inner.weighted, frozenset(eos_ids)
        self._begun = sorted({trigger[:length] for trigger in triggers for length in range(len(trigger))}, key=len)
        self._states = {begun: state for state, begun in enumerate(self._begun)}
        self.start = self._states.get(START.encode(errors="surrogateescape"), 0)
        self._first, self._beyond = len(self._begun) + 1, beyond

    def legal(self, state: int) -> np.ndarray:
        if state >= self._first:
            return self.inner.legal(state - self._first)
        legal = np.full(self.vocab_size, state < len(self._begun))
        if state < len(self._begun):
            legal[self._going_beyond(state)] = False
        return legal

    def successors(self, state: int, tokens: np.ndarray) -> np.ndarray:
        if state < self._first:
            return np.array([self._after(state, token) for token in np.asarray(tokens).tolist()], np.int64)
        inner = self.inner.successors(state - self._first, tokens)
        return np.where(inner == ILLEGAL, ILLEGAL, inner + self._first)

    def costs(self, state: int, tokens: np.ndarray) -> np.ndarray:
        if state >= self._first:
            return self.inner.costs(state - self._first, tokens)
        return np.zeros(len(tokens), np.float32)

    def forced(self, state: int) -> np.ndarray:
        return self.inner.forced(state - self._first) if state >= self._first else np.array([], np.int64)

    def release(self, state: int) -> None:
        if state >= self._first:
            self.inner.release(state - self._first)

    def _after(self, state: int, token: int) -> int:
        """After free text."""
        if state == len(self._begun) or not 0 <= token < self.vocab_size:
            return ILLEGAL
        if token in self.eos_ids:
            return len(self._begun)
        seen = self._begun[state] + (self.tokens.spelled[token] or b"")  # special tokens are no part of the text
        ends = [at + len(trigger) for trigger in self.triggers if (at := seen.find(trigger)) >= 0]
        if ends:
            return self._first + self.inner.start if min(ends) == len(seen) else ILLEGAL
        most = min(len(self._begun[-1]), len(seen))
        ends_with = (seen[len(seen) - length :] for length in range(most, -1, -1))
        return next(self._states[begun] for begun in ends_with if begun in self._states)

    def _going_beyond(self, state: int) -> np.ndarray:
        """The tokens that complete a trigger and do not end there."""
        if (known := self._beyond.get(state)) is None:
            before = self._begun[state]
            ids = [
                token for token, spelled in enumerate(self.tokens.spelled)
                if spelled and any(trigger in before + spelled for trigger in self.triggers)
                and self._after(state, token) == ILLEGAL
            ]  # fmt: skip
            known = self._beyond[state] = np.array(ids, np.int64)
        return known
