"""Drafters, one idea per file: ``base`` says what a drafter is, the others are drafters."""

from latticebpd.drafters.base import Drafter, State
from latticebpd.drafters.gad import GadDrafter, GadPathsDrafter, GadTreeDrafter
from latticebpd.drafters.heads import (
    HasHeads,
    HeadsDrafter,
    PathsDrafter,
    TreeDrafter,
    VanillaDrafter,
    lattice_from_logits,
    lattices_from_logits,
)
from latticebpd.drafters.mixture import MixtureDrafter
from latticebpd.drafters.none import NoDrafter
from latticebpd.drafters.oracle import GoldDrafter, OracleDrafter
from latticebpd.drafters.previous_output import PreviousOutputDrafter
from latticebpd.drafters.prompt_ngram import PromptNgramDrafter
from latticebpd.drafters.saved_topk import SavedTopKDrafter, load_top_k

__all__ = [
    "Drafter",
    "GadDrafter",
    "GadPathsDrafter",
    "GadTreeDrafter",
    "GoldDrafter",
    "HasHeads",
    "HeadsDrafter",
    "MixtureDrafter",
    "NoDrafter",
    "OracleDrafter",
    "PathsDrafter",
    "PreviousOutputDrafter",
    "PromptNgramDrafter",
    "SavedTopKDrafter",
    "State",
    "TreeDrafter",
    "VanillaDrafter",
    "lattice_from_logits",
    "lattices_from_logits",
    "load_top_k",
]
