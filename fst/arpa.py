"""ARPA files, the text format of backoff n-gram models: log10 values, one n-gram a line.

    \\data\\
    ngram 1=4
    ngram 2=2

    \\1-grams:
    -1.2<tab>the<tab>-0.3
    ...
    \\end\\

The reader is tolerant where tools differ (text before ``\\data\\``, any white space, CRLF, gzip, blank lines, missing
backoff weights, ``-99`` for log 0) and strict where a file would be misread: it names the line.
"""

from __future__ import annotations

import gzip
import math
import os
import warnings
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np

from fst import _core
from fst.automaton import collect, to_table
from fst.files import replacing
from fst.table import BOS, EOS, UNK, NgramTable

LN10 = math.log(10.0)
LOG10_ZERO = -99.0
PIECE = 4 << 20
"""Bytes read at a time."""
Progress = Callable[[int, int], object]
MARKER_NAMES = {BOS: "<s>", EOS: "</s>", UNK: "<unk>"}


def read_arpa(
    path: str | os.PathLike[str], vocab: Mapping[str, int] | None = None, strict: bool = True, progress: Progress | None = None
) -> NgramTable:
    """Read an ARPA file, plain or gzip, into arrays; see `parse_arpa`."""
    parsed = parse_arpa(path, vocab, strict, progress)
    return to_table(collect(parsed.parser, parsed.parser.unk_label), parsed.symbols)


@dataclass(frozen=True)
class ParsedArpa:
    """parser: holds the automaton; tokens: the ids of the unigrams; symbols: the word of every id, None where words are ids."""

    parser: _core.ArpaParser
    tokens: list[int]
    symbols: list[str] | None


def parse_arpa(
    path: str | os.PathLike[str], vocab: Mapping[str, int] | None = None, strict: bool = True, progress: Progress | None = None
) -> ParsedArpa:
    """Read an ARPA file, plain or gzip, in one pass.

    vocab: the id of every word. Without it words that are all decimal numbers are ids; other words are numbered in order
        of appearance and kept as symbols. ``<s>``, ``</s>`` and ``<unk>`` are markers whatever the vocabulary says.
    strict: refuse a section whose length is not the announced one; warn otherwise.
    progress: called with the bytes read so far and in all.

    Raises ValueError, with the number of the line, for anything that is not a backoff model.
    """
    words = _Words(vocab)
    parser = _core.ArpaParser(words.number, strict)
    try:
        _feed(parser, Path(path), progress)
        parser.finish()
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise ValueError(f"{path}: expected a whole gzip stream, got a damaged one ({error}); make the file again") from None
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
    for warning in parser.warnings:
        warnings.warn(f"{path}: {warning}", stacklevel=3)
    return ParsedArpa(parser, words.tokens, words.symbols)


def _feed(parser: _core.ArpaParser, path: Path, progress: Progress | None) -> None:
    with open(path, "rb") as raw:
        compressed = raw.read(2) == b"\x1f\x8b"
        size = os.fstat(raw.fileno()).st_size
        raw.seek(0)
        file = gzip.GzipFile(fileobj=raw) if compressed else raw
        while piece := file.read(PIECE):
            parser.feed(piece)
            if progress is not None:
                progress(raw.tell(), size)


class _Words:
    """Numbers the words of the unigrams when the parser has met them all."""

    def __init__(self, vocab: Mapping[str, int] | None) -> None:
        self.vocab = vocab
        self.tokens: list[int] = []
        self.symbols: list[str] | None = None

    def number(self, encoded: list[bytes]) -> list[int]:
        if self.vocab is None and all(_is_id(word) for word in encoded):
            self.tokens = [int(word) for word in encoded]
            return self.tokens
        words = [_decoded(word) for word in encoded]
        if self.vocab is None:
            self.tokens, self.symbols = list(range(len(words))), words
            return self.tokens
        missing = next((word for word in words if word not in self.vocab), None)
        if missing is not None:
            raise ValueError(f"expected the words of the vocabulary given, but the unigrams hold {missing!r}, which it lacks")
        self.tokens = [int(self.vocab[word]) for word in words]
        word_of = dict(zip(self.tokens, words, strict=True))
        self.symbols = [word_of.get(token, "") for token in range(max(self.tokens, default=-1) + 1)]
        return self.tokens


def _is_id(word: bytes) -> bool:
    """Whether a word is an id in canonical decimal form, and short enough to be worth calling one."""
    return word.isdigit() and len(word) <= 10 and (word == b"0" or not word.startswith(b"0"))


def _decoded(word: bytes) -> str:
    try:
        return word.decode()
    except UnicodeDecodeError:
        raise ValueError(f"expected words in UTF-8, got {word!r} in the unigrams") from None


def write_arpa(table: NgramTable, path: str | os.PathLike[str]) -> None:
    """Write ``table`` in canonical form, whole or not at all; gzip where the name ends in ``.gz``."""
    with replacing(path) as temporary:
        if str(path).endswith(".gz"):
            with gzip.open(temporary, "wb", compresslevel=6) as file:
                _write(table, file)
        else:
            with open(temporary, "wb", buffering=1 << 20) as file:
                _write(table, file)


def _write(table: NgramTable, file: IO[bytes] | gzip.GzipFile) -> None:
    counts = "".join(f"ngram {order}={count}\n" for order, count in enumerate(table.num_ngrams, 1))
    file.write(f"\\data\\\n{counts}".encode())
    for order, (rows, log_probs, backoffs) in enumerate(zip(table.ngrams, table.log_probs, table.backoffs, strict=True), 1):
        file.write(f"\n\\{order}-grams:\n".encode())
        for begin in range(0, len(rows), 1 << 16):
            part = slice(begin, begin + (1 << 16))
            lines = zip(rows[part].tolist(), _log10(log_probs[part]), _log10(backoffs[part]), strict=True)
            for ngram, log10_prob, log10_backoff in lines:
                words = " ".join([_word(table, token) for token in ngram])
                backoff = f"\t{log10_backoff:.9g}" if order < table.order and ngram[-1] != EOS else ""
                file.write(f"{log10_prob:.9g}\t{words}{backoff}\n".encode())
    file.write(b"\n\\end\\\n")


def _log10(log_values: np.ndarray) -> list[float]:
    values: list[float] = (np.round(np.maximum(log_values / LN10, LOG10_ZERO), 7) + 0.0).tolist()
    return values


def _word(table: NgramTable, token: int) -> str:
    if token < 0:
        return MARKER_NAMES[token]
    if table.symbols is None:
        return str(token)
    word = table.symbols[token] if token < len(table.symbols) else ""
    if not word or word in MARKER_NAMES.values() or any(character in " \t\n\v\f\r" for character in word):
        raise ValueError(f"token {token}: expected a word without white space that is no marker, got {word!r}; ARPA cannot hold it")
    return word
