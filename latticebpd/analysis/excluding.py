"""Lattices less the examples of several tunings of the same files."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from latticebpd.analysis.tuning import without
from latticebpd.lattices.lattice_set import LatticeSet
from latticebpd.scoring.weights import Tuning


def without_any(lattices: Iterable[LatticeSet], tunings: Iterable[Tuning]) -> Iterator[LatticeSet]:
    """The blocks of the same files, less every example that a weight was tuned on.

    Lattices are numbered through all files, so all examples of one kind have to go at once, and numbered lattices before texts.
    """
    merged: dict[str, Tuning] = {}
    for tuning in tunings:
        known = merged.get(tuning.unit)
        merged[tuning.unit] = tuning if known is None else replace(known, examples=(*known.examples, *tuning.examples))
    found = iter(lattices)
    for unit in sorted(merged):  # "lattice" before "text"
        found = without(found, merged[unit])
    return found
