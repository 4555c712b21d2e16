"""What rescoring makes of a lattice's arcs: their posteriors under lattice and language model (Kim 2024, figure 4).

A path's probability is ``exp(score) / Z``, with `fst.search`'s score and ``Z`` the sum over all paths.  An arc's posterior
is the probability of the paths that take it.  The product of lattice and model has states ``(slot, history)``; forward
and backward sums over it give the posteriors exactly, however many paths there are.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from fst.automaton import MAX_ORDER
from fst.lattices import slots_of
from fst.model import NgramModel

Floats = npt.NDArray[np.float64]


def arc_posteriors(
    tokens: npt.ArrayLike, log_probs: npt.ArrayLike, lm: NgramModel | None = None, alpha: float = 1.0, context: Sequence[int] = ()
) -> Floats:
    """``[slots, k]`` natural log of each arc's posterior; -inf where there is no arc.

    tokens, log_probs, lm, alpha, context: as for `fst.nbest_paths`.
    """
    ids = np.asarray(tokens)
    layer: dict[int, tuple[int, ...]] = {0: tuple(context)[-MAX_ORDER:]}  # state of the model -> a text that leads there
    layers: list[tuple[npt.NDArray[np.int64], Floats]] = []  # of each slot's arcs: source, target, column; weight
    forward = [np.zeros(1)]
    for slot, arcs in enumerate(slots_of(tokens, log_probs)):
        columns = {token: column for column, token in enumerate(ids[slot].tolist())}
        following: dict[int, tuple[int, ...]] = {}
        number: dict[int, int] = {}
        rows, weights = [], []
        for source, history in enumerate(layer.values()):
            for token, log_prob in arcs:
                text = (*history, token)[-MAX_ORDER:]
                state = 0 if lm is None else lm.core.state_of(np.array(text, np.int64))
                if state not in number:
                    number[state], following[state] = len(number), text
                rows.append((source, number[state], columns[token]))
                weights.append(log_prob + (0.0 if lm is None or not alpha else alpha * lm.log_prob(token, history)))
        layer = following
        layers.append((np.array(rows), np.array(weights)))
        forward.append(_summed(forward[-1][layers[-1][0][:, 0]] + layers[-1][1], layers[-1][0][:, 1], len(layer)))
    found = np.full(ids.shape, -np.inf)
    backward = np.zeros(len(layer))
    total = np.logaddexp.reduce(forward[-1])
    for slot in range(len(layers) - 1, -1, -1):
        (source, target, column), weight = layers[slot][0].T, layers[slot][1]
        weight = weight + backward[target]
        found[slot] = _summed(forward[slot][source] + weight, column, ids.shape[1]) - total
        backward = _summed(weight, source, len(forward[slot]))
    return found


def _summed(log_values: Floats, groups: npt.NDArray[np.int64], count: int) -> Floats:
    """``[count]`` logarithms of the sums of each group; -inf for an empty one."""
    sums = np.full(count, -np.inf)
    np.logaddexp.at(sums, groups, log_values)
    return sums
