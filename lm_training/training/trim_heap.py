"""Returning freed memory to the operating system."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache


def trim_heap() -> None:
    """Return freed memory to the system; only glibc needs and offers it. Takes a few milliseconds.

    Batches differ in shape, so freed tensors leave gaps: some 30 MB per update of a block drafter.
    """
    trim = _malloc_trim()
    if trim is not None:
        trim(0)


@cache
def _malloc_trim() -> Callable[[int], int] | None:
    try:
        return ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError, TypeError):  # musl and macOS lack the function, Windows the library
        return None
