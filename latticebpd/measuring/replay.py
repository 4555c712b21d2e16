"""Replays of decodes: what drafts would have had accepted of a text that is known, without the model."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from latticebpd.lattices.drafts import ROOT, DraftTree


def accept_length(tree: DraftTree, continuation: Sequence[int] | np.ndarray) -> int:
    """Drafted tokens that exact verification accepts when the base model's next tokens are ``continuation``."""
    children = {edge: node for node, edge in enumerate(zip(tree.parents.tolist(), tree.tokens.tolist(), strict=True))}
    node, length = ROOT, 0
    for token in np.asarray(continuation).tolist():
        child = children.get((node, token))
        if child is None:
            break
        node, length = child, length + 1
    return length


class DecodeReplay:
    """Decodes of texts by several drafters at once, through positions that come in order.

    A call at position i with ``a`` accepted tokens is followed by one at ``i + a + 1``. The fewest calls come from a
    greedy search: among all positions within reach of the calls so far, take the one whose call reaches furthest.
    """

    def __init__(self, walked: np.ndarray) -> None:
        """walked: ``[..., 3]`` tokens, calls, fewest calls of each of ``[...]`` drafters, added to."""
        self.walked = walked
        self.texts = 0
        self.text = -1  # the last block's last one
        self.position = 0  # in it
        self.state = np.zeros((3, *walked.shape[:-1]), np.int64)

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
            self.walked[..., 2] += due.sum(axis=0)
            position[:going] += 1
        self.walked[..., 0] += len(sequence)
        self.walked[..., 1] += calls.sum(axis=0)
        last = int(np.argmax(starts))
        self.text, self.position, self.state = int(sequence[-1]), int(position[last]), state[:, last].copy()
        return calls
