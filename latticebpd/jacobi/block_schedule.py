"""How a text is cut into blocks of unknowns, in which the three algorithms differ (Santilli 2023, section 3.2)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from latticebpd.checks import expect


@dataclass(frozen=True)
class LengthRatio:
    """Estimates a target's length, end-of-text token included, as ``ratio * source tokens + margin``, rounded up."""

    ratio: float = 1.0
    margin: float = 5.0

    def __post_init__(self) -> None:
        fits = math.isfinite(self.ratio) and math.isfinite(self.margin) and self.ratio >= 0
        expect(fits, "a finite ratio >= 0 and a finite margin", f"{self.ratio} and {self.margin}")

    def __call__(self, source: Sequence[int]) -> int:
        return max(1, math.ceil(self.ratio * len(source) + self.margin))


Length: TypeAlias = "int | Sequence[int] | LengthRatio | None"
"""Target length in tokens, end-of-text token included: for all rows, for each row, or an estimator."""


@dataclass(frozen=True)
class BlockSchedule:
    """The widths of a text's blocks.

    No schedule cuts a text short: if the text goes on beyond the length, further blocks follow, so an underestimated
    length costs passes and no tokens.

    size: unknowns in a block; None means the whole length (algorithm 1).
    length: the target's; cuts the block that reaches beyond it (algorithm 2), unless it is None.
    max_length: new tokens decoded in blocks, single ones follow (algorithm 3); None means all.
    """

    size: int | None = None
    length: Length = None
    max_length: int | None = None

    def check(self, rows: int) -> None:
        """Raise ValueError if the schedule does not fit a batch of so many rows."""
        expect(self.size is None or self.size >= 1, "block_size >= 1", self.size)
        expect(self.max_length is None or self.max_length >= 0, "max_length >= 0", self.max_length)
        if self.length is None or isinstance(self.length, LengthRatio):
            return
        lengths = [self.length] * rows if isinstance(self.length, int) else list(self.length)
        if len(lengths) != rows or min(lengths) < 1:
            raise ValueError(f"expected a length >= 1, or one for each of {rows} rows, got {self.length}")

    def width(self, row: int, source: Sequence[int], start: int) -> int | None:
        """Unknowns in the block after the first ``start`` new tokens; None means up to the text's limit."""
        length = self._length(row, source)
        if self.size is None:
            return None if length is None else length - start % length
        if self.max_length is not None and start >= self.max_length:
            return 1
        ends = [end for end in (length, self.max_length) if end is not None and end > start]
        return min([self.size, *(end - start for end in ends)])

    def _length(self, row: int, source: Sequence[int]) -> int | None:
        """One row's length; None without a limit."""
        if self.length is None:
            return LengthRatio()(source) if source and self.size is None else None
        if isinstance(self.length, LengthRatio):
            return self.length(source)
        return self.length if isinstance(self.length, int) else self.length[row]
