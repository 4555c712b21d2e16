"""What a Jacobi decode produced and cost."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from torch import Tensor


@dataclass(frozen=True)
class Iterate:
    """One pass over one row's block.

    row: index in the batch.
    place: of the first unknown that the pass looked at, counted from the text's first new token.
    before: the values that the pass read, the last of which nothing depends on yet.
    after: the values that it found, ``argmax p(y_i | y_<i)`` under ``before``; places that the model had no room for
        keep theirs.
    probabilities: of the values found, one for each place looked at.
    settled: how many of ``after`` are final.
    """

    row: int
    place: int
    before: list[int]
    after: list[int]
    probabilities: list[float]
    settled: int


@dataclass(frozen=True, eq=False)
class Solution:
    """The text and, for every row, what it took.  Counts of a row do not depend on the rows beside it.

    sequences: ``[rows, length]`` int64, prompt included, as ``generate()`` returns it: finished rows are padded on the
        right.  Of an encoder-decoder, the decoder's text.
    prompt_length: columns of the prompts, padding included; new tokens follow.
    num_tokens: ``[rows]`` int64, new tokens.
    passes: ``[rows]`` int64, forward passes of the decoder that looked at a row's unknowns: the paper's iterations.
    updates: ``[rows]`` int64, those passes that changed a value. The others only noticed that nothing changes any more.
    blocks: ``[rows]`` int64, blocks begun.
    columns: ``[rows]`` int64, tokens that the decoder read over all passes, what it read of the prompt beforehand
        included.
    pairs: ``[rows]`` int64, keys that those tokens met in self-attention, counted for every token.
    num_passes: forward passes of the batch.
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
        """Tokens per pass over all rows: how many times fewer passes than greedy decoding, which takes one for each
        token."""
        return float(self.num_tokens.sum() / self.passes.sum())

    def tokens(self, row: int = 0) -> list[int]:
        """A row's new tokens, without padding."""
        new: list[int] = self.sequences[row, self.prompt_length :][: int(self.num_tokens[row])].tolist()
        return new
