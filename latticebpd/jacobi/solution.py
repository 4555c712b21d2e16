"""Result and costs of a Jacobi decode, and its trajectory (Santilli 2023, section 3.5 and figure 4).

A trajectory is the trace of one text laid out as iterations by tokens. A value is *right* if it is the token of the
finished text. The *frontier* is the first position that is not right; everything before it is final.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property

import numpy as np
from torch import Tensor

UNKNOWN = -1  # value of a position whose block has not begun


@dataclass(frozen=True)
class Iterate:
    """One pass over one row's block.

    start: position of the first unknown, counted from the text's first new token.
    before: the values that the pass read; no equation reads the last one.
    after: ``argmax p(y_i | y_<i)`` under ``before``; positions that the model had no room for keep their values.
    probabilities: of the computed values, one for each position computed.
    settled: how many of ``after`` are final.
    """

    row: int
    start: int
    before: list[int]
    after: list[int]
    probabilities: list[float]
    settled: int


@dataclass(frozen=True, eq=False)
class Solution:
    """The texts and the costs of each row, which do not depend on the other rows.

    sequences: ``[rows, length]`` int64, prompt included, as ``generate()`` returns it: finished rows are padded on the
        right. Of an encoder-decoder, the decoder's text.
    prompt_length: columns of the prompts, padding included; new tokens follow.
    num_tokens: ``[rows]`` int64, new tokens.
    passes: ``[rows]`` int64, forward passes of the decoder over a row's unknowns: the paper's iterations.
    updates: ``[rows]`` int64, those passes that changed a value; the others only confirm convergence.
    blocks: ``[rows]`` int64, blocks begun.
    columns: ``[rows]`` int64, tokens that the decoder read over all passes, the prompt's included.
    pairs: ``[rows]`` int64, keys that those tokens attended to in self-attention, summed over tokens.
    trace: every pass over every row, in order; None if no trace was asked for.
    """

    sequences: Tensor
    prompt_length: int
    num_tokens: np.ndarray
    passes: np.ndarray
    updates: np.ndarray
    blocks: np.ndarray
    columns: np.ndarray
    pairs: np.ndarray
    num_passes: int
    trace: list[Iterate] | None

    @property
    def iteration_speedup(self) -> float:
        """Tokens per pass over all rows; greedy decoding takes one pass for each token."""
        return float(self.num_tokens.sum() / self.passes.sum())

    def tokens(self, row: int = 0) -> list[int]:
        """A row's new tokens, without padding."""
        return self.sequences[row, self.prompt_length :][: int(self.num_tokens[row])].tolist()


class TokenStatus(IntEnum):
    """The result of a pass at a position."""

    NOT_RIGHT = 0
    NEWLY_RIGHT = 1
    SETTLED = 2
    AHEAD = 3  # right as before, after a position that is not


@dataclass(frozen=True, eq=False)
class Trajectory:
    """A text's iterates.

    tokens: ``[m]``, the finished text.
    values: ``[passes + 1, m]`` int64, the input of the next pass; ``UNKNOWN`` before a block begins.
    probabilities: ``[passes, m]`` float64, of the value that a pass computed; NaN at positions not computed.
    """

    tokens: list[int]
    values: np.ndarray
    probabilities: np.ndarray

    @property
    def passes(self) -> int:
        return len(self.probabilities)

    @cached_property
    def outputs(self) -> np.ndarray:
        """``[passes + 1, m]`` int64, ``values`` without the initial values of blocks that begin after the pass."""
        computed = np.isfinite(self.probabilities) | (self.values[:-1] != UNKNOWN)
        return np.concatenate([self.values[:1], np.where(computed, self.values[1:], UNKNOWN)])

    @cached_property
    def right(self) -> np.ndarray:
        """``[passes + 1, m]`` bool, whether ``outputs`` are right."""
        return self.outputs == np.array(self.tokens)

    @cached_property
    def frontier(self) -> np.ndarray:
        """``[passes + 1]``, the number of right values before the first wrong one."""
        return np.where(self.right.all(axis=1), len(self.tokens), (~self.right).argmax(axis=1))

    @cached_property
    def cells(self) -> np.ndarray:
        """``[passes, m]`` of :class:`TokenStatus`."""
        now, before = self.right[1:], self.values[:-1] == np.array(self.tokens)
        ahead = np.arange(len(self.tokens)) >= self.frontier[1:, None]
        stayed = np.where(ahead, TokenStatus.AHEAD, TokenStatus.SETTLED)
        return np.where(now, np.where(before, stayed, TokenStatus.NEWLY_RIGHT), TokenStatus.NOT_RIGHT)

    @cached_property
    def right_since(self) -> np.ndarray:
        """``[m]``, the pass (from 1) that made a position right for good; 0 if its initial value stayed right."""
        wrong = (self.values != np.array(self.tokens)) & (self.values != UNKNOWN)
        last_wrong: np.ndarray = len(wrong) - 1 - wrong[::-1].argmax(axis=0)
        return np.where(wrong.any(axis=0), last_wrong + 1, 0)

    @cached_property
    def widths(self) -> np.ndarray:
        """``[passes]``, how many positions each pass made right for good."""
        return np.bincount(self.right_since, minlength=self.passes + 1)[1:]


def trajectory(solution: Solution, row: int = 0) -> Trajectory:
    """A row's trajectory; ValueError if the decode kept no trace."""
    if solution.trace is None:
        raise ValueError("expected a decode with a trace, got one without; pass trace=True")
    tokens = solution.tokens(row)
    own = [iterate for iterate in solution.trace if iterate.row == row]
    width = max(iterate.start + len(iterate.after) for iterate in own)  # blocks may reach beyond the text's end
    values = np.full((len(own) + 1, width), UNKNOWN, dtype=np.int64)
    probabilities = np.full((len(own), width), np.nan)
    for number, each in enumerate(own):
        block = slice(each.start, each.start + len(each.after))
        values[number, block] = each.before
        values[number + 1] = values[number]
        values[number + 1, block] = each.after
        probabilities[number, each.start : each.start + len(each.probabilities)] = each.probabilities
    return Trajectory(tokens, values[:, : len(tokens)], probabilities[:, : len(tokens)])
