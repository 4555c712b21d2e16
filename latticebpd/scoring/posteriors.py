"""The posteriors of a lattice's arcs under lattice and language model (Kim 2024, figure 4)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

import fst
from latticebpd.lattices.sausage import SausageLattice
from latticebpd.scoring.ngram import NgramScorer
from latticebpd.scoring.rescoring import LanguageModel, as_scorer
from latticebpd.scoring.word_lattices import word_lattice_posteriors

BEAM = 256
"""Best paths that are taken for all, where a model's histories cannot be merged."""


def arc_posteriors(
    lattice: SausageLattice | fst.Lattice, lm: LanguageModel, alpha: float | None = None, context: Sequence[int] = ()
) -> np.ndarray:
    """``[slots, k]`` natural log of the probability of the paths through each arc, -inf if none; of a word lattice
    ``[arcs]``. Arguments: as for ``rescore``.

    Exact for n-gram models, and for KenLM models on word lattices, which take no others. Of other models, whose paths
    are all separate histories, the ``BEAM`` best paths count.
    """
    scorer = as_scorer(lm, alpha)
    if isinstance(lattice, fst.Lattice):
        return word_lattice_posteriors(lattice, scorer, context)
    if isinstance(scorer, NgramScorer):
        arguments = (lattice.tokens, lattice.log_probs, scorer.lm, scorer.alpha, context, lattice.transitions)
        return fst.arc_posteriors(*arguments)
    (drafts,) = scorer.paths([lattice], [context], BEAM)
    shares = drafts.scores - np.logaddexp.reduce(drafts.scores)
    taken = drafts.tokens[:, :, None] == lattice.tokens  # [paths, slots, k]
    return np.logaddexp.reduce(np.where(taken, shares[:, None, None], -np.inf), axis=0)
