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
    from latticebpd.acceptance import Acceptance, Distance, Exact, MinimumBlock, Sampling, TopBeta, TopK
    from latticebpd.decoding import Generated, Step, generate
    from latticebpd.drafters import (
        Drafter,
        GadDrafter,
        GadPathsDrafter,
        GadTreeDrafter,
        GoldDrafter,
        MixtureDrafter,
        NoDrafter,
        OracleDrafter,
        PathsDrafter,
        PreviousOutputDrafter,
        PromptNgramDrafter,
        SavedTopKDrafter,
        State,
        TreeDrafter,
        VanillaDrafter,
        load_top_k,
    )
    from latticebpd.heads import BlockHeads
    from latticebpd.lossless import Divergence, Losslessness, check_lossless
    from latticebpd.medusa import load_medusa
    from latticebpd.models import BlockwiseLM
    from latticebpd.neural import NeuralRescorer, ParallelNeuralRescorer
    from latticebpd.payoff import PayOff, pay_off

_NEED_TORCH = {
    "Acceptance": "acceptance",
    "BlockHeads": "heads",
    "BlockwiseLM": "models",
    "Distance": "acceptance",
    "Divergence": "lossless",
    "Drafter": "drafters",
    "Exact": "acceptance",
    "GadDrafter": "drafters",
    "GadPathsDrafter": "drafters",
    "GadTreeDrafter": "drafters",
    "Generated": "decoding",
    "GoldDrafter": "drafters",
    "Losslessness": "lossless",
    "MinimumBlock": "acceptance",
    "MixtureDrafter": "drafters",
    "NeuralRescorer": "neural",
    "NoDrafter": "drafters",
    "OracleDrafter": "drafters",
    "ParallelNeuralRescorer": "neural",
    "PathsDrafter": "drafters",
    "PayOff": "payoff",
    "PreviousOutputDrafter": "drafters",
    "PromptNgramDrafter": "drafters",
    "Sampling": "acceptance",
    "SavedTopKDrafter": "drafters",
    "State": "drafters",
    "Step": "decoding",
    "TopBeta": "acceptance",
    "TopK": "acceptance",
    "TreeDrafter": "drafters",
    "VanillaDrafter": "drafters",
    "check_lossless": "lossless",
    "generate": "decoding",
    "load_medusa": "medusa",
    "load_top_k": "drafters",
    "pay_off": "payoff",
}

__all__ = [
    "Acceptance",
    "BlockHeads",
    "BlockwiseLM",
    "Distance",
    "Divergence",
    "DraftTree",
    "Drafter",
    "Drafts",
    "Exact",
    "GadDrafter",
    "GadPathsDrafter",
    "GadTreeDrafter",
    "Generated",
    "GoldDrafter",
    "LatticeSet",
    "Losslessness",
    "MinimumBlock",
    "MixtureDrafter",
    "NeuralRescorer",
    "NoDrafter",
    "OracleDrafter",
    "ParallelNeuralRescorer",
    "PathsDrafter",
    "PayOff",
    "PreviousOutputDrafter",
    "PromptNgramDrafter",
    "Rescorer",
    "Sampling",
    "SausageLattice",
    "SavedTopKDrafter",
    "State",
    "Step",
    "TopBeta",
    "TopK",
    "TreeDrafter",
    "VanillaDrafter",
    "__version__",
    "check_lossless",
    "draft_tree",
    "generate",
    "load_medusa",
    "load_top_k",
    "oracle_path",
    "pay_off",
    "rescore",
]


def __getattr__(name: str) -> Any:
    if name in _NEED_TORCH:
        return getattr(import_module(f"latticebpd.{_NEED_TORCH[name]}"), name)
    raise AttributeError(f"module 'latticebpd' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
