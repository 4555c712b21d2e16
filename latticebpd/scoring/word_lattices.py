"""Scorers on word lattices (``fst.Lattice``, or an automaton of pynini or pywrapfst): p best paths and posteriors.

N-gram models and KenLM models search the lattice itself, exactly.  Other scorers, whose every path is a history of its
own, rank the lattice's ``CANDIDATES`` best token sequences.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

import fst
from latticebpd.lattices.drafts import Drafts
from latticebpd.lattices.sausage import SausageLattice
from latticebpd.scoring.kenlm import KenlmScorer
from latticebpd.scoring.ngram import NgramScorer
from latticebpd.scoring.scorer import Context, Scorer, listed

CANDIDATES = 256


def read_word_lattice(lattice: Any, scorer: Scorer) -> fst.Lattice:
    """The lattice; of an automaton with a symbol table under a model of words, in the model's ids."""
    if isinstance(lattice, fst.Lattice):
        return lattice
    words = scorer.lm.symbols if isinstance(scorer, NgramScorer) and scorer.lm is not None else None
    return fst.Lattice.from_fst(lattice, words if lattice.input_symbols() is not None else None)


def word_lattice_paths(automaton: Any, scorer: Scorer, context: Context, p: int) -> Drafts:
    """The ``p`` best token sequences of a word lattice; -1 follows the end of those shorter than the longest."""
    lattice = read_word_lattice(automaton, scorer)
    if isinstance(scorer, NgramScorer):
        return Drafts(*lattice.nbest_paths(scorer.lm, p, scorer.alpha, listed(context)))
    if isinstance(scorer, KenlmScorer):
        return Drafts(*_with_words(scorer, lattice).compose(lattice, context)[0].nbest_paths(p=p))
    tokens, scores = lattice.nbest_paths(p=max(p, CANDIDATES))
    paths = [path[path >= 0] for path in tokens]
    filled = [row for row, path in enumerate(paths) if len(path)]
    sausages = [SausageLattice(paths[row][:, None], np.zeros((len(paths[row]), 1))) for row in filled]
    for row, drafts in zip(filled, scorer.paths(sausages, [context] * len(sausages), 1), strict=True):
        scores[row] += drafts.scores[0]
    order = np.lexsort((*tokens.T[::-1], -scores))[:p]
    return Drafts(tokens[order], scores[order])


def word_lattice_posteriors(automaton: Any, scorer: Scorer, context: Context) -> np.ndarray:
    """``[arcs]`` natural log of each arc's posterior; ValueError for scorers other than n-gram and KenLM models."""
    lattice = read_word_lattice(automaton, scorer)
    if isinstance(scorer, NgramScorer):
        return lattice.arc_posteriors(scorer.lm, scorer.alpha, listed(context))
    if not isinstance(scorer, KenlmScorer):
        got = f"{type(scorer).__name__}; take those of its confusion network, SausageLattice(*lattice.to_sausage())"
        raise ValueError(f"expected an n-gram or KenLM model for the posteriors of a word lattice, got {got}")
    product, origins = _with_words(scorer, lattice).compose(lattice, context)
    posteriors = np.full(len(lattice.tokens), -np.inf)
    np.logaddexp.at(posteriors, origins, product.arc_posteriors())
    return posteriors


def _with_words(scorer: KenlmScorer, lattice: fst.Lattice) -> KenlmScorer:
    """The scorer, with the lattice's words where it has none of its own."""
    return replace(scorer, words=lattice.symbols) if scorer.words is None and lattice.symbols else scorer
