"""Lattice files, a block at a time: memory does not grow with the size of a file or the number of files.

A *text* is what one prompt's lattices belong to.  Files that number their texts (``sequence``) hold the lattices of a
text together, one for each position in order; that is what walks and paired intervals need.
"""

from __future__ import annotations

import os
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import IO

import numpy as np

from latticebpd.lattice import LatticeSet

BLOCK = 4096
"""Lattices read at a time."""


@dataclass(frozen=True)
class Shard:
    """Part ``index`` of ``count``: every text, or where texts are not known every block, belongs to just one part."""

    index: int = 0
    count: int = 1

    def __post_init__(self) -> None:
        if self.count < 1 or not 0 <= self.index < self.count:
            raise ValueError(f"expected a shard i/n with 0 <= i < n, got {self.index}/{self.count}")

    @classmethod
    def parse(cls, text: str) -> Shard:
        """The shard that ``i/n`` names, i from 0."""
        index, slash, count = text.partition("/")
        if not (slash and index.isdigit() and count.isdigit()):
            raise ValueError(f"expected a shard as i/n, such as 0/4, got {text!r}")
        return cls(int(index), int(count))


def blocks(paths: Sequence[str | os.PathLike[str]], shard: Shard | None = None) -> Iterator[LatticeSet]:
    """All lattices of ``paths`` that belong to the shard, at most ``BLOCK`` at a time.

    Raises:
        ValueError: a file that is no lattice file, is truncated, or holds what no lattice may; the message names it.
        FileNotFoundError: there is no such file.
    """
    shard = shard or Shard()
    number = texts = 0
    for path in paths:
        last = -1
        for block in _blocks_of(path):
            if block.sequence is None:
                if number % shard.count == shard.index:
                    yield block
            else:
                # Texts are numbered on from file to file, so that equal numbers of two files stay apart.
                own = block.take((block.sequence + texts) % shard.count == shard.index)
                if len(own):
                    assert own.sequence is not None
                    yield replace(own, sequence=own.sequence + texts)
                last = max(last, int(block.sequence.max(initial=-1)))
            number += 1
        texts += last + 1


def _blocks_of(path: str | os.PathLike[str]) -> Iterator[LatticeSet]:
    try:
        with zipfile.ZipFile(path) as archive, ExitStack() as files:
            names = {name.removesuffix(".npy") for name in archive.namelist()}
            missing = [name for name in LatticeSet.ARRAYS if name not in names]
            if missing:
                raise ValueError(f"expected the arrays {', '.join(LatticeSet.ARRAYS)}; missing: {', '.join(missing)}")
            fingerprint = None
            if "fingerprint" in names:
                with archive.open("fingerprint.npy") as file:
                    fingerprint = str(np.lib.format.read_array(file, allow_pickle=False))
            columns = {
                name: _Rows(files.enter_context(archive.open(f"{name}.npy"))) for name in (*LatticeSet.ARRAYS, "sequence") if name in names
            }
            lengths = {name: rows.length for name, rows in columns.items()}
            if len(set(lengths.values())) != 1:
                raise ValueError(f"expected arrays of one length, got {', '.join(f'{name} {n}' for name, n in lengths.items())}")
            for begin in range(0, lengths["tokens"], BLOCK):
                count = min(BLOCK, lengths["tokens"] - begin)
                yield LatticeSet(**{name: rows.take(count) for name, rows in columns.items()}, fingerprint=fingerprint)
    except FileNotFoundError:
        raise
    except (ValueError, OSError, EOFError, KeyError, zipfile.BadZipFile, zlib.error, NotImplementedError, MemoryError) as error:
        raise ValueError(f"{path}: not a lattice file: {error}") from error


class _Rows:
    """An array in an ``.npy`` stream, taken row by row."""

    def __init__(self, file: IO[bytes]) -> None:
        self.file = file
        version = np.lib.format.read_magic(file)
        read_header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, fortran, self.dtype = read_header(file)
        if not shape or fortran or self.dtype.hasobject:
            raise ValueError(f"expected an array of numbers in C order with at least one axis, got {self.dtype} {shape}")
        self.length, self.shape = int(shape[0]), tuple(int(size) for size in shape[1:])

    def take(self, count: int) -> np.ndarray:
        """The next ``count`` rows."""
        row = int(np.prod(self.shape, dtype=np.int64)) * self.dtype.itemsize
        if row < 0 or row > 1 << 26:
            raise ValueError(f"expected rows of at most 64 MiB, got {self.dtype} {self.shape}")
        data = bytearray()
        while len(data) < count * row:
            piece = self.file.read(min(count * row - len(data), 1 << 24))
            if not piece:
                raise ValueError(f"expected {count} more rows of {row} bytes, got {len(data)} bytes; the file is truncated")
            data += piece
        return np.frombuffer(data, dtype=self.dtype).reshape(count, *self.shape)
