"""Counting n-grams of every order at once, in memory.

A corpus is a flat array of token ids cut into texts by one *separator*.  It is read as the text between two
separators, both included: the left one is where the text starts, the right one where it ends.  An n-gram may
therefore begin with a separator or end with one, and never has one inside.

- Token streams for subword models: the separator is the tokenizer's end-of-text id and stays an ordinary token.
- Sentences: the separator becomes ``<s>`` on the left and ``</s>`` on the right.

All orders come out of one sort.  At every position stands a *window*, the ``order`` tokens from there, padded with 0
after the text's end and packed into one integer, the first token in the highest bits.  In the sorted windows equal
n-grams of every order are neighbours, since each is a prefix of its windows.  Where 64 bits do not hold a window, the
part that fits is replaced by its rank and the packing goes on from there.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from fst.table import BOS, EOS, UNK
from lm_training.links import first_of_each

_SEPARATOR = EOS
"""What the separator is while windows are sorted; as the lowest but one of all ids it sorts alike as <s> and as </s>."""
_CODE_OF_ZERO = 1 - UNK
"""Windows hold ids plus this much, so that even the lowest marker is above the padding, 0."""


@dataclass(frozen=True)
class NgramCounts:
    """How often each n-gram occurs; index ``o - 1`` of both lists belongs to order ``o``.

    ngrams: ``[n_o, o]`` int32, unique rows in lexicographic order.
    counts: ``[n_o]`` int64.  The unigram ``<s>``, which is only ever a context, counts the sentences.
    """

    ngrams: list[np.ndarray]
    counts: list[np.ndarray]

    @property
    def order(self) -> int:
        return len(self.ngrams)


def count_stream(tokens: np.ndarray, order: int, end_of_text: int | None) -> NgramCounts:
    """Count a stream in which ``end_of_text`` closes every document, and so stands before every next one.

    The first document counts as preceded by it too.  With ``end_of_text=None`` the stream is one endless text.
    """
    tokens = _checked(tokens)
    if end_of_text is None:
        return _count(tokens, order, None, extra=0)
    stream = np.empty(len(tokens) + 1, dtype=np.int32)
    stream[0] = end_of_text
    stream[1:] = tokens
    return _count(stream, order, end_of_text, extra=1)


def count_sentences(sentences: Iterable[np.ndarray], order: int) -> NgramCounts:
    """Count sentences, one array of ids each, between ``<s>`` and ``</s>``; ``fst.table.UNK`` may stand for words."""
    boundary = np.array([_SEPARATOR], dtype=np.int32)
    pieces = [boundary]
    for sentence in sentences:
        ids = _checked(sentence, lowest=UNK)
        if ((ids < 0) & (ids != UNK)).any():
            raise ValueError(f"expected sentences of token ids and <unk> ({UNK}) without their <s> and </s>, got {ids.tolist()}")
        pieces += [ids, boundary]
    num_sentences = len(pieces) // 2
    counted = _count(np.concatenate(pieces), order, _SEPARATOR, extra=1)
    for rows in counted.ngrams[1:]:
        rows[rows[:, 0] == _SEPARATOR, 0] = BOS
    # As a unigram the separator is </s>; <s> takes its place beside it, above </s> and below every token.
    place = np.searchsorted(counted.ngrams[0][:, 0], BOS)
    counted.ngrams[0] = np.insert(counted.ngrams[0], place, BOS, axis=0)
    counted.counts[0] = np.insert(counted.counts[0], place, num_sentences)
    return counted


def _checked(tokens: np.ndarray, lowest: int = 0) -> np.ndarray:
    tokens = np.asarray(tokens)
    if tokens.ndim != 1 or (len(tokens) and tokens.dtype.kind not in "iu"):
        raise ValueError(f"expected a flat array of integer token ids, got {tokens.dtype} of shape {tokens.shape}")
    if len(tokens) and not lowest <= int(tokens.min()) <= int(tokens.max()) < 2**31 - 1:
        raise ValueError(f"expected token ids from 0 to {2**31 - 2}, got {int(tokens.min())} to {int(tokens.max())}")
    return tokens.astype(np.int32, copy=False)


def _count(stream: np.ndarray, order: int, separator: int | None, extra: int) -> NgramCounts:
    """Count the windows of ``stream``, of whose separators the first ``extra`` start a text but end none."""
    if order < 1:
        raise ValueError(f"expected an order of at least 1, got {order}")
    size = len(stream)
    codes = np.zeros(size + order, dtype=np.uint32)
    codes[:size] = stream.astype(np.int64) + _CODE_OF_ZERO
    bits = max(1, int(codes.max()).bit_length())
    separator_code = None if separator is None else separator + _CODE_OF_ZERO
    last_code = np.uint64(2**bits - 1)

    ngrams: list[np.ndarray] = []
    counts: list[np.ndarray] = []
    starts: np.ndarray | None = None  # of the windows; None is everywhere
    heads = np.zeros((1, 0), dtype=np.int32)  # the n-grams that `keys` begins with the rank of
    keys = np.zeros(size, dtype=np.uint64)
    while len(ngrams) < order:
        done = len(ngrams)
        packed = min(order - done, (64 - (len(heads) - 1).bit_length()) // bits)
        inside = np.ones(len(keys), dtype=bool)
        for offset in range(done, done + packed):
            following = codes[offset : offset + size] if starts is None else codes[starts + offset]
            keys <<= np.uint64(bits)
            keys |= np.where(inside, following, np.uint32(0))
            if offset > 0 and separator_code is not None:
                inside &= following != separator_code
        if done + packed < order:
            goes_on = inside & ((keys & last_code) != 0)
            starts = np.flatnonzero(goes_on) if starts is None else starts[goes_on]
            whole, ranks = np.unique(keys[goes_on], return_inverse=True)
        keys.sort()
        for taken in range(1, packed + 1):
            rows, numbers = _runs(keys >> np.uint64(bits * (packed - taken)), heads, taken, bits)
            ngrams.append(rows)
            counts.append(numbers)
        if done + packed < order:
            heads, keys = _unpack(whole, heads, packed, bits), ranks.astype(np.uint64)
    if extra:
        counts[0][ngrams[0][:, 0] == separator] -= extra
    return NgramCounts(ngrams, counts)


def _runs(keys: np.ndarray, heads: np.ndarray, taken: int, bits: int) -> tuple[np.ndarray, np.ndarray]:
    """The distinct n-grams in sorted ``keys`` and how often each occurs; padded ones, which are shorter, left out."""
    starts = np.flatnonzero(first_of_each(keys))
    numbers = np.diff(starts, append=len(keys))
    unique = keys[starts]
    whole = (unique & np.uint64(2**bits - 1)) != 0
    return _unpack(unique[whole], heads, taken, bits), numbers[whole].astype(np.int64, copy=False)


def _unpack(keys: np.ndarray, heads: np.ndarray, taken: int, bits: int) -> np.ndarray:
    """``[n, order]`` int32 ids of keys that end in ``taken`` codes and begin with the rank of a head."""
    done = heads.shape[1]
    rows = np.empty((len(keys), done + taken), dtype=np.uint32)
    for column in range(taken):
        rows[:, done + column] = (keys >> np.uint64(bits * (taken - 1 - column))) & np.uint64(2**bits - 1)
    rows -= np.uint32(_CODE_OF_ZERO)  # wraps below 0, where int32 has the markers
    ids = rows.view(np.int32)
    if done:
        ids[:, :done] = heads[(keys >> np.uint64(bits * taken)).astype(np.int64)]
    return ids
