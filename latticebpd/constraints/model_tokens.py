"""What a constraint knows of a model's tokens: their bytes, and how its tokenizer writes a text."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from threading import Lock
from typing import Any
from weakref import WeakKeyDictionary

from tokenizers import Tokenizer, pre_tokenizers
from tokenizers.models import BPE, Unigram

from latticebpd.checks import expect


@dataclass(frozen=True, eq=False)
class ModelTokens:
    """The tokens of one model; compiled constraints are kept by it.

    backend: the tokenizer, of the ``tokenizers`` library.
    vocab_size: of the model, which may have more tokens than the tokenizer.
    written: special tokens that are text here, see `writing`.
    """

    backend: Tokenizer = field(repr=False)
    vocab_size: int
    written: frozenset[int] = frozenset()
    _writing: dict[frozenset[int], ModelTokens] = field(default_factory=dict, init=False, repr=False)

    def writing(self, texts: Sequence[str]) -> ModelTokens:
        """The same tokens, where those special ones that occur in some texts are text like others."""
        written = frozenset(special_in(self.backend, texts))
        if written == self.written:
            return self
        return self._writing.setdefault(written, ModelTokens(self.backend, self.vocab_size, written))

    @cached_property
    def spelled(self) -> list[bytes | None]:
        """``[vocab_size]`` the bytes of each token; None for special ones and those that the tokenizer lacks.

        ValueError for a tokenizer whose tokens are no bytes.
        """
        settings, model = str(self.backend.decoder), self.backend.model
        if "ByteLevel" in settings:
            spell = _of_byte_level
        elif isinstance(model, BPE | Unigram) and "▁" in settings:
            spell = _of_sentence_piece
        else:
            kind = type(model).__name__
            raise ValueError(f"expected a tokenizer of bytes (byte-level BPE or SentencePiece), got {kind}")
        added = self.backend.get_added_tokens_decoder()
        spelled: list[bytes | None] = [None] * self.vocab_size
        for text, token in self.backend.get_vocab(with_added_tokens=False).items():
            if token < self.vocab_size and token not in added:
                spelled[token] = spell(text)
        for token, one in added.items():
            if token < self.vocab_size and (not one.special or token in self.written):
                spelled[token] = one.content.encode()
        return spelled

    def bytes_of(self, tokens: Sequence[int]) -> bytes:
        """The bytes of a text; special tokens have none."""
        return b"".join([self.spelled[token] or b"" for token in tokens])

    def encode(self, text: str) -> list[int]:
        """The tokens of a text as the tokenizer writes it, none of them special: their names are text like others."""
        ids = list(self.backend.encode(text, add_special_tokens=False).ids)
        if self._names.keys().isdisjoint(ids):
            return ids
        names = "|".join(map(re.escape, self._names.values()))
        parts = re.sub(names, lambda name: name[0][0] + NO_TEXT + name[0][1:], text).split(NO_TEXT)
        return [token for part in parts for token in self.encode(part)] if len(parts) > 1 else ids

    @cached_property
    def _names(self) -> dict[int, str]:
        """Special tokens, of more than one character, that are no text."""
        added = self.backend.get_added_tokens_decoder().items()
        return {
            token: one.content
            for token, one in added
            if one.special and token not in self.written and len(one.content) > 1
        }

    def encode_after(self, before: bytes, text: bytes) -> list[int]:
        """The tokens of bytes as the tokenizer writes them after others or, where those end within a token, alone; none
        if neither spells them."""
        begin = next((i for i, byte in enumerate(before) if byte & 0xC0 != 0x80), len(before))  # of a whole character
        for context in (before[begin:], b""):
            ids, length = self.encode((context + text).decode("utf-8", "ignore")), 0
            while ids and length < len(context):
                length += len(self.bytes_of([ids.pop(0)]))
            if ids and length == len(context) and text.startswith(self.bytes_of(ids)):
                return ids
        return []


NO_TEXT = "\udcff"
"""A character that no text has."""


def special_in(backend: Tokenizer, texts: Sequence[str]) -> dict[int, str]:
    """The special tokens that occur in some texts, and how these write them."""
    added = backend.get_added_tokens_decoder().items()
    return {token: one.content for token, one in added if one.special and any(one.content in text for text in texts)}


class PerModel(WeakKeyDictionary[ModelTokens, Any]):
    """What was made for each model's tokens, as long as these are kept; copies and pickles are without it."""

    def __reduce__(self) -> tuple[type[PerModel], tuple[()]]:
        return PerModel, ()


_KNOWN: WeakKeyDictionary[Any, dict[int, ModelTokens]] = WeakKeyDictionary()
_LOCK = Lock()


def model_tokens(tokenizer: Any, vocab_size: int) -> ModelTokens:
    """Of a tokenizer with the interface of ``transformers``', kept as long as the tokenizer; ValueError for none, or
    one that is not of the ``tokenizers`` library."""
    expect(tokenizer is not None, "a tokenizer together with a constraint", "none", "pass tokenizer=")
    backend: Any = getattr(tokenizer, "backend_tokenizer", None)
    got = f"{type(tokenizer).__name__}, a slow tokenizer"
    expect(isinstance(backend, Tokenizer), "a tokenizer of the tokenizers library with a constraint", got)
    with _LOCK:
        known = _KNOWN.setdefault(tokenizer, {})
        return known.setdefault(vocab_size, ModelTokens(backend, vocab_size))


_ALPHABET: dict[str, int] = {}


def _of_byte_level(text: str) -> bytes:
    if not _ALPHABET:
        _ALPHABET.update(_byte_alphabet())
    return bytes(map(_ALPHABET.__getitem__, text)) if _ALPHABET.keys() >= set(text) else text.encode()


def _byte_alphabet() -> dict[str, int]:
    """The characters that byte-level tokenizers write for bytes: printable ones of Latin-1 stand for themselves, the
    others, in order, for the characters from 256 on."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in printable]
    alphabet = {chr(byte): byte for byte in printable} | {chr(256 + i): byte for i, byte in enumerate(others)}
    assert alphabet.keys() == set(pre_tokenizers.ByteLevel.alphabet())
    return alphabet


def _of_sentence_piece(text: str) -> bytes:
    if len(text) == 6 and text.startswith("<0x") and text.endswith(">"):
        return bytes([int(text[3:5], 16)])
    return text.replace("▁", " ").encode()
