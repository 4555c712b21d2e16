"""Posteriors of a sausage's arcs under lattice and language model (Kim 2024, figure 4).

A path's probability is ``exp(score) / Z``, with `fst.search`'s score and ``Z`` the sum over all paths.  An arc's
posterior is the probability of the paths that take it.  Forward and backward sums over the product of lattice and
model give it exactly, however many paths there are.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from fst import _core
from fst.model import NgramModel
from fst.search import lattice_arrays


def arc_posteriors(
    tokens: npt.ArrayLike,
    log_probs: npt.ArrayLike,
    lm: NgramModel | None = None,
    alpha: float = 1.0,
    context: Sequence[int] = (),
    transitions: npt.ArrayLike | None = None,
) -> npt.NDArray[np.float64]:
    """``[slots, k]`` natural log of each arc's posterior; -inf where there is no arc, or no path that takes it.

    tokens, log_probs, lm, alpha, context, transitions: as for `fst.nbest_paths`.
    """
    arrays = lattice_arrays(tokens, log_probs, transitions, 2)
    return _core.posteriors(arrays, None if lm is None else lm.core, alpha, np.asarray(context, np.int64))
