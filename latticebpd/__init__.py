"""latticebpd: lattice rescoring with a finite-state backend for blockwise parallel decoding.

Overview of types, in the order in which data flows through them::

    heads' logits -> SausageLattice -> rescore -> Drafts ─┐
                                    -> draft_tree ────────┴-> DraftTree -> generate (verify, accept, commit)

``SausageLattice``, ``Drafts``, ``DraftTree``, ``rescore``, ``draft_tree`` and ``oracle_path`` need numpy alone;
the names that need torch are loaded when they are first used.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import fst

if not hasattr(fst, "NgramModel"):  # some other module of this common name comes first on the path
    raise ImportError(
        f"expected latticebpd's own package 'fst', but {getattr(fst, '__file__', None) or list(fst.__path__)} comes first "
        f"on the import path; rename it or put {Path(__file__).parent.parent} before it"
    )

from latticebpd._version import __version__
from latticebpd.drafts import Drafts, DraftTree
from latticebpd.lattice import LatticeSet, SausageLattice, oracle_path
from latticebpd.rescoring import Rescorer, draft_tree, rescore

if TYPE_CHECKING:
    from latticebpd.decoding import Generated, generate
    from latticebpd.drafters import Drafter, NoDrafter, OracleDrafter, PathsDrafter, State, TreeDrafter, VanillaDrafter
    from latticebpd.models import BlockHeads, BlockwiseLM
    from latticebpd.verification import Exact

_NEED_TORCH = {
    "BlockHeads": "models",
    "BlockwiseLM": "models",
    "Drafter": "drafters",
    "Exact": "verification",
    "Generated": "decoding",
    "NoDrafter": "drafters",
    "OracleDrafter": "drafters",
    "PathsDrafter": "drafters",
    "State": "drafters",
    "TreeDrafter": "drafters",
    "VanillaDrafter": "drafters",
    "generate": "decoding",
}

__all__ = [
    "BlockHeads",
    "BlockwiseLM",
    "DraftTree",
    "Drafter",
    "Drafts",
    "Exact",
    "Generated",
    "LatticeSet",
    "NoDrafter",
    "OracleDrafter",
    "PathsDrafter",
    "Rescorer",
    "SausageLattice",
    "State",
    "TreeDrafter",
    "VanillaDrafter",
    "__version__",
    "draft_tree",
    "generate",
    "oracle_path",
    "rescore",
]


def __getattr__(name: str) -> Any:
    if name in _NEED_TORCH:
        return getattr(import_module(f"latticebpd.{_NEED_TORCH[name]}"), name)
    raise AttributeError(f"module 'latticebpd' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
