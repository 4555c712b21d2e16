"""How long rescoring takes on this machine (Kim 2024, tables 12 and 13)."""

from __future__ import annotations

import time
from collections.abc import Callable
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
"""Numbers of paths to find; slots and arcs per slot of the lattices whose best path is found."""
COUNT, REPEATS = 50, 3
"""Lattices that are timed, at most, and runs over all of them."""


@dataclass(frozen=True, eq=False)
class Latency:
    """Milliseconds to rescore one lattice on one thread: the median over lattices of the least of several runs.

    by_p: ``[p]`` the ``P`` best paths of 8 slots (or as many as there are) x the widest width.
    by_shape: ``[slots, k]`` the best path, of ``SLOTS`` and ``WIDTHS``; NaN where the lattices have too few arcs.
    """

    by_p: np.ndarray
    by_shape: np.ndarray
    lattices: int
    signature: Signature


def rescoring_latency(
    lattices: LatticeSet, scorer: NgramScorer, clock: Callable[[], float] = time.perf_counter
) -> Latency:
    """Time the search for the best paths over lattice and n-gram model; several lattices are joined end to end for more
    slots than they have."""
    expect(len(lattices), "at least one lattice")
    width = lattices.tokens.shape[2]
    lm, alpha = scorer.lm, scorer.alpha
    signature = Signature.of(lattices, lm=None if lm is None else describe(scorer), alpha=f"{alpha:g}")

    def median(shape: tuple[int, int], p: int) -> float:
        part = _shaped(lattices, *shape, COUNT)
        contexts = [part.context_of(index) for index in range(len(part))]
        gains = [None] * len(part) if part.transitions is None else list(part.transitions.astype(np.float32))
        best = np.full(len(part), np.inf)
        for _ in range(REPEATS):  # over all lattices, so that none stays in the processor's cache
            for index, context in enumerate(contexts):
                begin = clock()
                fst.nbest_paths(part.tokens[index], part.log_probs[index], lm, p, alpha, context, gains[index])
                best[index] = min(best[index], clock() - begin)
        return float(np.median(best) * 1e3)

    by_p = np.array([median((min(8, lattices.tokens.shape[1]), width), p) for p in P])
    by_shape = np.array([[median((slots, k), 1) if k <= width else np.nan for k in WIDTHS] for slots in SLOTS])
    return Latency(by_p, by_shape, min(COUNT, len(lattices)), signature)


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
