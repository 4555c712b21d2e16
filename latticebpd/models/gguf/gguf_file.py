"""Reader of GGUF files, versions 2 and 3, little endian: metadata, and tensors as views of the mapped file.

    "GGUF" | version u32 | tensors u64 | fields u64 | fields: key, type u32, value | tensors: name, dimensions u32,
    sizes u64 each, the row's first, type u32, offset u64 | padding | the tensors' data, aligned

A string is its length, u64, and UTF-8; an array is its items' type, u32, their number, u64, and the items. Files are
untrusted: every number is compared with the file's size before it is used.
"""

from __future__ import annotations

import mmap
import os
import struct
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from itertools import pairwise
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fst.files import FileStamp
from latticebpd.models.number_fields import GGUF, GGUF_TOKENS, check_numbers


class GgmlType(IntEnum):
    """How a tensor's numbers are stored."""

    F32, F16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q8_1 = 0, 1, 2, 3, 6, 7, 8, 9
    Q2_K, Q3_K, Q4_K, Q5_K, Q6_K, Q8_K = 10, 11, 12, 13, 14, 15
    IQ2_XXS, IQ2_XS, IQ3_XXS, IQ1_S, IQ4_NL, IQ3_S, IQ2_S, IQ4_XS = 16, 17, 18, 19, 20, 21, 22, 23
    I8, I16, I32, I64, F64, IQ1_M, BF16 = 24, 25, 26, 27, 28, 29, 30
    TQ1_0, TQ2_0, MXFP4, NVFP4, Q1_0 = 34, 35, 39, 40, 41


_BYTES = {
    1: {"F32": 4, "F16": 2, "BF16": 2, "F64": 8, "I8": 1, "I16": 2, "I32": 4, "I64": 8},
    32: {"Q4_0": 18, "Q4_1": 20, "Q5_0": 22, "Q5_1": 24, "Q8_0": 34, "Q8_1": 40, "IQ4_NL": 18, "MXFP4": 17},
    64: {"NVFP4": 36},
    128: {"Q1_0": 18},
    256: {
        "Q2_K": 84, "Q3_K": 110, "Q4_K": 144, "Q5_K": 176, "Q6_K": 210, "Q8_K": 292, "TQ1_0": 54, "TQ2_0": 66,
        "IQ1_S": 50, "IQ1_M": 56, "IQ2_XXS": 66, "IQ2_XS": 74, "IQ2_S": 82, "IQ3_XXS": 98, "IQ3_S": 110, "IQ4_XS": 136,
    },
}  # fmt: skip
BLOCKS = {GgmlType[name]: (elements, size) for elements, sizes in _BYTES.items() for name, size in sizes.items()}
"""Elements and bytes of a block of each type."""

_SCALARS = dict(enumerate(("u1", "i1", "<u2", "<i2", "<u4", "<i4", "<f4", "?"))) | {10: "<u8", 11: "<i8", 12: "<f8"}
_STRING, _ARRAY = 8, 9
_MAX_DIMENSIONS = 4
_MAX_NAME = 65_535


@dataclass(frozen=True, eq=False)
class GgufTensor:
    """A tensor of a file.

    shape: outputs first, a row's elements last.  data: ``[bytes]``, a read-only view of the mapped file.
    """

    name: str
    type: GgmlType
    shape: tuple[int, ...]
    data: NDArray[np.uint8]


@dataclass(frozen=True, eq=False)
class GgufFile:
    """Metadata by key (numbers, strings, lists of strings, arrays of numbers) and tensors by name, in the file's order;
    the file stays mapped for as long as one of its arrays lives."""

    path: str | os.PathLike[str]
    fields: dict[str, Any]
    tensors: dict[str, GgufTensor]
    map: mmap.mmap = field(repr=False)
    stamp: FileStamp = field(repr=False)

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> GgufFile:
        """Map a file; ValueError if it is no GGUF file or damaged, or a number of its fields is out of range."""
        try:
            if not is_gguf(path):
                raise _DamageError("a GGUF file", "another or none")
            stamp = FileStamp.of(path)
            with open(path, "rb") as file:
                mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            opened = cls(path, *_Parser(mapped).parts(), mapped, stamp)
        except (_DamageError, OSError) as error:
            raise ValueError(f"{os.fspath(path)}: {error}; is the copy complete?") from None
        check_numbers(GGUF, opened.fields, os.fspath(path), f"{opened.fields.get('general.architecture')}.")
        check_numbers(GGUF_TOKENS, opened.fields, os.fspath(path))
        return opened

    def release_pages(self, data: NDArray[np.uint8]) -> None:
        """Let the system take back the memory of a view of the file, which is read anew when it is used again."""
        if hasattr(self.map, "madvise"):
            begin = data.ctypes.data - np.frombuffer(self.map, np.uint8).ctypes.data
            first = -(-begin // mmap.PAGESIZE) * mmap.PAGESIZE
            if (size := begin + data.nbytes - first) > 0:
                self.map.madvise(mmap.MADV_DONTNEED, first, size)


def is_gguf(path: str | os.PathLike[str]) -> bool:
    """Whether a path is a GGUF file, by its first four bytes."""
    path = Path(path)
    if not path.is_file():
        return False
    with open(path, "rb") as file:
        return file.read(4) == b"GGUF"


class _DamageError(Exception):
    def __init__(self, expected: str, got: object) -> None:
        super().__init__(f"expected {expected}, got {got}")


class _Parser:
    """Reads a mapped file from its beginning; ``at`` is the offset of what comes next."""

    def __init__(self, map: mmap.mmap) -> None:
        self.map, self.size, self.at = map, len(map), 4

    def parts(self) -> tuple[dict[str, Any], dict[str, GgufTensor]]:
        """The fields and the tensors."""
        if (version := self._integer("<u4")) not in (2, 3):
            raise _DamageError("GGUF version 2 or 3, little endian", version)
        num_tensors, num_fields = self._count("tensors", 24), self._count("fields", 13)
        fields: dict[str, Any] = {}
        for _ in range(num_fields):
            name = self._name("field", fields)
            fields[name] = self._value(name)
        alignment = fields.get("general.alignment", 32)
        if type(alignment) is not int or alignment < 1 or alignment & (alignment - 1):
            raise _DamageError("general.alignment as a power of two", repr(alignment)[:80])
        headers: dict[str, tuple[GgmlType, tuple[int, ...], int, int]] = {}
        for _ in range(num_tensors):
            name = self._name("tensor", headers)
            headers[name] = self._header(name, alignment)
        start, spans, tensors = -(-self.at // alignment) * alignment, [(0, 0)], {}
        for name, (kind, shape, offset, size) in headers.items():
            if start + offset + size > self.size:
                raise _DamageError(f"{size} bytes of {name[:80]!r} at {start + offset}", f"a file of {self.size}")
            tensors[name] = GgufTensor(name, kind, shape, np.frombuffer(self.map, np.uint8, size, start + offset))
            spans.append((offset, offset + size))
        for (_, end), (begin, _) in pairwise(sorted(spans)):
            if begin < end:
                raise _DamageError(f"tensors that do not overlap, the next from offset {end} on", begin)
        return fields, tensors

    def _header(self, name: str, alignment: int) -> tuple[GgmlType, tuple[int, ...], int, int]:
        """Type, shape, offset from the data's beginning, and bytes."""
        of = f"of tensor {name[:80]!r}"
        if not 1 <= (dimensions := self._integer("<u4")) <= _MAX_DIMENSIONS:
            raise _DamageError(f"1 to {_MAX_DIMENSIONS} dimensions {of}", dimensions)
        shape = tuple(map(int, self._numbers("<u8", dimensions)[::-1]))
        number, offset = self._integer("<u4"), self._integer("<u8")
        if number not in BLOCKS:
            raise _DamageError(f"a known type {of}", number)
        kind = GgmlType(number)
        elements, size = BLOCKS[kind]
        if min(shape) < 1 or shape[-1] % elements:
            raise _DamageError(f"sizes {of} from 1 on, a row's a multiple of {elements} ({kind.name})", shape)
        if offset % alignment:
            raise _DamageError(f"an offset {of} that is a multiple of {alignment}", offset)
        return kind, shape, offset, prod(shape) // elements * size

    def _value(self, name: str) -> Any:
        kind = self._integer("<u4")
        if kind == _STRING:
            return self._strings(1)[0]
        if kind != _ARRAY:
            return self._numbers(self._scalar(kind, name), 1)[0].item()
        kind = self._integer("<u4")
        if kind == _STRING:
            return self._strings(self._count(f"strings of {name[:80]!r}", 8))
        return self._numbers(self._scalar(kind, name), self._integer("<u8"))

    def _scalar(self, kind: int, name: str) -> str:
        if kind not in _SCALARS:
            raise _DamageError(f"numbers, strings or one array of them as {name[:80]!r}", f"type {kind}")
        return _SCALARS[kind]

    def _name(self, what: str, known: Mapping[str, object]) -> str:
        (name,) = self._strings(1, _MAX_NAME)
        if name in known:
            raise _DamageError(f"one {what} of each name", repr(name[:80]))
        return name

    def _count(self, what: str, least: int) -> int:
        """A number of items of at least so many bytes each."""
        count = self._integer("<u8")
        if count * least > self.size - self.at:
            raise _DamageError(f"at most {(self.size - self.at) // least} {what} in what is left of the file", count)
        return count

    def _integer(self, dtype: str) -> int:
        return int(self._numbers(dtype, 1)[0])

    def _numbers(self, dtype: str, count: int) -> NDArray[Any]:
        size = count * np.dtype(dtype).itemsize
        if size > self.size - self.at:
            raise _DamageError(f"{size} bytes at offset {self.at}", f"a file of {self.size}")
        numbers = np.frombuffer(self.map, "u1" if dtype == "?" else dtype, count, self.at)
        self.at += size
        return numbers != 0 if dtype == "?" else numbers

    def _strings(self, count: int, longest: int = sys.maxsize) -> list[str]:
        map, size, at, length_at = self.map, self.size, self.at, struct.Struct("<Q").unpack_from
        strings = []
        try:
            for _ in range(count):
                (length,) = length_at(map, at)
                end = at + 8 + length
                if length > longest or end > size:
                    most = min(longest, size - at - 8)
                    raise _DamageError(f"a string of at most {most} bytes at offset {at}", length)
                strings.append(map[at + 8 : end].decode())
                at = end
        except (struct.error, UnicodeDecodeError) as error:
            raise _DamageError(f"a string in UTF-8 at offset {at}", f"a file of {size}: {error}") from None
        self.at = at
        return strings
