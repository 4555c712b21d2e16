"""Verification by the CPU engine: every row has a cache of its own, so that rows are never padded."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import copy
from functools import partial
from typing import Any

import numpy as np

from latticebpd.cpu import _engine
from latticebpd.lattices.drafts import ROOT, DraftTree
from latticebpd.lattices.values import as_tensor
from latticebpd.machine import num_threads
from latticebpd.models.engine.engine_model import EngineModel
from latticebpd.verification.asked_columns import AskedColumns, Wanted
from latticebpd.verification.verifier import Verified

PREFILL_CHUNK = 128
"""Tokens of a prompt that are read in one pass."""


class EngineVerifier:
    """The target model as the engine computes it.  layers: those whose states are kept, from 0."""

    max_nodes = None

    def __init__(self, target: EngineModel, layers: Sequence[int] = ()) -> None:
        self.model, self.layers, self.threads = target.transformer, tuple(layers), num_threads()
        self.caches: list[_engine.Cache] = []
        self.states: list[np.ndarray] = []  # of every row's text, with room for more
        self.pending: list[np.ndarray] = []

    def begin(self, rows: int) -> None:
        self.caches = [_engine.Cache(self.model) for _ in range(rows)]
        self.states = [np.empty((0, len(self.layers) * self.model.hidden_size), np.float32)] * rows

    def prefill(self, prompts: Sequence[Sequence[int]]) -> Verified:
        self.begin(len(prompts))
        last = np.zeros((len(prompts), 1, self.model.hidden_size), np.float32)
        for row, prompt in enumerate(prompts):
            for hidden in self.read(row, prompt):
                last[row, 0] = hidden[-1]
        return self._verified(last)

    def read(self, row: int, text: Sequence[int]) -> Iterator[np.ndarray]:
        """Read more tokens of a row's text, pass by pass; ``[tokens, hidden]`` final hidden states of each."""
        for begin in range(0, len(text), PREFILL_CHUNK):
            yield self.extend(row, text[begin : begin + PREFILL_CHUNK])

    def extend(self, row: int, text: Sequence[int]) -> np.ndarray:
        """One pass over more tokens of a row's text; ``[tokens, hidden]``, their final hidden states."""
        tokens = np.asarray(text, np.int64)
        hidden, states = self._read([row], [len(tokens)], tokens, np.arange(-1, len(tokens) - 1))
        self._keep([row], [states], [range(len(tokens))])
        return hidden

    def join(self, other: EngineVerifier) -> None:
        """Take over the rows of another verifier of this model and these layers, after the own ones."""
        self.caches = [*self.caches, *other.caches]
        self.states = [*self.states, *other.states]

    def grow(self, rows: np.ndarray, parents: np.ndarray, tokens: np.ndarray) -> Verified:
        """One more token after each of ``n`` columns after the rows' texts, which `cut` and `keep` drop.

        rows: ``[n]``, ascending.  parents: ``[n]`` numbers of columns of their rows, those of all passes since the
        text; -1: the text itself.
        Returns the output, ``n`` columns of one row.
        """
        texts, counts = np.unique(rows, return_counts=True)
        hidden, _ = self._read(texts.tolist(), counts.tolist(), tokens, parents, grow=True)
        return self._verified(hidden[None])

    def verify(self, next_tokens: Sequence[int], trees: Sequence[DraftTree]) -> Verified:
        counts = [len(tree) + 1 for tree in trees]
        ends = np.cumsum(counts)
        tokens, parents = np.empty((2, ends[-1]), np.int64)
        for token, tree, end in zip(next_tokens, trees, ends.tolist(), strict=True):
            begin = end - len(tree) - 1
            tokens[begin], parents[begin] = token, ROOT
            tokens[begin + 1 : end], parents[begin + 1 : end] = tree.tokens, tree.parents + 1
        flat, states = self._read(range(len(trees)), counts, tokens, parents)
        self.pending = np.split(states, ends[:-1]) if len(trees) > 1 else [states]
        if len(trees) == 1:
            return self._verified(flat[None], trees)
        hidden = np.zeros((len(trees), max(counts), flat.shape[1]), np.float32)
        for row, part in enumerate(np.split(flat, ends[:-1])):
            hidden[row, : len(part)] = part
        return self._verified(hidden, trees)

    def keep(self, paths: Sequence[Sequence[int]]) -> None:
        self._keep(range(len(paths)), self.pending, [[0, *(node + 1 for node in path)] for path in paths])

    def cut(self, lengths: Sequence[int]) -> None:
        for row, length in enumerate(lengths):
            self.caches[row].cut(length)

    def select(self, rows: Sequence[int]) -> None:
        def taken(each: list[Any]) -> list[Any]:
            return [copy(each[row]) if row in rows[:i] else each[row] for i, row in enumerate(rows)]

        self.caches, self.states = taken(self.caches), taken(self.states)

    def first(self, row: int, tokens: int) -> EngineVerifier:
        """A verifier of a single text: a copy of the first tokens of a row's."""
        return self._of(self.caches[row].first(tokens), self.states[row][:tokens].copy())

    def alone(self, row: int) -> EngineVerifier:
        """A verifier of a row that leaves this one, with what it has read."""
        return self._of(self.caches[row], self.states[row])

    @property
    def memory(self) -> int:
        """Bytes of what its rows have read."""
        return sum(cache.memory for cache in self.caches) + sum(states.nbytes for states in self.states)

    def layer_states(self, row: int) -> Any:
        return self.states[row][: self.caches[row].length] if self.layers else None

    def _of(self, cache: _engine.Cache, states: np.ndarray) -> EngineVerifier:
        own = copy(self)
        own.caches, own.states, own.pending = [cache], [states], []
        return own

    def _read(
        self, rows: Sequence[int], counts: list[int], tokens: np.ndarray, parents: np.ndarray, grow: bool = False
    ) -> tuple[np.ndarray, np.ndarray]:
        caches = [self.caches[row] for row in rows]
        hidden, states = self.model.read(caches, counts, tokens, parents, self.layers, self.threads, grow)
        return hidden, states

    def _keep(self, rows: Sequence[int], states: Sequence[np.ndarray], columns: Sequence[Sequence[int]]) -> None:
        for row, own, kept in zip(rows, states, columns, strict=True):
            begin, end = self.caches[row].length, self.caches[row].length + len(kept)
            self.caches[row].keep(list(kept))
            if self.layers:
                if end > len(self.states[row]):
                    room = np.empty((len(kept) + end // 2, own.shape[1]), np.float32)
                    self.states[row] = np.concatenate([self.states[row][:begin], room])
                self.states[row][begin:end] = own[list(kept)]

    def _verified(self, hidden: np.ndarray, trees: Sequence[DraftTree] = (), wanted: Wanted | None = None) -> Verified:
        """hidden: ``[rows, columns, hidden]``.  wanted: see `AskedColumns`."""

        def picked(rows: Sequence[int], columns: Sequence[int]) -> np.ndarray:
            return np.ascontiguousarray(hidden[list(rows), list(columns)])

        def logits(rows: Sequence[int], columns: Sequence[int]) -> list[np.ndarray]:
            return [*self.model.logits(picked(rows, columns), self.threads)]

        def best(rows: Sequence[int], columns: Sequence[int]) -> list[int]:
            return self.model.best(picked(rows, columns), self.threads).tolist()

        together = self.model.max_cheap_rows
        asked = AskedColumns(logits, trees, together, wanted)

        def logits_of(rows: Sequence[int], columns: Sequence[int]) -> Any:
            return as_tensor(np.stack(asked(rows, columns)))

        def some_logits_of(
            rows: Sequence[int], columns: Sequence[int], tokens: Sequence[np.ndarray]
        ) -> list[np.ndarray]:
            counts = list(map(len, tokens))
            logits = self.model.logits_of(picked(rows, columns), np.concatenate(tokens), counts, self.threads)
            return np.split(logits, np.cumsum(counts)[:-1])

        best_of = AskedColumns(best, trees, together, wanted)
        return Verified(hidden, logits_of, None, best_of, some_logits_of, partial(self._verified, hidden, trees))
