"""The training text of n-gram models: input files of every kind become one flat file of token ids.

- Token ids: ``.npy`` arrays.
- Prompts and texts as token ids (``.npz``, folders of `distill` and `train encode`): the texts, each after the end of
  its prompt and followed by the end-of-text token.
- Text for a tokenizer: documents, each followed by the end-of-text token.
- Text for words: sentences, one a line, words between white space; ``<unk>`` is the unknown word; ``<s>`` and ``</s>``
  around a line are removed, since every sentence gets them.

A single file of ids is mapped in place; everything else is written, piece by piece, to the work folder, so that no
corpus has to fit into memory.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import numpy as np
from tokenizers import Tokenizer

from fst.arpa import MARKER_NAMES
from fst.processors import ignore
from fst.table import BOS, EOS, UNK
from latticebpd.checks import expect
from lm_training.data.corpus import Document, encoded_documents, load_tokens, read_documents
from lm_training.data.sequences import holds_sequences, written_corpus
from lm_training.ngram.counts import PIECE, TokenStream


@dataclass(frozen=True)
class Inputs:
    """Which files to read.

    field: JSONL field or Parquet column of text.
    history: tokens of a prompt that are read before what follows it: an n-gram model's order minus 1.
    """

    paths: Sequence[Path]
    field: str = "text"
    history: int = 0

    def __post_init__(self) -> None:
        expect(self.paths, "at least one input file")

    @property
    def are_ids(self) -> bool:
        """Whether the files hold token ids; raises ValueError for a mixture."""
        kinds = {path.suffix == ".npy" or holds_sequences(path) for path in self.paths}
        expect(len(kinds) <= 1, "either files of token ids (.npy) or text files", "both", "encode the text first")
        return kinds.pop()

    def arrays(self, end_of_text: int | None) -> Iterator[np.ndarray]:
        """The ids of each file ``[n]``; ValueError for texts whose ends nothing names."""
        for path in self.paths:
            if not holds_sequences(path):
                yield load_tokens([path])
                continue
            wanted, remedy = "the token that ends these texts", "give --tokenizer, or --end-of-text with its id"
            expect(end_of_text is not None, wanted, "none", remedy, of=path)
            yield written_corpus(path, end_of_text or 0, self.history)

    def documents(self) -> Iterator[Document]:
        return read_documents(self.paths, self.field)


@dataclass(frozen=True)
class TokenizerEncoder:
    """Documents as a tokenizer's ids, each followed by ``separator``, the end-of-text token."""

    tokenizer: Tokenizer
    separator: int

    def encode(self, documents: Iterable[Document]) -> Iterator[np.ndarray]:
        return encoded_documents(documents, self.tokenizer, self.separator)


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
        ids = [self.ids[word] if word in self.ids else self._new_id(word) for word in line.split()]
        if not ids:
            return []
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


def write_corpus(
    inputs: Inputs,
    encoder: Encoder | None,
    end_of_text: int | None,
    folder: Path,
    progress: Callable[[int], object] = ignore,
) -> tuple[TokenStream, list[str] | None]:
    """Write what ``load_corpus`` reads, and read it: the ids, unless a single file of them can be mapped, and their
    meaning; ValueError where there is no text.

    encoder: of text; None for files of token ids.
    end_of_text: the id between the documents of such files; None without one.
    """
    mapped: str | None = None
    pieces: Iterable[np.ndarray]
    if inputs.are_ids:
        arrays, separator = inputs.arrays(end_of_text), end_of_text
        pieces = (array[begin : begin + PIECE] for array in arrays for begin in range(0, len(array), PIECE))
        if len(inputs.paths) == 1 and not holds_sequences(inputs.paths[0]):
            mapped = str(inputs.paths[0].resolve())
    elif encoder is None:
        wanted = "token ids (.npy), or text and a way to tokens"
        raise ValueError(f"{inputs.paths[0]}: expected {wanted}: give --tokenizer or --words")
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
    (folder / "corpus.json").write_text(json.dumps({"mapped": mapped, "separator": separator, "symbols": symbols}))
    stream, symbols = load_corpus(folder)
    if not len(stream.ids):
        raise ValueError(f"expected some text, got none in {', '.join(map(str, inputs.paths))}")
    return stream, symbols


def load_corpus(folder: Path) -> tuple[TokenStream, list[str] | None]:
    """The token stream that ``write_corpus`` wrote, mapped, and the words of the ids, if they are words."""
    facts = json.loads((folder / "corpus.json").read_text())
    path = folder / "ids.bin"
    if facts["mapped"]:
        ids = load_tokens([facts["mapped"]])
    else:
        ids = np.memmap(path, "<i4", "r") if path.stat().st_size else np.zeros(0, "<i4")
    return TokenStream.of(ids, facts["separator"]), facts["symbols"]
