"""Exact searches of a sausage lattice under an n-gram model: the p best paths, and the best-first prefix tree.

A *sausage lattice* is the automaton with states 0..slots and, from state t to t + 1, one arc for each of the slot's
tokens: ``tokens [slots, k]`` ids, ``log_probs [slots, k]`` natural logs. Token -1 pads a ragged slot, and a token of
log-probability -1e30 or below (a mask: -inf, the lowest float) counts as absent. Composed with a backoff n-gram model
under failure semantics it stays deterministic, so distinct paths are distinct token sequences.

``score(path) = sum over slots, from the left, of log_prob + alpha * ln p_LM(token | context and the tokens before)``

in float64. Paths are ordered by falling score; equal scores by rising token sequence. Scores nearer to each other than
float64's rounding may change places.

``context`` holds the tokens before the lattice. None of them (an empty context) means no history, never an implied
``<s>``; a token that the model does not know counts as its ``<unk>`` or, where it has none, wipes the history out.
``lm`` is anything with a ``core`` (`fst.NgramModel`), or None; with ``alpha`` 0 it is not looked at. ``alpha`` and
``log_probs`` are 1e30 (`LARGEST_WEIGHT`) at most, a step costs 256,000 at most: every score is a finite number.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fst import _core

LARGEST_WEIGHT = _core.LARGEST_WEIGHT
LARGEST_COUNT = 2**31 - 1
Ints = NDArray[np.int32]
Floats = NDArray[np.float64]


class HasCore(Protocol):
    """A language model that the compiled core can search: `fst.NgramModel`."""

    @property
    def core(self) -> _core.Model: ...


def nbest_paths(
    tokens: ArrayLike, log_probs: ArrayLike, lm: HasCore | None = None, p: int = 16, alpha: float = 1.0, context: Sequence[int] = ()
) -> tuple[Ints, Floats]:
    """The p best paths: ``tokens [p', slots]``, ``scores [p']``, best first, distinct; p' = min(p, number of paths)."""
    lattice = _lattice(tokens, log_probs, 2)
    paths, scores, _ = _core.nbest(*lattice, _model(lm, alpha), _count("p", p), alpha, _ids(context, np.int64), 1)
    return paths, scores


def nbest_paths_batch(
    tokens: ArrayLike,
    log_probs: ArrayLike,
    lm: HasCore | None = None,
    p: int = 16,
    alpha: float = 1.0,
    contexts: ArrayLike | None = None,
    threads: int | None = None,
) -> tuple[Ints, Floats, Ints]:
    """`nbest_paths` of n lattices: ``tokens [n, p', slots]``, ``scores [n, p']`` and ``counts [n]``.

    tokens, log_probs: ``[n, slots, k]``. contexts: ``[n, c]``, -1 pads on the left. threads: at most this many, by
    default one for each processor that the process may use; the result does not depend on it. Lattice i has
    ``counts[i]`` paths; behind them stand tokens -1 and scores -inf.
    """
    tokens, log_probs = _lattice(tokens, log_probs, 3)
    return _core.nbest(tokens, log_probs, _model(lm, alpha), _count("p", p), alpha, _contexts(contexts, len(tokens)), _threads(threads))


def best_first_tree(
    tokens: ArrayLike,
    log_probs: ArrayLike,
    lm: HasCore | None = None,
    num_nodes: int = 64,
    alpha: float = 1.0,
    context: Sequence[int] = (),
) -> tuple[Ints, Ints, Floats]:
    """The num_nodes most probable prefixes of paths: ``tokens [n]``, ``parents [n]``, ``log_probs [n]``, best first.

    At every slot a path goes on to the slot's tokens with probability
    ``softmax(log_prob + alpha * ln p_LM)``, the softmax taken over the slot's tokens given that path; a prefix weighs the
    product along it, and ``log_probs`` is that product's logarithm. ``parents[i] < i``, -1 is the root (no token). Equal
    prefixes are ordered by their tokens, a prefix before its continuations.
    """
    nodes, parents, path_log_probs, _ = _core.tree(
        *_lattice(tokens, log_probs, 2), _model(lm, alpha), _count("num_nodes", num_nodes), alpha, _ids(context, np.int64), 1
    )
    return nodes, parents, path_log_probs


def best_first_tree_batch(
    tokens: ArrayLike,
    log_probs: ArrayLike,
    lm: HasCore | None = None,
    num_nodes: int = 64,
    alpha: float = 1.0,
    contexts: ArrayLike | None = None,
    threads: int | None = None,
) -> tuple[Ints, Ints, Floats, Ints]:
    """`best_first_tree` of n lattices: ``tokens``, ``parents``, ``log_probs`` ``[n, nodes]`` and ``counts [n]``.

    tokens, log_probs, contexts, threads: as for `nbest_paths_batch`. Behind the ``counts[i]`` nodes of tree i stand
    tokens and parents -1 and log-probabilities -inf.
    """
    tokens, log_probs = _lattice(tokens, log_probs, 3)
    nodes = _count("num_nodes", num_nodes)
    texts = _contexts(contexts, len(tokens))
    return _core.tree(tokens, log_probs, _model(lm, alpha), nodes, alpha, texts, _threads(threads))


def _lattice(tokens: ArrayLike, log_probs: ArrayLike, axes: int) -> tuple[Ints, Floats]:
    ids, scores = _ids(tokens, np.int32), np.asarray(log_probs, dtype=np.float64)
    if ids.ndim != axes or ids.shape != scores.shape:
        shape = "[slots, k]" if axes == 2 else "[n, slots, k]"
        raise ValueError(f"expected tokens and log_probs of one shape {shape}, got {ids.shape} and {scores.shape}")
    return ids, scores


def _ids(tokens: ArrayLike, dtype: type[np.int32] | type[np.int64]) -> Any:
    array = np.asarray(tokens)
    if array.dtype == dtype:
        return array
    if array.size and array.dtype.kind not in "iu":
        raise ValueError(f"expected integer token ids, got {array.dtype}")
    if array.size and (array.max() >= 2**31 - 1 or array.min() < -1):
        raise ValueError(f"expected token ids from 0 to 2^31 - 2, or -1 as padding, got {array.min()} to {array.max()}")
    return array.astype(dtype)


def _contexts(contexts: ArrayLike | None, n: int) -> NDArray[np.int64]:
    array: NDArray[np.int64] = np.empty((n, 0), dtype=np.int64) if contexts is None else _ids(contexts, np.int64)
    return array if array.size else np.empty((n, 0), dtype=np.int64)


def _model(lm: HasCore | None, alpha: float) -> _core.Model | None:
    return None if lm is None or alpha == 0 else lm.core


def _threads(threads: int | None) -> int:
    if threads is None:
        return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return _count("threads", threads)


def _count(name: str, value: int) -> int:
    if not 1 <= value <= LARGEST_COUNT:
        raise ValueError(f"expected {name} from 1 to 2^31 - 1, got {value}")
    return value
