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
from latticebpd.lattices.drafts import Drafts, DraftTree
from latticebpd.lattices.lattice_set import LatticeSet
from latticebpd.lattices.sausage import SausageLattice, oracle_path
from latticebpd.scoring.rescoring import Rescorer, draft_tree, rescore

if TYPE_CHECKING:
    from latticebpd.analysis.payoff import PayOff, pay_off
    from latticebpd.decoding.acceptance import Acceptance, Distance, Exact, MinimumBlock, Sampling, TopBeta, TopK
    from latticebpd.decoding.loop import Generated, Step, generate
    from latticebpd.decoding.lossless import Divergence, Losslessness, check_lossless
    from latticebpd.drafting import (
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
    from latticebpd.models.blockwise import BlockwiseLM
    from latticebpd.models.heads import BlockHeads
    from latticebpd.models.medusa import load_medusa
    from latticebpd.scoring.neural import NeuralRescorer, ParallelNeuralRescorer

_NEED_TORCH = {
    "Acceptance": "decoding.acceptance",
    "BlockHeads": "models.heads",
    "BlockwiseLM": "models.blockwise",
    "Distance": "decoding.acceptance",
    "Divergence": "decoding.lossless",
    "Drafter": "drafting",
    "Exact": "decoding.acceptance",
    "GadDrafter": "drafting",
    "GadPathsDrafter": "drafting",
    "GadTreeDrafter": "drafting",
    "Generated": "decoding.loop",
    "GoldDrafter": "drafting",
    "Losslessness": "decoding.lossless",
    "MinimumBlock": "decoding.acceptance",
    "MixtureDrafter": "drafting",
    "NeuralRescorer": "scoring.neural",
    "NoDrafter": "drafting",
    "OracleDrafter": "drafting",
    "ParallelNeuralRescorer": "scoring.neural",
    "PathsDrafter": "drafting",
    "PayOff": "analysis.payoff",
    "PreviousOutputDrafter": "drafting",
    "PromptNgramDrafter": "drafting",
    "Sampling": "decoding.acceptance",
    "SavedTopKDrafter": "drafting",
    "State": "drafting",
    "Step": "decoding.loop",
    "TopBeta": "decoding.acceptance",
    "TopK": "decoding.acceptance",
    "TreeDrafter": "drafting",
    "VanillaDrafter": "drafting",
    "check_lossless": "decoding.lossless",
    "generate": "decoding.loop",
    "load_medusa": "models.medusa",
    "load_top_k": "drafting",
    "pay_off": "analysis.payoff",
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
