"""Finite-state backend: backoff n-gram models and token lattices as weighted automata. Imports numpy and OpenFst,
never torch.

Overview
    NgramModel          a backoff model: an OpenFst file mapped into memory, or built from ARPA text or arrays
    nbest_paths         the p best paths of a lattice under a model, exactly; `nbest_paths_batch` for many lattices
    best_first_tree     the most probable prefixes of a lattice's paths; `best_first_tree_batch` for many
    arc_posteriors      what rescoring makes of a lattice's arcs
    Lattice             a word lattice of any acyclic shape, with the same searches; `read_lattices` reads Kaldi's text
    lattice_to_fst      a sausage as an OpenFst acceptor; `fst_to_lattice` the other way
    arpa_to_fst         converts files of any size in one pass
    NgramTable          a model as plain arrays: what estimators produce

Conventions
    A token is a non-negative id; on an arc its label is id + 1, because 0 is OpenFst's epsilon. Log-probabilities are
    natural everywhere but inside ARPA files (log10); a *cost* is a negated one, as OpenFst's tropical weights are.
    A backoff arc, labelled 0, is a *failure* arc: it is taken only where no other arc matches. Reading it as an epsilon
    instead, as plain composition does, lets paths dodge explicit n-grams and gives other scores.
    Files and arguments that are wrong raise ValueError with one line: what was expected, what came, what to do.

Example
    >>> import numpy as np, fst
    >>> ngrams = [np.array([[0], [1]], np.int32), np.array([[0, 1]], np.int32)]
    >>> log_probs, backoffs = [np.log([0.75, 0.25]), np.log([0.875])], [np.log([0.5, 1.0]), np.zeros(1)]
    >>> lm = fst.NgramModel.from_table(fst.NgramTable(ngrams, log_probs, backoffs))
    >>> round(float(np.exp(lm.log_prob(1, context=[0]))), 3)  # the bigram's own
    0.875
    >>> round(float(np.exp(lm.log_prob(0, context=[0]))), 3)  # 0.5 * 0.75, by backing off
    0.375
    >>> tokens, scores = fst.nbest_paths([[0, 1], [0, 1]], np.log([[0.5, 0.5], [0.5, 0.5]]), lm, p=2)
    >>> tokens.tolist()
    [[0, 1], [0, 0]]

The modules: `fst.automaton` defines the automaton, `fst.arpa`, `fst.const_file` and `fst.kaldi` the formats,
`fst.openfst` the way to pynini and pywrapfst, `fst.search` and `fst.word_lattices` the searches, `fst.drawing`
pictures. The compiled part is ``fst._core``.
"""

from importlib.util import find_spec
from pkgutil import extend_path

__path__ = extend_path(__path__, __name__)  # a clone finds the compiled part of the installed package

if (spec := find_spec("fst._core")) is None or spec.origin is None:
    raise ImportError("expected fst's compiled part, found none; run `pip install .` in the clone")

from fst import drawing
from fst.kaldi import read_lattices
from fst.lattices import fst_to_lattice
from fst.model import NgramModel, arpa_to_fst
from fst.openfst import is_openfst
from fst.search import (
    FEATURES,
    TextIndex,
    arc_posteriors,
    best_first_tree,
    best_first_tree_batch,
    calibrated_tree_batch,
    describe_arcs,
    nbest_paths,
    nbest_paths_batch,
)
from fst.table import BOS, EOS, UNK, NgramTable
from fst.word_lattices import Lattice, lattice_to_fst

__all__ = [
    "BOS", "EOS", "FEATURES", "UNK", "Lattice", "NgramModel", "NgramTable", "TextIndex", "arc_posteriors",
    "arpa_to_fst", "best_first_tree", "best_first_tree_batch", "calibrated_tree_batch", "describe_arcs", "drawing",
    "fst_to_lattice", "is_openfst", "lattice_to_fst", "nbest_paths", "nbest_paths_batch", "read_lattices",
]  # fmt: skip
