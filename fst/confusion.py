"""Confusion networks: a lattice's tokens aligned with its best path, slot by slot (Xu, Povey, Mangu and Zhu 2011).

Every path is aligned with the best one by edit distance, in expectation over the paths that meet in a state.  The
network has a slot for each token of the best path and one for the insertions between two; a token's probability in a
slot is that of the paths that are aligned so.  Over all slots a token's probabilities sum to the expected number of its
occurrences.
"""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import numpy.typing as npt

from fst import _core
from fst.printable import expect

EPSILON = -1
Floats = npt.NDArray[np.float64]
Slots = list[dict[int, float]]
"""The probability of each token of each slot; insertions before the first token, that token, insertions, ..."""


def confusion_network(arcs: _core.Arcs, posteriors: Floats, best: list[int]) -> tuple[npt.NDArray[np.int32], Floats]:
    """``tokens [slots, k]`` and ``log_probs``, best first; slots that more likely hold no token are left out.

    arcs: of the lattice; posteriors: ``[arcs]`` probabilities; best: the tokens of its best path.
    """
    slots = [slot for slot in aligned_slots(arcs, posteriors, best) if sum(slot.values()) > 0.5]
    expect(slots, "a lattice whose paths hold tokens", "one that most likely holds none")
    k = max(map(len, slots))
    tokens, log_probs = np.full((len(slots), k), -1, np.int32), np.full((len(slots), k), -np.inf)
    for row, slot in enumerate(slots):
        ranked = sorted(slot.items(), key=lambda item: (-item[1], item[0]))
        tokens[row, : len(ranked)] = [token for token, _ in ranked]
        mass = max(1.0, sum(slot.values()))  # two insertions may share a slot
        log_probs[row, : len(ranked)] = np.log([probability / mass for _, probability in ranked])
    return tokens, log_probs


def aligned_slots(arcs: _core.Arcs, posteriors: Floats, best: list[int]) -> Slots:
    """The probabilities of tokens in every slot; arguments as for `confusion_network`."""
    offsets, labels, _, ends = arcs
    num_states = len(offsets) - 1
    sources, targets = np.repeat(np.arange(num_states), np.diff(offsets)), np.where(ends < 0, num_states, ends)
    taken = np.flatnonzero(posteriors > 0)
    shares = posteriors / np.bincount(targets, posteriors, num_states + 1)[targets]  # among the arcs to one target
    steps, wanted = np.arange(len(best) + 1.0), np.array(best)

    def substitutions(arc: int) -> npt.NDArray[np.float64]:
        return np.append(np.inf, distances[sources[arc], :-1] + (wanted != labels[arc]))

    def insertions(arc: int) -> npt.NDArray[np.float64]:
        return distances[sources[arc]] + (labels[arc] != EPSILON)

    # Expected edits of a state's paths against each prefix of the best.
    distances = np.zeros((num_states + 1, len(steps)))
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
