"""How a text is cut into blocks of unknowns: the one thing in which the three algorithms differ (Santilli 2023, section
3.2).

A *schedule* says how wide the block is that begins at a place. No schedule cuts a text short: where its length ends and
the text does not, further blocks follow, so that a length that was estimated too low costs passes and no words.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import numpy as np


@dataclass(frozen=True)
class LengthRatio:
    """Estimates a target's length, end-of-text token included, as ``ratio`` times the source's tokens and ``margin``
    more, rounded up."""

    ratio: float = 1.0
    margin: float = 5.0

    def __post_init__(self) -> None:
        if not (math.isfinite(self.ratio) and math.isfinite(self.margin) and self.ratio >= 0):
            raise ValueError(f"expected a finite ratio >= 0 and a finite margin, got {self.ratio} and {self.margin}")

    def __call__(self, source: Sequence[int]) -> int:
        return max(1, math.ceil(self.ratio * len(source) + self.margin))

    @classmethod
    def fit(cls, sources: Sequence[int], targets: Sequence[int], covered: float = 0.9) -> LengthRatio:
        """The estimator whose length suffices for a share of the given pairs.

        Args:
            sources, targets: their lengths in tokens, pair by pair.
            covered: share of the pairs whose target is no longer than the estimate.

        Raises:
            ValueError: no pairs, unequal numbers, or a share outside 0 to 1.
        """
        if not sources or len(sources) != len(targets) or min(sources) < 1:
            raise ValueError(
                f"expected as many target lengths as source lengths, all >= 1, got {len(targets)} and {len(sources)}"
            )
        if not 0 <= covered <= 1:
            raise ValueError(f"expected a share of pairs from 0 to 1, got {covered}")
        ratio = sum(targets) / sum(sources)
        beyond = np.array(targets, dtype=float) - ratio * np.array(sources, dtype=float)
        return cls(ratio, float(np.quantile(beyond, covered, method="higher")))


Length: TypeAlias = "int | Sequence[int] | LengthRatio | None"
"""A target length in tokens, end-of-text token included: one for all rows, one for each row, or an estimator of a
source's.

None: ``LengthRatio()`` for an encoder-decoder; for other models the text's limit.
"""


class Schedule(Protocol):
    """Cuts rows into blocks."""

    def check(self, rows: int) -> None:
        """Raise ValueError if the schedule does not fit a batch of so many rows."""

    def width(self, row: int, source: Sequence[int], place: int) -> int | None:
        """Unknowns in the block that begins behind ``place`` tokens; None is as many as the text's limit leaves."""


@dataclass(frozen=True)
class Whole:
    """Parallel Jacobi: the whole length is one block (algorithm 1)."""

    length: Length = None

    def check(self, rows: int) -> None:
        _check_length(self.length, rows)

    def width(self, row: int, source: Sequence[int], place: int) -> int | None:
        length = _length(self.length, row, source)
        return None if length is None else length - place % length


@dataclass(frozen=True)
class Blocks:
    """Gauss-Seidel-Jacobi: blocks of one size; a length, where given, cuts the block that reaches beyond it (algorithm
    2)."""

    size: int
    length: Length = None

    def check(self, rows: int) -> None:
        _check_size(self.size)
        _check_length(self.length, rows)

    def width(self, row: int, source: Sequence[int], place: int) -> int | None:
        left = None if self.length is None else (_length(self.length, row, source) or 0) - place
        return self.size if left is None or left <= 0 else min(self.size, left)


@dataclass(frozen=True)
class BlocksThenSingle:
    """Hybrid: blocks of one size up to ``max_length`` tokens, then one token at a time (algorithm 3)."""

    size: int
    max_length: int

    def check(self, rows: int) -> None:
        del rows
        _check_size(self.size)
        if self.max_length < 0:
            raise ValueError(f"expected max_length >= 0, got {self.max_length}")

    def width(self, row: int, source: Sequence[int], place: int) -> int | None:
        del row, source
        return min(self.size, self.max_length - place) if place < self.max_length else 1


def _length(length: Length, row: int, source: Sequence[int]) -> int | None:
    if length is None:
        return LengthRatio()(source) if source else None
    if isinstance(length, LengthRatio):
        return length(source)
    return length if isinstance(length, int) else length[row]


def _check_size(size: int) -> None:
    if size < 1:
        raise ValueError(f"expected block_size >= 1, got {size}")


def _check_length(length: Length, rows: int) -> None:
    if length is None or isinstance(length, LengthRatio):
        return
    lengths = [length] * rows if isinstance(length, int) else list(length)
    if len(lengths) != rows or min(lengths) < 1:
        raise ValueError(f"expected a length >= 1, or one for each of {rows} rows, got {length}")
