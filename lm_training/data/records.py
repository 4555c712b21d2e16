"""Records: the items of data files, one at a time.

A *record* is a line of a ``.jsonl`` file, a row of a ``.parquet`` file or of a directory saved by ``datasets``, and any
other file or each of its lines. Files may be compressed with gzip, xz or zstandard. A line is parsed only when its
fields are read, so that other processes can do it and bad lines can be skipped. The package `datasets` reads such files
too, but slower, and its first bad line ends the run; it reads what only it writes.
"""

from __future__ import annotations

import gzip
import io
import json
import lzma
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, cast

from fst.files import GZIP_DAMAGE, PathLike
from latticebpd.checks import extra_module

COMPRESSED = {".gz", ".xz", ".zst"}
SAVED = ("state.json", "dataset_dict.json")
"""Files by which a directory that ``datasets`` has saved is known."""
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
SHOWN = 5
"""Bad records that are reported with their message."""


@dataclass
class BadRecords:
    """Unusable records: counted, the first ones with messages; if strict, the first is an error."""

    strict: bool = True
    count: int = 0
    first: list[str] = field(default_factory=list)

    def add(self, messages: Sequence[str], count: int | None = None) -> None:
        """Add ``count`` records, by default one per message; ValueError if strict."""
        if self.strict and messages:
            raise ValueError(messages[0])
        self.count += len(messages) if count is None else count
        self.first += messages[: SHOWN - len(self.first)]

    def report(self) -> list[str]:
        """Lines for the user; none without bad records."""
        if not self.count:
            return []
        return [f"{self.count} bad {'record' if self.count == 1 else 'records'} left out, first:", *self.first]


@dataclass(frozen=True)
class Record:
    """One record.

    path, number: its origin; lines and rows count from 1, a file is number 0.
    content: a line or file as bytes, or a row's fields.
    offset: bytes of the file before it.
    """

    path: Path
    number: int
    content: bytes | dict[str, Any]
    offset: int = 0

    @property
    def origin(self) -> str:
        return f"{self.path}:{self.number}" if self.number else str(self.path)

    @property
    def has_fields(self) -> bool:
        """Whether it is a JSON object or a row, not a text."""
        return isinstance(self.content, dict) or plain_suffix(self.path) == ".jsonl"

    def fields(self) -> dict[str, Any]:
        """The record's fields; of a text, ``text``; ValueError, with the record's origin, if it is malformed."""
        if isinstance(self.content, dict):
            return self.content
        try:
            text = self.content.decode()
        except UnicodeDecodeError as error:
            byte = f"0x{self.content[error.start]:02x} at byte {self.offset + error.start}"
            raise ValueError(f"{self.origin}: cannot be read as UTF-8: {byte} is none; convert the file") from error
        text = text.replace("\r\n", "\n").replace("\r", "\n")
        if not self.has_fields:
            return {"text": text}
        record: dict[str, Any] | None
        try:
            record = json.loads(text)
        except (json.JSONDecodeError, RecursionError):
            record = None
        if not isinstance(record, dict):
            raise ValueError(f"{self.origin}: expected a JSON object, got {text[:40]!r}")
        if _SURROGATE.search(text):
            dumped = json.dumps(record, ensure_ascii=False)
            try:
                dumped.encode()
            except UnicodeEncodeError as error:
                half = f"half of a surrogate pair, {dumped[error.start]!r}"
                raise ValueError(f"{self.origin}: expected text, got {half}; repair the record") from None
        return record


def plain_suffix(path: Path) -> str:
    """A file's suffix, without that of its compression."""
    return path.with_suffix("").suffix if path.suffix in COMPRESSED else path.suffix


def open_bytes(path: PathLike) -> IO[bytes]:
    """Open a plain, gzip, xz or zstandard file, by its suffix, and decompress what is read."""
    path = Path(path)
    if path.suffix == ".gz":
        return cast(IO[bytes], gzip.open(path, "rb"))
    if path.suffix == ".xz":
        return lzma.open(path, "rb")
    if path.suffix == ".zst":
        return io.BufferedReader(extra_module("zstandard", "data", f"the file {path}").open(path, "rb"))
    return path.open("rb")


def require_readers(paths: Iterable[Path]) -> None:
    """ValueError where the package that reads one of these files, or saved data sets, is not installed."""
    for path in paths:
        if path.suffix == ".zst":
            extra_module("zstandard", "data", f"the file {path}")
        if plain_suffix(path) == ".parquet":
            extra_module("duckdb", "data", f"the file {path}")
        if any((path / name).exists() for name in SAVED):
            extra_module("datasets", "datasets", f"the directory {path}")


def read_records(
    paths: Iterable[PathLike], columns: Sequence[str] | None = None, text_lines: bool = False
) -> Iterator[Record]:
    """Yield the records of files, in order, without blank lines.

    columns: of Parquet files and saved data sets; by default all.
    text_lines: every line of a text file is a record, instead of the file.
    Raises ValueError: a file is damaged, or lacks a column.
    """
    for path in map(Path, paths):
        if path.is_dir():
            yield from _dataset_records(path, columns)
        elif plain_suffix(path) == ".parquet":
            yield from _parquet_records(path, columns)
        else:
            yield from _file_records(path, text_lines)


def _file_records(path: Path, text_lines: bool) -> Iterator[Record]:
    try:
        with open_bytes(path) as file:
            if plain_suffix(path) != ".jsonl" and not text_lines:
                yield Record(path, 0, file.read())
                return
            offset = 0
            for number, line in enumerate(file, 1):
                if line.strip():
                    yield Record(path, number, line.rstrip(b"\r\n"), offset)
                offset += len(line)
    except _damage() as error:
        raise ValueError(f"{path}: cannot be read: {error}; is the file complete?") from error


def _damage() -> tuple[type[Exception], ...]:
    """What reading a damaged file raises."""
    zstandard = sys.modules.get("zstandard")  # only where such a file was opened
    return (*GZIP_DAMAGE, lzma.LZMAError, *(() if zstandard is None else (zstandard.ZstdError,)))


def _parquet_records(path: Path, columns: Sequence[str] | None) -> Iterator[Record]:
    duckdb = extra_module("duckdb", "data", f"the file {path}")
    if not path.is_file():
        raise FileNotFoundError(2, "expected a file", str(path))
    chosen = "*" if columns is None else ", ".join('"' + name.replace('"', '""') + '"' for name in columns)
    try:
        with duckdb.connect() as connection:
            rows = connection.execute(f"SELECT {chosen} FROM read_parquet(?)", [str(path)])
            names = [column[0] for column in rows.description or []]
            for number, row in enumerate(iter(rows.fetchone, None), 1):
                yield Record(path, number, dict(zip(names, row, strict=True)))
    except duckdb.Error as error:
        wanted = "" if columns is None else f" with the text in column {', '.join(map(repr, columns))}"
        raise ValueError(f"{path}: expected a Parquet file{wanted}: {str(error).splitlines()[0]}") from error


def _dataset_records(path: Path, columns: Sequence[str] | None) -> Iterator[Record]:
    datasets = extra_module("datasets", "datasets", f"the directory {path}")
    try:
        rows = datasets.load_from_disk(str(path))
    except Exception as error:  # the package raises many kinds
        raise ValueError(f"{path}: expected a directory that Dataset.save_to_disk has written: {error}") from error
    if isinstance(rows, datasets.DatasetDict):
        example = path / next(iter(rows))
        raise ValueError(f"{path}: expected one split, got {', '.join(rows)}; name one, such as {example}")
    missing = [name for name in columns or () if name not in rows.column_names]
    if missing:
        raise ValueError(f"{path}: expected a column {missing[0]!r}, got {', '.join(rows.column_names)}")
    for number, row in enumerate(rows if columns is None else rows.select_columns(list(columns)), 1):
        yield Record(path, number, dict(row))
