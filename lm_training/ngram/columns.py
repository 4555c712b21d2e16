"""Long arrays that are made piece by piece, in memory or in files.

Whoever makes one does not care which: a *store* hands out columns to append to, and says where they are in the end.
Arrays in files are mapped, so that the system may drop from memory what is not being looked at.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal, Protocol

import numpy as np
import numpy.typing as npt

from fst.files import release


class Column(Protocol):
    """An array that grows by its first axis."""

    def append(self, piece: np.ndarray) -> None:
        """Add to the end."""
        ...

    def finish(self) -> np.ndarray:
        """The whole array."""
        ...


class Store(Protocol):
    """Makes arrays, each under a name of its own."""

    def column(self, name: str, dtype: npt.DTypeLike, width: int | None = None) -> Column:
        """An array ``[n]``, or ``[n, width]``, that begins empty."""
        ...

    def zeros(self, name: str, length: int) -> np.ndarray:
        """``[length]`` float64 zeros to be written to."""
        ...

    def release(self) -> None:
        """Everything so far may leave memory; what is read again comes back by itself."""
        ...


class _MemoryColumn:
    def __init__(self, empty: np.ndarray) -> None:
        self.pieces = [empty]

    def append(self, piece: np.ndarray) -> None:
        self.pieces.append(piece)

    def finish(self) -> np.ndarray:
        return self.pieces[1] if len(self.pieces) == 2 else np.concatenate(self.pieces)


class InMemory:
    """A store that keeps arrays in memory; names mean nothing to it."""

    def column(self, name: str, dtype: npt.DTypeLike, width: int | None = None) -> Column:
        return _MemoryColumn(np.empty((0,) if width is None else (0, width), dtype))

    def zeros(self, name: str, length: int) -> np.ndarray:
        return np.zeros(length)

    def release(self) -> None:
        pass


class _FileColumn:
    """A ``.npy`` file whose header is written again when its length is known; numpy leaves room for that."""

    def __init__(self, path: Path, empty: np.ndarray, mapped: list[np.ndarray]) -> None:
        self.path, self.empty, self.mapped, self.length = path, empty, mapped, 0
        self.file = open(path, "wb")  # noqa: SIM115
        self._header()

    def _header(self) -> None:
        shape = (self.length, *self.empty.shape[1:])
        facts = {"descr": np.lib.format.dtype_to_descr(self.empty.dtype), "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(self.file, facts)

    def append(self, piece: np.ndarray) -> None:
        try:
            self.file.write(np.ascontiguousarray(piece, self.empty.dtype).data)
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(self.path)) from error
        self.length += len(piece)

    def finish(self) -> np.ndarray:
        try:
            self.file.seek(0)
            self._header()
            self.file.close()
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(self.path)) from error
        self.mapped.append(load_array(self.path))
        return self.mapped[-1]


class OnDisk:
    """A store of ``.npy`` files in a directory, mapped when they are finished."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.mapped: list[np.ndarray] = []

    def _path(self, name: str) -> Path:
        return self.directory / f"{name}.npy"

    def column(self, name: str, dtype: npt.DTypeLike, width: int | None = None) -> Column:
        return _FileColumn(self._path(name), np.empty((0,) if width is None else (0, width), dtype), self.mapped)

    def zeros(self, name: str, length: int) -> np.ndarray:
        column = self.column(name, np.float64)
        for begin in range(0, length, 1 << 20):
            column.append(np.zeros(min(length - begin, 1 << 20)))
        column.finish()
        array = load_array(self._path(name), "r+")
        self.mapped.append(array)
        return array

    def release(self) -> None:
        for array in self.mapped:
            release(array)


def load_array(path: Path, mode: Literal["r", "r+"] = "r") -> np.ndarray:
    """Map a ``.npy`` file; an empty array, which cannot be mapped, is read."""
    array: np.ndarray = np.load(path, mmap_mode=mode, allow_pickle=False)
    return array
