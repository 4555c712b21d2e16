"""Automata over tokens for tests: tables of what is legal where, with costs and forced tokens."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from hypothesis import strategies as st

from latticebpd.constraints.token_automaton import ILLEGAL


@dataclass(eq=False)
class TableAutomaton:
    """arcs: for each state the next state and the cost of each legal token.  chosen: the token that is forced in a
    state."""

    arcs: Sequence[dict[int, tuple[int, float]]]
    vocab_size: int
    chosen: dict[int, int] = field(default_factory=dict)
    start: int = 0

    @property
    def weighted(self) -> bool:
        return any(cost for arcs in self.arcs for _, cost in arcs.values())

    def legal(self, state: int) -> np.ndarray:
        mask = np.zeros(self.vocab_size, bool)
        mask[list(self.arcs[state])] = True
        return mask

    def successors(self, state: int, tokens: np.ndarray) -> np.ndarray:
        return np.array([self.arcs[state].get(token, (ILLEGAL, 0))[0] for token in tokens.tolist()], np.int64)

    def costs(self, state: int, tokens: np.ndarray) -> np.ndarray:
        return np.array([self.arcs[state][token][1] for token in tokens.tolist()], np.float32)

    def forced(self, state: int) -> np.ndarray:
        return np.array([self.chosen[state]] if state in self.chosen else [], np.int64)

    def release(self, state: int) -> None:
        pass

    def follow(self, path: Sequence[int]) -> tuple[int, float] | None:
        """The state after a path and its cost; None where it is not legal."""
        state, total = self.start, 0.0
        for token in path:
            if token not in self.arcs[state]:
                return None
            state, cost = self.arcs[state][token]
            total += cost
        return state, total

    def log_prob_of_forced(self, state: int) -> float:
        return 0.0 if len(self.arcs[state]) == 1 else -0.01

    def legal_cost(self, path: Sequence[int]) -> float:
        followed = self.follow(path)
        return math.inf if followed is None else followed[1]


@st.composite
def token_automata(draw: st.DrawFn, vocab: int, with_forced: bool = True) -> TableAutomaton:
    """Of up to three states: cycles, dead ends, costs above and below 0, forced tokens alone and among others."""
    states = draw(st.integers(1, 3))
    weighted = draw(st.booleans())
    costs = st.sampled_from([0.0, 0.5, -0.75, 2.0, -3.0]) if weighted else st.just(0.0)
    tokens = st.dictionaries(st.integers(0, vocab - 1), st.tuples(st.integers(0, states - 1), costs), max_size=vocab)
    arcs = [draw(tokens) for _ in range(states)]
    chosen = {
        state: draw(st.sampled_from(sorted(legal)))
        for state, legal in enumerate(arcs)
        if with_forced and legal and draw(st.integers(0, 3)) == 0
    }
    return TableAutomaton(arcs, vocab, chosen, draw(st.integers(0, states - 1)))
