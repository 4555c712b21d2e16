"""How many of a lattice's slots calibrated trees need: copies and the n-gram model go on where the lattice ends.

Every slot is a head, or a position of a block, that has to be computed. Walks through the texts that a calibration was
fitted to, by exact acceptance and with trees that may go on behind the lattice, tell what the later ones are worth.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import fst
from latticebpd.measuring.calibrate import chosen, following
from latticebpd.measuring.replay import accept_length
from latticebpd.measuring.tuning import Paths
from latticebpd.scoring.calibrated import CalibratedScorer
from latticebpd.scoring.calibration import Calibration
from latticebpd.scoring.ngram import NgramScorer
from latticebpd.scoring.weights import TEXT

SIZES = (16, 64)
"""Nodes of the trees that are walked with."""
LOSS = 0.005
"""Of the most tokens a call, what fewer slots may cost."""


@dataclass
class DecodeReplay:
    """A walk through one text after the other. tokens, calls: so far. place: of the text's next lattice that it drafts
    from."""

    tokens: int = 0
    calls: int = 0
    place: int = 0


def with_needed_slots(
    calibration: Calibration, paths: Paths, lm: fst.NgramModel | None, on_lattice: Callable[[], object] | None = None
) -> Calibration:
    """The calibration with the fewest slots at which trees of ``SIZES`` come within ``LOSS`` of the most tokens a call.

    As it is where lattices do not tell their texts: there is nothing to walk through then.

    Args:
        paths, lm: the lattice files, or directories of them, and the n-gram model that the calibration was fitted to.
        on_lattice: called after each lattice of its examples, for progress.
    """
    if calibration.unit != TEXT:
        return calibration
    scorer = CalibratedScorer(NgramScorer(lm), calibration)
    walks: dict[tuple[int, int], DecodeReplay] = {}
    text, place = -1, 0
    for lattices, row, number in chosen(paths, TEXT, calibration.examples):
        if not walks:
            walks = {
                (size, slots): DecodeReplay() for size in SIZES for slots in range(1, lattices.tokens.shape[1] + 1)
            }
        if number != text:
            text, place = number, 0
            for walk in walks.values():
                walk.place = 0
        lattice, context, wanted = lattices[row], lattices.context_of(row), following(lattices, row)
        for (size, slots), walk in walks.items():
            if walk.place == place:
                (tree,) = scorer.trees([lattice.first_slots(slots)], [context], size)
                committed = accept_length(tree, wanted) + 1
                walk.tokens, walk.calls, walk.place = walk.tokens + committed, walk.calls + 1, place + committed
        place += 1
        if on_lattice is not None:
            on_lattice()
    by_size = (
        {slots: walk.tokens / walk.calls for (each, slots), walk in walks.items() if each == size} for size in SIZES
    )
    return replace(calibration, slots=max(map(fewest, by_size)))


def fewest(efficiency: Mapping[int, float]) -> int:
    """The fewest slots that come within ``LOSS`` of the most tokens a call, by the tokens a call of every number of
    slots."""
    enough = (1 - LOSS) * max(efficiency.values())
    return min(slots for slots, value in efficiency.items() if value >= enough)
