"""Writing files whole or not at all; letting go of mapped ones."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np


@contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a temporary path beside ``path``; rename it to ``path`` on success, delete it on any error.

    A reader therefore sees the old file or the complete new one, never a half.
    """
    path = Path(path)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        yield temporary
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


LARGEST_SMALL_FILE = 64 << 20
LARGEST_RATIO = 64


def refuse_bomb(packed: int, unpacked: int) -> None:
    """ValueError where a compressed file unpacks to far more than any real one does: it is damaged, or made to fill the memory.

    packed, unpacked: bytes. Text shrinks to a tenth, arrays of numbers to a third; up to `LARGEST_SMALL_FILE` anything may come out.
    """
    if unpacked > LARGEST_SMALL_FILE and unpacked > LARGEST_RATIO * packed:
        raise ValueError(
            f"its {packed} bytes would unpack to {unpacked} or more, over {LARGEST_RATIO} times as many; "
            "if that is what you want, store it uncompressed"
        )


def release(array: np.ndarray) -> None:
    """Let the pages of a mapped array go; they come back from the file when they are needed.  Other arrays stay as they are."""
    mapped: object = array
    while isinstance(mapped, np.ndarray):
        mapped = mapped.base
    if isinstance(mapped, mmap.mmap):
        mapped.madvise(mmap.MADV_DONTNEED)
