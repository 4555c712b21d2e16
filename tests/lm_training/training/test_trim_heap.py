"""Freed memory is given back."""

from __future__ import annotations

import ctypes
from pathlib import Path

import pytest

from lm_training.training.training_loop import _malloc_trim, trim_heap


def resident() -> int:
    """Bytes of memory that this process holds."""
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("RssAnon"))


@pytest.mark.skipif(_malloc_trim() is None, reason="the C library is not glibc")
def test_gaps_between_living_memory_are_given_back() -> None:
    libc = ctypes.CDLL(None)
    libc.malloc.restype, libc.malloc.argtypes, libc.free.argtypes = (
        ctypes.c_void_p,
        [ctypes.c_size_t],
        [ctypes.c_void_p],
    )
    size, count = 100_000, 2000  # small enough to lie on the heap

    def block() -> int:
        address = libc.malloc(size)
        ctypes.memset(address, 1, size)
        return int(address)

    blocks = [block() for _ in range(count)]
    kept = blocks[::20]
    for number, each in enumerate(blocks):
        if number % 20:
            libc.free(each)
    before = resident()
    trim_heap()
    after = resident()
    for each in kept:
        libc.free(each)
    assert before - after > 0.5 * size * count
