"""Documents in, token ids out.

A *document* is one string; a *corpus* is a flat array of token ids in which every document ends with the
tokenizer's end-of-text token.  Text comes from ``.jsonl`` files (one document a line, in a text field), ``.parquet``
files (one document a row, in a text column) and any others (one document a file); all but Parquet, which compresses
by itself, plain or compressed with gzip, xz or zstandard.
"""

from __future__ import annotations

import gzip
import io
import json
import lzma
import os
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import IO, cast

import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from fst.files import replacing

END_OF_TEXT = "<|endoftext|>"


@dataclass(frozen=True)
class Document:
    """One document: where it is from, and its text."""

    id: str
    source: str
    text: str


COMPRESSED = {".gz", ".xz", ".zst"}
INVALID_UTF8 = ("strict", "replace")
"""What to do with bytes that are no UTF-8: refuse the file, or read U+FFFD in their place."""


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
            raise ValueError(f"{path}: expected the package zstandard to read this, found none: pip install zstandard") from None
        return io.BufferedReader(zstandard.open(path, "rb"))
    return path.open("rb")


def read_documents(paths: Iterable[str | os.PathLike[str]], field: str = "text", invalid_utf8: str = "strict") -> Iterator[Document]:
    """Yield the documents of text, JSONL and Parquet files, in order; CRLF is read as LF.

    Raises:
        ValueError: a line is no JSON object, or has no string under ``field``; bytes are no UTF-8 (unless
            ``invalid_utf8`` is "replace"); a compressed file is damaged.  The message names the file and the line or byte.
        FileNotFoundError: a path does not exist.
    """
    if invalid_utf8 not in INVALID_UTF8:
        raise ValueError(f"expected strict or replace for bytes that are no UTF-8, got {invalid_utf8!r}")
    for path in map(Path, paths):
        plain = path.with_suffix("") if path.suffix in COMPRESSED else path
        if plain.suffix == ".parquet":
            yield from _parquet_documents(path, field)
            continue
        try:
            with open_bytes(path) as file:
                if plain.suffix != ".jsonl":
                    yield Document(str(path), path.name, _decoded(file.read(), path, 0, invalid_utf8))
                    continue
                offset = 0
                for number, line in enumerate(file, 1):
                    text = _decoded(line, path, offset, invalid_utf8)
                    offset += len(line)
                    if text.strip():
                        yield _json_document(text, path, number, field)
        except (EOFError, lzma.LZMAError, zlib.error, gzip.BadGzipFile) as error:
            raise ValueError(f"{path}: cannot be read: {error}; is the file complete?") from error
        except Exception as error:
            if type(error).__name__ != "ZstdError":  # the package is imported only where it is needed
                raise
            raise ValueError(f"{path}: cannot be read: {error}; is the file complete?") from error


def _json_document(line: str, path: Path, number: int, field: str) -> Document:
    try:
        record = json.loads(line)
    except (json.JSONDecodeError, RecursionError) as error:
        raise ValueError(f"{path}:{number}: expected a JSON object, got {line[:40]!r}") from error
    text = record.get(field) if isinstance(record, dict) else None
    if not isinstance(text, str):
        raise ValueError(f"{path}:{number}: expected a string under {field!r}; name the field that holds the text")
    return Document(str(record.get("id", f"{path.name}:{number}")), str(record.get("source", path.name)), text)


def _parquet_documents(path: Path, field: str, batch: int = 1024) -> Iterator[Document]:
    import duckdb

    if not path.is_file():
        raise FileNotFoundError(2, "expected a file", str(path))
    quoted = field.replace('"', '""')
    try:
        with duckdb.connect() as connection:
            rows = connection.execute(f'SELECT CAST("{quoted}" AS VARCHAR) FROM read_parquet(?)', [str(path)])
            number = 0
            while texts := rows.fetchmany(batch):
                for (text,) in texts:
                    number += 1
                    if text is None:
                        raise ValueError(f"{path}: row {number}: expected a string in column {field!r}, got none")
                    yield Document(f"{path.name}:{number}", path.name, text)
    except duckdb.Error as error:
        first_line = str(error).splitlines()[0]
        raise ValueError(f"{path}: expected a Parquet file with the text in column {field!r}: {first_line}") from error


def _decoded(data: bytes, path: Path, offset: int, invalid_utf8: str) -> str:
    try:
        text = data.decode("utf-8", invalid_utf8)
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{path}: cannot be read as UTF-8: 0x{data[error.start]:02x} at byte {offset + error.start} is none; "
            "convert the file, or have such bytes replaced"
        ) from error
    return text.replace("\r\n", "\n").replace("\r", "\n")


def is_held_out(document_id: str, per_mille: int = 10) -> bool:
    """Whether a document belongs to the held-out part: a fixed hash of its id, so that every stage agrees."""
    return zlib.crc32(document_id.encode()) % 1000 < per_mille


def train_tokenizer(texts: Iterable[str], vocab_size: int = 8192, progress: bool = False) -> Tokenizer:
    """A byte-level BPE tokenizer whose id 0 is the end-of-text token."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=progress,
    )
    tokenizer.train_from_iterator(texts, trainer=trainer)
    return tokenizer


def end_of_text_id(tokenizer: Tokenizer) -> int:
    """The id of the token that ends documents."""
    end_id: int | None = tokenizer.token_to_id(END_OF_TEXT)
    if end_id is None:
        raise ValueError(f"expected a tokenizer with the token {END_OF_TEXT!r}, got one of {tokenizer.get_vocab_size()} tokens without it")
    return end_id


def encode_documents(documents: Iterable[Document], tokenizer: Tokenizer, batch_size: int = 256) -> np.ndarray:
    """Encode documents, each ending with end-of-text: ``[n]`` uint16 ids, or uint32 for large vocabularies."""
    end_id = end_of_text_id(tokenizer)
    dtype = np.uint16 if tokenizer.get_vocab_size() <= 1 << 16 else np.uint32
    chunks: list[np.ndarray] = []
    iterator = iter(documents)
    while batch := [document.text for document in islice(iterator, batch_size)]:
        for encoding in tokenizer.encode_batch_fast(batch, add_special_tokens=False):
            chunks.append(np.array([*encoding.ids, end_id], dtype=dtype))
    return np.concatenate(chunks) if chunks else np.empty(0, dtype)


def encode_corpus(documents: Iterable[Document], tokenizer: Tokenizer, path: str | os.PathLike[str]) -> int:
    """Encode documents into one ``.npy`` file; returns the number of tokens.

    The file appears under its name only when it is complete.
    """
    tokens = encode_documents(documents, tokenizer)
    with replacing(path) as temporary, open(temporary, "wb") as file:
        np.save(file, tokens)
    return len(tokens)


def load_tokens(paths: Sequence[str | os.PathLike[str]]) -> np.ndarray:
    """Memory-map one ``.npy`` corpus, or concatenate several: ``[n]`` unsigned ids."""
    arrays = []
    for path in paths:
        try:
            array = np.load(path, mmap_mode="r", allow_pickle=False)
        except (ValueError, EOFError) as error:
            raise ValueError(f"{path}: expected a .npy array of token ids: {error}") from error
        if array.ndim != 1 or array.dtype.kind not in "ui":
            raise ValueError(f"{path}: expected a one-dimensional integer array, got shape {array.shape} of {array.dtype}")
        arrays.append(array)
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)


def corpus_ids(paths: Sequence[str | os.PathLike[str]], tokenizer: Tokenizer | None, field: str = "text") -> np.ndarray:
    """Token ids of ``.npy`` corpora, or of documents encoded with ``tokenizer``: ``[n]`` unsigned ids.

    Raises:
        ValueError: text without a tokenizer, or both kinds of file at once.
    """
    encoded = [Path(path).suffix == ".npy" for path in paths]
    if all(encoded):
        return load_tokens(paths)
    if any(encoded):
        raise ValueError("expected either .npy corpora or text files, got both; encode the text first")
    if tokenizer is None:
        raise ValueError(f"{next(iter(paths))}: expected token ids (.npy), or text together with a tokenizer; name one with --tokenizer")
    return encode_documents(read_documents(paths, field), tokenizer)
