"""How many of a lattice's slots calibrated trees need: copies and the n-gram model continue where the lattice ends.

Every slot costs the computation of a head, or of a block's position. Replays of the texts that a calibration was fitted
to, by exact acceptance and with trees that may go beyond the lattice, measure the value of the later slots.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import groupby

import fst
from fst.processors import ignore
from latticebpd.measuring.calibrate import chosen, following
from latticebpd.measuring.examples import Paths
from latticebpd.measuring.replay import accept_length
from latticebpd.scoring.calibrated import CalibratedScorer
from latticebpd.scoring.calibration import Calibration, TreeSize
from latticebpd.scoring.ngram import NgramScorer
from latticebpd.scoring.weights import TEXT

SIZES = (1, 2, 4, 8, 16, 64)
"""Nodes of the trees."""
LOSS = 0.005
"""Share of the most tokens per call that fewer slots may cost."""


def with_needed_slots(
    calibration: Calibration, paths: Paths, lm: fst.NgramModel | None, on_lattice: Callable[[], object] = ignore
) -> Calibration:
    """The calibration with the fewest slots at which trees of ``SIZES`` come within ``LOSS`` of the most tokens a call.

    It is unchanged where texts are not known, since there is nothing to replay. paths, lm: those that the
    calibration was fitted to.
    """
    if calibration.unit != TEXT:
        return calibration
    scorer = CalibratedScorer(NgramScorer(lm), calibration)
    tokens: dict[tuple[int, int], int] = defaultdict(int)
    calls: dict[tuple[int, int], int] = defaultdict(int)
    for _, text in groupby(chosen(paths, TEXT, calibration.examples), lambda each: each[2]):
        next_call: dict[tuple[int, int], int] = defaultdict(int)
        for position, (lattices, row, _) in enumerate(text):
            lattice, context, wanted = lattices[row], lattices.context_of(row), following(lattices, row)
            for size, slots in ((size, slots) for size in SIZES for slots in range(1, lattice.slots + 1)):
                if next_call[size, slots] == position:
                    (tree,) = scorer.trees([lattice.first_slots(slots)], [context], size)
                    committed = accept_length(tree, wanted) + 1
                    tokens[size, slots] += committed
                    calls[size, slots] += 1
                    next_call[size, slots] += committed
            on_lattice()
    efficiency = {key: count / calls[key] for key, count in tokens.items()}
    by_size = {size: {slots: value for (each, slots), value in efficiency.items() if each == size} for size in SIZES}
    trees = tuple(TreeSize(size, max(each.values()), fewest(each)) for size, each in by_size.items())
    return replace(calibration, slots=max(each.slots for each in trees), trees=trees)


def fewest(efficiency: Mapping[int, float]) -> int:
    """The fewest slots within ``LOSS`` of the most tokens per call; efficiency: tokens per call by number of slots."""
    return min(slots for slots, value in efficiency.items() if value >= (1 - LOSS) * max(efficiency.values()))
