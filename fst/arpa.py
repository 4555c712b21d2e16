"""ARPA files, the text format of backoff n-gram models: log10 values, one n-gram a line.

    \\data\\
    ngram 1=4
    ngram 2=2

    \\1-grams:
    -1.2<tab>the<tab>-0.3
    ...
    \\end\\

The reader is tolerant where tools differ: text before ``\\data\\``, any white space, CRLF, gzip, a byte order mark,
blank lines, n-grams in any order, missing backoff weights, ``-99`` for log 0, no ``<unk>``, suffixes that pruning
took away. It is strict where a file would be misread, and names the line: numbers that are none, a wrong number of
words or n-grams, words that are no unigrams, n-grams without their context or listed twice, positive or infinite
log-probabilities, a missing end. Backoff weights above 1 are legal. It reads once, from the first line to the last,
into less memory than the automaton takes.
"""

from __future__ import annotations

import gzip
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from fst import _core
from fst.automaton import most_labels
from fst.files import GZIP_DAMAGE, PathLike, replacing, unpacked
from fst.printable import expect
from fst.processors import ignore
from fst.table import BOS, EOS, UNK

Progress = Callable[[int, int], object]
MARKER_NAMES = {BOS: "<s>", EOS: "</s>", UNK: "<unk>"}


@dataclass(frozen=True)
class ParsedArpa:
    """builder: has the automaton; tokens: ids of the unigrams; symbols: the words of ids, None where words are ids."""

    builder: _core.AutomatonBuilder
    unk_label: int
    tokens: list[int]
    symbols: list[str] | None


def parse_arpa(
    path: PathLike, vocab: Mapping[str, int] | None = None, strict: bool = True, progress: Progress = ignore
) -> ParsedArpa:
    """Read an ARPA file, plain or gzip, in one pass.

    vocab: the id of every word. Without it words that are all decimal numbers are ids; other words are numbered in
        order of appearance and kept as symbols. ``<s>``, ``</s>`` and ``<unk>`` are markers whatever the vocabulary
        says.
    strict: refuse a section whose length is not the announced one; warn otherwise.
    progress: called with the bytes read so far and in all.

    Raises ValueError, with the number of the line, for anything that is not a backoff model.
    """
    words = _Words(vocab)
    parser = _core.ArpaParser(words.number, strict)
    try:
        for piece in unpacked(path, progress):
            parser.feed(piece)
        parser.finish()
    except GZIP_DAMAGE as error:
        got = f"a damaged one ({error}); make the file again"
        raise ValueError(f"{path}: expected a whole gzip stream, got {got}") from None
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
    for warning in parser.warnings:
        warnings.warn(f"{path}: {warning}", stacklevel=3)
    return ParsedArpa(parser.automaton, parser.unk_label, words.tokens, words.symbols)


class _Words:
    """Numbers the words of the unigrams when the parser has met them all."""

    def __init__(self, vocab: Mapping[str, int] | None) -> None:
        self.vocab = vocab
        self.tokens: list[int] = []
        self.symbols: list[str] | None = None

    def number(self, encoded: list[bytes]) -> list[int]:
        # Ids are words in canonical decimal form, short enough to be ones.
        if self.vocab is None and all(re.fullmatch(rb"0|[1-9][0-9]{0,9}", word) for word in encoded):
            self.tokens = [int(word) for word in encoded]
            return self.tokens
        try:
            words = [word.decode() for word in encoded]
        except UnicodeDecodeError as error:
            raise ValueError(f"expected words in UTF-8, got {error.object!r} in the unigrams") from None
        if self.vocab is None:
            self.tokens, self.symbols = list(range(len(words))), words
            return self.tokens
        missing = next((word for word in words if word not in self.vocab), None)
        expect(missing is None, "unigrams of the vocabulary given", f"{missing!r}, which it lacks")
        self.tokens = [int(self.vocab[word]) for word in words]
        least, most, limit = min(self.tokens, default=0), max(self.tokens, default=0), most_labels(len(self.vocab))
        expect(least >= 0 and most < limit, f"a vocabulary of token ids from 0 to {limit - 1}", f"{least} to {most}")
        word_of = dict(zip(self.tokens, words, strict=True))
        self.symbols = [word_of.get(token, "") for token in range(max(self.tokens, default=-1) + 1)]
        return self.tokens


def write_arpa(model: _core.Model, path: PathLike, symbols: Sequence[str] | None = None, markers: bool = False) -> None:
    """Write a model in canonical form, atomically; gzip where the name ends in ``.gz``.

    Tabs, LF, exact counts, a backoff weight for every context and every other n-gram below the highest order, n-grams
    in order of their ids. symbols: the word of every id; without it the ids themselves are written.
    markers: as for `NgramModel.to_arpa`. Raises ValueError for
    a word that ARPA cannot hold.
    """
    words = [_spelled(word) for word in symbols] if symbols is not None else []
    with replacing(path) as temporary, open(temporary, "wb") as file:
        if str(path).endswith(".gz"):
            with gzip.GzipFile("", "wb", compresslevel=6, fileobj=file, mtime=0) as packed:
                model.write_arpa(words, markers, packed.write)
        else:
            model.write_arpa(words, markers, file.write)


def _spelled(word: str) -> bytes:
    """The bytes of a word, none if it could not be read back."""
    if word in MARKER_NAMES.values() or any(character in word for character in " \t\n\v\f\r\0"):
        return b""
    return word.encode()
