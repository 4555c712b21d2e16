"""Which row is whose: the trie behind the sorted rows of an n-gram model.

Every n-gram ``(v, ..., w)`` of order o has a *prefix*, itself without ``w``: its context, a row of order o - 1; and a
*suffix*, itself without ``v``: what it backs off to, another row of order o - 1.  Rows are numbered by their
lexicographic rank, so one integer names an n-gram of any length over any vocabulary:

    key(row) = prefix(row) * radix + code(last token)

is strictly increasing down the rows of an order, and a sorted array of keys is all that a lookup needs.  The suffix
of a row is then one lookup too: ``suffix(row) = find(suffix(prefix(row)), last token)``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from fst.files import release
from fst.table import UNK

LOWEST_ID = UNK
"""Markers have negative ids; none is lower than this one."""


def first_of_each(rows: np.ndarray) -> np.ndarray:
    """``[n]`` bool: where sorted ``rows`` ``[n, columns]`` (or ``[n]``) differ from the row before; the first row does."""
    first = np.ones(len(rows), dtype=bool)
    if rows.ndim == 1:
        np.not_equal(rows[1:], rows[:-1], out=first[1:])
        return first
    first[1:] = False
    for column in rows.T:
        first[1:] |= column[1:] != column[:-1]
    if not rows.shape[1]:
        first[1:] = False
    return first


def take(values: np.ndarray, rows: np.ndarray, missing: float) -> np.ndarray:
    """``[n]`` entries of ``values`` at ``rows``, and ``missing`` where the row is -1."""
    if not len(values):
        return np.full(len(rows), missing, dtype=values.dtype)
    return np.where(rows < 0, np.asarray(missing, dtype=values.dtype), values[rows])


GROUP = 1 << 18
"""About so many n-grams are worked on at a time, so that a processor's cache holds what is made of them."""


@dataclass(frozen=True, eq=False)
class Rows:
    """Rows ``begin`` to ``end`` - 1 of an order, whose contexts are whole and begin with the one numbered ``context``.

    first: ``[end - begin]`` bool, which rows are the first of their context.
    """

    begin: int
    end: int
    context: int
    first: np.ndarray

    @property
    def span(self) -> slice:
        return slice(self.begin, self.end)


def groups_of_contexts(rows: np.ndarray) -> Iterator[Rows]:
    """Cut the n-grams of an order ``[n, o]`` between contexts."""
    begin, context = 0, 0
    while begin < len(rows):
        end = min(begin + GROUP, len(rows))
        first = first_of_each(rows[begin:end, :-1])
        if end < len(rows):
            last = begin + int(np.flatnonzero(first)[-1])
            if last > begin:  # the last context may go on: it is for the next group
                end, first = last, first[: last - begin]
            else:
                while end < len(rows) and (more := first_of_each(rows[end - 1 : end + GROUP, :-1])[1:]).size:
                    change = np.flatnonzero(more)
                    end += int(change[0]) if len(change) else len(more)
                    if len(change):
                        break
                first = np.append(first, np.zeros(end - begin - len(first), dtype=bool))
        yield Rows(begin, end, context, first)
        context += int(first.sum())
        begin = end


class NgramLinks:
    """Rows of an n-gram model with their prefixes and suffixes; index ``o - 1`` of every list belongs to order ``o``.

    keys: ``[n_o]`` int64, increasing; of unigrams the token's code.
    prefixes, suffixes: ``[n_o]`` int64 rows of the order below; 0, the empty n-gram, for unigrams.
    """

    def __init__(self, unigrams: np.ndarray) -> None:
        """Begin with the unigrams, ``[n]`` or ``[n, 1]`` increasing ids."""
        tokens = np.asarray(unigrams).reshape(-1).astype(np.int64)
        self.radix = int(tokens.max(initial=LOWEST_ID)) - LOWEST_ID + 2
        self.keys: list[np.ndarray] = []
        self.prefixes: list[np.ndarray] = []
        self.suffixes: list[np.ndarray] = []
        root = np.zeros(len(tokens), dtype=np.int64)
        self.append(tokens, root, root)

    @classmethod
    def of(cls, ngrams: Sequence[np.ndarray]) -> NgramLinks:
        """The links of a whole model, ``[n_o, o]`` rows per order.

        Raises:
            ValueError: rows are out of order or repeated, or the prefix or the suffix of one is missing.
        """
        links = cls(ngrams[0])
        for order, rows in enumerate(ngrams[1:], 2):
            prefixes, suffixes = np.empty((2, len(rows)), dtype=np.int64)
            for group in groups_of_contexts(rows):
                prefixes[group.span], suffixes[group.span] = links.locate(rows[group.span])
                release(rows)
            orphans = np.flatnonzero((prefixes < 0) | (suffixes < 0))
            if len(orphans):
                raise ValueError(
                    f"expected the prefix and the suffix of every {order}-gram among the {order - 1}-grams, "
                    f"got {len(orphans)} without, the first {rows[orphans[0]].tolist()}; add them or drop it"
                )
            links.append(rows[:, -1], prefixes, suffixes)
        return links

    def codes(self, tokens: np.ndarray) -> np.ndarray:
        """``[n]`` int64 in ``[0, radix)``; every token that is no unigram may share the last code."""
        codes = tokens.astype(np.int64)
        codes -= LOWEST_ID
        return np.where((codes >= 0) & (codes < self.radix), codes, self.radix - 1)

    def append(self, tokens: np.ndarray, prefixes: np.ndarray, suffixes: np.ndarray) -> None:
        """Add the next order: the last token, the prefix and the suffix of each of its rows."""
        keys = self.keys_of(tokens, prefixes)
        unsorted = np.flatnonzero(keys[1:] <= keys[:-1])
        if len(unsorted):
            raise ValueError(
                f"expected unique n-grams in lexicographic order, got row {unsorted[0] + 1} of order {len(self.keys) + 1} "
                "out of place; sort the rows"
            )
        self.extend(keys, prefixes, suffixes)

    def keys_of(self, tokens: np.ndarray, prefixes: np.ndarray) -> np.ndarray:
        """``[n]`` int64 keys of rows made of a prefix and one more token each."""
        keys: np.ndarray = prefixes * self.radix + self.codes(tokens)
        return keys

    def extend(self, keys: np.ndarray, prefixes: np.ndarray, suffixes: np.ndarray) -> None:
        """Add the next order, whose keys are known to increase."""
        self.keys.append(keys)
        self.prefixes.append(prefixes)
        self.suffixes.append(suffixes)

    def find(self, order: int, prefixes: np.ndarray, tokens: np.ndarray) -> np.ndarray:
        """``[n]`` rows of ``order`` made of rows of the order below and one more token each; -1 where there is none."""
        keys = self.keys[order - 1]
        if not len(keys):
            return np.full(len(tokens), -1, dtype=np.int64)
        wanted = prefixes * self.radix + self.codes(tokens)
        rows: np.ndarray = np.searchsorted(keys, wanted)
        np.minimum(rows, len(keys) - 1, out=rows)
        rows[(keys[rows] != wanted) | (prefixes < 0)] = -1
        return rows

    def locate(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Prefixes and suffixes, ``[n]`` each, of sorted rows ``[n, o]`` of the next order; -1 for those not there."""
        order = rows.shape[1]
        first = first_of_each(rows[:, :-1])
        contexts = rows[first, :-1]
        context_rows = np.zeros(len(contexts), dtype=np.int64)
        for length in range(1, order):
            context_rows = self.find(length, context_rows, contexts[:, length - 1])
        prefixes = context_rows[np.cumsum(first) - 1] if len(rows) else np.zeros(0, dtype=np.int64)
        middles = take(self.suffixes[order - 2], prefixes, missing=-1)
        return prefixes, self.find(order - 1, middles, rows[:, -1])
