"""Frozen dataclasses that hold arrays: equal where their arrays are, and read-only, so that they may stand in sets and
caches."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from typing import Any

import numpy as np


class ArrayValues:
    """Equality and hash for a dataclass with ``eq=False``; arrays are compared as a whole, NaN equals NaN."""

    def _compared(self) -> Iterator[Any]:
        return (getattr(self, field.name) for field in fields(self) if field.compare)  # type: ignore[arg-type]

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return all(_equal(ours, theirs) for ours, theirs in zip(self._compared(), other._compared(), strict=True))

    def __hash__(self) -> int:
        # Of floats the shape alone: equal ones, such as 0 and -0, may differ in their bytes.
        return hash(
            tuple(
                (value.shape, value.tobytes() if value.dtype.kind in "iu" else b"")
                if isinstance(value, np.ndarray)
                else value
                for value in self._compared()
            )
        )


def _equal(ours: Any, theirs: Any) -> bool:
    if isinstance(ours, np.ndarray) and isinstance(theirs, np.ndarray):
        return np.array_equal(ours, theirs, equal_nan=ours.dtype.kind == theirs.dtype.kind == "f")
    return type(ours) is type(theirs) and bool(ours == theirs)


def int32(name: str, values: Any) -> np.ndarray:
    """``values`` as a read-only array, not copied where it is int32 already; the caller's own array stays writable.

    Raises:
        ValueError: no integers, or ones that do not fit 32 bits.
    """
    array = np.asarray(values)
    if array.size and (array.dtype.kind not in "iu" or array.min() < -(2**31) or array.max() >= 2**31):
        raise ValueError(
            f"expected {name} as integers that fit 32 bits, got {array.dtype} from {array.min()} to {array.max()}"
        )
    return read_only(np.ascontiguousarray(array, dtype=np.int32))


def read_only(array: np.ndarray) -> np.ndarray:
    """A view that cannot be written through."""
    view = array.view()
    view.flags.writeable = False
    return view
