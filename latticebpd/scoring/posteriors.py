"""The weights of a lattice's arcs after rescoring (Kim 2024, figure 4): each arc's posterior under lattice and language
model."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

import fst
from latticebpd.lattices.sausage import SausageLattice
from latticebpd.scoring.ngram import NgramScorer
from latticebpd.scoring.rescoring import LanguageModel, as_scorer

BEAM = 256
"""Best paths that stand for all where a model's histories cannot be merged."""


def arc_posteriors(
    lattice: SausageLattice, lm: LanguageModel, alpha: float | None = None, context: Sequence[int] = ()
) -> np.ndarray:
    """``[slots, k]`` natural log of the probability of the paths that take each arc; -inf where there are none.

    Exact for n-gram models.  Of other models, whose every path is a history of its own, the ``BEAM`` best paths count.

    Args:
        lattice, lm, alpha, context: as for ``rescore``.
    """
    scorer = as_scorer(lm, alpha)
    if isinstance(scorer, NgramScorer):
        return fst.arc_posteriors(
            lattice.tokens, lattice.log_probs, scorer.lm, scorer.alpha, context, lattice.transitions
        )
    (drafts,) = scorer.paths([lattice], [context], BEAM)
    shares = drafts.scores - np.logaddexp.reduce(drafts.scores)
    taken = drafts.tokens[:, :, None] == lattice.tokens  # [paths, slots, k]
    found: np.ndarray = np.logaddexp.reduce(np.where(taken, shares[:, None, None], -np.inf), axis=0)
    return found
