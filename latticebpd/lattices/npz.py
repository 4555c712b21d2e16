"""Reading untrusted ``.npz`` files: damage is a ``ValueError``, and memory use is bounded by file size."""

from __future__ import annotations

import os
import struct
import tokenize
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from fst.files import PathLike, refuse_bomb

DAMAGE = (
    ValueError, KeyError, EOFError, IndexError, TypeError, SyntaxError, tokenize.TokenError, OverflowError,
    MemoryError, RecursionError,
    OSError, zipfile.BadZipFile, zlib.error, struct.error, NotImplementedError,
)  # fmt: skip
"""What numpy and zipfile raise for damaged and foreign files."""

ENCRYPTED = 1
"""Bit of a member's flags."""
COMPRESSIONS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
"""Those that numpy writes."""


@contextmanager
def opened(path: PathLike, expected: str) -> Iterator[zipfile.ZipFile]:
    """The archive; damage noticed here or inside the ``with`` block is a ValueError that begins with the file's name.

    expected: what the file should be, for the message: "a lattice file".
    """
    try:
        with zipfile.ZipFile(path) as archive:
            for member in archive.infolist():
                if member.flag_bits & ENCRYPTED or member.compress_type not in COMPRESSIONS:
                    raise ValueError(f"{member.filename} is encrypted, or packed otherwise than numpy does")
            refuse_bomb(Path(path).stat().st_size, sum(member.file_size for member in archive.infolist()))
            yield archive
    except FileNotFoundError:
        raise
    except DAMAGE as error:
        reason = str(error) or type(error).__name__
        raise ValueError(f"{os.fspath(path)}: expected {expected}: {reason}; is the copy complete?") from error


def is_intact(path: PathLike) -> bool:
    """Whether a file is there and its arrays are as they were written, by the archive's checksums."""
    try:
        with opened(path, "arrays") as archive:
            return archive.testzip() is None
    except (ValueError, FileNotFoundError):
        return False


def check_names(archive: zipfile.ZipFile, required: Sequence[str]) -> set[str]:
    """The names of an archive's arrays; ValueError if a required one is missing."""
    names = {name.removesuffix(".npy") for name in archive.namelist()}
    if missing := [name for name in required if name not in names]:
        raise ValueError(f"expected the arrays {', '.join(required)}; missing: {', '.join(missing)}")
    return names


def read_arrays(archive: zipfile.ZipFile, required: Sequence[str], optional: Sequence[str] = ()) -> dict[str, Any]:
    """The required arrays of an :func:`opened` archive and those of the optional ones that it has."""
    names, arrays = check_names(archive, required), dict[str, Any]()
    for name in (*required, *optional):
        if name in names:
            with archive.open(f"{name}.npy") as file:
                arrays[name] = np.lib.format.read_array(file, allow_pickle=False)
    return arrays
