"""Lattice files, a block at a time: memory does not grow with the size of a file or the number of files.

A *text* is what one prompt's lattices belong to. Files that number their texts (``sequence``) hold the lattices of a
text together, one for each position in order; replays of decodes and paired intervals need that.

A *data set* is a file, or a directory of files as ``latticebpd lattices`` writes it in shards.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from itertools import chain
from typing import IO, Any, TypeVar

import numpy as np

from fst.files import PathLike
from latticebpd.checks import expect
from latticebpd.lattices.lattice_set import EXPECTED, LatticeSet, read_words
from latticebpd.lattices.npz import check_names, opened
from latticebpd.lattices.sausage import PADDING
from latticebpd.lattices.shards import shard_files

BLOCK = 16384
"""Lattices read at a time, at most; fewer where they are large, as with transitions."""
LARGEST_BLOCK = 1 << 28
"""Bytes of them."""
UNIT = 256
"""Neighbouring lattices that are one unit where texts are not known: neighbours are alike."""
Item = TypeVar("Item")


@dataclass(frozen=True, order=True)
class Shard:
    """Part ``index`` of ``count``: every unit belongs to just one part."""

    index: int = 0
    count: int = 1

    def __post_init__(self) -> None:
        expect(self.count >= 1 and 0 <= self.index < self.count, "a shard i/n with 0 <= i < n", self)

    def __str__(self) -> str:
        return f"{self.index}/{self.count}"

    @classmethod
    def parse(cls, text: str) -> Shard:
        """The shard that ``i/n`` names, i from 0."""
        index, slash, count = text.partition("/")
        expect(slash and index.isdigit() and count.isdigit(), "a shard as i/n, such as 0/4", repr(text))
        return cls(int(index), int(count))

    def units(self, blocks: Iterable[LatticeSet]) -> Iterator[tuple[LatticeSet, np.ndarray]]:
        """The part's lattices, and ``[n]`` the number of each one's unit: its text, or ``UNIT`` neighbours."""
        seen = 0
        for block in blocks:
            numbers = (seen + np.arange(len(block))) // UNIT if block.sequence is None else block.sequence
            seen += len(block)
            own = numbers % self.count == self.index
            if own.any():
                yield (block, numbers) if own.all() else (block.take(own), numbers[own])


def blocks(paths: Sequence[PathLike]) -> Iterator[LatticeSet]:
    """The lattices of ``paths``, files or directories of shards, at most ``BLOCK`` at a time; the ValueError for a path
    with a damaged file, missing shards or no lattice names it."""
    texts = 0
    for path in paths:
        lattices = 0
        for file in shard_files(path):
            last = -1
            for block in _blocks_of(file):
                lattices += len(block)
                if block.sequence is None:
                    yield block
                    continue
                # Numbers continue from file to file, so that texts of two files stay apart.
                yield replace(block, sequence=block.sequence + texts) if texts else block
                last = max(last, int(block.sequence.max(initial=-1)))
            texts += last + 1
        expect(lattices, "at least one lattice", of=path)


def first_and_all(items: Iterator[Item]) -> tuple[Item, Iterator[Item]]:
    """The first block, and all of them; ValueError where there is none."""
    for first in items:
        return first, chain([first], items)
    raise ValueError("expected at least one lattice, got files without any")


def text_numbers(paths: Sequence[PathLike]) -> tuple[int, np.ndarray | None]:
    """The number of lattices in ``paths``, and ``[n]`` the text of each, as `blocks` numbers them; None if not known.

    Raises ValueError where only some files number their texts. Nothing else of the files is read.
    """
    numbers: list[np.ndarray] = []
    texts = lattices = 0
    for path in paths:
        before = lattices
        for file in shard_files(path):
            with _opened(file) as (columns, _):
                lattices += columns["tokens"].length
                if (rows := columns.get("sequence")) is not None and rows.length:
                    fits, got = not rows.shape and rows.dtype.kind in "iu", f"{rows.dtype} [n, {rows.shape}]"
                    expect(fits, "integers [n]", got, of="sequence")
                    numbers.append(rows.take(rows.length).astype(np.int64) + texts)
                    texts = max(texts, int(numbers[-1].max()) + 1)
        expect(lattices != before, "at least one lattice", of=path)
    wanted = "files that all number their texts, or none that does"
    expect(not 0 < sum(map(len, numbers)) < lattices, wanted, "both kinds", "tune on one kind")
    return lattices, np.concatenate(numbers) if numbers else None


def required_texts(block: LatticeSet, reason: str) -> np.ndarray:
    """``block.sequence``; ValueError where there is none."""
    if block.sequence is None:
        raise ValueError(f"expected lattices that tell their texts, {reason}, got a file without `sequence`")
    return block.sequence


def without_prompts(blocks: Iterable[LatticeSet]) -> Iterator[LatticeSet]:
    """The blocks with padding for the prompts in the contexts: a language model then sees only the answers.

    The first lattice of a text has one token of the answer as its context, the next one token more. Raises ValueError
    for lattices without texts.
    """
    text, known = -1, 0
    for block in blocks:
        sequence = required_texts(block, "to leave prompts out of the contexts")
        first = np.append(True, sequence[1:] != sequence[:-1])
        own = np.arange(len(block)) - np.maximum.accumulate(np.where(first, np.arange(len(block)), 0))
        if len(block):
            own += np.where((sequence == text) & (sequence[0] == text), known, 0)
            text, known = int(sequence[-1]), int(own[-1]) + 1
        width = block.context.shape[1]
        answer = np.arange(width) >= width - 1 - own[:, None]
        yield replace(block, context=np.where(answer, block.context, PADDING))


def with_progress(blocks: Iterable[LatticeSet], on_block: Callable[[int], object]) -> Iterator[LatticeSet]:
    """The blocks; after each, ``on_block`` is called with its number of lattices."""
    for block in blocks:
        yield block
        on_block(len(block))


def num_lattices(paths: Sequence[PathLike]) -> int:
    """Number of lattices in the files and directories; only headers are read. Errors as of :func:`blocks`."""
    total = 0
    for file in (file for path in paths for file in shard_files(path)):
        with _opened(file) as (columns, _):
            total += columns["tokens"].length
    return total


def _blocks_of(path: PathLike) -> Iterator[LatticeSet]:
    with _opened(path) as (columns, words):
        most = max(1, min(BLOCK, LARGEST_BLOCK // max(1, sum(rows.row for rows in columns.values()))))
        for begin in range(0, columns["tokens"].length, most):
            count = min(most, columns["tokens"].length - begin)
            arrays: dict[str, Any] = {name: rows.take(count) for name, rows in columns.items()}
            yield LatticeSet(**arrays, **words)


@contextmanager
def _opened(path: PathLike) -> Iterator[tuple[dict[str, _Rows], dict[str, Any]]]:
    """A file's arrays, to be read row by row, and its words; any fault of the file becomes one kind of error."""
    with opened(path, EXPECTED) as archive, ExitStack() as files:
        names = check_names(archive, LatticeSet.ARRAYS)
        columns = {}
        for name in (*LatticeSet.ARRAYS, *LatticeSet.OPTIONAL):
            if name in names:
                size = archive.getinfo(f"{name}.npy").file_size
                columns[name] = _Rows(name, files.enter_context(archive.open(f"{name}.npy")), size)
        if len({rows.length for rows in columns.values()}) != 1:
            lengths = ", ".join(f"{name} {rows.length}" for name, rows in columns.items())
            raise ValueError(f"expected arrays of one length, got {lengths}")
        yield columns, read_words(archive)


class _Rows:
    """An array in an ``.npy`` stream, read row by row."""

    def __init__(self, name: str, file: IO[bytes], size: int) -> None:
        self.name, self.file = name, file
        version = np.lib.format.read_magic(file)
        read_header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, fortran, self.dtype = read_header(file)
        wanted = "an array of numbers in C order with at least one axis"
        expect(shape and not fortran and not self.dtype.hasobject, wanted, f"{self.dtype} {shape}", of=name)
        self.length, self.shape = int(shape[0]), tuple(int(size) for size in shape[1:])
        self.row = math.prod(self.shape) * self.dtype.itemsize
        expect(0 <= self.row <= 1 << 26, "rows of at most 64 MiB", f"{self.dtype} {self.shape}", of=name)
        fits = self.length >= 0 and self.length * self.row <= size and (name != "tokens" or self.row)
        expect(fits, f"{size} bytes of rows at most, none empty", f"{name} {shape} of {self.dtype}")

    def take(self, count: int) -> np.ndarray:
        """The next ``count`` rows."""
        wanted = count * self.row
        data = bytearray(self.file.read(wanted))
        got = f"{len(data)} bytes; the file is truncated"
        expect(len(data) == wanted, f"{wanted} more bytes of rows", got, of=self.name)
        return np.frombuffer(data, dtype=self.dtype).reshape(count, *self.shape)
