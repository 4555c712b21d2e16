"""Reading ``.npz`` files that anyone may have written: damage is a ``ValueError``, and none takes more memory than its
size warrants."""

from __future__ import annotations

import os
import struct
import tokenize
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from fst.files import refuse_bomb

DAMAGE = (
    ValueError, KeyError, EOFError, IndexError, TypeError, SyntaxError, tokenize.TokenError, OverflowError,
    MemoryError, RecursionError,
    OSError, zipfile.BadZipFile, zlib.error, struct.error, NotImplementedError,
)  # fmt: skip
"""What numpy and zipfile raise at damaged and foreign files."""

ENCRYPTED = 1
"""A member's flag."""


@contextmanager
def opened(path: str | os.PathLike[str], expected: str) -> Iterator[zipfile.ZipFile]:
    """The archive; whatever is found wrong with it here or by whoever reads it is one kind of error.

    Args:
        expected: what the file should be, for the message: "a lattice file".

    Raises:
        ValueError: the message begins with the file's name.
        FileNotFoundError: there is no such file.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            for member in archive.infolist():
                if member.flag_bits & ENCRYPTED or member.compress_type not in (
                    zipfile.ZIP_STORED,
                    zipfile.ZIP_DEFLATED,
                ):
                    raise ValueError(f"{member.filename} is encrypted, or packed otherwise than numpy does")
            refuse_bomb(Path(path).stat().st_size, sum(member.file_size for member in archive.infolist()))
            yield archive
    except FileNotFoundError:
        raise
    except DAMAGE as error:
        raise ValueError(
            f"{os.fspath(path)}: expected {expected}: {error or type(error).__name__}; is the copy complete?"
        ) from error


def check_names(archive: zipfile.ZipFile, names: Sequence[str]) -> set[str]:
    """The names of the arrays in an archive; ValueError where some of ``names`` are not among them."""
    there = {name.removesuffix(".npy") for name in archive.namelist()}
    if missing := [name for name in names if name not in there]:
        raise ValueError(f"expected the arrays {', '.join(names)}; missing: {', '.join(missing)}")
    return there


def read_arrays(
    path: str | os.PathLike[str], names: Sequence[str], expected: str, optional: Sequence[str] = ()
) -> dict[str, np.ndarray]:
    """The arrays of these names, and those of the optional ones that there are; errors as of :func:`opened`."""
    with opened(path, expected) as archive:
        there = check_names(archive, names)
        return {name: read_array(archive, name) for name in (*names, *optional) if name in there}


def read_array(archive: zipfile.ZipFile, name: str) -> np.ndarray:
    """One array of an archive that :func:`opened` has opened."""
    with archive.open(f"{name}.npy") as file:
        array: np.ndarray = np.lib.format.read_array(file, allow_pickle=False)
    return array
