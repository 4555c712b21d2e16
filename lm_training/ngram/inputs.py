"""The training text of n-gram models: input files of every kind become one flat file of token ids.

- Token ids: ``.npy`` arrays; ``.bin`` files of uint16 or uint32, either bare, with an explicit type, or with the
  1,024-byte header of llm.c (a magic number that implies the type, a version, the number of tokens).
- Text for a tokenizer: documents, each followed by the end-of-text token.
- Text for words: sentences, one a line, words between white space; ``<unk>`` is the unknown word; ``<s>`` and ``</s>``
  around a line are removed, since every sentence gets them.

A single file of ids is mapped in place; everything else is written, piece by piece, to the work folder, so that no
corpus has to fit into memory.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from tokenizers import Tokenizer

from fst.arpa import MARKER_NAMES
from fst.processors import ignore
from fst.table import BOS, EOS, UNK
from lm_training.data.corpus import Document, load_tokens, read_documents
from lm_training.ngram.counts import PIECE, TokenStream

LLM_C_TYPES: dict[int, np.dtype[Any]] = {20240520: np.dtype("<u2"), 20240801: np.dtype("<u4")}
"""Token types by the magic number of a ``.bin`` file's header."""
LLM_C_HEADER = 1024
ID_SUFFIXES = {".npy", ".bin"}


@dataclass(frozen=True)
class Inputs:
    """Which files to read, and how.

    paths: the files.
    field: the JSONL field or Parquet column of the text.
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
        """Whether the files hold token ids; raises ValueError for a mixture."""
        kinds = {path.suffix in ID_SUFFIXES for path in self.paths}
        if len(kinds) > 1:
            raise ValueError(
                "expected either files of token ids (.npy, .bin) or text files, got both; encode the text first"
            )
        return kinds.pop()

    def documents(self) -> Iterator[Document]:
        return read_documents(self.paths, self.field, self.invalid_utf8)


@dataclass(frozen=True)
class TokenizerEncoder:
    """Documents as a tokenizer's ids, each between ``start``, if given, and ``separator``, the end-of-text token."""

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
    """Sentences as word ids, each followed by ``</s>``; ids are assigned in order of first occurrence.

    symbols: the words so far, by id.
    fixed: whether words that are not among ``symbols`` are unknown instead of new.
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
                sentences = map(self._sentence, lines[begin : begin + 4096])
                yield np.array([token for sentence in sentences for token in sentence], dtype=np.int32)

    def _sentence(self, line: str) -> list[int]:
        words = line.split()
        if not words:
            return []
        ids = [self.ids[word] if word in self.ids else self._new_id(word) for word in words]
        if ids[0] == BOS:
            del ids[0]
        if ids and ids[-1] == EOS:
            del ids[-1]
        if BOS in ids or EOS in ids:
            raise ValueError(f"expected <s> and </s> only around a line, got {line[:60]!r}; one sentence a line")
        return [*ids, EOS]

    def _new_id(self, word: str) -> int:
        if self.fixed:
            return UNK
        self.ids[word] = len(self.symbols)
        self.symbols.append(word)
        return self.ids[word]


Encoder: TypeAlias = TokenizerEncoder | WordEncoder
"""Turns documents into token ids, in pieces ``[n]``; ``separator`` is the id after each text."""


def open_ids(inputs: Inputs) -> list[np.ndarray]:
    """Map the files of token ids: ``[n]`` each."""
    return [load_tokens([path]) if path.suffix == ".npy" else _map_bin(path, inputs.dtype) for path in inputs.paths]


def _map_bin(path: Path, dtype: str | None) -> np.ndarray:
    size, offset = path.stat().st_size, 0
    token_type: np.dtype[Any] = np.dtype(dtype or "uint16").newbyteorder("<")
    if dtype is None:
        with open(path, "rb") as file:
            head = file.read(12)
        magic, _, count = struct.unpack("<iii", head) if len(head) == 12 else (0, 0, 0)
        if magic not in LLM_C_TYPES:
            raise ValueError(
                f"{path}: expected a header that tells the type of the tokens, got none; name the type with --dtype"
            )
        token_type, offset = LLM_C_TYPES[magic], LLM_C_HEADER
        if count < 0 or size != offset + count * token_type.itemsize:
            raise ValueError(
                f"{path}: expected {count} tokens of {token_type.itemsize} bytes after the header, "
                f"got {size - offset} bytes"
            )
    elif size % token_type.itemsize:
        raise ValueError(f"{path}: expected a whole number of {dtype} tokens, got {size} bytes; is it the right type?")
    return _map_tokens(path, token_type, offset)


def _map_tokens(path: Path, dtype: np.dtype[Any], offset: int = 0) -> np.ndarray:
    empty = path.stat().st_size == offset
    return np.zeros(0, dtype) if empty else np.memmap(path, dtype, "r", offset)


def write_corpus(
    inputs: Inputs,
    encoder: Encoder | None,
    end_of_text: int | None,
    folder: Path,
    progress: Callable[[int], object] = ignore,
) -> None:
    """Write what ``load_corpus`` reads: the ids, unless a single file of them can be mapped, and their meaning.

    encoder: of text; None for files of token ids.
    end_of_text: the id between the documents of such files; None without one.
    progress: called with the number of tokens so far.
    """
    mapped: str | None = None
    pieces: Iterable[np.ndarray]
    if inputs.are_ids:
        arrays, separator = open_ids(inputs), end_of_text
        pieces = (array[begin : begin + PIECE] for array in arrays for begin in range(0, len(array), PIECE))
        if len(arrays) == 1:
            mapped = str(inputs.paths[0].resolve())
    elif encoder is None:
        raise ValueError(
            f"{inputs.paths[0]}: expected token ids (.npy, .bin), or text and a way to tokens: "
            "give --tokenizer or --words"
        )
    else:
        pieces, separator = encoder.encode(inputs.documents()), encoder.separator
    if mapped is None:
        count = 0
        with open(folder / "ids.bin", "wb") as file:
            for piece in pieces:
                file.write(piece.astype("<i4", copy=False).data)
                count += len(piece)
                progress(count)
    symbols = encoder.symbols if isinstance(encoder, WordEncoder) else None
    facts = {"mapped": mapped, "dtype": inputs.dtype, "separator": separator, "symbols": symbols}
    (folder / "corpus.json").write_text(json.dumps(facts))


def load_corpus(folder: Path) -> tuple[TokenStream, list[str] | None]:
    """The token stream that ``write_corpus`` wrote, mapped, and the words of the ids, if they are words."""
    facts = json.loads((folder / "corpus.json").read_text())
    if facts["mapped"]:
        (ids,) = open_ids(Inputs([Path(facts["mapped"])], dtype=facts["dtype"]))
    else:
        ids = _map_tokens(folder / "ids.bin", np.dtype("<i4"))
    return TokenStream.of(ids, facts["separator"]), facts["symbols"]
