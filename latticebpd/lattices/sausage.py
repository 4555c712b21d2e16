"""Sausage lattices: the top-k outputs of independent heads (Kim 2024, section 7).

A *sausage lattice* is an acyclic automaton of ``slots + 1`` states in a row. From state ``i`` to ``i + 1`` there is one
arc for each of the ``k`` best tokens of one prediction head, weighted with the head's log-probability. Every path from
the first state to the last is one draft. A drafter may tie neighbouring slots (DSpark's bigram head): *transitions*
weigh an arc by the arc before it, and the automaton has a state for each slot and arc.

Head 1 is the target model's own output, whose token is committed without being drafted, so the lattice of ``h`` heads
has ``h - 1`` slots: those of heads 2..h.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import numpy as np

import fst
from fst.lattices import checked_transitions
from fst.search import LARGEST_WEIGHT
from latticebpd.checks import expect
from latticebpd.lattices.pictures import lattice_picture
from latticebpd.lattices.values import LARGEST_TOKEN, ArrayValues, as_numpy, read_only

if TYPE_CHECKING:
    import pywrapfst

PADDING = -1
"""Token of a missing arc."""


@dataclass(frozen=True, eq=False)
class SausageLattice(ArrayValues):
    """A validated lattice; its arrays are read-only, and lattices of equal arrays are equal.

    tokens: ``[slots, k]`` token ids, distinct within a slot; -1 pads slots that have fewer arcs.
    log_probs: ``[slots, k]`` natural-log weights of the arcs, at most 1e30, not necessarily normalised; -1e30 or less
        (a mask: ``-inf``, the lowest float) removes an arc and is kept as ``-inf``; values at padded positions are
        ignored.
    transitions: ``[slots - 1, k, k]``, or None: ``transitions[s, i, j]`` is added to the weight of arc ``j`` of slot
        ``s + 1`` if the path comes by arc ``i`` of slot ``s``; values as of ``log_probs``. A masked one keeps the
        second arc from following the first, so that drafts may end early. The first slot's transitions from the text
        are part of its ``log_probs``.
    Raises ValueError: wrong shapes, NaN or more than 1e30, negative or repeated token ids, a slot without an arc.
    """

    tokens: np.ndarray
    log_probs: np.ndarray
    transitions: np.ndarray | None = None

    def __post_init__(self) -> None:
        tokens, log_probs = as_numpy(self.tokens), as_numpy(self.log_probs)
        if tokens.ndim != 2 or tokens.shape != log_probs.shape:
            shapes = f"{tokens.shape} and {log_probs.shape}"
            raise ValueError(f"expected tokens and log_probs of one shape [slots, k], got {shapes}")
        expect(tokens.dtype.kind in "iu", "integer tokens", tokens.dtype)
        expect(log_probs.dtype.kind in "fiu", "real log_probs", log_probs.dtype)
        if tokens.size and (tokens.min() < PADDING or tokens.max() > LARGEST_TOKEN):
            slot = int(np.argmax(((tokens < PADDING) | (tokens > LARGEST_TOKEN)).any(axis=1)))
            expected = "expected token ids >= 0 (or -1 as padding) that fit 32 bits"
            raise ValueError(f"slot {slot}: {expected}, got {tokens[slot].tolist()}")
        real = tokens != PADDING
        if (bad := real & ~(log_probs <= LARGEST_WEIGHT)).any():  # NaN too
            slot, arc = map(int, np.argwhere(bad)[0])
            expected = f"expected a log-probability of at most {LARGEST_WEIGHT:g}"
            raise ValueError(f"slot {slot}, arc {arc}: {expected}, got {log_probs[slot, arc]}")
        masked = log_probs <= -LARGEST_WEIGHT
        arcs = real & (log_probs > -LARGEST_WEIGHT)
        if not arcs.any(axis=1).all():
            slot = int(np.argmin(arcs.any(axis=1)))
            raise ValueError(f"slot {slot}: expected at least one arc of finite log-probability, got none")
        ordered = np.sort(tokens, axis=1)
        if (repeated := (ordered[:, 1:] == ordered[:, :-1]) & (ordered[:, 1:] != PADDING)).any():
            slot, arc = map(int, np.argwhere(repeated)[0])
            token = ordered[slot, arc]
            raise ValueError(f"slot {slot}: expected distinct tokens, got token {token} twice; keep its better arc")
        log_probs = np.where(masked, -np.inf, log_probs) if masked.any() else log_probs
        ids, weights = np.ascontiguousarray(tokens, np.int32), np.ascontiguousarray(log_probs, np.float32)
        self._assign(tokens=read_only(ids), log_probs=read_only(weights))
        if self.transitions is not None:
            gains = checked_transitions(as_numpy(self.transitions), arcs)
            self._assign(transitions=read_only(gains.astype(np.float32, copy=False)))

    @classmethod
    def trusted(cls, tokens: np.ndarray, log_probs: np.ndarray, transitions: np.ndarray | None = None) -> Self:
        """A lattice of arrays that are known to be valid, of the types above and contiguous: without checks, which
        take longer than a small search."""
        lattice, gains = object.__new__(cls), None if transitions is None else read_only(transitions)
        lattice._assign(tokens=read_only(tokens), log_probs=read_only(log_probs), transitions=gains)
        return lattice

    @classmethod
    def from_logits(cls, logits: Any, k: int = 16) -> SausageLattice:
        """The ``k`` best tokens of each slot, best first, ties towards the lower token id.

        logits: ``[slots, vocab]``, numpy or torch; normalised here (natural log).
        """
        expect(len(np.shape(logits)) == 2, "logits [slots, vocab]", f"shape {tuple(np.shape(logits))}")
        expect(1 <= k <= logits.shape[1], f"1 <= k <= {logits.shape[1]} (the vocabulary)", k)
        values = as_numpy(logits)
        expect(values.dtype.kind in "fiu", "logits as numbers", values.dtype)
        expect(not np.isnan(values).any() and not (values == np.inf).any(), "logits below +inf", "NaN or +inf")
        best = top_k(values, k)
        chosen = np.take_along_axis(values, best, axis=1).astype(np.float64)
        top = chosen[:, :1]
        with np.errstate(over="ignore"):  # differences beyond the type's range are -inf
            log_norm = top + np.log(np.exp(values - top).sum(axis=1, keepdims=True, dtype=np.float64))
            return cls(best, chosen - log_norm)

    @property
    def slots(self) -> int:
        return int(self.tokens.shape[0])

    @property
    def k(self) -> int:
        return int(self.tokens.shape[1])

    def _repr_svg_(self) -> str:
        """For notebooks: the first slots, the best arcs, tokens as numbers; `latticebpd.show` has words."""
        return lattice_picture(self)

    def to_fst(self) -> pywrapfst.VectorFst:
        """The lattice as pynini's acceptor: label = token id + 1, weight = -log_prob; linear without transitions."""
        return fst.lattice_to_fst(self.tokens, self.log_probs, self.transitions)

    @classmethod
    def from_fst(cls, automaton: pywrapfst.Fst) -> SausageLattice:
        """The lattice that an acceptor spells: a linear one, or one with a state for each slot and token, as
        :meth:`to_fst` makes of lattices with transitions; ValueError for others (``fst.Lattice`` reads all acyclic
        ones), and for labels or weights that no lattice has."""
        return cls(*fst.fst_to_lattice(automaton))

    def first_slots(self, slots: int) -> SausageLattice:
        """The lattice of the first ``slots`` slots, or of all if there are fewer."""
        if self.slots <= slots:
            return self
        transitions = None if self.transitions is None else self.transitions[: max(slots - 1, 0)]
        return SausageLattice.trusted(self.tokens[:slots], self.log_probs[:slots], transitions)


def permuted(transitions: np.ndarray, order: np.ndarray) -> np.ndarray:
    """``[..., slots - 1, k', k']``: transitions ``[..., slots - 1, k, k]`` between the arcs selected by ``order [...,
    slots, k']``."""
    rows = np.take_along_axis(transitions, order[..., :-1, :, None], axis=-2)
    return np.take_along_axis(rows, order[..., 1:, None, :], axis=-1)


def top_k(values: np.ndarray, k: int) -> np.ndarray:
    """Indices of the ``k`` largest of each row, largest first, ties towards the lower index: ``[rows, k]``."""
    if k < values.shape[1]:
        at = values.shape[1] - k
        threshold = np.partition(values, at, axis=1)[:, at : at + 1]
        # Everything above the threshold, then ties at it in order of index.
        rank = np.where(values > threshold, 0, np.where(values == threshold, 1, 2))
        candidates = np.argsort(rank, axis=1, kind="stable")[:, :k]
    else:
        candidates = np.broadcast_to(np.arange(values.shape[1]), values.shape)
    # An ascending sort of the reversed row, because the lowest integers have no negative.
    rising = np.argsort(np.take_along_axis(values, candidates, axis=1)[:, ::-1], axis=1, kind="stable")
    return np.take_along_axis(candidates, k - 1 - rising[:, ::-1], axis=1)


def best_tokens(tokens: np.ndarray, log_probs: np.ndarray) -> np.ndarray:
    """``[..., slots, k]`` -> ``[..., slots]`` each slot's best token without transitions, the lowest of equal ones."""
    weights = np.where(tokens == PADDING, -np.inf, log_probs)
    return np.where(weights == weights.max(axis=-1, keepdims=True), tokens, np.iinfo(tokens.dtype).max).min(axis=-1)


def greedy_chain(tokens: np.ndarray, log_probs: np.ndarray, transitions: np.ndarray | None = None) -> np.ndarray:
    """``[..., slots, k]`` -> ``[..., slots]`` slot by slot the best token after the one before (DSpark), the lowest id
    of equal ones; -1 from where masked transitions allow none."""
    chain = np.full(tokens.shape[:-1], PADDING, tokens.dtype)
    weights = np.where(tokens == PADDING, -np.inf, log_probs).astype(np.float64)
    going_on, arc = np.ones(tokens.shape[:-2], bool), np.zeros(tokens.shape[:-2], np.int64)
    for slot in range(tokens.shape[-2]):
        reached = weights[..., slot, :]
        if slot and transitions is not None:
            gains = np.take_along_axis(transitions[..., slot - 1, :, :], arc[..., None, None], axis=-2)
            reached = reached + gains[..., 0, :]
        best = reached.max(axis=-1, keepdims=True)
        going_on = going_on & (best[..., 0] > -np.inf)
        ids = np.where(reached == best, tokens[..., slot, :], np.iinfo(tokens.dtype).max)
        arc = ids.argmin(axis=-1)
        chain[..., slot] = np.where(going_on, ids.min(axis=-1), PADDING)
    return chain


def oracle_path(lattice: SausageLattice, continuation: Sequence[int] | np.ndarray) -> np.ndarray:
    """``[slots]`` the draft with the longest prefix of ``continuation``, the target model's own tokens, then each
    slot's best arc (Kim 2024, section 6.3), whatever the transitions."""
    path = best_tokens(lattice.tokens, lattice.log_probs)
    for slot, token in enumerate(list(continuation)[: lattice.slots]):
        if token == PADDING or not (lattice.tokens[slot][lattice.log_probs[slot] > -np.inf] == token).any():
            break
        path[slot] = token
    return path
