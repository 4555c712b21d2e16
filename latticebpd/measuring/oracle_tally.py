"""Oracle top-k block efficiency: what perfect rescoring of the heads' lattices would reach (Kim 2024, section 6.3).

Everything follows from *ranks*: the place, by falling log-probability, at which a slot holds the base model's own
token.  The oracle over the k best arcs of the first h heads accepts up to the first slot whose rank is k or more.

Three numbers, which are not the same:

    by decode      a decode of the text with these drafts: each call goes on where the last one stopped; the paper's
    by position    the mean over all positions of the text: no decode visits all of them
    at best        the fewest calls that any choice of accepted lengths within the lattices' reach allows: taking the
                   longest prefix at every call need not be best, so this is the true upper bound
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from latticebpd.lattices.lattice_set import LatticeSet
from latticebpd.lattices.sausage import PADDING
from latticebpd.measuring.counts import Counts
from latticebpd.measuring.signature import DECODE, Signature, counted_by

ABSENT = np.iinfo(np.int64).max
"""The rank of a token that its slot lacks."""
MISRANKED, NOT_IN_LATTICE, END_OF_TEXT, CUT = range(4)
"""Why drafts end before their lattice does."""


def ranks(lattices: LatticeSet) -> np.ndarray:
    """``[n, slots]``: place of the base model's token in each slot, from 0; ``ABSENT`` where the slot lacks it.

    Equal log-probabilities are ranked by token id, as everywhere.
    """
    tokens, log_probs = lattices.tokens, lattices.log_probs
    wanted = lattices.continuation[:, :, None]
    equal = tokens == wanted
    column = equal.argmax(axis=2)[:, :, None]
    level = np.take_along_axis(log_probs, column, axis=2)
    found = (np.take_along_axis(equal, column, axis=2) & (wanted != PADDING) & (level > -np.inf))[:, :, 0]
    falls, ties = log_probs[:, :, :-1] > log_probs[:, :, 1:], log_probs[:, :, :-1] == log_probs[:, :, 1:]
    if tokens.min(initial=0) > PADDING and (falls | (ties & (tokens[:, :, :-1] < tokens[:, :, 1:]))).all():
        place = column[:, :, 0]  # best arcs first, as they mostly are
    else:
        before = (log_probs > level) | ((log_probs == level) & (tokens < wanted))
        place = (before & (tokens != PADDING)).sum(axis=2)
    result: np.ndarray = np.where(found, place, ABSENT)
    return result


def lengths_of(place: np.ndarray, k: int, heads: int | None = None) -> np.ndarray:
    """``[n]`` accepted drafted tokens of the oracle over ``k`` arcs; heads: predictions used, head 1 included."""
    missing = place >= k
    first = np.where(missing.any(axis=1), missing.argmax(axis=1), place.shape[1])
    lengths: np.ndarray = first if heads is None else np.minimum(first, heads - 1)
    return lengths


def losses(
    lattices: LatticeSet, place: np.ndarray, lengths: np.ndarray, cut: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Where drafts end before the lattice does: rows, slots, and causes.

    A slot that holds the right token had others drafted in its place (``MISRANKED``), or nothing at all (``CUT`` by the
    budget of nodes); else it lacks the token (``NOT_IN_LATTICE``), or the text has ended (``END_OF_TEXT``).

    Args:
        place: ``ranks(lattices)``.
        lengths: ``[n]`` accepted drafted tokens.
        cut: ``[n]`` whether nothing is drafted behind these; by default something always is.
    """
    rows = np.flatnonzero(lengths < place.shape[1])
    slots = lengths[rows]
    here = np.full(len(rows), MISRANKED) if cut is None else np.where(cut[rows], CUT, MISRANKED)
    lacking = np.where(place[rows, slots] == ABSENT, NOT_IN_LATTICE, here)
    return rows, slots, np.where(lattices.continuation[rows, slots] == PADDING, END_OF_TEXT, lacking)


@dataclass(frozen=True, eq=False)
class OracleTally(Counts):
    """Sums over steps, calls or positions, for every width ``ks[i]`` and number of heads ``heads[j]``.

    counts: ``[k, heads, slots + 1]`` steps by accepted drafted tokens.
    walked: ``[k, heads, 3]`` tokens, calls of a decode, fewest calls; zero where texts are not known.
    lost: ``[slots, 3]`` where vanilla drafts end: slot, and whether the slot held the token behind a better one (0),
        lacked it (1), or the text had ended (2).
    vanilla: ``[2]`` lattices, and steps of vanilla drafts.
    """

    KIND: ClassVar[str] = "oracle tally"
    COMMAND: ClassVar[str] = "latticebpd oracle"

    ks: tuple[int, ...]
    heads: tuple[int, ...]
    counts: np.ndarray
    walked: np.ndarray
    lost: np.ndarray
    vanilla: np.ndarray

    @classmethod
    def shapes(cls, keys: Mapping[str, tuple[Any, ...]], slots: int) -> dict[str, tuple[int, ...]]:
        each = (len(keys["ks"]), len(keys["heads"]))
        return {"counts": (*each, slots + 1), "walked": (*each, 3), "lost": (slots, 3), "vanilla": (2,)}

    @property
    def num_lattices(self) -> int:
        return int(self.vanilla[0])

    @property
    def block_efficiency(self) -> np.ndarray:
        """``[k, heads]`` tokens a call of a decode; by position accepted drafted tokens, and the one that comes
        free."""
        if self.signature.by == DECODE:
            return ratio(self.walked[..., 0], self.walked[..., 1])
        return mean_length(self.counts) + 1

    @property
    def best_block_efficiency(self) -> np.ndarray:
        """``[k, heads]`` tokens a call at the fewest calls; NaN where texts are not known."""
        return ratio(self.walked[..., 0], self.walked[..., 2])

    @property
    def accepted_share(self) -> np.ndarray:
        """``[k, heads, slots + 1]`` % of steps by accepted drafted tokens."""
        return ratio(100 * self.counts, self.counts.sum(axis=2, keepdims=True))

    @property
    def lost_share(self) -> np.ndarray:
        """``[slots, 3]`` where vanilla drafts end, % of their steps."""
        return ratio(100 * self.lost, self.vanilla[1:])


def ratio(above: np.ndarray, below: np.ndarray) -> np.ndarray:
    """NaN where it is not known."""
    above, below = np.broadcast_arrays(above, below)
    quotient: np.ndarray = np.divide(above, below, out=np.full(above.shape, np.nan), where=below > 0)
    return quotient


def mean_length(counts: np.ndarray) -> np.ndarray:
    """``[..., slots + 1]`` steps by length -> ``[...]`` mean length."""
    return ratio(counts @ np.arange(counts.shape[-1]), counts.sum(axis=-1))


def tally(
    blocks: Iterable[LatticeSet], ks: Sequence[int], heads: Sequence[int] = (), by: str | None = None
) -> OracleTally:
    """One pass over lattices of one shape.

    Args:
        blocks: as ``latticebpd.measuring.lattice_files.blocks`` yields them; all of one number of slots.
        ks: arcs per slot to try, each >= 1.
        heads: numbers of heads to try, head 1 (the base model's own) included, each >= 2; none: all there are.
        by: ``decode`` or ``position``; by default by decode, and by position where texts are not known.

    Raises:
        ValueError: no lattice at all, lattices of several shapes, or texts that are not known though they are needed.
    """
    if min((*ks, 1), default=0) < 1 or not ks:
        raise ValueError(f"expected k >= 1, got {list(ks)}")
    if heads and min(heads) < 2:
        raise ValueError(f"expected at least 2 heads (the first is the base model's own), got {list(heads)}")
    result: OracleTally | None = None
    for block in blocks:
        if not len(block):
            continue
        slots = block.tokens.shape[1]
        if result is None:
            tried = tuple(heads) or (slots + 1,)
            result = OracleTally.zero(Signature.of(block, by=counted_by(by, block)), ks=tuple(ks), heads=tried)
            walk, vanilla_walk = DecodeReplay(result.walked), DecodeReplay(np.zeros(3, np.int64))
        result.signature.check(block)
        place = ranks(block)
        reached = np.stack([lengths_of(place, k) for k in ks], axis=1)
        lengths = np.minimum(reached[:, :, None], np.array(result.heads) - 1)  # [n, k, heads]
        vanilla = lengths_of(place, 1)
        stepped, vanilla_stepped = np.ones(lengths.shape, bool), np.ones(len(block), bool)
        if block.sequence is not None:
            called, vanilla_called = walk.go_on(block.sequence, lengths), vanilla_walk.go_on(block.sequence, vanilla)
            if result.signature.by == DECODE:
                stepped, vanilla_stepped = called, vanilla_called
        for i in range(len(ks)):
            for j in range(len(result.heads)):
                result.counts[i, j] += np.bincount(lengths[stepped[:, i, j], i, j], minlength=slots + 1)
        rows, *where = losses(block, place, vanilla)
        np.add.at(result.lost, tuple(array[vanilla_stepped[rows]] for array in where), 1)
        result.vanilla[:] += [len(block), vanilla_stepped.sum()]
    if result is None:
        raise ValueError("expected at least one lattice, got files without any")
    return result


class DecodeReplay:
    """Decodes of texts by several drafters at once, through positions that come in order.

    A call at position i with ``a`` accepted tokens goes on at ``i + a + 1``. The fewest calls come from looking, among
    all positions within reach of the calls so far, for the one from which the next call reaches furthest.
    """

    def __init__(self, walked: np.ndarray) -> None:
        """walked: ``[..., 3]`` tokens, calls, fewest calls of each of ``[...]`` drafters, added to."""
        self.walked = walked
        self.texts = 0
        self.text = -1  # the one that the last block ended in
        self.position = 0  # in it
        self.state = np.zeros((3, *walked.shape[:-1]), np.int64)

    def go_on(self, sequence: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        """``[n, ...]`` where each drafter makes a call.

        sequence: ``[n]`` the text of each lattice; lengths: ``[n, ...]`` what each drafter would have accepted.
        """
        starts = np.flatnonzero(np.append(True, sequence[1:] != sequence[:-1]))
        sizes = np.diff(np.append(starts, len(sequence)))
        order = np.argsort(-sizes, kind="stable")  # the texts that go on are then always the first ones
        starts, sizes = starts[order], sizes[order]
        position = np.zeros(len(starts), np.int64)
        # Of every text: where the next call is made, where the calls so far reach at best, how far one more would.
        state = np.zeros((3, len(starts), *lengths.shape[1:]), np.int64)
        self.texts += len(starts) - (self.text == sequence[0])
        if self.text == sequence[0]:
            first = int(np.flatnonzero(starts == 0)[0])
            position[first], state[:, first] = self.position, self.state
        next_call, reach, furthest = state
        calls = np.zeros(lengths.shape, bool)
        for step in range(int(sizes[0])):
            going = int(np.searchsorted(-sizes, -step, side="left"))
            here = position[:going].reshape(-1, *[1] * (lengths.ndim - 1))
            ahead = here + 1 + lengths[starts[:going] + step]
            called = next_call[:going] == here
            next_call[:going] = np.where(called, ahead, next_call[:going])
            np.maximum(furthest[:going], ahead, out=furthest[:going])
            due = reach[:going] == here
            reach[:going] = np.where(due, furthest[:going], reach[:going])
            calls[starts[:going] + step] = called
            self.walked[..., 2] += due.sum(axis=0)
            position[:going] += 1
        self.walked[..., 0] += len(sequence)
        self.walked[..., 1] += calls.sum(axis=0)
        last = int(np.argmax(starts))
        self.text, self.position, self.state = int(sequence[-1]), int(position[last]), state[:, last].copy()
        return calls
