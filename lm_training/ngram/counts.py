"""Counting n-grams of every order at once.

A corpus is a flat array of token ids cut into texts by one *separator*.  It is read as the text between two
separators, both included: the left one is where the text starts, the right one where it ends.  An n-gram may
therefore begin with a separator or end with one, and never has one inside.

- Token streams for subword models: the separator is the tokenizer's end-of-text id and stays an ordinary token.
- Sentences: the separator becomes ``<s>`` on the left and ``</s>`` on the right.

All orders come out of one sort.  At every position stands a *window*, the ``order`` tokens from there, padded with 0
after the text's end and packed into one integer, the first token in the highest bits.  In the sorted windows equal
n-grams of every order are neighbours, since each is a prefix of its windows.  Where 64 bits do not hold a window, the
part that fits is replaced by its rank and the packing goes on from there.

Windows that begin with different tokens never meet.  So the vocabulary is cut into ranges, each range is counted by
itself, and the results stand one behind the other: as many ranges as the memory asks for, each a pass over the tokens
(which may lie in a mapped file), as many at a time as there are threads.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import dataclass, fields
from itertools import pairwise
from typing import TypeVar

import numpy as np

from fst.table import BOS, EOS, UNK
from lm_training.ngram.columns import InMemory, Store
from lm_training.ngram.links import first_of_each

SEPARATOR = EOS
"""What stands between sentences while windows are sorted; as the lowest but one of all ids it sorts alike as <s> and as </s>."""
CODE_OF_ZERO = 1 - UNK
"""Windows hold ids plus this much, so that even the lowest marker is above the padding, 0."""
COMMON = 1000
"""Counts from this one on share one entry of the counts of counts; no cutoff is that high."""
PIECE = 1 << 18
"""Tokens read at a time: few enough that a processor's cache holds all that is made of them."""
BLOCK = 1 << 18
"""Sorted windows counted at a time, for the same reason."""
BYTES_A_WINDOW, BYTES_A_WIDE_WINDOW = 10, 56
"""What counting one window takes while it lasts, sorted in place; and one that takes ranks, and so its place in the text."""

Task = TypeVar("Task")
Result = TypeVar("Result")
Progress = Callable[[int, int], object]
"""Called with the work done so far and all there is."""


@dataclass(frozen=True, eq=False)
class NgramCounts:
    """How often each n-gram occurs that occurs often enough; index ``o - 1`` of all lists belongs to order ``o``.

    ngrams: ``[n_o, o]`` int32, unique rows in lexicographic order: the n-grams that reach the order's minimum count.
    counts: ``[n_o]`` int64.  The unigram ``<s>``, which is only ever a context, counts the sentences.
    totals: ``[c_o]`` int64, of each context that some row has, in the order of the rows: how many tokens were seen after
        it, those of rarer n-grams included.
    types: ``[c_o]`` int64, how many different ones, the rarer included.
    counts_of_counts: ``[m]`` int64, entry r the number of n-grams seen r times, rarer ones included; the last, ``COMMON``,
        for all above as well.
    """

    ngrams: list[np.ndarray]
    counts: list[np.ndarray]
    totals: list[np.ndarray]
    types: list[np.ndarray]
    counts_of_counts: list[np.ndarray]

    @property
    def order(self) -> int:
        return len(self.ngrams)


@dataclass(frozen=True)
class Resources:
    """What counting may use: threads, and bytes of memory for what lies between tokens and n-grams."""

    threads: int = 1
    memory: int = 4 << 30

    def __post_init__(self) -> None:
        if self.threads < 1 or self.memory < 1 << 20:
            raise ValueError(f"expected at least one thread and 1 MiB of memory, got {self.threads} and {self.memory} bytes")

    def passes(self, windows: int, bits: int, minimums: Sequence[int]) -> int:
        """How often the tokens must be gone through, so that what is made of ``windows`` of them fits into the memory.

        minimums: the minimum count of each order.  Where all n-grams of a high order are kept, they may be as many as windows.
        """
        each = BYTES_A_WINDOW if len(minimums) * bits <= 64 else BYTES_A_WIDE_WINDOW
        each += sum(4 * order + 16 for order, minimum in enumerate(minimums, 1) if order > 2 and minimum == 1)
        return max(self.threads, -(-windows * each * self.threads // self.memory))


def count_stream(
    tokens: np.ndarray,
    order: int,
    end_of_text: int | None,
    min_counts: Sequence[int] = (1,),
    resources: Resources | None = None,
    progress: Progress | None = None,
) -> NgramCounts:
    """Count a stream in which ``end_of_text`` closes every document, and so stands before every next one.

    The first document counts as preceded by it too.  With ``end_of_text=None`` the stream is one endless text.
    Rarer n-grams of order o than entry o - 1 of ``min_counts`` (the last for higher orders) are counted, not listed;
    unigrams always are.
    """
    stream = TokenStream.of(tokens, end_of_text)
    return count_windows(stream, order, min_counts, resources or Resources(), progress)


def count_sentences(
    sentences: Iterable[np.ndarray], order: int, min_counts: Sequence[int] = (1,), resources: Resources | None = None
) -> NgramCounts:
    """Count sentences, one array of ids each, between ``<s>`` and ``</s>``; ``fst.table.UNK`` may stand for words."""
    boundary = np.array([SEPARATOR], dtype=np.int32)
    pieces = []
    for sentence in sentences:
        ids = _checked(sentence, lowest=UNK)
        if ((ids < 0) & (ids != UNK)).any():
            raise ValueError(f"expected sentences of token ids and <unk> ({UNK}) without their <s> and </s>, got {ids.tolist()}")
        pieces += [ids.astype(np.int32), boundary]
    stream = TokenStream.of(np.concatenate(pieces) if pieces else boundary[:0], SEPARATOR)
    return count_windows(stream, order, min_counts, resources or Resources())


@dataclass(frozen=True, eq=False)
class TokenStream:
    """Token ids with the separator that is to be read before the first: what all ways of counting start from.

    ids: ``[n]`` integers, in memory or mapped; sentences end with ``SEPARATOR``.
    separator: the id that cuts them, None where nothing does.
    highest: the highest id.
    """

    ids: np.ndarray
    separator: int | None
    highest: int

    @classmethod
    def of(cls, tokens: np.ndarray, separator: int | None) -> TokenStream:
        ids = _checked(tokens, lowest=UNK if separator == SEPARATOR else 0)
        return cls(ids, separator, max(int(np.max(ids, initial=0)), separator or 0))

    @property
    def bits(self) -> int:
        """How many bits a code needs."""
        return (self.highest + CODE_OF_ZERO).bit_length()

    @property
    def sentences(self) -> bool:
        return self.separator == SEPARATOR

    @property
    def size(self) -> int:
        """How many positions there are, the separator before the first id among them."""
        return len(self.ids) + (self.separator is not None)

    def codes(self, begin: int, end: int) -> np.ndarray:
        """``[end - begin]`` int64 codes of the positions from ``begin``; 0, the padding, beyond the end."""
        codes = np.zeros(end - begin, dtype=np.int64)
        shift = self.size - len(self.ids)
        if begin < shift:
            codes[0] = self.code
        ids = self.ids[max(begin - shift, 0) : max(end - shift, 0)]
        place = max(shift - begin, 0)
        codes[place : place + len(ids)] = ids
        codes[place : place + len(ids)] += CODE_OF_ZERO
        return codes

    @property
    def code(self) -> int:
        """The separator's code, -1 where there is none."""
        return -1 if self.separator is None else self.separator + CODE_OF_ZERO

    def histogram(self, shift: int) -> np.ndarray:
        """How many positions hold each code, ``2 ** shift`` neighbouring ones counted together."""
        counts = np.zeros((1 << self.bits >> shift) + 1, dtype=np.int64)
        for begin in range(0, self.size, PIECE):
            counts += np.bincount(self.codes(begin, min(begin + PIECE, self.size)) >> shift, minlength=len(counts))
        return counts


def _checked(tokens: np.ndarray, lowest: int = 0) -> np.ndarray:
    tokens = np.asanyarray(tokens)
    if tokens.ndim != 1 or (len(tokens) and tokens.dtype.kind not in "iu"):
        raise ValueError(f"expected a flat array of integer token ids, got {tokens.dtype} of shape {tokens.shape}")
    if len(tokens) and not lowest <= int(tokens.min()) <= int(tokens.max()) < 2**31 - 1:
        raise ValueError(f"expected token ids from 0 to {2**31 - 2}, got {int(tokens.min())} to {int(tokens.max())}")
    return tokens


def minimum_of(min_counts: Sequence[int], order: int) -> int:
    """The count from which on n-grams of ``order`` are kept; unigrams always are."""
    if not len(min_counts) or min(min_counts) < 1:
        raise ValueError(f"expected a minimum count of at least 1 for each order, got {list(min_counts)}")
    return 1 if order == 1 else min_counts[min(order, len(min_counts)) - 1]


@dataclass(frozen=True, eq=False)
class Part:
    """What `NgramCounts` holds of one order, of consecutive n-grams whose contexts are whole."""

    ngrams: np.ndarray
    counts: np.ndarray
    totals: np.ndarray
    types: np.ndarray
    counts_of_counts: np.ndarray


class OrderCollector:
    """Puts the parts of one order, which come in order, together."""

    def __init__(self, store: Store, stream: TokenStream, order: int) -> None:
        self.stream, self.order = stream, order
        self.ngrams = store.column(f"ngrams-{order}", np.int32, order)
        self.counts = store.column(f"counts-{order}", np.int64)
        self.totals = store.column(f"totals-{order}", np.int64)
        self.types = store.column(f"types-{order}", np.int64)
        self.frequencies = store.column(f"counts_of_counts-{order}", np.int64)
        self.counts_of_counts = np.zeros(COMMON + 1, dtype=np.int64)

    def add(self, part: Part) -> None:
        if self.order > 1 and self.stream.sentences:
            part.ngrams[part.ngrams[:, 0] == SEPARATOR, 0] = BOS
        self.ngrams.append(part.ngrams)
        self.counts.append(part.counts)
        self.totals.append(part.totals)
        self.types.append(part.types)
        self.counts_of_counts += part.counts_of_counts

    def finish(self) -> Part:
        self.frequencies.append(self.counts_of_counts)
        columns = (self.ngrams, self.counts, self.totals, self.types, self.frequencies)
        return Part(*(column.finish() for column in columns))


def unigram_part(stream: TokenStream, tokens: np.ndarray, counts: np.ndarray) -> Part:
    """The unigrams ``[n]`` and their counts, with the separator, counted wherever it stands, in its two roles.

    The one before the first text ends none.  Among sentences it is ``</s>`` as a unigram, with ``<s>`` beside it.
    """
    counts = counts.copy()
    if stream.separator is not None:
        counts[np.searchsorted(tokens, stream.separator)] -= 1
    seen = counts[counts > 0] if stream.separator is not None else counts
    totals, types = np.array([counts.sum()]), np.array([len(seen)])
    counts_of_counts = np.bincount(np.minimum(counts, COMMON), minlength=COMMON + 1)
    if stream.sentences:
        # <s> takes its place between </s> and the tokens.
        place, number = np.searchsorted(tokens, BOS), counts[np.searchsorted(tokens, SEPARATOR)]
        tokens, counts = np.insert(tokens, place, BOS), np.insert(counts, place, number)
    return Part(tokens[:, np.newaxis], counts, totals[: len(tokens)], types[: len(tokens)], counts_of_counts)


def collected(parts: Sequence[Part]) -> NgramCounts:
    """The counts of all orders."""
    return NgramCounts(*([vars(part)[field.name] for part in parts] for field in fields(Part)))


def count_windows(
    stream: TokenStream,
    order: int,
    min_counts: Sequence[int],
    resources: Resources,
    progress: Progress | None = None,
    store: Store | None = None,
) -> NgramCounts:
    """Count by sorting, range by range of first tokens; what is kept goes to the store."""
    if order < 1:
        raise ValueError(f"expected an order of at least 1, got {order}")
    store = store or InMemory()
    minimums = [minimum_of(min_counts, o) for o in range(1, order + 1)]
    ranges = _ranges(stream, resources.passes(stream.size, stream.bits, minimums))
    longer = [OrderCollector(store, stream, o) for o in range(2, order + 1)]
    tokens, counts = [np.zeros(0, dtype=np.int32)], [np.zeros(0, dtype=np.int64)]
    with ThreadPoolExecutor(resources.threads) as pool:
        parts = in_order(pool, lambda codes: _count_range(stream, minimums, codes), ranges, resources.threads)
        for done, (unigrams, *others) in enumerate(parts, 1):
            tokens.append(unigrams.ngrams[:, 0])
            counts.append(unigrams.counts)
            for collector, part in zip(longer, others, strict=True):
                collector.add(part)
            if progress is not None:
                progress(done, len(ranges))
    first = OrderCollector(store, stream, 1)
    first.add(unigram_part(stream, np.concatenate(tokens), np.concatenate(counts)))
    return collected([first.finish(), *(collector.finish() for collector in longer)])


def in_order(pool: Executor, work: Callable[[Task], Result], tasks: Iterable[Task], ahead: int) -> Iterator[Result]:
    """The results of ``work`` in order of the tasks, of which no more than ``ahead`` are begun before their turn."""
    waiting: deque[Future[Result]] = deque()
    for task in tasks:
        waiting.append(pool.submit(work, task))
        if len(waiting) > ahead:
            yield waiting.popleft().result()
    while waiting:
        yield waiting.popleft().result()


@dataclass(frozen=True)
class _Range:
    """Codes from ``low`` to ``high`` - 1, which ``size`` windows begin with."""

    low: int
    high: int
    size: int


def _ranges(stream: TokenStream, parts: int) -> list[_Range]:
    """Cut the codes into at most ``parts`` ranges that about as many windows begin in."""
    shift = max(0, stream.bits - 20)
    histogram = stream.histogram(shift)
    ends = np.searchsorted(np.cumsum(histogram), np.arange(1, parts) * (stream.size / parts)) + 1
    bounds = np.unique(np.concatenate([[0], ends, [len(histogram)]]))
    return [_Range(int(low) << shift, int(high) << shift, int(histogram[low:high].sum())) for low, high in pairwise(bounds)]


def _joined(parts: Sequence[Part]) -> Part:
    if len(parts) == 1:
        return parts[0]
    ngrams, counts, totals, types = (
        np.concatenate([vars(part)[name] for part in parts]) for name in ("ngrams", "counts", "totals", "types")
    )
    return Part(ngrams, counts, totals, types, np.sum([part.counts_of_counts for part in parts], axis=0))


def _count_range(stream: TokenStream, minimums: list[int], codes: _Range) -> list[Part]:
    """Count the windows that begin with a code of the range; ``minimums`` are those of all orders."""
    order, bits = len(minimums), stream.bits
    last_code = np.uint64(2**bits - 1)
    orders: list[Part] = []
    positions: np.ndarray | None = None  # of the windows that go on after those before; None is everywhere
    prefixes = np.zeros((1, 0), dtype=np.int32)  # the n-grams that the windows begin with the rank of
    ranks: np.ndarray = np.zeros(0, dtype=np.uint64)
    while len(orders) < order:
        done = len(orders)
        packed = min(order - done, (64 - (len(prefixes) - 1).bit_length()) // bits)
        last = done + packed == order
        if positions is None:
            keys, positions = _pack(stream, packed, bits, codes, where=not last)
        else:
            keys = _pack_at(stream, positions, done, packed, bits, ranks)
        if not last:
            goes_on = ((keys & last_code) != 0) & ((keys & last_code) != np.uint64(max(stream.code, 0)))
            positions = positions[goes_on]
            distinct, ranks = np.unique(keys[goes_on], return_inverse=True)
            ranks = ranks.astype(np.uint64)
        keys.sort()
        blocks = [
            _count_sorted(keys[begin:end], prefixes, packed, bits, minimums[done : done + packed])
            for begin, end in _blocks(keys, bits * (packed if done else packed - 1))
        ]
        orders += [_joined(parts) for parts in zip(*blocks, strict=True)]
        if not last:
            prefixes = _unpack(distinct, prefixes, packed, bits)
    return orders


def _pack(stream: TokenStream, packed: int, bits: int, codes: _Range, where: bool) -> tuple[np.ndarray, np.ndarray]:
    """``[w]`` uint64 windows of ``packed`` tokens that begin with a code of the range; ``[w]`` their positions, if asked for."""
    windows = np.empty(codes.size, dtype=np.int64)
    positions = np.empty(codes.size if where else 0, dtype=np.int64)
    done = 0
    for begin in range(0, stream.size, PIECE):
        end = min(begin + PIECE, stream.size)
        piece = stream.codes(begin, end + packed)
        first = piece[: end - begin]
        places = np.flatnonzero((first >= codes.low) & (first < codes.high))
        windows[done : done + len(places)] = _windows(piece, places, packed, bits, stream.code)
        if where:
            positions[done : done + len(places)] = places + begin
        done += len(places)
    return windows.view(np.uint64), positions


def _blocks(keys: np.ndarray, shift: int) -> list[tuple[int, int]]:
    """Cut sorted windows into blocks of about ``BLOCK``, never between two that share what is left of ``shift`` bits."""
    heads = (keys[::BLOCK] >> np.uint64(shift)) << np.uint64(shift)
    bounds = np.unique(np.concatenate([[0], np.searchsorted(keys, heads), [len(keys)]]))
    return list(pairwise(bounds.tolist())) or [(0, 0)]


def _windows(codes: np.ndarray, places: np.ndarray, packed: int, bits: int, ends: int, first_ends: bool = False) -> np.ndarray:
    """``[p]`` int64 windows at ``places`` of ``codes``, which reach ``packed`` positions further; 0 after a code that ``ends`` the text.

    first_ends: whether the window's first code may be that one; else it is where the text starts.
    """
    keys: np.ndarray = codes[places]
    inside = keys != ends
    for offset in range(1, packed):
        following = codes[places + offset]
        keys <<= bits
        keys |= following * inside if first_ends or offset > 1 else following
        if offset == 1 and not first_ends:
            inside = following != ends
        else:
            inside &= following != ends
    return keys


def _pack_at(stream: TokenStream, positions: np.ndarray, done: int, packed: int, bits: int, ranks: np.ndarray) -> np.ndarray:
    """``[w]`` uint64: the ranks of the ``done`` tokens from each position, and the ``packed`` tokens after them."""
    keys = ranks << np.uint64(bits * packed)
    for begin in range(0, stream.size, PIECE):
        low, high = np.searchsorted(positions, [begin, begin + PIECE])
        codes = stream.codes(begin + done, begin + PIECE + done + packed)
        keys[low:high] |= _windows(codes, positions[low:high] - begin, packed, bits, stream.code, first_ends=True).view(np.uint64)
    return keys


def _count_sorted(keys: np.ndarray, prefixes: np.ndarray, packed: int, bits: int, minimums: list[int]) -> list[Part]:
    """Count the n-grams that sorted windows begin with, of the ``packed`` orders that they add to their prefixes'.

    From the longest to the shortest: the distinct n-grams of one order, padded ones included, are the windows of the next.
    """
    orders: list[Part] = []
    counts: np.ndarray | None = None
    for taken in range(packed, 0, -1):
        first = np.flatnonzero(first_of_each(keys))
        counts = np.diff(first, append=len(keys)) if counts is None else np.add.reduceat(counts, first) if len(first) else counts
        keys = keys[first]
        orders.append(_cut_off(keys, counts, prefixes, taken, bits, minimums[taken - 1]))
        keys = keys >> np.uint64(bits)
    return orders[::-1]


def _cut_off(keys: np.ndarray, counts: np.ndarray, prefixes: np.ndarray, taken: int, bits: int, minimum: int) -> Part:
    """One order, from all its distinct n-grams ``[n]`` and their counts; shorter ones, padded, are no n-grams of it."""
    complete = (keys & np.uint64(2**bits - 1)) != 0
    if not complete.all():
        keys, counts = keys[complete], counts[complete]
    contexts = keys >> np.uint64(bits)
    starts = np.flatnonzero(first_of_each(contexts))
    totals = np.add.reduceat(counts, starts) if len(starts) else np.zeros(0, dtype=np.int64)
    types = np.diff(starts, append=len(keys))
    common = np.bincount(np.minimum(counts, COMMON), minlength=COMMON + 1)
    if minimum > 1:
        kept = np.flatnonzero(counts >= minimum)
        with_kept = np.searchsorted(starts, kept, side="right") - 1
        with_kept = with_kept[first_of_each(with_kept)]
        keys, counts, totals, types = keys[kept], counts[kept], totals[with_kept], types[with_kept]
    ngrams = _unpack(keys, prefixes, taken, bits)
    return Part(ngrams, counts.astype(np.int64, copy=False), totals.astype(np.int64, copy=False), types, common)


def _unpack(keys: np.ndarray, prefixes: np.ndarray, taken: int, bits: int) -> np.ndarray:
    """``[n, order]`` int32 ids of keys that end in ``taken`` codes and begin with the rank of a prefix."""
    done = prefixes.shape[1]
    rows = np.empty((len(keys), done + taken), dtype=np.uint32)
    for column in range(taken):
        rows[:, done + column] = (keys >> np.uint64(bits * (taken - 1 - column))) & np.uint64(2**bits - 1)
    rows -= np.uint32(CODE_OF_ZERO)  # wraps below 0, where int32 has the markers
    ids = rows.view(np.int32)
    if done:
        ids[:, :done] = prefixes[(keys >> np.uint64(bits * taken)).astype(np.int64)]
    return ids
