"""Drafting systems as functions of lattices: what each would have had accepted, and at what cost.

Systems are named as ``latticebpd.drafters.system_names`` says. Lengths are those of exact verification on the base
model's own text, which the lattices carry.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from latticebpd.drafters.strategies import StoredPaths, StoredTrees, Strategy
from latticebpd.drafters.system_names import Models, strategy_named
from latticebpd.lattices.drafts import ROOT
from latticebpd.lattices.lattice_set import LatticeSet
from latticebpd.lattices.sausage import PADDING


@dataclass(frozen=True, eq=False)
class Outcome:
    """Of every lattice: lengths ``[n]`` accepted drafted tokens; nodes ``[n]`` verified tokens; first ``[n, slots]``
    the first draft, -1 beyond its end; cut ``[n]`` whether nothing is drafted after the accepted tokens."""

    lengths: np.ndarray
    nodes: np.ndarray
    first: np.ndarray
    cut: np.ndarray


def outcome(strategy: Strategy, lattices: LatticeSet, threads: int | None = None) -> Outcome:
    """Draft every lattice and verify the drafts against the continuation; ``threads`` does not change the result."""
    drafted = strategy.draft_stored(lattices, threads)
    if isinstance(drafted, StoredPaths):
        return _of_paths(drafted, lattices.continuation)
    return _of_trees(drafted, lattices.continuation)


def run_system(
    name: str, lattices: LatticeSet, lm: Models = None, alpha: float | None = None, threads: int | None = None
) -> Outcome:
    """``outcome`` of the system of that name.

    Args:
        lm: the language model of systems that are not ``:0-gram``, or several by name.
        alpha: its weight; None takes the stored one, and 1 where there is none.
        threads: for an n-gram model's search, by default one for each processor.
    """
    return outcome(strategy_named(name, lm, alpha), lattices, threads)


def _agreement(paths: np.ndarray, continuation: np.ndarray) -> np.ndarray:
    """``[...]`` how many leading tokens of ``paths [..., slots]`` are the continuation's."""
    agreed = (paths == continuation) & (continuation != PADDING)
    lengths: np.ndarray = np.cumprod(agreed, axis=-1, dtype=np.int64).sum(axis=-1)
    return lengths


def _of_paths(drafted: StoredPaths, continuation: np.ndarray) -> Outcome:
    paths, counts = drafted.tokens, drafted.counts
    p = paths.shape[1]
    is_path = np.arange(p) < counts[:, None]
    lengths = np.where(is_path, _agreement(paths, continuation[:, None, :]), 0).max(axis=1)
    # A path adds the nodes after its longest prefix that any path before it shares.
    nodes = counts.astype(np.int64) * paths.shape[2]
    for row in range(1, p):
        shared = np.logical_and.accumulate(paths[:, :row] == paths[:, row : row + 1], axis=2).sum(axis=2).max(axis=1)
        nodes -= np.where(row < counts, shared, 0)
    return Outcome(lengths, nodes, paths[:, 0], counts == 0)


def _of_trees(drafted: StoredTrees, continuation: np.ndarray) -> Outcome:
    tokens, parents = drafted.tokens, drafted.parents
    n, size = tokens.shape
    slots = continuation.shape[1]
    rows = np.arange(n)
    # The last column stands for the root, reached as index -1; parents come before their children.
    depth, right, leads = np.zeros((n, size + 1), np.int64), np.ones((n, size + 1), bool), np.ones((n, size + 1), bool)
    first = np.full((n, slots), PADDING, tokens.dtype)
    end = np.full(n, ROOT)  # the last accepted node: accepted nodes are a chain
    for node in range(size):
        parent, is_node = parents[:, node], tokens[:, node] != PADDING
        depth[:, node] = depth[rows, parent] + 1
        slot = np.minimum(depth[:, node], slots) - 1
        right[:, node] = is_node & right[rows, parent] & (tokens[:, node] == continuation[rows, slot])
        end = np.where(right[:, node], node, end)
        # The first draft follows the first child of each node: the best.
        leads[:, node] = is_node & leads[rows, parent] & (first[rows, slot] == PADDING)
        first[rows[leads[:, node]], slot[leads[:, node]]] = tokens[leads[:, node], node]
    lengths = np.where(right[:, :size], depth[:, :size], 0).max(axis=1, initial=0)
    below = (tokens != PADDING) & (parents == end[:, None])
    return Outcome(lengths, (tokens != PADDING).sum(axis=1), first, ~below.any(axis=1))
