"""Records: what a file of data consists of, one at a time, and which of them cannot be used.

A *record* is a line of a ``.jsonl`` file, a row of a ``.parquet`` file or of a directory that the package ``datasets``
has saved, and any other file as a whole, or each of its lines. Files may be compressed with gzip, xz or zstandard
(Parquet compresses by itself). Lines are handed on as they are and read only when their fields are asked for, so that
this can be done elsewhere, and skipped.
"""

from __future__ import annotations

import gzip
import io
import json
import lzma
import os
import re
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, cast

COMPRESSED = {".gz", ".xz", ".zst"}
INVALID_UTF8 = ("strict", "replace")
"""What to do with bytes that are no UTF-8: refuse the record, or read U+FFFD in their place."""
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
"""Escapes that come in pairs, each half of one character."""
SHOWN = 5
"""So many bad records are shown."""


@dataclass
class BadRecords:
    """Records that could not be used: counted, the first ones kept for the report; or, if strict, an error at once."""

    strict: bool = True
    count: int = 0
    first: list[str] = field(default_factory=list)

    def add(self, messages: Sequence[str], count: int | None = None) -> None:
        """Take note of ``count`` records, by default as many as there are messages; ValueError if strict."""
        if self.strict and messages:
            raise ValueError(messages[0])
        self.count += len(messages) if count is None else count
        self.first += messages[: SHOWN - len(self.first)]

    def report(self) -> list[str]:
        """Lines for the user; none where all went well."""
        if not self.count:
            return []
        return [f"{self.count} bad {'record' if self.count == 1 else 'records'} left out, first:", *self.first]


@dataclass(frozen=True)
class Record:
    """One record.

    path, number: where it is from; lines and rows count from 1, a whole file is number 0.
    content: a line or file as bytes, or a row's fields.
    offset: bytes of the file before it.
    """

    path: Path
    number: int
    content: bytes | dict[str, Any]
    offset: int = 0

    @property
    def place(self) -> str:
        return f"{self.path}:{self.number}" if self.number else str(self.path)

    @property
    def has_fields(self) -> bool:
        """Whether it is a JSON object or a row, not a text."""
        return isinstance(self.content, dict) or plain_suffix(self.path) == ".jsonl"

    def fields(self, invalid_utf8: str = "strict") -> dict[str, Any]:
        """The record's fields; of a text, ``text``.

        Raises:
            ValueError: it is not what it should be; the message says where it is.
        """
        if isinstance(self.content, dict):
            return self.content
        try:
            text = self.content.decode("utf-8", invalid_utf8)
        except UnicodeDecodeError as error:
            raise ValueError(
                f"{self.place}: cannot be read as UTF-8: 0x{self.content[error.start]:02x} at byte"
                f" {self.offset + error.start} is none; convert the file, or have such bytes replaced"
            ) from error
        text = text.replace("\r\n", "\n").replace("\r", "\n")
        if not self.has_fields:
            return {"text": text}
        try:
            record = json.loads(text)
        except (json.JSONDecodeError, RecursionError) as error:
            raise ValueError(f"{self.place}: expected a JSON object, got {text[:40]!r}") from error
        if not isinstance(record, dict):
            raise ValueError(f"{self.place}: expected a JSON object, got {text[:40]!r}")
        if not _SURROGATE.search(text):
            return record
        whole = json.dumps(record, ensure_ascii=False)
        try:
            whole.encode()
        except UnicodeEncodeError as error:
            if invalid_utf8 == "strict":
                raise ValueError(
                    f"{self.place}: expected text, got half of a surrogate pair, {whole[error.start]!r}; "
                    "repair the record, or have such characters replaced"
                ) from None
            mended: dict[str, Any] = json.loads(
                whole.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
            )
            return mended
        return record


def plain_suffix(path: Path) -> str:
    """The suffix of what a compressed file holds, or of any other file."""
    return path.with_suffix("").suffix if path.suffix in COMPRESSED else path.suffix


def open_bytes(path: str | os.PathLike[str]) -> IO[bytes]:
    """Open a plain, gzip, xz or zstandard file by its suffix; what is read is not compressed any more."""
    path = Path(path)
    if path.suffix == ".gz":
        return cast(IO[bytes], gzip.open(path, "rb"))
    if path.suffix == ".xz":
        return lzma.open(path, "rb")
    if path.suffix == ".zst":
        try:
            import zstandard
        except ImportError:
            raise ValueError(
                f"{path}: expected the package zstandard to read this, found none: pip install zstandard"
            ) from None
        return io.BufferedReader(zstandard.open(path, "rb"))
    return path.open("rb")


def read_records(
    paths: Iterable[str | os.PathLike[str]], columns: Sequence[str] | None = None, text_lines: bool = False
) -> Iterator[Record]:
    """Yield the records of files, in order; blank lines are none.

    Args:
        columns: of Parquet files and saved data sets, which to read; by default all.
        text_lines: every line of a text file is a record, not the file as a whole.

    Raises:
        ValueError: a file is damaged, or lacks a column.
        FileNotFoundError: a path does not exist.
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
    except (EOFError, lzma.LZMAError, zlib.error, gzip.BadGzipFile) as error:
        raise ValueError(f"{path}: cannot be read: {error}; is the file complete?") from error
    except Exception as error:
        if type(error).__name__ != "ZstdError":  # the package is imported only where it is needed
            raise
        raise ValueError(f"{path}: cannot be read: {error}; is the file complete?") from error


def _parquet_records(path: Path, columns: Sequence[str] | None, batch: int = 1024) -> Iterator[Record]:
    import duckdb

    if not path.is_file():
        raise FileNotFoundError(2, "expected a file", str(path))
    chosen = "*" if columns is None else ", ".join('"' + name.replace('"', '""') + '"' for name in columns)
    try:
        with duckdb.connect() as connection:
            rows = connection.execute(f"SELECT {chosen} FROM read_parquet(?)", [str(path)])
            names, number = [column[0] for column in rows.description or []], 0
            while values := rows.fetchmany(batch):
                for row in values:
                    number += 1
                    yield Record(path, number, dict(zip(names, row, strict=True)))
    except duckdb.Error as error:
        wanted = "" if columns is None else f" with the text in column {', '.join(map(repr, columns))}"
        raise ValueError(f"{path}: expected a Parquet file{wanted}: {str(error).splitlines()[0]}") from error


def _dataset_records(path: Path, columns: Sequence[str] | None) -> Iterator[Record]:
    try:
        import datasets  # type: ignore[import-untyped, unused-ignore]
    except ImportError:
        raise ValueError(
            f"{path}: expected the package datasets to read a directory, found none: pip install 'latticebpd[datasets]'"
        ) from None
    try:
        found = datasets.load_from_disk(str(path))
    except Exception as error:  # the package raises many kinds for what is one mistake here
        raise ValueError(f"{path}: expected a directory that Dataset.save_to_disk has written: {error}") from error
    if isinstance(found, datasets.DatasetDict):
        raise ValueError(
            f"{path}: expected one split, got {', '.join(found)}; name one, such as {path / next(iter(found))}"
        )
    if columns is not None:
        missing = [name for name in columns if name not in found.column_names]
        if missing:
            raise ValueError(f"{path}: expected a column {missing[0]!r}, got {', '.join(found.column_names)}")
        found = found.select_columns(list(columns))
    for number, row in enumerate(found, 1):
        yield Record(path, number, dict(row))
