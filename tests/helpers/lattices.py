"""What tests ask of lattices: their paths counted, their best arcs, and what a system's drafts would have accepted."""

from __future__ import annotations

import numpy as np

from latticebpd import LatticeSet, SausageLattice
from latticebpd.drafters.system_names import Models, strategy_named
from latticebpd.lattices.sausage import PADDING, permuted
from latticebpd.measuring.replay import Outcome, outcome


def num_paths(lattice: SausageLattice) -> int:
    """Number of distinct drafts."""
    arcs = (lattice.tokens != PADDING) & (lattice.log_probs > -np.inf)
    paths = arcs[0].astype(np.int64)  # that end in each arc
    for slot, following in enumerate(arcs[1:]):
        allowed = np.ones((lattice.k, lattice.k), bool)
        if lattice.transitions is not None:
            allowed = lattice.transitions[slot] > -np.inf
        paths = np.where(following, (paths[:, None] * allowed).sum(axis=0), 0)
    return int(paths.sum())


def top_arcs(lattice: SausageLattice, k: int) -> SausageLattice:
    """The lattice of each slot's ``k`` best arcs, best first, ties towards the lower token id."""
    order = np.lexsort((lattice.tokens, -np.where(lattice.tokens == PADDING, -np.inf, lattice.log_probs)))[:, :k]
    tokens, log_probs = (np.take_along_axis(each, order, axis=1) for each in (lattice.tokens, lattice.log_probs))
    transitions = None if lattice.transitions is None else permuted(lattice.transitions, order)
    return SausageLattice(tokens, log_probs, transitions)


def run_system(
    name: str, lattices: LatticeSet, lm: Models = None, alpha: float | None = None, threads: int | None = None
) -> Outcome:
    """``outcome`` of the system of that name."""
    return outcome(strategy_named(name, lm, alpha), lattices, threads)
