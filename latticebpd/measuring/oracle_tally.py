"""The oracle over a data set, counted: what perfect rescoring would reach, by k and heads (Kim 2024, section 6.3).

Everything follows from *ranks*: the rank, by falling log-probability, of the base model's own token in its slot.
The oracle over the k best arcs of the first h heads accepts up to the first slot whose rank is k or more.

Three numbers, which are not the same:

    by decode      a decode of the text with these drafts, each call where the last one stopped; the paper's number
    by position    the mean over all positions of the text; no decode visits all of them
    at best        the fewest calls that any choice of accepted lengths allows: the true upper bound
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from latticebpd.checks import expect
from latticebpd.lattices.lattice_set import LatticeSet
from latticebpd.lattices.sausage import PADDING
from latticebpd.measuring.lattice_files import Shard, first_and_all
from latticebpd.measuring.mergeable_counts import MergeableCounts, block_efficiency, ratio
from latticebpd.measuring.replay import DecodeReplay
from latticebpd.measuring.signature import Signature, counted_by
from latticebpd.scoring.weights import DECODE

ABSENT = np.iinfo(np.int64).max
"""The rank of a token that its slot lacks."""
MISRANKED, NOT_IN_LATTICE, END_OF_TEXT, CUT = range(4)
"""Why drafts end before their lattice does."""


def ranks(lattices: LatticeSet) -> np.ndarray:
    """``[n, slots]`` rank of the base model's token in its slot, from 0, ties by token id; ``ABSENT`` if missing."""
    tokens, log_probs = lattices.tokens, lattices.log_probs
    wanted = lattices.continuation[:, :, None]
    equal = tokens == wanted
    column = equal.argmax(axis=2)[:, :, None]
    level = np.take_along_axis(log_probs, column, axis=2)
    present = (np.take_along_axis(equal, column, axis=2) & (wanted != PADDING) & (level > -np.inf))[:, :, 0]
    falls, ties = log_probs[:, :, :-1] > log_probs[:, :, 1:], log_probs[:, :, :-1] == log_probs[:, :, 1:]
    if tokens.min(initial=0) > PADDING and (falls | (ties & (tokens[:, :, :-1] < tokens[:, :, 1:]))).all():
        rank = column[:, :, 0]  # the usual order: best arcs first
    else:
        before = (log_probs > level) | ((log_probs == level) & (tokens < wanted))
        rank = (before & (tokens != PADDING)).sum(axis=2)
    return np.where(present, rank, ABSENT)


def lengths_of(rank: np.ndarray, k: int, heads: int | None = None) -> np.ndarray:
    """``[n]`` accepted drafted tokens of the oracle over ``k`` arcs; heads: predictions used, head 1 included."""
    missing = rank >= k
    lengths: np.ndarray = np.where(missing.any(axis=1), missing.argmax(axis=1), rank.shape[1])
    return lengths if heads is None else np.minimum(lengths, heads - 1)


def losses(
    lattices: LatticeSet, rank: np.ndarray, lengths: np.ndarray, cut: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Where drafts end before the lattice does: rows, slots, and causes.

    ``MISRANKED``: the slot holds the right token, others were drafted. ``CUT``: it does, nothing was drafted, for want
    of nodes. ``NOT_IN_LATTICE``: the slot lacks the token. ``END_OF_TEXT``: there is none.

    rank: ``ranks(lattices)``. lengths: ``[n]`` accepted drafted tokens. cut: ``[n]`` whether nothing is drafted after
    these; by default something always is.
    """
    rows = np.flatnonzero(lengths < rank.shape[1])
    slots = lengths[rows]
    present = np.full(len(rows), MISRANKED) if cut is None else np.where(cut[rows], CUT, MISRANKED)
    causes = np.where(rank[rows, slots] == ABSENT, NOT_IN_LATTICE, present)
    return rows, slots, np.where(lattices.continuation[rows, slots] == PADDING, END_OF_TEXT, causes)


@dataclass(frozen=True, eq=False)
class OracleTally(MergeableCounts):
    """Sums over steps, calls or positions, for every width ``ks[i]`` and number of heads ``heads[j]``.

    counts: ``[k, heads, slots + 1]`` steps by accepted drafted tokens.
    decode_totals: ``[k, heads, 3]`` tokens, calls of a decode, fewest calls; zero where texts are not known.
    lost: ``[slots, 3]`` slots where vanilla drafts end, because the token was misranked (0) or absent (1), or the text
        had ended (2).
    vanilla: ``[2]`` lattices, and steps of vanilla drafts.
    """

    KIND: ClassVar[str] = "oracle tally"
    COMMAND: ClassVar[str] = "latticebpd oracle"

    ks: tuple[int, ...]
    heads: tuple[int, ...]
    counts: np.ndarray
    decode_totals: np.ndarray
    lost: np.ndarray
    vanilla: np.ndarray

    @classmethod
    def shapes(cls, keys: Mapping[str, tuple[Any, ...]], slots: int) -> dict[str, tuple[int, ...]]:
        each = (len(keys["ks"]), len(keys["heads"]))
        return {"counts": (*each, slots + 1), "decode_totals": (*each, 3), "lost": (slots, 3), "vanilla": (2,)}

    @property
    def num_lattices(self) -> int:
        return int(self.vanilla[0])

    @property
    def block_efficiency(self) -> np.ndarray:
        """``[k, heads]`` tokens per call of a decode; by position accepted drafted tokens, and the free one."""
        return block_efficiency(self.signature.by, self.counts, self.decode_totals)

    @property
    def best_block_efficiency(self) -> np.ndarray:
        """``[k, heads]`` tokens per call at the fewest calls; NaN where texts are not known."""
        return ratio(self.decode_totals[..., 0], self.decode_totals[..., 2])

    @property
    def accepted_share(self) -> np.ndarray:
        """``[k, heads, slots + 1]`` % of steps by accepted drafted tokens."""
        return ratio(100 * self.counts, self.counts.sum(axis=2, keepdims=True))

    @property
    def lost_share(self) -> np.ndarray:
        """``[slots, 3]`` where vanilla drafts end, % of their steps."""
        return ratio(100 * self.lost, self.vanilla[1:])


def tally(
    blocks: Iterable[LatticeSet],
    ks: Sequence[int],
    heads: Sequence[int] = (),
    by: str | None = None,
    shard: Shard | None = None,
) -> OracleTally:
    """One pass over lattices of one shape.

    ks: arcs per slot to try, each >= 1. heads: numbers of heads to try, head 1 (the base model's own) included, each >=
    2; by default all. by: as for `counted_by`. shard: count this part only. Raises ValueError for no lattice, several
    shapes, or missing texts.
    """
    expect(ks and min(ks) >= 1, "k >= 1", list(ks))
    expect(not heads or min(heads) >= 2, "at least 2 heads (the first is the base model's own)", list(heads))
    first, blocks = first_and_all(block for block, _ in (shard or Shard()).units(blocks))
    slots = first.tokens.shape[1]
    signature = Signature.of(first, by=counted_by(by, first))
    result = OracleTally.zero(signature, shard, ks=tuple(ks), heads=tuple(heads) or (slots + 1,))
    replay, vanilla_replay = DecodeReplay(result.decode_totals), DecodeReplay(np.zeros(3, np.int64))
    for block in blocks:
        signature.check(block)
        rank = ranks(block)
        reached = np.stack([lengths_of(rank, k) for k in ks], axis=1)
        lengths = np.minimum(reached[:, :, None], np.array(result.heads) - 1)  # [n, k, heads]
        vanilla = lengths_of(rank, 1)
        stepped, vanilla_stepped = np.ones(lengths.shape, bool), np.ones(len(block), bool)
        if block.sequence is not None:
            called, vanilla_called = replay.add(block.sequence, lengths), vanilla_replay.add(block.sequence, vanilla)
            if signature.by == DECODE:
                stepped, vanilla_stepped = called, vanilla_called
        for i, j in np.ndindex(lengths.shape[1:]):
            result.counts[i, j] += np.bincount(lengths[stepped[:, i, j], i, j], minlength=slots + 1)
        rows, *where = losses(block, rank, vanilla)
        np.add.at(result.lost, tuple(array[vanilla_stepped[rows]] for array in where), 1)
        result.vanilla[:] += [len(block), vanilla_stepped.sum()]
    return result
