"""Drafting systems as functions of lattices: what each would have had accepted, and at what cost.

A system is named as people say it::

    vanilla             the best token of every slot (Stern 2018)
    16-best             the 16 best rescored paths (Kim 2024, section 7.2); any number
    64-tree             the best prefix tree of 64 nodes; any number
    16-best:0-gram      the same without the language model; so for trees
    oracle              the lattice's best path in hindsight

Lengths are those of exact verification on the base model's own text, which the lattices carry.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

import fst
from latticebpd.analysis.oracle import lengths_of, ranks
from latticebpd.lattice import PADDING, LatticeSet

VANILLA, ORACLE = "vanilla", "oracle"
_PATTERN = re.compile(r"([1-9][0-9]{0,5})-(best|tree)(:0-gram)?")


@dataclass(frozen=True)
class Outcome:
    """Of every lattice: lengths ``[n]`` accepted drafted tokens; nodes ``[n]`` verified tokens; first ``[n, slots]`` the first
    draft, -1 where a tree has none of that depth."""

    lengths: np.ndarray
    nodes: np.ndarray
    first: np.ndarray


def check_system(name: str) -> None:
    """Raises ValueError for a name that is no system's."""
    if name not in (VANILLA, ORACLE) and not _PATTERN.fullmatch(name):
        raise ValueError(f"expected vanilla, oracle, P-best or N-tree, perhaps with :0-gram behind, such as 16-best:0-gram, got {name!r}")


def run_system(name: str, lattices: LatticeSet, lm: fst.NgramModel | None, alpha: float = 1.0, threads: int | None = None) -> Outcome:
    """Draft every lattice with the system and verify the drafts against the continuation.

    Args:
        name: see above.
        lattices: with continuations.
        lm: the language model of systems that are not ``:0-gram``.
        alpha: its weight.
        threads: for the search, by default one for each processor; the result does not depend on it.
    """
    check_system(name)
    n, slots, _ = lattices.tokens.shape
    if name == ORACLE:
        lengths = lengths_of(ranks(lattices), lattices.tokens.shape[2])
        path = np.where(np.arange(slots) < lengths[:, None], lattices.continuation, _best_tokens(lattices))
        return Outcome(lengths, np.full(n, slots), path)
    if name == VANILLA:
        path = _best_tokens(lattices)
        return Outcome(_agreement(path, lattices.continuation), np.full(n, slots), path)
    match = _PATTERN.fullmatch(name)
    assert match is not None
    size, model = int(match[1]), None if match[3] else lm
    arguments = (lattices.tokens, lattices.log_probs, model, size, alpha)
    if match[2] == "best":
        paths, _, counts = fst.nbest_paths_batch(*arguments, contexts=lattices.context, threads=threads)
        return _of_paths(paths, counts, lattices.continuation)
    tokens, parents, _, _ = fst.best_first_tree_batch(*arguments, contexts=lattices.context, threads=threads)
    return _of_trees(tokens, parents, lattices.continuation)


def _best_tokens(lattices: LatticeSet) -> np.ndarray:
    """``[n, slots]`` the best column of every slot, the first of several."""
    weights = np.where(lattices.tokens == PADDING, -np.inf, lattices.log_probs)
    best: np.ndarray = np.take_along_axis(lattices.tokens, weights.argmax(axis=2)[:, :, None], axis=2)[:, :, 0]
    return best


def _agreement(paths: np.ndarray, continuation: np.ndarray) -> np.ndarray:
    """``[...]`` how many leading tokens of ``paths [..., slots]`` are the continuation's."""
    agreed = (paths == continuation) & (continuation != PADDING)
    lengths: np.ndarray = np.cumprod(agreed, axis=-1, dtype=np.int64).sum(axis=-1)
    return lengths


def _of_paths(paths: np.ndarray, counts: np.ndarray, continuation: np.ndarray) -> Outcome:
    n, p, _ = paths.shape
    there = np.arange(p) < counts[:, None]
    lengths = np.where(there, _agreement(paths, continuation[:, None, :]), 0).max(axis=1)
    # Sorted paths share prefixes with their neighbours, so each adds the nodes behind what it shares with the one before.
    nodes = np.empty(n, np.int64)
    for i in range(n):
        rows = paths[i, : counts[i]]
        rows = rows[np.lexsort(rows.T[::-1])]
        shared = np.cumprod(rows[1:] == rows[:-1], axis=1).sum()
        nodes[i] = rows.size - shared
    return Outcome(lengths, nodes, paths[:, 0])


def _of_trees(tokens: np.ndarray, parents: np.ndarray, continuation: np.ndarray) -> Outcome:
    n, size = tokens.shape
    slots = continuation.shape[1]
    rows = np.arange(n)
    # The last column stands for the root, reached as index -1; parents come before their children.
    depth, right, leads = np.zeros((n, size + 1), np.int64), np.ones((n, size + 1), bool), np.ones((n, size + 1), bool)
    first = np.full((n, slots), PADDING, tokens.dtype)
    for node in range(size):
        parent, there = parents[:, node], tokens[:, node] != PADDING
        depth[:, node] = depth[rows, parent] + 1
        at = np.minimum(depth[:, node], slots) - 1
        wanted = continuation[rows, at]
        right[:, node] = there & right[rows, parent] & (tokens[:, node] == wanted)
        # The first draft goes on with the first child of each node: the best.
        leads[:, node] = there & leads[rows, parent] & (first[rows, at] == PADDING)
        first[rows[leads[:, node]], at[leads[:, node]]] = tokens[leads[:, node], node]
    lengths = np.where(right[:, :size], depth[:, :size], 0).max(axis=1, initial=0)
    return Outcome(lengths, (tokens != PADDING).sum(axis=1), first)
