"""Long arrays that grow by pieces, in memory or in mapped ``.npy`` files, which the system may drop from memory."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt

from fst.files import errors_naming, release


class GrowingArray:
    """An array that grows by its first axis; of a file, the header is rewritten when the length is known."""

    def __init__(self, store: ArrayStore, name: str, empty: np.ndarray) -> None:
        self.store, self.empty, self.length = store, empty, 0
        self.pieces: list[np.ndarray] = []
        if store.directory is not None:
            self.path = store.directory / f"{name}.npy"
            self.file = open(self.path, "wb")  # noqa: SIM115
            self._write_header()

    def append(self, piece: np.ndarray) -> None:
        self.length += len(piece)
        if self.store.directory is None:
            self.pieces.append(piece)
            return
        with errors_naming(self.path, self.path):
            self.file.write(np.ascontiguousarray(piece, self.empty.dtype).data)

    def finish(self, mode: Literal["r", "r+"] = "r") -> np.ndarray:
        """The array, mapped in this mode if it is in a file."""
        if self.store.directory is None:
            return self.pieces[0] if len(self.pieces) == 1 else np.concatenate([self.empty, *self.pieces])
        with errors_naming(self.path, self.path):
            self.file.seek(0)
            self._write_header()
            self.file.close()
        self.store.mapped.append(np.load(self.path, mode))
        return self.store.mapped[-1]

    def _write_header(self) -> None:
        shape = (self.length, *self.empty.shape[1:])
        header = {"descr": np.lib.format.dtype_to_descr(self.empty.dtype), "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(self.file, header)


class ArrayStore:
    """Makes arrays, as ``.npy`` files of a directory; without one, in memory."""

    def __init__(self, directory: Path | None = None) -> None:
        self.directory = directory
        self.mapped: list[np.ndarray] = []

    def column(self, name: str, dtype: npt.DTypeLike, width: int | None = None) -> GrowingArray:
        """An empty array ``[0]``, or ``[0, width]``, to append to."""
        return GrowingArray(self, name, np.empty((0,) if width is None else (0, width), dtype))

    def put(self, name: str, values: np.ndarray) -> np.ndarray:
        """Store a finished array."""
        column = self.column(name, values.dtype, *values.shape[1:])
        column.append(values)
        return column.finish()

    def zeros(self, name: str, length: int) -> np.ndarray:
        """``[length]`` float64 zeros to be written to."""
        column = self.column(name, np.float64)
        for begin in range(0, length, 1 << 20):
            column.append(np.zeros(min(length - begin, 1 << 20)))
        return column.finish("r+")

    def release(self) -> None:
        """Let the pages of all arrays leave memory; those that are read again come back from the files."""
        for array in self.mapped:
            release(array)
