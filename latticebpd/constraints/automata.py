"""Finite automata of the user's own as constraints: acceptors over bytes or over token ids, weighted or not.

An acceptor over bytes becomes one over tokens by composition with the tokenizer, the transducer from tokens to bytes
(Koo, Liu and He 2024): a token is legal where its bytes lead on and some sequence of tokens leads from there to an end.
The core determinizes on demand, and walks the model's tokens as a trie together with the acceptor; equal states are
one.

A text costs the least of its paths: the sum of the weights of arcs and end, natural (the tropical semiring). A token
costs what the least cost of what has been read rises by, so that a weight below 0 at a word's beginning boosts it from
its first token on, and a text that then differs pays it back.
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from dataclasses import dataclass, field
from threading import Lock
from typing import Any

import numpy as np

from fst import _core
from fst.openfst import is_openfst, records_of, refuse_transducer
from latticebpd.checks import expect
from latticebpd.constraints.model_tokens import ModelTokens, PerModel

MOST_MASKS = 256
"""States of which the legal tokens are kept: one of Qwen2.5's takes 152 kB, and a millisecond to make."""
MOST_STATES = 1 << 16
"""From which on the next text gets an automaton of its own."""
_TRIES = PerModel()
_LOCK = Lock()


@dataclass(frozen=True, eq=False)
class _Compiled:
    """What texts share: the states, and of some the legal and the forced tokens."""

    states: _core.AcceptorOverTokens
    masks: dict[int, np.ndarray] = field(default_factory=dict)
    forced: dict[int, np.ndarray] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class FstConstraint:
    """Texts that an acceptor accepts.

    acceptor: offsets ``[states + 1]``, labels, targets and costs ``[arcs]``, final costs ``[states]`` and the start.
    over_tokens: labels are token ids + 1.
    """

    acceptor: tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray, int]
    over_tokens: bool
    _compiled: PerModel = field(default_factory=PerModel, init=False, repr=False, compare=False)

    def automaton(self, tokens: ModelTokens, eos_ids: Sequence[int]) -> FstAutomaton:
        """Over a model's tokens; ValueError where they spell none of the texts."""
        with _LOCK:
            known: dict[tuple[int, ...], _Compiled] = self._compiled.setdefault(tokens, {})
            ends = tuple(sorted(set(eos_ids)))
            if ends not in known or known[ends].states.num_states > MOST_STATES:
                trie = None if self.over_tokens else _trie_of(tokens)
                known[ends] = _Compiled(_core.AcceptorOverTokens(*self.acceptor, trie, tokens.vocab_size, list(ends)))
            return FstAutomaton(known[ends], None if self.over_tokens else tokens)


def fst_constraint(automaton: Any, over_tokens: bool = False) -> FstConstraint:
    """The texts of an acceptor of pynini or pywrapfst, or of an object that has ``to_fst()``: an ``fst.Lattice``, a
    `SausageLattice`.

    over_tokens: a label is a token id + 1, as in this project's lattices; by default it is a byte of UTF-8 text, 1 to
        255, as pynini's strings are made of.
    Epsilons, cycles and nondeterminism are allowed. Weights are costs; ValueError for transducers, other semirings, an
    acceptor of no text, NaN, and epsilons in a cycle of weight below 0.
    """
    file = records_of(automaton if is_openfst(automaton) or not hasattr(automaton, "to_fst") else automaton.to_fst())
    refuse_transducer(file)
    states, arcs = file.states, file.arcs
    largest, remedy = int(arcs["ilabel"].max(initial=0)), "pass over_tokens=True for token ids + 1"
    expect(over_tokens or largest < 256, "labels of bytes, from 1 to 255, or 0 for epsilon", largest, remedy)
    offsets, costs = np.append(0, np.cumsum(states["narcs"], dtype=np.int64)), arcs["weight"].astype(np.float64)
    finals = states["final"].astype(np.float64)
    acceptor = (offsets, arcs["ilabel"].copy(), arcs["nextstate"].copy(), costs, finals, file.start)
    _core.AcceptorOverTokens(*acceptor, None, 2**31 - 2, [])  # refuses what has no text
    return FstConstraint(acceptor, over_tokens)


class FstAutomaton:
    """See `TokenAutomaton`.  tokens: of the model whose bytes are the labels; None: labels are tokens."""

    def __init__(self, compiled: _Compiled, tokens: ModelTokens | None) -> None:
        self.core, self.tokens = compiled.states, tokens
        self.start, self.vocab_size, self.weighted = self.core.start, self.core.vocab_size, self.core.weighted
        self._masks, self._forced = compiled.masks, compiled.forced

    def legal(self, state: int) -> np.ndarray:
        if (mask := self._masks.get(state)) is None:
            mask = self.core.legal(state)
            mask.flags.writeable = False
            if len(self._masks) >= MOST_MASKS:
                self._masks.clear()
            self._masks[state] = mask
        return mask

    def successors(self, state: int, tokens: np.ndarray) -> np.ndarray:
        return self.core.successors(state, tokens)

    def costs(self, state: int, tokens: np.ndarray) -> np.ndarray:
        return self.core.costs(state, tokens)

    def forced(self, state: int) -> np.ndarray:
        if (forced := self._forced.get(state)) is None:
            labels = self.core.forced_labels(state)
            forced = labels - 1 if self.tokens is None else self._canonical(state, bytes(labels.tolist()))
            self._forced[state] = forced = forced.astype(np.int64)
        return forced

    def release(self, state: int) -> None:
        """States are shared by texts, and stay."""

    def _canonical(self, state: int, spelled: bytes) -> np.ndarray:
        """The tokens that the tokenizer writes for bytes that must follow, up to the first that may become a longer one
        with what follows them."""
        assert self.tokens is not None
        text = _complete_text(spelled)
        ids, rest = self.tokens.encode(text) if text else [], spelled
        if self.tokens.bytes_of(ids) != text.encode():
            ids = []  # a tokenizer that writes more at a text's beginning
        for number, token in enumerate(ids):
            if self.core.has_longer(state, rest):
                return np.array(ids[:number])
            rest = rest[len(self.tokens.spelled[token] or b"") :]
            state = int(self.core.successors(state, np.array([token]))[0])
            if state < 0:
                return np.array(ids[:number])
        return np.array(ids)


def _trie_of(tokens: ModelTokens) -> Any:
    if (trie := _TRIES.get(tokens)) is None:
        _TRIES[tokens] = trie = _core.TokenTrie(tokens.spelled)
    return trie


def _complete_text(spelled: bytes) -> str:
    """The text of the first bytes that are complete characters of UTF-8; empty where some are none."""
    try:
        return codecs.getincrementaldecoder("utf-8")().decode(spelled)
    except UnicodeDecodeError:
        return ""
