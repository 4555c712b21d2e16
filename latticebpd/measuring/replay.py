"""Replays: what drafts would have had accepted of a text that is known, without the model.

Lattices carry the base model's own text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from latticebpd.drafters.strategies import StoredPaths, StoredTrees, Strategy
from latticebpd.lattices.drafts import ROOT, DraftTree
from latticebpd.lattices.lattice_set import LatticeSet
from latticebpd.lattices.sausage import PADDING
from latticebpd.scoring.weights import DECODE


def accept_length(tree: DraftTree, continuation: Sequence[int] | np.ndarray) -> int:
    """Drafted tokens that exact verification accepts when the base model's next tokens are ``continuation``."""
    node, length = ROOT, 0
    for token in np.asarray(continuation).tolist():
        if (child := tree.edges.get((node, token))) is None:
            break
        node, length = child, length + 1
    return length


class DecodeReplay:
    """Decodes of texts by several drafters at once, through positions that come in order.

    A call at position i with ``a`` accepted tokens is followed by one at ``i + a + 1``. The fewest calls come from a
    greedy search: among all positions within reach of the calls so far, take the one whose call reaches furthest.
    """

    def __init__(self, decode_totals: np.ndarray) -> None:
        """decode_totals: ``[..., 3]`` tokens, calls, fewest calls of each of ``[...]`` drafters, added to."""
        self.decode_totals = decode_totals
        self.texts = 0
        self.text = -1  # the last block's last one
        self.position = 0  # in it
        self.state = np.zeros((3, *decode_totals.shape[:-1]), np.int64)

    def steps(self, by: str | None, block: LatticeSet, lengths: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """``[n, ...]`` where each drafter makes a step, and the tokens that it writes there.

        By decode these are the calls of its decode, and every position is written once; by position all positions,
        each with the accepted tokens and one.
        """
        if by == DECODE and block.sequence is not None:
            return self.add(block.sequence, lengths), np.ones_like(lengths)
        return np.ones(lengths.shape, bool), lengths + 1

    def add(self, sequence: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        """``[n, ...]`` where each drafter makes a call.

        sequence: ``[n]`` the text of each lattice. lengths: ``[n, ...]`` what each drafter would have had accepted.
        """
        starts = np.flatnonzero(np.append(True, sequence[1:] != sequence[:-1]))
        sizes = np.diff(np.append(starts, len(sequence)))
        order = np.argsort(-sizes, kind="stable")  # unfinished texts are then always the first ones
        starts, sizes = starts[order], sizes[order]
        position = np.zeros(len(starts), np.int64)
        # Of every text: position of the next call, furthest reach of the calls so far, reach with one call more.
        state = np.zeros((3, len(starts), *lengths.shape[1:]), np.int64)
        self.texts += len(starts) - (self.text == sequence[0])
        if self.text == sequence[0]:
            first = int(np.flatnonzero(starts == 0)[0])
            position[first], state[:, first] = self.position, self.state
        next_call, reach, furthest = state
        calls = np.zeros(lengths.shape, bool)
        for step in range(int(sizes[0])):
            going = int(np.searchsorted(-sizes, -step, side="left"))
            here = position[:going].reshape(-1, *[1] * (lengths.ndim - 1))
            ahead = here + 1 + lengths[starts[:going] + step]
            called = next_call[:going] == here
            next_call[:going] = np.where(called, ahead, next_call[:going])
            np.maximum(furthest[:going], ahead, out=furthest[:going])
            due = reach[:going] == here
            reach[:going] = np.where(due, furthest[:going], reach[:going])
            calls[starts[:going] + step] = called
            self.decode_totals[..., 2] += due.sum(axis=0)
            position[:going] += 1
        self.decode_totals[..., 0] += len(sequence)
        self.decode_totals[..., 1] += calls.sum(axis=0)
        last = int(np.argmax(starts))
        self.text, self.position, self.state = int(sequence[-1]), int(position[last]), state[:, last].copy()
        return calls


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


def _of_paths(drafted: StoredPaths, continuation: np.ndarray) -> Outcome:
    paths, counts = drafted.tokens, drafted.counts
    p = paths.shape[1]
    is_path = np.arange(p) < counts[:, None]
    agreed = (paths == continuation[:, None]) & (continuation != PADDING)[:, None] & is_path[:, :, None]
    lengths = np.cumprod(agreed, axis=2, dtype=np.int64).sum(axis=2).max(axis=1)
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
