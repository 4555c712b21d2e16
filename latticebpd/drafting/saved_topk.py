"""Drafting from top-k outputs that were saved before: lattices made by other programs, or by an earlier run."""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Sequence

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file

from latticebpd.drafting.base import State
from latticebpd.lattices.drafts import DraftTree
from latticebpd.lattices.lattice_set import LatticeSet
from latticebpd.lattices.sausage import PADDING
from latticebpd.scoring.rescoring import LanguageModel, as_rescorer, check_vocabulary, draft_tree_batch


class SavedTopKDrafter:
    """Takes each position's lattice from a set instead of computing it.

    A lattice fits where the text ends with its ``context [n, c]``; a context with padding is a whole text, shorter than
    ``c``.  Where contexts repeat, the first one after the lattice used last is taken.  A set without contexts is one
    text's, in order: lattice ``i`` follows ``i + 1`` new tokens.  Where no lattice fits, nothing is drafted.

    Args:
        lattices: the saved outputs; ``continuation`` is not looked at.
        lm, num_nodes, alpha: as for ``TreeDrafter``.
    """

    def __init__(self, lattices: LatticeSet, lm: LanguageModel = None, num_nodes: int = 64, alpha: float = 1.0) -> None:
        self.lattices, self.num_nodes, self.alpha = lattices, num_nodes, alpha
        self.rescorer = as_rescorer(lm)
        check_vocabulary(self.rescorer, lattices.fingerprint, owner="the saved lattices")
        self._by_context: dict[tuple[int, ...], list[int]] = {}
        if (lattices.context != PADDING).any():
            for index in range(len(lattices)):
                self._by_context.setdefault(tuple(lattices.context_of(index)), []).append(index)
        self._last: dict[int, int] = {}

    def propose(self, states: Sequence[State]) -> list[DraftTree]:
        found = [self._find(state) for state in states]
        asked = [row for row, index in enumerate(found) if index is not None]
        lattices = [self.lattices[index] for index in found if index is not None]
        trees = [DraftTree.empty()] * len(states)
        if lattices:
            contexts = [states[row].tokens for row in asked]
            for row, tree in zip(asked, draft_tree_batch(lattices, self.rescorer, self.num_nodes, self.alpha, contexts), strict=True):
                trees[row] = tree
        return trees

    def _find(self, state: State) -> int | None:
        """The lattice for this moment, if there is one."""
        done = len(state.tokens) - state.prompt_length
        if not self._by_context:
            return done - 1 if done <= len(self.lattices) else None
        indexes = self._by_context.get(tuple(state.tokens[-self.lattices.context.shape[1] :]))
        if indexes is None:
            return None
        after = 0 if done == 1 else bisect_right(indexes, self._last.get(state.row, -1))
        self._last[state.row] = indexes[after % len(indexes)]
        return self._last[state.row]

    def observe(self, rows: Sequence[int], tokens: Sequence[Sequence[int]]) -> None:
        pass


def load_top_k(path: str | os.PathLike[str]) -> LatticeSet:
    """Saved top-k outputs: a lattice file (``.npz``), or safetensors.

    A safetensors file holds ``tokens [n, slots, k]`` and ``log_probs [n, slots, k]``, and may hold ``continuation
    [n, slots]`` and ``context [n, c]`` as lattice files do.

    Raises:
        ValueError: no such content, or arrays that make no lattices; the message names the file.
        FileNotFoundError: there is no such file.
    """
    if not os.fspath(path).endswith(".safetensors"):
        return LatticeSet.load(path)
    try:
        arrays = load_file(path)
        missing = [name for name in ("tokens", "log_probs") if name not in arrays]
        if missing:
            raise ValueError(f"expected tensors tokens and log_probs [n, slots, k]; missing: {', '.join(missing)}")
        tokens = arrays["tokens"]
        if tokens.ndim != 3:
            raise ValueError(f"expected tokens [n, slots, k], got shape {tokens.shape}")
        unknown = np.full(tokens.shape[:2], PADDING, dtype=np.int32)
        return LatticeSet(
            tokens,
            arrays["log_probs"].astype(np.float32),
            arrays.get("continuation", unknown),
            arrays.get("context", unknown[:, :0]),
        )
    except FileNotFoundError:
        raise
    except (ValueError, TypeError, KeyError, OSError, SafetensorError) as error:
        raise ValueError(f"{os.fspath(path)}: not saved top-k outputs: {error}") from error
