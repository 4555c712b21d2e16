"""Counting the n-grams of all orders in one sort.

A corpus is a flat array of token ids cut into texts by a *separator*.  A text includes the separators on both sides: it
starts at the left one and ends at the right one.  So an n-gram may begin or end with a separator, and has none inside.

- Token streams of subword models: the separator is the tokenizer's end-of-text id, an ordinary token.
- Sentences: the separator becomes ``<s>`` on the left and ``</s>`` on the right.

The *window* of a position is the ``order`` tokens from it, padded with 0 after the text's end and packed into one
integer, the first token in the highest bits.  In the sorted windows equal n-grams of every order are neighbours, since
each is a prefix of its windows.  If a window exceeds 64 bits, the part that fits is replaced by its rank, and packing
continues from there.

Windows with different first tokens never meet.  So the vocabulary is cut into ranges of codes, as many as the memory
requires; each is counted separately in a pass over the tokens (which may be a mapped file), one range a thread at a
time, and the results are concatenated.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from fst.processors import ignore, in_order
from fst.table import BOS, EOS, UNK
from latticebpd.checks import expect
from lm_training.ngram.array_store import ArrayStore
from lm_training.ngram.trie import first_of_each

MIN_COUNTS = (1, 1, 2, 4)
"""Minimum counts of the paper's models: bigrams from 1 occurrence, trigrams from 2, 4-grams from 4."""
DEFAULT_MEMORY = 4 << 30
"""Bytes for counting."""
SEPARATOR = EOS
"""Separator of sentences while windows are sorted; lower than all ids but one, it sorts like <s> and like </s>."""
CODE_OF_ZERO = 1 - UNK
"""Windows hold ids plus this number, so that the lowest marker is above the padding, 0."""
COMMON = 1000
"""Higher counts share the last of the counts of counts; no cutoff is that high."""
PIECE = 1 << 18
"""Tokens read at a time; the intermediate arrays of so many fit into the processor's cache."""
BLOCK = 1 << 18
"""Sorted windows counted at a time, for the same reason."""
BYTES_A_WINDOW, BYTES_A_WIDE_WINDOW = 10, 56
"""Peak memory of counting one window: sorted in place; and with ranks, which need its position as well."""

Progress = Callable[[int, int], object]
"""Called with the steps done and their total number."""


@dataclass(frozen=True, eq=False)
class OrderCounts:
    """The n-grams of one order that reach the minimum count, or a part of them with complete contexts.

    ngrams: ``[n, o]`` int32, unique rows in lexicographic order.
    counts: ``[n]`` int64.  The unigram ``<s>``, which is only ever a context, counts the sentences.
    totals: ``[c]`` int64, of each context in the order of the rows: the tokens seen after it, those of rarer n-grams
        included.
    types: ``[c]`` int64, how many different ones, the rarer included.
    counts_of_counts: ``[COMMON + 1]`` int64, entry r the number of n-grams seen r times, rarer ones included; the last
        also those seen more often.
    """

    ngrams: np.ndarray
    counts: np.ndarray
    totals: np.ndarray
    types: np.ndarray
    counts_of_counts: np.ndarray


NgramCounts = list[OrderCounts]
"""Entry ``o - 1`` belongs to order ``o``."""


@dataclass(frozen=True, eq=False)
class TokenStream:
    """Token ids, read as if the separator preceded the first.

    ids: ``[n]`` integers, in memory or mapped; sentences end with ``SEPARATOR``.
    separator: the id between texts; None for one endless text.
    """

    ids: np.ndarray
    separator: int | None
    highest: int

    @classmethod
    def of(cls, tokens: np.ndarray, separator: int | None) -> TokenStream:
        ids, lowest = np.asanyarray(tokens), UNK if separator == SEPARATOR else 0
        if ids.ndim != 1 or (len(ids) and ids.dtype.kind not in "iu"):
            raise ValueError(f"expected a flat array of integer token ids, got {ids.dtype} of shape {ids.shape}")
        if len(ids) and not lowest <= int(ids.min()) <= int(ids.max()) < 2**31 - 1:
            raise ValueError(f"expected token ids from 0 to {2**31 - 2}, got {int(ids.min())} to {int(ids.max())}")
        return cls(ids, separator, max(int(np.max(ids, initial=0)), separator or 0))

    @property
    def bits(self) -> int:
        """The width of a code."""
        return (self.highest + CODE_OF_ZERO).bit_length()

    @property
    def sentences(self) -> bool:
        return self.separator == SEPARATOR

    @property
    def size(self) -> int:
        """The number of positions, that of the separator before the first id included."""
        return len(self.ids) + (self.separator is not None)

    @property
    def separator_code(self) -> int:
        """-1 without a separator."""
        return -1 if self.separator is None else self.separator + CODE_OF_ZERO

    def codes(self, begin: int, end: int) -> np.ndarray:
        """``[end - begin]`` int64 codes of the positions from ``begin``; 0, the padding, beyond the last."""
        codes = np.zeros(end - begin, dtype=np.int64)
        shift = self.size - len(self.ids)
        if begin < shift:
            codes[0] = self.separator_code
        ids = self.ids[max(begin - shift, 0) : max(end - shift, 0)]
        target = codes[max(shift - begin, 0) :][: len(ids)]
        target[:] = ids
        target += CODE_OF_ZERO
        return codes


def minimum_of(min_counts: Sequence[int], order: int) -> int:
    """The count from which on n-grams of ``order`` are kept: entry o - 1 or the last one; 1 for unigrams."""
    expect(len(min_counts) and min(min_counts) >= 1, "a minimum count of at least 1 for each order", list(min_counts))
    return 1 if order == 1 else min_counts[min(order, len(min_counts)) - 1]


class OrderCollector:
    """Collects the n-grams of one order from consecutive parts into arrays of a store."""

    def __init__(self, store: ArrayStore, stream: TokenStream, order: int) -> None:
        self.stream, self.order = stream, order
        self.columns = {"ngrams": store.column(f"ngrams-{order}", np.int32, order)}
        for name in ("counts", "totals", "types", "counts_of_counts"):
            self.columns[name] = store.column(f"{name}-{order}", np.int64)
        self.counts_of_counts = np.zeros(COMMON + 1, dtype=np.int64)

    def add(self, part: OrderCounts) -> None:
        if self.order > 1 and self.stream.sentences:
            part.ngrams[part.ngrams[:, 0] == SEPARATOR, 0] = BOS
        for name in ("ngrams", "counts", "totals", "types"):
            self.columns[name].append(vars(part)[name])
        self.counts_of_counts += part.counts_of_counts

    def add_unigrams(self, tokens: np.ndarray, counts: np.ndarray) -> None:
        """Add all unigrams ``[n]`` with their counts, that of the separator for all its positions.

        The separator before the first text ends none.  For sentences it becomes ``</s>`` and ``<s>``, equally frequent.
        """
        separator, counts = self.stream.separator, counts.copy()
        if separator is not None:
            counts[np.searchsorted(tokens, separator)] -= 1
        total, types = counts.sum(), np.count_nonzero(counts)
        counts_of_counts = np.bincount(np.minimum(counts, COMMON), minlength=COMMON + 1)
        if self.stream.sentences:
            index, sentences = np.searchsorted(tokens, BOS), counts[np.searchsorted(tokens, SEPARATOR)]
            tokens, counts = np.insert(tokens, index, BOS), np.insert(counts, index, sentences)
        root = np.zeros(min(1, len(tokens)), dtype=np.int64)
        self.add(OrderCounts(tokens[:, np.newaxis], counts, root + total, root + types, counts_of_counts))

    def finish(self) -> OrderCounts:
        self.columns["counts_of_counts"].append(self.counts_of_counts)
        return OrderCounts(**{name: column.finish() for name, column in self.columns.items()})


def count_ngrams(
    stream: TokenStream,
    order: int,
    min_counts: Sequence[int] = (1,),
    memory: int = DEFAULT_MEMORY,
    threads: int = 1,
    progress: Progress = ignore,
    store: ArrayStore | None = None,
) -> NgramCounts:
    """Count the n-grams of orders 1 to ``order``.

    min_counts: of each order the count from which on n-grams are listed, the last also of higher orders.
    memory: bytes for counting. store: where the result goes; by default to memory.
    """
    expect(order >= 1, "an order of at least 1", order)
    store = store or ArrayStore()
    minimums = [minimum_of(min_counts, o) for o in range(1, order + 1)]
    ranges = _code_ranges(stream, _num_passes(stream, minimums, memory, threads))
    unigrams, *longer = [OrderCollector(store, stream, o) for o in range(1, order + 1)]
    tokens, counts = [np.zeros(0, dtype=np.int32)], [np.zeros(0, dtype=np.int64)]
    with ThreadPoolExecutor(threads) as pool:
        results = in_order(pool, lambda codes: _count_range(stream, minimums, codes), ranges, threads)
        for done, (first, *others) in enumerate(results, 1):
            tokens += [part.ngrams[:, 0] for part in first]
            counts += [part.counts for part in first]
            for collector, parts in zip(longer, others, strict=True):
                for part in parts:
                    collector.add(part)
            progress(done, len(ranges))
    unigrams.add_unigrams(np.concatenate(tokens), np.concatenate(counts))
    return [collector.finish() for collector in (unigrams, *longer)]


def _num_passes(stream: TokenStream, minimums: Sequence[int], memory: int, threads: int) -> int:
    """The number of passes over the tokens that keep the intermediate arrays within ``memory`` bytes.

    minimums: of each order.  If all n-grams of a high order are kept, they may be as many as windows.
    """
    each = BYTES_A_WINDOW if len(minimums) * stream.bits <= 64 else BYTES_A_WIDE_WINDOW
    each += sum(4 * order + 16 for order, minimum in enumerate(minimums, 1) if order > 2 and minimum == 1)
    return max(threads, -(-stream.size * each * threads // memory))


@dataclass(frozen=True)
class _CodeRange:
    """Codes from ``low`` to ``high`` - 1, which are the first of ``size`` windows."""

    low: int
    high: int
    size: int


def _code_ranges(stream: TokenStream, parts: int) -> list[_CodeRange]:
    """Cut the codes into at most ``parts`` ranges of about equally many windows."""
    shift = max(0, stream.bits - 20)  # neighbouring codes are counted together
    histogram = np.zeros((1 << stream.bits >> shift) + 1, dtype=np.int64)
    for begin in range(0, stream.size, PIECE):
        codes = stream.codes(begin, min(begin + PIECE, stream.size))
        histogram += np.bincount(codes >> shift, minlength=len(histogram))
    ends = np.searchsorted(np.cumsum(histogram), np.arange(1, parts) * (stream.size / parts)) + 1
    bounds = pairwise(np.unique(np.concatenate([[0], ends, [len(histogram)]])))
    return [_CodeRange(int(low) << shift, int(high) << shift, int(histogram[low:high].sum())) for low, high in bounds]


def _count_range(stream: TokenStream, minimums: list[int], codes: _CodeRange) -> list[list[OrderCounts]]:
    """Count the windows whose first code is in the range: for each order, consecutive parts."""
    order, bits = len(minimums), stream.bits
    last_code = np.uint64(2**bits - 1)
    result: list[list[OrderCounts]] = []
    positions: np.ndarray | None = None  # of the windows that exceed 64 bits; None before the first stage
    prefixes = np.zeros((1, 0), dtype=np.int32)  # the n-grams that the ranks stand for
    ranks: np.ndarray = np.zeros(0, dtype=np.uint64)
    while len(result) < order:
        done = len(result)
        packed = min(order - done, (64 - (len(prefixes) - 1).bit_length()) // bits)
        last = done + packed == order
        if positions is None:
            keys, positions = _pack(stream, packed, codes, with_positions=not last)
        else:
            keys = _pack_after_ranks(stream, positions, done, packed, ranks)
        if not last:
            unfinished = (keys & last_code != 0) & (keys & last_code != np.uint64(max(stream.separator_code, 0)))
            positions = positions[unfinished]
            distinct, ranks = np.unique(keys[unfinished], return_inverse=True)
            ranks = ranks.astype(np.uint64)
        keys.sort()
        blocks = [
            _count_sorted(keys[begin:end], prefixes, bits, minimums[done : done + packed])
            for begin, end in _blocks(keys, bits * (packed if done else packed - 1))
        ]
        result += [list(parts) for parts in zip(*blocks, strict=True)]
        if not last:
            prefixes = _unpack(distinct, prefixes, packed, bits)
    return result


def _pack(stream: TokenStream, packed: int, codes: _CodeRange, with_positions: bool) -> tuple[np.ndarray, np.ndarray]:
    """``[w]`` uint64 windows of ``packed`` tokens, the first in the range, and ``[w]`` their positions (or ``[0]``)."""
    windows = np.empty(codes.size, dtype=np.int64)
    positions = np.empty(codes.size if with_positions else 0, dtype=np.int64)
    done = 0
    for begin in range(0, stream.size, PIECE):
        end = min(begin + PIECE, stream.size)
        piece = stream.codes(begin, end + packed)
        first = piece[: end - begin]
        indices = np.flatnonzero((first >= codes.low) & (first < codes.high))
        span = slice(done, done + len(indices))
        windows[span] = _windows(piece, indices, packed, stream)
        if with_positions:
            positions[span] = indices + begin
        done = span.stop
    return windows.view(np.uint64), positions


def _pack_after_ranks(
    stream: TokenStream, positions: np.ndarray, done: int, packed: int, ranks: np.ndarray
) -> np.ndarray:
    """``[w]`` uint64: the ranks of the ``done`` tokens from each position, and the ``packed`` tokens after them."""
    keys = ranks << np.uint64(stream.bits * packed)
    for begin in range(0, stream.size, PIECE):
        low, high = np.searchsorted(positions, [begin, begin + PIECE])
        codes = stream.codes(begin + done, begin + PIECE + done + packed)
        keys[low:high] |= _windows(codes, positions[low:high] - begin, packed, stream, started=True).view(np.uint64)
    return keys


def _windows(
    codes: np.ndarray, indices: np.ndarray, packed: int, stream: TokenStream, started: bool = False
) -> np.ndarray:
    """``[p]`` int64 windows of ``packed`` codes from ``indices``, 0 after a separator.

    started: whether the text started before the window; otherwise a separator as its first code starts the text.
    """
    keys: np.ndarray = codes[indices]
    inside = (keys != stream.separator_code) | (not started)
    for offset in range(1, packed):
        following = codes[indices + offset]
        keys <<= stream.bits
        keys |= following * inside
        inside &= following != stream.separator_code
    return keys


def _blocks(keys: np.ndarray, shift: int) -> list[tuple[int, int]]:
    """Cut sorted windows into blocks of about ``BLOCK``, never between two that are equal above ``shift`` bits."""
    heads = (keys[::BLOCK] >> np.uint64(shift)) << np.uint64(shift)
    bounds = np.unique(np.concatenate([[0], np.searchsorted(keys, heads), [len(keys)]]))
    return list(pairwise(bounds.tolist())) or [(0, 0)]


def _count_sorted(keys: np.ndarray, prefixes: np.ndarray, bits: int, minimums: list[int]) -> list[OrderCounts]:
    """Count the n-grams that sorted windows begin with; ``minimums`` are those of the packed orders.

    Longest first: the distinct n-grams of one order, padded ones included, are the windows of the next.
    """
    orders: list[OrderCounts] = []
    counts = np.ones(len(keys), dtype=np.int64)
    for taken in range(len(minimums), 0, -1):
        first = np.flatnonzero(first_of_each(keys))
        counts = np.add.reduceat(counts, first) if len(first) else counts
        keys = keys[first]
        orders.append(_order_counts(keys, counts, prefixes, taken, bits, minimums[taken - 1]))
        keys = keys >> np.uint64(bits)
    return orders[::-1]


def _order_counts(
    keys: np.ndarray, counts: np.ndarray, prefixes: np.ndarray, taken: int, bits: int, minimum: int
) -> OrderCounts:
    """One order, from its distinct n-grams ``[n]`` and their counts; shorter ones, padded, are left out."""
    complete = (keys & np.uint64(2**bits - 1)) != 0
    if not complete.all():
        keys, counts = keys[complete], counts[complete]
    starts = np.flatnonzero(first_of_each(keys >> np.uint64(bits)))
    totals = np.add.reduceat(counts, starts) if len(starts) else np.zeros(0, dtype=np.int64)
    types = np.diff(starts, append=len(keys))
    counts_of_counts = np.bincount(np.minimum(counts, COMMON), minlength=COMMON + 1)
    if minimum > 1:
        kept = np.flatnonzero(counts >= minimum)
        contexts = np.searchsorted(starts, kept, side="right") - 1
        contexts = contexts[first_of_each(contexts)]
        keys, counts, totals, types = keys[kept], counts[kept], totals[contexts], types[contexts]
    return OrderCounts(_unpack(keys, prefixes, taken, bits), counts, totals, types, counts_of_counts)


def _unpack(keys: np.ndarray, prefixes: np.ndarray, taken: int, bits: int) -> np.ndarray:
    """``[n, order]`` int32 ids of keys: the rank of a prefix, then ``taken`` codes."""
    done = prefixes.shape[1]
    rows = np.empty((len(keys), done + taken), dtype=np.uint32)
    for column in range(taken):
        rows[:, done + column] = (keys >> np.uint64(bits * (taken - 1 - column))) & np.uint64(2**bits - 1)
    rows -= np.uint32(CODE_OF_ZERO)  # wraps below 0, to the markers as int32
    ids = rows.view(np.int32)
    if done:
        ids[:, :done] = prefixes[(keys >> np.uint64(bits * taken)).astype(np.int64)]
    return ids
