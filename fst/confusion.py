"""Confusion networks: a lattice's tokens aligned with its best path, slot by slot (Xu, Povey, Mangu and Zhu 2011).

Every path is aligned with the best one by edit distance, in expectation over the paths that meet in a state.  The
network has a slot for each token of the best path and one for the insertions between two; a token's probability in a
slot is that of the paths that are aligned so.  Over all slots a token's probabilities sum to the expected number of its
occurrences.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from fst import _core
from fst.model import NgramModel

if TYPE_CHECKING:
    from fst.word_lattices import Lattice

EPSILON = -1
Slots = list[dict[int, float]]
"""The probability of each token of each slot; insertions before the first token, that token, insertions, ..."""


def confusion_network(
    lattice: Lattice, lm: NgramModel | None, alpha: float, context: Sequence[int]
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.float64]]:
    """``tokens [slots, k]`` and ``log_probs``, best first; slots that more likely hold no token are left out."""
    slots = [slot for slot in aligned_slots(lattice, lm, alpha, context) if sum(slot.values()) > 0.5]
    if not slots:
        raise ValueError("expected a lattice whose paths hold tokens, got one that most likely holds none")
    k = max(map(len, slots))
    tokens, log_probs = np.full((len(slots), k), -1, np.int32), np.full((len(slots), k), -np.inf)
    for row, slot in enumerate(slots):
        ranked = sorted(slot.items(), key=lambda item: (-item[1], item[0]))
        tokens[row, : len(ranked)] = [token for token, _ in ranked]
        mass = max(1.0, sum(slot.values()))  # two insertions may share a slot
        log_probs[row, : len(ranked)] = np.log([probability / mass for _, probability in ranked])
    return tokens, log_probs


def aligned_slots(lattice: Lattice, lm: NgramModel | None, alpha: float, context: Sequence[int]) -> Slots:
    """The probabilities of tokens in every slot."""
    paths, _ = lattice.nbest_paths(lm, 1, alpha, context)
    best = paths[0][paths[0] >= 0].tolist()
    _, labels, _, targets = arrays = lattice._with_ends
    posteriors = np.exp(_core.lattice_posteriors(arrays, lattice._core_of(lm), alpha, np.asarray(context, np.int64)))
    sources = np.repeat(np.arange(lattice.num_states), np.diff(arrays[0]))
    targets = np.where(targets < 0, lattice.num_states, targets)
    taken = np.flatnonzero(posteriors > 0)
    reached = np.bincount(targets, posteriors, lattice.num_states + 1)
    shares = posteriors / reached[targets]  # of an arc among those that lead to its target
    steps, wanted = np.arange(len(best) + 1.0), np.array(best)

    def substitutions(arc: int) -> npt.NDArray[np.float64]:
        return np.append(np.inf, distances[sources[arc], :-1] + (wanted != labels[arc]))

    def insertions(arc: int) -> npt.NDArray[np.float64]:
        row: npt.NDArray[np.float64] = distances[sources[arc]] + (labels[arc] != EPSILON)
        return row

    distances = np.zeros(
        (lattice.num_states + 1, len(steps))
    )  # expected edits of a state's paths against each prefix of the best
    distances[0] = steps
    of_arc = {}
    for arc in taken.tolist():  # sorted by source
        of_arc[arc] = np.minimum.accumulate(np.minimum(substitutions(arc), insertions(arc)) - steps) + steps
        distances[targets[arc]] += shares[arc] * of_arc[arc]

    slots: Slots = [defaultdict(float) for _ in range(2 * len(best) + 1)]
    mass = np.zeros(distances.shape)
    mass[-1, -1] = 1
    for arc in taken[np.argsort(targets[taken], kind="stable")][::-1].tolist():
        source, token, here = sources[arc], int(labels[arc]), shares[arc] * mass[targets[arc]]
        substituted, inserted = substitutions(arc), insertions(arc)
        for q in range(len(best), -1, -1):
            if not here[q]:
                continue
            least = of_arc[arc][q] + 1e-9  # rounding
            if substituted[q] <= least:
                mass[source, q - 1] += here[q]
                slot = 2 * q - 1
            elif inserted[q] <= least:
                mass[source, q] += here[q]
                slot = 2 * q
            else:  # a deletion
                here[q - 1] += here[q]
                continue
            if token != EPSILON:
                slots[slot][token] += here[q]
    return slots
