"""Lattices and texts less the examples of several tunings of the same files."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import TypeAlias

from latticebpd.lattices.lattice_set import LatticeSet
from latticebpd.lattices.shards import texts_of
from latticebpd.measuring.tuning import Paths, without
from latticebpd.scoring.calibration import Calibration
from latticebpd.scoring.weights import TEXT, Tuning

FittedRecord: TypeAlias = "Tuning | Calibration"
"""A record of what was fitted, and on which examples."""


def exclude_examples(lattices: Iterable[LatticeSet], tunings: Iterable[FittedRecord]) -> Iterator[LatticeSet]:
    """The blocks of the same files, less every example that a weight was tuned on.

    Lattices are numbered through all files, so all examples of one kind have to go at once, and numbered lattices
    before texts.

    Raises:
        ValueError: weights were tuned on all there are.
    """
    merged: dict[str, FittedRecord] = {}
    for tuning in tunings:
        known = merged.get(tuning.unit)
        merged[tuning.unit] = tuning if known is None else replace(known, examples=(*known.examples, *tuning.examples))
    found = iter(lattices)
    for unit in sorted(merged):  # "lattice" before "text"
        found = without(found, merged[unit])
    left = False
    for block in found:
        left = True
        yield block
    if merged and not left:
        raise ValueError(
            "expected lattices besides those that the weights were tuned on, got no others; tune on fewer examples, or"
            " measure other texts"
        )


def numbered_without(paths: Paths, tunings: Iterable[FittedRecord]) -> Iterator[tuple[int, tuple[list[int], int]]]:
    """Number, and tokens and prompt length, of every text of directories, less the texts that a weight was tuned on."""
    used = {number for tuning in tunings if tuning.unit == TEXT for number in tuning.examples}
    return ((number, text) for number, text in enumerate(texts_of(paths)) if number not in used)


def texts_without(paths: Paths, tunings: Iterable[FittedRecord]) -> Iterator[tuple[list[int], int]]:
    """Tokens and prompt length of these texts."""
    return (text for _, text in numbered_without(paths, tunings))
