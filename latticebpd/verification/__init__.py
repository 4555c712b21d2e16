"""Verifying draft trees in one forward pass of the base model.

``base`` says what a verifier is; ``tree`` is the quick one, ``recompute`` the one that serves every model;
``choice`` finds out which fits.
"""

from latticebpd.models.forward import Verified
from latticebpd.verification.base import Verifier
from latticebpd.verification.choice import tree_placement, verifier_for
from latticebpd.verification.recompute import RecomputingVerifier
from latticebpd.verification.tree import TreeVerifier, visible_keys

__all__ = [
    "RecomputingVerifier",
    "TreeVerifier",
    "Verified",
    "Verifier",
    "tree_placement",
    "verifier_for",
    "visible_keys",
]
