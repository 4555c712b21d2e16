"""Reading ``.npz`` files that anyone may have written: damage is a ``ValueError``, and none takes more memory than its size warrants."""

from __future__ import annotations

import lzma
import os
import struct
import tokenize
import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np

RATIO, FREE = 64, 1 << 26
"""A file may unpack to so many times its size, and to so many bytes whatever its size."""

_DAMAGE = (
    ValueError, KeyError, EOFError, IndexError, TypeError, SyntaxError, tokenize.TokenError, OverflowError, UnicodeError, MemoryError,
    zipfile.BadZipFile, zlib.error, lzma.LZMAError, struct.error, NotImplementedError, RuntimeError,
)  # fmt: skip
"""What numpy and zipfile raise at damaged, encrypted and foreign files."""


def read_arrays(path: str | os.PathLike[str], names: Sequence[str], expected: str, optional: Sequence[str] = ()) -> dict[str, np.ndarray]:
    """The arrays of these names; of the optional ones, those that there are.

    Args:
        expected: what the file should be, for the message: "sequences as `latticebpd distill` writes them".

    Raises:
        ValueError: anything else; the message begins with the file's name.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            unpacked = sum(member.file_size for member in archive.infolist())
        size = Path(path).stat().st_size
        if unpacked > max(FREE, RATIO * size):
            raise ValueError(f"its {size} bytes would unpack to {unpacked}")
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in (*names, *(name for name in optional if name in file))}
        for name, array in arrays.items():
            if not isinstance(array, np.ndarray):  # numpy hands on the bytes of what it does not know
                raise ValueError(f"{name} is no array")
        return arrays
    except _DAMAGE as error:
        raise ValueError(f"{os.fspath(path)}: expected {expected}: {error}; is the copy complete?") from error
