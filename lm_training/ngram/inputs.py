"""What n-gram models are counted from: every kind of input file becomes one flat file of token ids.

- Token ids: ``.npy`` arrays; ``.bin`` files of uint16 or uint32, either bare, their type given, or with the 1,024-byte
  header of llm.c (a magic number that tells the type, a version, the number of tokens).
- Text for a tokenizer: documents, each ending with the end-of-text token.
- Text for words: sentences, one a line, words between white space; ``<unk>`` is the unknown word, ``<s>`` and ``</s>``
  around a line are taken off, since every sentence has them anyway.

A single file of ids is mapped where it lies; everything else is written, piece by piece, beside the model's other
intermediate files, so that no corpus has to fit into memory.
"""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from tokenizers import Tokenizer

from fst.arpa import MARKER_NAMES
from fst.table import BOS, EOS, UNK
from lm_training.data.corpus import Document, load_tokens, read_documents
from lm_training.ngram.counts import PIECE, TokenStream

LLM_C_TYPES: dict[int, np.dtype[Any]] = {20240520: np.dtype("<u2"), 20240801: np.dtype("<u4")}
"""The type of the tokens behind the magic number of a ``.bin`` file's header."""
LLM_C_HEADER = 1024
ID_SUFFIXES = {".npy", ".bin"}

Progress = Callable[[int], object]
"""Called with the number of tokens so far."""


@dataclass(frozen=True)
class Inputs:
    """Which files to read, and how.

    paths: the files.
    field: of JSONL objects and Parquet rows, what holds the text.
    invalid_utf8: "strict" or "replace".
    dtype: of ``.bin`` files without a header, "uint16" or "uint32".
    """

    paths: Sequence[Path]
    field: str = "text"
    invalid_utf8: str = "strict"
    dtype: str | None = None

    def __post_init__(self) -> None:
        if not self.paths:
            raise ValueError("expected at least one input file, got none")
        if self.dtype not in (None, "uint16", "uint32"):
            raise ValueError(f"expected uint16 or uint32 as the type of .bin files, got {self.dtype!r}")

    @property
    def are_ids(self) -> bool:
        """Whether the files hold token ids; raises ValueError where some do and some do not."""
        kinds = {path.suffix in ID_SUFFIXES for path in self.paths}
        if len(kinds) > 1:
            raise ValueError("expected either files of token ids (.npy, .bin) or text files, got both; encode the text first")
        return kinds.pop()

    def documents(self) -> Iterator[Document]:
        return read_documents(self.paths, self.field, self.invalid_utf8)


class Encoder(Protocol):
    """Turns documents into token ids."""

    @property
    def separator(self) -> int:
        """The id that closes what the encoder sees as one text."""
        ...

    def encode(self, documents: Iterable[Document]) -> Iterator[np.ndarray]:
        """Yield ``[n]`` integer ids, in pieces."""
        ...


@dataclass(frozen=True)
class TokenizerEncoder:
    """Documents into a tokenizer's ids, each closed by ``separator``, the end-of-text token, and begun by ``start``, if there is one."""

    tokenizer: Tokenizer
    separator: int
    start: int | None = None

    def encode(self, documents: Iterable[Document]) -> Iterator[np.ndarray]:
        iterator = iter(documents)
        start = [] if self.start in (None, self.separator) else [self.start]
        while batch := [document.text for document in islice(iterator, 256)]:
            for encoding in self.tokenizer.encode_batch_fast(batch, add_special_tokens=False):
                yield np.array([*start, *encoding.ids, self.separator], dtype=np.uint32)


class WordEncoder:
    """Sentences into word ids, closed by ``</s>``; words are numbered as they first appear.

    symbols: the words so far, by id.
    fixed: whether words that are not among ``symbols`` are unknown, instead of getting a number.
    """

    separator = EOS

    def __init__(self, symbols: Sequence[str] | None = None) -> None:
        self.symbols = list(symbols or [])
        self.fixed = symbols is not None
        self.ids = {word: number for number, word in enumerate(self.symbols)}
        self.ids |= {name: marker for marker, name in MARKER_NAMES.items()}

    def encode(self, documents: Iterable[Document]) -> Iterator[np.ndarray]:
        for document in documents:
            lines = document.text.split("\n")
            for begin in range(0, len(lines), 4096):
                yield np.array([token for line in lines[begin : begin + 4096] for token in self._sentence(line)], dtype=np.int32)

    def _sentence(self, line: str) -> list[int]:
        words = line.split()
        if not words:
            return []
        ids = [self.ids[word] if word in self.ids else self._new(word) for word in words]
        if ids[0] == BOS:
            del ids[0]
        if ids and ids[-1] == EOS:
            del ids[-1]
        if BOS in ids or EOS in ids:
            raise ValueError(f"expected <s> and </s> only around a line, got them within {line[:60]!r}; one sentence a line")
        return [*ids, EOS]

    def _new(self, word: str) -> int:
        if self.fixed:
            return UNK
        self.ids[word] = len(self.symbols)
        self.symbols.append(word)
        return self.ids[word]


def open_ids(inputs: Inputs) -> list[np.ndarray]:
    """Map the files of token ids: ``[n]`` each."""
    return [load_tokens([path]) if path.suffix == ".npy" else _map_bin(path, inputs.dtype) for path in inputs.paths]


def _map_bin(path: Path, dtype: str | None) -> np.ndarray:
    size = path.stat().st_size
    token_type: np.dtype[Any]
    with open(path, "rb") as file:
        head = file.read(12)
    if dtype is None:
        magic, _, count = struct.unpack("<iii", head) if len(head) == 12 else (0, 0, 0)
        if magic not in LLM_C_TYPES:
            raise ValueError(f"{path}: expected a header that tells the type of the tokens, got none; name the type with --dtype")
        token_type, offset = LLM_C_TYPES[magic], LLM_C_HEADER
        if count < 0 or size != offset + count * token_type.itemsize:
            raise ValueError(f"{path}: expected {count} tokens of {token_type.itemsize} bytes after the header, got {size - offset} bytes")
    else:
        token_type, offset = np.dtype(dtype).newbyteorder("<"), 0
        if size % token_type.itemsize:
            raise ValueError(f"{path}: expected a whole number of {dtype} tokens, got {size} bytes; is it the right type?")
    ids: np.ndarray = np.memmap(path, dtype=token_type, mode="r", offset=offset) if size > offset else np.zeros(0, dtype=token_type)
    return ids


def write_tokens(pieces: Iterable[np.ndarray], path: str | os.PathLike[str], progress: Progress | None = None) -> int:
    """Write pieces of ids as one flat file of int32; returns how many there were."""
    count = 0
    with open(path, "wb") as file:
        for piece in pieces:
            file.write(piece.astype("<i4", copy=False).data)
            count += len(piece)
            if progress is not None:
                progress(count)
    return count


def _pieces(arrays: Sequence[np.ndarray]) -> Iterator[np.ndarray]:
    for array in arrays:
        for begin in range(0, len(array), PIECE):
            yield array[begin : begin + PIECE]


def write_corpus(
    inputs: Inputs, encoder: Encoder | None, end_of_text: int | None, directory: Path, progress: Progress | None = None
) -> None:
    """Write what ``load_corpus`` reads: the ids, unless they are a single file that can be used where it lies, and what they mean.

    encoder: of text; None for files of token ids.
    end_of_text: the id that closes the documents of such files, None where none does.
    """
    mapped: str | None = None
    if inputs.are_ids:
        arrays = open_ids(inputs)
        separator = end_of_text
        if len(arrays) == 1:
            mapped = str(inputs.paths[0].resolve())
        else:
            write_tokens(_pieces(arrays), directory / "ids.bin", progress)
    elif encoder is None:
        raise ValueError(f"{inputs.paths[0]}: expected token ids (.npy, .bin), or text and a way to tokens: give --tokenizer or --words")
    else:
        separator = encoder.separator
        write_tokens(encoder.encode(inputs.documents()), directory / "ids.bin", progress)
    symbols = encoder.symbols if isinstance(encoder, WordEncoder) else None
    facts = {"mapped": mapped, "dtype": inputs.dtype, "separator": separator, "symbols": symbols}
    (directory / "corpus.json").write_text(json.dumps(facts))


def load_corpus(directory: Path) -> tuple[TokenStream, list[str] | None]:
    """The stream of ids that ``write_corpus`` left, mapped, and the words of the ids, if they are words."""
    facts = json.loads((directory / "corpus.json").read_text())
    if facts["mapped"]:
        (ids,) = open_ids(Inputs([Path(facts["mapped"])], dtype=facts["dtype"]))
    else:
        path = directory / "ids.bin"
        ids = np.memmap(path, dtype="<i4", mode="r") if path.stat().st_size else np.zeros(0, dtype=np.int32)
    return TokenStream.of(ids, facts["separator"]), facts["symbols"]
