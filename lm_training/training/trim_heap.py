"""Memory that a process has freed and still holds."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache


def trim_heap() -> None:
    """Give freed memory back to the system, where the C library is glibc, which keeps it.

    Batches of texts have another shape at every update, so freed tensors leave gaps that the next ones do not fit: an
    update of a block drafter left some 30 MB behind. It takes a few milliseconds.
    """
    trim = _malloc_trim()
    if trim is not None:
        trim(0)


@cache
def _malloc_trim() -> Callable[[int], int] | None:
    try:
        return ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError, TypeError):  # musl and macOS have no such function, Windows no such library
        return None
