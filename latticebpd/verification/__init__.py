"""Verifying draft trees in one forward pass of the base model.

``base`` says what a verifier is; ``tree`` is the quick one, ``recompute`` the one that serves every model;
``choice`` finds out which fits; ``placement`` and ``forward`` are how a stock model is called.
"""

from latticebpd.verification.base import Verified, Verifier
from latticebpd.verification.choice import tree_placement, verifier_for
from latticebpd.verification.forward import Source
from latticebpd.verification.placement import ByEmbedding, ByPositionIds, ByRelativeBias
from latticebpd.verification.recompute import RecomputingVerifier
from latticebpd.verification.tree import TreeVerifier, visible_keys

__all__ = [
    "ByEmbedding",
    "ByPositionIds",
    "ByRelativeBias",
    "RecomputingVerifier",
    "Source",
    "TreeVerifier",
    "Verified",
    "Verifier",
    "tree_placement",
    "verifier_for",
    "visible_keys",
]
