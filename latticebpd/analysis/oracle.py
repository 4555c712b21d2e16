"""Oracle top-k block efficiency: what perfect rescoring of the heads' lattices would reach (Kim 2024, section 6.3).

Everything follows from *ranks*: the place, by falling log-probability, at which a slot holds the base model's own
token.  The oracle over the k best arcs of the first h heads accepts up to the first slot whose rank is k or more.
Counts are integers, so tallies of parts of the data add up to the tally of the whole, exactly.

Three numbers, which are not the same:

    by position    the mean over all positions of the text: no decode visits all of them
    by decoding    a decode of the text with these drafts: each call goes on where the last one stopped
    at best        the fewest calls that any choice of accepted lengths within the lattices' reach allows: taking the
                   longest prefix at every call need not be best, so this is the true upper bound
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from latticebpd.analysis.signature import Signature
from latticebpd.lattices.lattice_set import LatticeSet
from latticebpd.lattices.sausage import PADDING

ABSENT = np.iinfo(np.int64).max
"""The rank of a token that its slot lacks."""


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


def losses(lattices: LatticeSet, place: np.ndarray, lengths: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Where drafts end before the lattice does: slots, and causes: 0 the slot holds the right token, 1 lacks it, 2 the text has ended.

    place: ``ranks(lattices)``; lengths: ``[n]`` accepted drafted tokens.
    """
    rows = np.flatnonzero(lengths < place.shape[1])
    slots = lengths[rows]
    ended = lattices.continuation[rows, slots] == PADDING
    return slots, np.where(ended, 2, place[rows, slots] == ABSENT)


@dataclass(frozen=True, eq=False)
class OracleTally:
    """Sums over lattices, for every width ``ks[i]`` and number of heads ``heads[j]``.

    counts: ``[k, heads, slots + 1]`` positions by accepted drafted tokens.
    walked: ``[k, heads, 3]`` tokens, calls of a decode, fewest calls; zero where texts are not known.
    lost: ``[slots, 3]`` where vanilla drafts end: slot, and whether the slot held the token behind a better one (0),
        lacked it (1), or the text had ended (2).
    signature: what the numbers depend on.
    """

    ks: tuple[int, ...]
    heads: tuple[int, ...]
    counts: np.ndarray
    walked: np.ndarray
    lost: np.ndarray
    signature: Signature

    def __add__(self, other: OracleTally) -> OracleTally:
        if (self.ks, self.heads, self.counts.shape) != (other.ks, other.heads, other.counts.shape):
            raise ValueError(
                f"expected tallies of one kind, got k {self.ks} and {other.ks}, heads {self.heads} and {other.heads}, "
                f"slots {self.counts.shape[2] - 1} and {other.counts.shape[2] - 1}"
            )
        if self.signature != other.signature:
            raise ValueError(f"expected tallies of one kind, got {self.signature} and {other.signature}")
        sums = (self.counts + other.counts, self.walked + other.walked, self.lost + other.lost)
        return OracleTally(self.ks, self.heads, *sums, self.signature)

    @property
    def num_lattices(self) -> int:
        return int(self.counts[0, 0].sum())

    @property
    def block_efficiency(self) -> np.ndarray:
        """``[k, heads]`` tokens a call by position: accepted drafted tokens, and the one that comes free."""
        lengths = np.arange(self.counts.shape[2])
        efficiency: np.ndarray = (self.counts * lengths).sum(axis=2) / self.counts.sum(axis=2) + 1
        return efficiency

    @property
    def decoded_block_efficiency(self) -> np.ndarray:
        """``[k, heads]`` tokens a call of a decode; NaN where texts are not known."""
        return _ratio(self.walked[..., 0], self.walked[..., 1])

    @property
    def best_block_efficiency(self) -> np.ndarray:
        """``[k, heads]`` tokens a call at the fewest calls; NaN where texts are not known."""
        return _ratio(self.walked[..., 0], self.walked[..., 2])

    def to_json(self) -> dict[str, Any]:
        """Plain lists and numbers; ``from_json`` reads them back exactly."""
        return {
            "kind": "oracle tally", "signature": asdict(self.signature), "ks": list(self.ks), "heads": list(self.heads),
            "counts": self.counts.tolist(), "walked": self.walked.tolist(), "lost": self.lost.tolist(),
        }  # fmt: skip

    @classmethod
    def from_json(cls, record: Any) -> OracleTally:
        """Raises ValueError for anything that ``to_json`` does not write."""
        try:
            if record["kind"] != "oracle tally":
                raise KeyError(record["kind"])
            ks, heads = tuple(map(int, record["ks"])), tuple(map(int, record["heads"]))
            counts, walked, lost = (np.array(record[name], dtype=np.int64) for name in ("counts", "walked", "lost"))
            signature = Signature(**record["signature"])
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise ValueError(f"expected an oracle tally, as `latticebpd oracle --tally` writes it, got something else: {error}") from error
        slots = counts.shape[-1] - 1 if counts.ndim == 3 else -1
        if counts.shape != (len(ks), len(heads), slots + 1) or walked.shape != (len(ks), len(heads), 3) or lost.shape != (slots, 3):
            raise ValueError(f"expected counts, walked and lost of fitting shapes, got {counts.shape}, {walked.shape} and {lost.shape}")
        if min(counts.min(initial=0), walked.min(initial=0), lost.min(initial=0)) < 0:
            raise ValueError("expected counts of at least 0, got negative ones")
        return cls(ks, heads, counts, walked, lost, signature)


def _ratio(tokens: np.ndarray, calls: np.ndarray) -> np.ndarray:
    ratio: np.ndarray = np.divide(tokens, calls, out=np.full(tokens.shape, np.nan), where=calls > 0)
    return ratio


def tally(blocks: Iterable[LatticeSet], ks: Sequence[int], heads: Sequence[int] = ()) -> OracleTally:
    """One pass over lattices of one shape.

    Args:
        blocks: as ``latticebpd.analysis.stream.blocks`` yields them; all of one number of slots.
        ks: arcs per slot to try, each >= 1.
        heads: numbers of heads to try, head 1 (the base model's own) included, each >= 2; none: all there are.

    Raises:
        ValueError: no lattice at all, or lattices of several shapes.
    """
    if min((*ks, 1), default=0) < 1 or not ks:
        raise ValueError(f"expected k >= 1, got {list(ks)}")
    if heads and min(heads) < 2:
        raise ValueError(f"expected at least 2 heads (the first is the base model's own), got {list(heads)}")
    result: OracleTally | None = None
    walk: Walk | None = None
    for block in blocks:
        if not len(block):
            continue
        slots = block.tokens.shape[1]
        if result is None:
            tried = tuple(heads) or (slots + 1,)
            shapes = ((len(ks), len(tried), slots + 1), (len(ks), len(tried), 3), (slots, 3))
            counts, walked, lost = (np.zeros(shape, np.int64) for shape in shapes)
            result = OracleTally(tuple(ks), tried, counts, walked, lost, Signature.of(block))
            walk = Walk(result.walked)
        result.signature.check(block)
        place = ranks(block)
        reached = np.stack([lengths_of(place, k) for k in ks], axis=1)
        lengths = np.minimum(reached[:, :, None], np.array(result.heads) - 1)  # [n, k, heads]
        for i in range(len(ks)):
            for j in range(len(result.heads)):
                result.counts[i, j] += np.bincount(lengths[:, i, j], minlength=slots + 1)
        np.add.at(result.lost, losses(block, place, lengths_of(place, 1)), 1)
        if block.sequence is not None and walk is not None:
            walk.go_on(block.sequence, lengths)
    if result is None or walk is None:
        raise ValueError("expected at least one lattice, got files without any")
    return result


class Walk:
    """Decodes of texts by several drafters at once, through positions that come in order.

    A call at position i with ``a`` accepted tokens goes on at ``i + a + 1``.  The fewest calls come from looking, among all
    positions within reach of the calls so far, for the one from which the next call reaches furthest.
    """

    def __init__(self, walked: np.ndarray) -> None:
        """walked: ``[..., 3]`` tokens, calls, fewest calls of each of ``[...]`` drafters, added to."""
        self.walked = walked
        self.text = -1  # the one that the last block ended in
        self.position = 0  # in it
        self.state = np.zeros((3, *walked.shape[:-1]), np.int64)

    def go_on(self, sequence: np.ndarray, lengths: np.ndarray) -> None:
        """sequence: ``[n]`` the text of each lattice; lengths: ``[n, ...]`` what each drafter has accepted."""
        starts = np.flatnonzero(np.append(True, sequence[1:] != sequence[:-1]))
        sizes = np.diff(np.append(starts, len(sequence)))
        order = np.argsort(-sizes, kind="stable")  # the texts that go on are then always the first ones
        starts, sizes = starts[order], sizes[order]
        position = np.zeros(len(starts), np.int64)
        # Of every text: where the next call is made, where the calls so far reach at best, how far one more would.
        state = np.zeros((3, len(starts), *lengths.shape[1:]), np.int64)
        if self.text == sequence[0]:
            first = int(np.flatnonzero(starts == 0)[0])
            position[first], state[:, first] = self.position, self.state
        next_call, reach, furthest = state
        for step in range(int(sizes[0])):
            going = int(np.searchsorted(-sizes, -step, side="left"))
            here = position[:going].reshape(-1, *[1] * (lengths.ndim - 1))
            ahead = here + 1 + lengths[starts[:going] + step]
            called = next_call[:going] == here
            next_call[:going] = np.where(called, ahead, next_call[:going])
            np.maximum(furthest[:going], ahead, out=furthest[:going])
            due = reach[:going] == here
            reach[:going] = np.where(due, furthest[:going], reach[:going])
            self.walked[..., 1] += called.sum(axis=0)
            self.walked[..., 2] += due.sum(axis=0)
            position[:going] += 1
        self.walked[..., 0] += len(sequence)
        last = int(np.argmax(starts))
        self.text, self.position, self.state = int(sequence[-1]), int(position[last]), state[:, last].copy()
