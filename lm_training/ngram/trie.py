"""The n-grams of a model as a trie: sorted rows, the context of each row, and the row that it backs off to.

Every n-gram ``(v, ..., w)`` of order o has a *prefix* without ``w``, its context, and a *suffix* without ``v``, which
it backs off to; both are rows of order o - 1.  Rows are numbered in lexicographic order, so one integer names an n-gram
of any length:

    key(row) = prefix(row) * radix + code(last token)

increases strictly down the rows of an order, and lookup is a binary search in the keys.  So is the suffix of a row:
``suffix(row) = find(suffix(prefix(row)), last token)``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from fst.files import release
from fst.table import UNK

LOWEST_ID = UNK
"""The lowest of the markers, whose ids are negative."""
GROUP = 1 << 18
"""N-grams processed at a time; the intermediate arrays of so many fit into the processor's cache."""


def first_of_each(rows: np.ndarray) -> np.ndarray:
    """``[n]`` bool: where sorted ``rows``, ``[n, columns]`` or ``[n]``, differ from the row before; the first does."""
    first = np.zeros(len(rows), dtype=bool)
    first[:1] = True
    for column in rows.T if rows.ndim == 2 else [rows]:
        first[1:] |= column[1:] != column[:-1]
    return first


def take(values: np.ndarray, rows: np.ndarray, missing: float) -> np.ndarray:
    """``[n]`` entries of ``values`` at ``rows``, and ``missing`` where the row is -1."""
    if not len(values):
        return np.full(len(rows), missing, dtype=values.dtype)
    return np.where(rows < 0, np.asarray(missing, dtype=values.dtype), values[rows])


@dataclass(frozen=True, eq=False)
class ContextGroup:
    """Consecutive contexts of an order with all their n-grams.

    first: ``[n]`` bool, the first n-gram of each context.
    """

    span: slice
    context: int
    first: np.ndarray


def context_groups(rows: np.ndarray) -> Iterator[ContextGroup]:
    """Cut the n-grams of an order ``[n, o]`` between contexts, into groups of ``GROUP`` or a few more."""
    begin, context = 0, 0
    while begin < len(rows):
        end = min(begin + GROUP, len(rows))
        while end < len(rows):  # extend the group to the end of its last context
            change = first_of_each(rows[end - 1 : end + 4096, :-1])[1:]
            end += int(change.argmax()) if change.any() else len(change)
            if change.any():
                break
        first = first_of_each(rows[begin:end, :-1])
        yield ContextGroup(slice(begin, end), context, first)
        context += int(first.sum())
        begin = end


class NgramTrie:
    """Rows of an n-gram model with their prefixes and suffixes; index ``o - 1`` of every list belongs to order ``o``.

    keys: ``[n_o]`` int64, increasing; of a unigram the token's code.
    prefixes, suffixes: ``[n_o]`` int64 rows of the order below; 0, the empty n-gram, for unigrams.
    """

    def __init__(self, unigrams: np.ndarray) -> None:
        """A trie of unigrams, ``[n]`` increasing ids."""
        self.radix = int(unigrams.max(initial=LOWEST_ID)) - LOWEST_ID + 2
        root = np.zeros(len(unigrams), dtype=np.int64)
        self.keys: list[np.ndarray] = []
        self.prefixes: list[np.ndarray] = []
        self.suffixes: list[np.ndarray] = []
        self.append(self.keys_of(unigrams, root), root, root)

    @classmethod
    def of(cls, ngrams: Sequence[np.ndarray]) -> NgramTrie:
        """The trie of a complete model, ``[n_o, o]`` rows per order; ValueError where rows are unsorted or repeated, or
        the prefix or the suffix of one is missing."""
        trie = cls(ngrams[0][:, 0])
        for order, rows in enumerate(ngrams, 1):
            if order > 1:
                prefixes, suffixes = np.empty((2, len(rows)), dtype=np.int64)
                for group in context_groups(rows):
                    prefixes[group.span], suffixes[group.span] = trie.locate(rows[group.span])
                    release(rows)
                orphans = np.flatnonzero((prefixes < 0) | (suffixes < 0))
                if len(orphans):
                    wanted = f"the prefix and the suffix of every {order}-gram among the {order - 1}-grams"
                    got = f"{len(orphans)} without, the first {rows[orphans[0]].tolist()}; add them or drop it"
                    raise ValueError(f"expected {wanted}, got {got}")
                trie.append(trie.keys_of(rows[:, -1], prefixes), prefixes, suffixes)
            unsorted = np.flatnonzero(np.diff(trie.keys[-1]) <= 0)
            if len(unsorted):
                got = f"row {unsorted[0] + 1} of order {order} after a greater or equal one; sort the rows"
                raise ValueError(f"expected unique n-grams in lexicographic order, got {got}")
        return trie

    def keys_of(self, tokens: np.ndarray, prefixes: np.ndarray) -> np.ndarray:
        """``[n]`` int64 keys of n-grams given by prefix and last token; all tokens beyond the unigrams share a code."""
        codes = tokens.astype(np.int64) - LOWEST_ID
        codes[(codes < 0) | (codes >= self.radix)] = self.radix - 1
        return prefixes * self.radix + codes

    def append(self, keys: np.ndarray, prefixes: np.ndarray, suffixes: np.ndarray) -> None:
        """Add the next order, ``[n]`` each, keys increasing."""
        self.keys.append(keys)
        self.prefixes.append(prefixes)
        self.suffixes.append(suffixes)

    def find(self, order: int, prefixes: np.ndarray, tokens: np.ndarray) -> np.ndarray:
        """``[n]`` rows of the n-grams of ``order`` with these prefixes and last tokens; -1 where the model has none."""
        keys = self.keys[order - 1]
        if not len(keys):
            return np.full(len(tokens), -1, dtype=np.int64)
        wanted = self.keys_of(tokens, prefixes)
        rows: np.ndarray = np.searchsorted(keys, wanted)
        np.minimum(rows, len(keys) - 1, out=rows)
        rows[(keys[rows] != wanted) | (prefixes < 0)] = -1
        return rows

    def locate(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Prefixes and suffixes, ``[n]`` each, of sorted rows ``[n, o]`` of the next order; -1 where one is missing."""
        order = rows.shape[1]
        first = first_of_each(rows[:, :-1])
        contexts = rows[first, :-1]
        context_rows = np.zeros(len(contexts), dtype=np.int64)
        for length in range(1, order):
            context_rows = self.find(length, context_rows, contexts[:, length - 1])
        prefixes = context_rows[np.cumsum(first) - 1] if len(rows) else np.zeros(0, dtype=np.int64)
        middles = take(self.suffixes[order - 2], prefixes, missing=-1)
        return prefixes, self.find(order - 1, middles, rows[:, -1])
