"""The iterates of one text, place by place: what became right when (Santilli 2023, section 3.5 and figure 4).

A trajectory is the trace of a decode laid out as iterations by tokens.  A value is *right* if it is the token of the
finished text.  The *frontier* is the first place that is not right yet: everything before it stays as it is.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property

import numpy as np

from latticebpd.jacobi.solution import Solution

UNKNOWN = -1
"""Stands where no block has begun yet."""


class Cell(IntEnum):
    """What a pass has made of a place."""

    NOT_RIGHT = 0
    NEWLY_RIGHT = 1
    SETTLED = 2
    AHEAD = 3
    """Right as it was before, with something before it that is not."""


@dataclass(frozen=True, eq=False)
class Trajectory:
    """A text's iterates.

    tokens: ``[m]``, the finished text.
    values: ``[passes + 1, m]`` int64, what the next pass reads, row 0 the first; ``UNKNOWN`` where no block has begun.
    probabilities: ``[passes, m]`` float64, of the value that a pass found; NaN where it did not look.
    """

    tokens: list[int]
    values: np.ndarray
    probabilities: np.ndarray

    @property
    def passes(self) -> int:
        return len(self.probabilities)

    @cached_property
    def found(self) -> np.ndarray:
        """``[passes + 1, m]`` int64, ``values`` without the initial values of blocks that begin after the pass."""
        looked = np.isfinite(self.probabilities) | (self.values[:-1] != UNKNOWN)
        return np.concatenate([self.values[:1], np.where(looked, self.values[1:], UNKNOWN)])

    @cached_property
    def right(self) -> np.ndarray:
        """``[passes + 1, m]`` bool, whether what was found is right."""
        right: np.ndarray = self.found == np.array(self.tokens)
        return right

    @cached_property
    def frontier(self) -> np.ndarray:
        """``[passes + 1]``, the number of right values before the first wrong one."""
        return np.where(self.right.all(axis=1), len(self.tokens), (~self.right).argmax(axis=1))

    @cached_property
    def cells(self) -> np.ndarray:
        """``[passes, m]`` of :class:`Cell`."""
        now, before = self.right[1:], self.values[:-1] == np.array(self.tokens)
        ahead = np.arange(len(self.tokens)) >= self.frontier[1:, None]
        stayed = np.where(ahead, Cell.AHEAD, Cell.SETTLED)
        return np.where(now, np.where(before, stayed, Cell.NEWLY_RIGHT), Cell.NOT_RIGHT)

    @cached_property
    def right_since(self) -> np.ndarray:
        """``[m]``, the pass (from 1) from which on a place is right for good; 0 where the initial value was and stayed
        right."""
        wrong = (self.values != np.array(self.tokens)) & (self.values != UNKNOWN)
        last_wrong: np.ndarray = len(wrong) - 1 - wrong[::-1].argmax(axis=0)
        return np.where(wrong.any(axis=0), last_wrong + 1, 0)

    @cached_property
    def widths(self) -> np.ndarray:
        """``[passes]``, how many places each pass made right for good."""
        return np.bincount(self.right_since, minlength=self.passes + 1)[1:]

    @property
    def initial(self) -> list[int]:
        """``[m]``, each place's value before its first pass."""
        begun = self.values != UNKNOWN
        first: list[int] = self.values[begun.argmax(axis=0), np.arange(len(self.tokens))].tolist()
        return first


def trajectory(solution: Solution, row: int = 0) -> Trajectory:
    """A row's trajectory.

    Raises:
        ValueError: the decode kept no trace.
    """
    if solution.trace is None:
        raise ValueError("expected a decode with a trace, got one without; pass trace=True")
    tokens = solution.tokens(row)
    own = [iterate for iterate in solution.trace if iterate.row == row]
    width = max(iterate.place + len(iterate.after) for iterate in own)  # blocks may reach beyond the text's end
    values = np.full((len(own) + 1, width), UNKNOWN, dtype=np.int64)
    probabilities = np.full((len(own), width), np.nan)
    for number, iterate in enumerate(own):
        end = iterate.place + len(iterate.after)
        values[number, iterate.place : end] = iterate.before
        values[number + 1] = values[number]
        values[number + 1, iterate.place : end] = iterate.after
        probabilities[number, iterate.place : iterate.place + len(iterate.probabilities)] = iterate.probabilities
    return Trajectory(tokens, values[:, : len(tokens)], probabilities[:, : len(tokens)])
