"""Saved top-k outputs as a source of lattices: by other programs, or by an earlier run."""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Sequence

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file

from fst.printable import plain_words
from latticebpd.checks import expect
from latticebpd.drafters.drafter import State
from latticebpd.lattices.lattice_set import LatticeSet
from latticebpd.lattices.sausage import PADDING, SausageLattice


class SavedTopK:
    """Top-k outputs that were saved before: lattices made by other programs, or by an earlier run.

    A lattice fits where the text ends with its ``context [n, c]``; a context with padding is a whole text, shorter than
    ``c``.  Where contexts repeat, the first one after the lattice used last is taken.  A set without contexts is one
    text's, in order: lattice ``i`` follows ``i + 1`` new tokens.

    saved: the outputs, or a file of them (:func:`load_top_k`); ``continuation`` is not looked at.
    """

    needs_hidden = False
    vocabulary_name = "the saved lattices"

    def __init__(self, saved: LatticeSet | str | os.PathLike[str]) -> None:
        self.saved = saved if isinstance(saved, LatticeSet) else load_top_k(saved)
        self.fingerprint, self.vocab_size = self.saved.fingerprint, self.saved.vocab_size
        self._by_context: dict[tuple[int, ...], list[int]] = {}
        if (self.saved.context != PADDING).any():
            for index in range(len(self.saved)):
                self._by_context.setdefault(tuple(self.saved.context_of(index)), []).append(index)
        self._last: dict[int, int] = {}

    def lattices(self, states: Sequence[State]) -> list[SausageLattice | None]:
        return [None if (index := self._find(state)) is None else self.saved[index] for state in states]

    def _find(self, state: State) -> int | None:
        """The index of the lattice that follows this text; None: no such lattice."""
        done = len(state.tokens) - state.prompt_length
        if not self._by_context:
            return done - 1 if 1 <= done <= len(self.saved) else None
        indexes = self._by_context.get(tuple(state.tokens[-self.saved.context.shape[1] :]))
        if indexes is None:
            return None
        after = 0 if state.is_first else bisect_right(indexes, self._last.get(state.row, -1))
        self._last[state.row] = indexes[after % len(indexes)]
        return self._last[state.row]


def load_top_k(path: str | os.PathLike[str]) -> LatticeSet:
    """Saved top-k outputs: a lattice file (``.npz``), or safetensors.

    A safetensors file holds ``tokens [n, slots, k]`` and ``log_probs [n, slots, k]``, and may hold ``continuation
    [n, slots]``, ``context [n, c]`` and ``transitions [n, slots - 1, k, k]`` as lattice files do. The
    ValueError for other content, or for arrays that make no lattices, names the file.
    """
    if not os.fspath(path).endswith(".safetensors"):
        return LatticeSet.load(path)
    try:
        arrays = load_file(path)
        if missing := [name for name in ("tokens", "log_probs") if name not in arrays]:
            raise ValueError(f"expected tensors tokens and log_probs [n, slots, k]; missing: {', '.join(missing)}")
        tokens = arrays["tokens"]
        expect(tokens.ndim == 3, "tokens [n, slots, k]", f"shape {tokens.shape}")
        unknown = np.full(tokens.shape[:2], PADDING, dtype=np.int32)
        return LatticeSet(
            tokens,
            arrays["log_probs"].astype(np.float32),
            arrays.get("continuation", unknown),
            arrays.get("context", unknown[:, :0]),
            transitions=arrays.get("transitions"),
        )
    except FileNotFoundError:
        raise
    except (ValueError, TypeError, KeyError, OSError, SafetensorError) as error:
        raise ValueError(f"{os.fspath(path)}: not saved top-k outputs: {plain_words(error)}") from error
