"""What tests ask of sausage lattices: how many drafts they hold, and their best arcs."""

from __future__ import annotations

import math

import numpy as np

from latticebpd import SausageLattice
from latticebpd.lattices.sausage import PADDING, permuted


def num_paths(lattice: SausageLattice) -> int:
    """Number of distinct drafts, exact."""
    arcs = (lattice.tokens != PADDING) & (lattice.log_probs > -np.inf)
    if lattice.transitions is None or not (lattice.transitions == -np.inf).any():
        return math.prod(arcs.sum(axis=1).tolist())
    paths = arcs[0].astype(object)  # that end in each arc, as Python's unbounded integers
    for allowed, following in zip(lattice.transitions > -np.inf, arcs[1:], strict=True):
        paths = np.where(following, (paths[:, None] * allowed).sum(axis=0), 0)
    return int(paths.sum())


def top_arcs(lattice: SausageLattice, k: int) -> SausageLattice:
    """The lattice of each slot's ``k`` best arcs, best first, ties towards the lower token id."""
    order = np.lexsort((lattice.tokens, -np.where(lattice.tokens == PADDING, -np.inf, lattice.log_probs)))[:, :k]
    tokens, log_probs = (np.take_along_axis(each, order, axis=1) for each in (lattice.tokens, lattice.log_probs))
    transitions = None if lattice.transitions is None else permuted(lattice.transitions, order)
    return SausageLattice(tokens, log_probs, transitions)
