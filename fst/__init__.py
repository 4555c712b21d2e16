"""The finite-state backend: n-gram models as OpenFst automata. Imports numpy and OpenFst, never torch."""

from fst import drawing
from fst.lattices import fst_to_lattice, lattice_to_fst
from fst.model import NgramModel, arpa_to_fst
from fst.search import best_first_tree, best_first_tree_batch, nbest_paths, nbest_paths_batch
from fst.table import BOS, EOS, UNK, NgramTable

__all__ = [
    "BOS",
    "EOS",
    "UNK",
    "NgramModel",
    "NgramTable",
    "arpa_to_fst",
    "best_first_tree",
    "best_first_tree_batch",
    "drawing",
    "fst_to_lattice",
    "lattice_to_fst",
    "nbest_paths",
    "nbest_paths_batch",
]
