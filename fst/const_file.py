"""OpenFst files: ``const`` ones written, and mapped as they lie on disk; ``vector`` ones read into the same records.

The layout, all little-endian, strings as an int32 length and bytes:

    header    int32 magic, string "const", string "standard", int32 version, int32 flags, uint64 properties,
              int64 start, int64 number of states, int64 number of arcs
    symbols   the input table, then the output table, as far as the flags announce them
    states    20 bytes each, `STATE`; state ``s`` owns ``arcs[pos : pos + narcs]``
    arcs      16 bytes each, `ARC`; a weight is a cost, -log p

States and arcs begin at multiples of 16 bytes in *aligned* files (version 1, the kind written here) and wherever the
block before them ended in others (version 2). A ``vector`` file has the same header, with "vector" in it, and then for
each state its final weight, an int64 number of arcs and the arcs.

Neither kind is read by pywrapfst. Of 400 damaged ``vector`` files, random bytes changed or the end cut off, this
reader loads or refuses every one in one line; OpenFst's own ends the process in 193 (127 aborts, 66 segmentation
faults) and takes over 10 s in 3.

Source: OpenFst 1.8, ``fst/const-fst.h``, ``fst/vector-fst.h``, ``fst/fst.cc``, ``fst/symbol-table.cc``.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from mmap import ACCESS_READ
from mmap import mmap as Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from fst import _core
from fst.printable import expect

STATE = np.dtype([("final", "<f4"), ("pos", "<u4"), ("narcs", "<u4"), ("niepsilons", "<u4"), ("noepsilons", "<u4")])
ARC = np.dtype([("ilabel", "<i4"), ("olabel", "<i4"), ("weight", "<f4"), ("nextstate", "<i4")])
Records = np.ndarray[Any, np.dtype[np.void]]
Ints = npt.NDArray[np.int64]

MAGIC = 2125659606
SYMBOLS_MAGIC = 2125658996
ALIGNED_VERSION, UNALIGNED_VERSION = 1, 2
VECTOR_VERSION = 2
HAS_INPUT_SYMBOLS, HAS_OUTPUT_SYMBOLS, IS_ALIGNED = 1, 2, 4
ALIGNMENT = 16

EXPANDED = 0x1
ACCEPTOR = 0x10000
INPUT_DETERMINISTIC, OUTPUT_DETERMINISTIC = 0x40000, 0x100000
EPSILONS, INPUT_EPSILONS, OUTPUT_EPSILONS = 0x400000, 0x1000000, 0x4000000
NO_EPSILONS, NO_INPUT_EPSILONS, NO_OUTPUT_EPSILONS = 0x800000, 0x2000000, 0x8000000
INPUT_SORTED, OUTPUT_SORTED = 0x10000000, 0x40000000


@dataclass(frozen=True, eq=False)
class Symbols:
    """The symbol table of a file, its strings read from the file on demand.

    labels, begins, lengths: ``[n]`` int64, the label of each symbol and where in ``data`` its bytes are.
    """

    name: str
    data: Mapping | bytes
    labels: Ints
    begins: Ints
    lengths: Ints

    def of_label(self) -> dict[int, str]:
        """The symbol of every label; raises ValueError for one that is not in UTF-8."""
        entries = zip(self.labels.tolist(), self.begins.tolist(), self.lengths.tolist(), strict=True)
        try:
            return {label: self.data[begin : begin + length].decode() for label, begin, length in entries}
        except UnicodeDecodeError as error:
            raise ValueError(f"expected symbols in UTF-8 ({error})") from None

    def find(self, symbol: str) -> int | None:
        """The label of ``symbol``, if it is listed; only candidates of its length and first byte are looked at."""
        encoded = symbol.encode()
        candidates = np.flatnonzero(self.lengths == len(encoded))
        first_bytes = np.frombuffer(self.data, np.uint8)[self.begins[candidates]]
        for at in candidates[first_bytes == encoded[0]]:
            begin = int(self.begins[at])
            if self.data[begin : begin + len(encoded)] == encoded:
                return int(self.labels[at])
        return None


@dataclass(frozen=True, eq=False)
class FstFile:
    """What an OpenFst file holds.

    states: ``[s]`` records of `STATE`; arcs: ``[a]`` records of `ARC`; both read-only and mapped if the file is
        ``const``.
    start: the start state; symbols: the input symbol table, if embedded.
    properties: what the header claims to be true of the automaton, such as `ACCEPTOR`.
    """

    states: Records
    arcs: Records
    start: int
    symbols: Symbols | None
    properties: int


class _Cursor:
    """Reads the fields of a mapped file one after another, refusing to run past its end."""

    def __init__(self, data: Mapping | bytes, path: str) -> None:
        self.data, self.path, self.offset = data, path, 0

    def take(self, layout: str) -> tuple[Any, ...]:
        size = struct.calcsize(layout)
        self.need(size)
        values = struct.unpack_from(layout, self.data, self.offset)
        self.offset += size
        return values

    def text(self) -> str:
        (length,) = self.take("<i")
        place = f"{self.path}: byte {self.offset - 4}"
        expect(length >= 0, "the length of a string", length, "the file is damaged", of=place)
        self.need(length)
        self.offset += length
        try:
            return self.data[self.offset - length : self.offset].decode()
        except UnicodeDecodeError as error:
            raise ValueError(f"{self.path}: byte {self.offset}: expected a symbol in UTF-8 ({error})") from None

    def need(self, size: int) -> None:
        if self.offset + size > len(self.data):
            problem = f"but the file ends at {len(self.data)}; it is truncated or damaged: make it again"
            raise ValueError(f"{self.path}: expected {size} bytes at byte {self.offset}, {problem}")


def read_fst(path: str | os.PathLike[str], mmap: bool = True) -> FstFile:
    """Read a ``const`` or ``vector`` file over the tropical semiring.

    A ``const`` file is mapped, or read into memory where ``mmap`` is False; its states and arcs are not checked.
    Raises ValueError for other kinds of FST and for sizes that the file cannot hold.
    """
    with open(path, "rb") as file:
        expect(os.fstat(file.fileno()).st_size, "an OpenFst file", "an empty one", of=path)
        return parse_fst(Mapping(file.fileno(), 0, access=ACCESS_READ) if mmap else file.read(), str(path))


def parse_fst(data: Mapping | bytes, path: str) -> FstFile:
    """The automaton in the bytes of a file; ``path`` opens every message of an error."""
    cursor = _Cursor(data, path)
    (magic,) = cursor.take("<i")
    expect(magic == MAGIC, f"OpenFst's magic number {MAGIC}", magic, "is this an FST?", of=path)
    fst_type, arc_type = cursor.text(), cursor.text()
    version, flags, properties, start, num_states, num_arcs = cursor.take("<iiQqqq")
    remedy = "convert them with fstmap --map_type=to_standard"
    expect(arc_type == "standard", "standard arcs", repr(arc_type[:40]), remedy, of=path)
    versions = {"const": (ALIGNED_VERSION, UNALIGNED_VERSION), "vector": (VECTOR_VERSION,)}.get(fst_type)
    if versions is None:
        got = f"{fst_type[:40]!r}; convert it with fstconvert --fst_type=const"
        raise ValueError(f"{path}: expected a const FST, got {got}")
    expect(version in versions, f"version {versions[-1]} of the {fst_type} type", version, of=path)
    symbols = _read_symbols(cursor) if flags & HAS_INPUT_SYMBOLS else None
    if flags & HAS_OUTPUT_SYMBOLS:
        _read_symbols(cursor)
    if fst_type == "const":
        aligned = version == ALIGNED_VERSION or bool(flags & IS_ALIGNED)
        states = _records(cursor, STATE, num_states, aligned)
        arcs = _records(cursor, ARC, num_arcs, aligned)
    else:
        states, arcs = _read_vector(cursor, num_states)
    remedy = "an empty automaton is no language model"
    expect(0 <= start < len(states), f"a start state below {len(states)}", start, remedy, of=path)
    return FstFile(states, arcs, start, symbols, properties)


def _read_symbols(cursor: _Cursor) -> Symbols:
    (magic,) = cursor.take("<i")
    place = f"{cursor.path}: byte {cursor.offset - 4}"
    expect(magic == SYMBOLS_MAGIC, f"a symbol table ({SYMBOLS_MAGIC})", magic, of=place)
    name = cursor.text()
    _, count = cursor.take("<qq")
    try:
        labels, begins, lengths, cursor.offset = _core.read_symbols(cursor.data, cursor.offset, count)
    except ValueError as error:
        raise ValueError(f"{cursor.path}: {error}") from None
    return Symbols(name, cursor.data, labels, begins, lengths)


def _records(cursor: _Cursor, dtype: np.dtype[np.void], count: int, aligned: bool) -> Records:
    if aligned:
        cursor.offset += -cursor.offset % ALIGNMENT
    expect(0 <= count < 2**32, "a number of states and arcs below 2^32", count, "the header is damaged", of=cursor.path)
    cursor.need(count * dtype.itemsize)
    records = np.frombuffer(cursor.data, dtype, count, cursor.offset) if count else np.empty(0, dtype)
    cursor.offset += count * dtype.itemsize
    return records


def _read_vector(cursor: _Cursor, num_states: int) -> tuple[Records, Records]:
    """The states of a ``vector`` file one after another; a negative number of them means: up to the end of the file."""
    finals: list[float] = []
    rows: list[Records] = []
    while len(finals) != num_states and not (num_states < 0 and cursor.offset == len(cursor.data)):
        final, count = cursor.take("<fq")
        finals.append(final)
        rows.append(_records(cursor, ARC, count, aligned=False))
    states = np.zeros(len(finals), STATE)
    states["final"], states["narcs"] = finals, list(map(len, rows))
    states["niepsilons"] = states["noepsilons"] = [np.count_nonzero(arcs["ilabel"] == 0) for arcs in rows]
    states["pos"] = np.cumsum(states["narcs"]) - states["narcs"]
    return states, np.concatenate([np.empty(0, ARC), *rows])


SymbolTable = tuple[str, dict[int, str]]
"""The name of a symbol table, and the symbol of each label."""


def model_properties(num_states: int) -> int:
    """Backoff models are deterministic acceptors sorted by label, with an epsilon in every state but one."""
    properties = EXPANDED | ACCEPTOR | INPUT_DETERMINISTIC | OUTPUT_DETERMINISTIC | INPUT_SORTED | OUTPUT_SORTED
    if num_states > 1:
        return properties | EPSILONS | INPUT_EPSILONS | OUTPUT_EPSILONS
    return properties | NO_EPSILONS | NO_INPUT_EPSILONS | NO_OUTPUT_EPSILONS


def header(
    start: int, num_states: int, num_arcs: int, symbols: SymbolTable | None, properties: int | None = None
) -> bytes:
    """The bytes before the states: header and symbol table of an aligned file, padded to `ALIGNMENT`.

    properties: what the header claims of the automaton; by default `model_properties`.
    """
    properties = model_properties(num_states) if properties is None else properties
    flags = IS_ALIGNED if symbols is None else HAS_INPUT_SYMBOLS | IS_ALIGNED
    parts = [struct.pack("<i", MAGIC), _string("const"), _string("standard")]
    parts.append(struct.pack("<iiQqqq", ALIGNED_VERSION, flags, properties, start, num_states, num_arcs))
    if symbols is not None:
        name, symbol_of_label = symbols
        parts.append(struct.pack("<i", SYMBOLS_MAGIC) + _string(name))
        parts.append(struct.pack("<qq", max(symbol_of_label, default=-1) + 1, len(symbol_of_label)))
        parts += [_string(symbol_of_label[label]) + struct.pack("<q", label) for label in sorted(symbol_of_label)]
    data = b"".join(parts)
    return data + bytes(-len(data) % ALIGNMENT)


def const_blocks(
    states: Records, arcs: Records, start: int, symbols: SymbolTable | None, properties: int | None = None
) -> Iterator[bytes | memoryview]:
    """The bytes of an aligned ``const`` file, block by block."""
    yield header(start, len(states), len(arcs), symbols, properties)
    yield states.data
    yield bytes(-states.nbytes % ALIGNMENT)
    yield arcs.data


def _string(text: str) -> bytes:
    encoded = text.encode()
    return struct.pack("<i", len(encoded)) + encoded
