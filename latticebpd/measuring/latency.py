"""How long rescoring takes on this machine (Kim 2024, tables 12 and 13)."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

import fst
from latticebpd.checks import expect
from latticebpd.lattices.lattice_set import LatticeSet
from latticebpd.lattices.sausage import permuted
from latticebpd.measuring.comparison import describe
from latticebpd.measuring.signature import Signature
from latticebpd.scoring.ngram import NgramScorer

P, SLOTS, WIDTHS = (1, 2, 4, 8, 16), (4, 8, 16), (2, 4, 8, 16)


@dataclass(frozen=True, eq=False)
class Latency:
    """Milliseconds to rescore one lattice on one thread: the median over lattices of the least of several runs.

    by_p: ``[p]`` the p best paths of 8 slots (or as many as there are) x the widest width; see ``ps``.
    by_shape: ``[slots, k]`` the best path; NaN where the lattices have too few arcs.
    lattices: how many were timed.
    """

    ps: tuple[int, ...]
    slots: tuple[int, ...]
    ks: tuple[int, ...]
    by_p: np.ndarray
    by_shape: np.ndarray
    lattices: int
    signature: Signature


def rescoring_latency(
    lattices: LatticeSet,
    scorer: NgramScorer,
    ps: Sequence[int] = P,
    slots: Sequence[int] = SLOTS,
    ks: Sequence[int] = WIDTHS,
    count: int = 50,
    repeats: int = 3,
    clock: Callable[[], float] = time.perf_counter,
) -> Latency:
    """Time the search for the best paths over lattice and n-gram model.

    lattices: several are joined end to end for more slots than they have. ps: numbers of paths to find. slots, ks:
    shapes to find the best path of. count: lattices to time, at most. repeats: runs over all of them.
    """
    expect(len(lattices), "at least one lattice")
    if min(*ps, *slots, *ks, count, repeats) < 1:
        sizes = f"p {list(ps)}, slots {list(slots)}, k {list(ks)}"
        raise ValueError(f"expected numbers >= 1, got {sizes}, count {count}, repeats {repeats}")
    width = lattices.tokens.shape[2]
    lm, alpha = scorer.lm, scorer.alpha
    signature = Signature.of(lattices, lm=None if lm is None else describe(scorer), alpha=f"{alpha:g}")

    def median(shape: tuple[int, int], p: int) -> float:
        part = _shaped(lattices, *shape, count)
        contexts = [part.context_of(index) for index in range(len(part))]
        gains = [None] * len(part) if part.transitions is None else list(part.transitions.astype(np.float32))
        best = np.full(len(part), np.inf)
        for _ in range(repeats):  # over all lattices, so that none stays in the processor's cache
            for index, context in enumerate(contexts):
                begin = clock()
                fst.nbest_paths(part.tokens[index], part.log_probs[index], lm, p, alpha, context, gains[index])
                best[index] = min(best[index], clock() - begin)
        return float(np.median(best) * 1e3)

    longest = min(8, lattices.tokens.shape[1])
    by_p = np.array([median((longest, width), p) for p in ps])
    by_shape = np.array([[median((slot, k), 1) if k <= width else np.nan for k in ks] for slot in slots])
    return Latency(tuple(ps), tuple(slots), tuple(ks), by_p, by_shape, min(count, len(lattices)), signature)


def _shaped(lattices: LatticeSet, slots: int, k: int, count: int) -> LatticeSet:
    """Lattices of ``slots`` slots with each slot's ``k`` best arcs; short ones are joined end to end."""
    together = min(-(-slots // lattices.tokens.shape[1]), len(lattices))
    n = min(count, len(lattices) // together)
    part = lattices.take(np.arange(n * together))
    order = np.argsort(np.where(part.tokens < 0, np.inf, -part.log_probs), axis=2, kind="stable")[:, :, :k]
    tokens, log_probs = (
        np.take_along_axis(values, order, axis=2).reshape(n, -1, order.shape[2])[:, :slots]
        for values in (part.tokens, part.log_probs)
    )
    continuation = part.continuation.reshape(n, -1)[:, :slots]
    arrays = np.ascontiguousarray(tokens), np.ascontiguousarray(log_probs), continuation, part.context[::together]
    if part.transitions is None:
        return LatticeSet(*arrays)
    # There are no transitions between joined lattices.
    gains = np.pad(permuted(part.transitions, order), ((0, 0), (0, 1), (0, 0), (0, 0)))
    transitions = gains.reshape(n, -1, *gains.shape[2:])[:, : tokens.shape[1] - 1]
    return LatticeSet(*arrays, transitions=np.ascontiguousarray(transitions))
