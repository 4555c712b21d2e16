"""Drafters, one idea per file: ``base`` says what a drafter is, the others are drafters."""

from latticebpd.drafting.base import Drafter, State
from latticebpd.drafting.gad import GadDrafter, GadPathsDrafter, GadTreeDrafter
from latticebpd.drafting.heads import (
    HasHeads,
    HeadsDrafter,
    PathsDrafter,
    TreeDrafter,
    VanillaDrafter,
    lattice_from_logits,
    lattices_from_logits,
)
from latticebpd.drafting.mixture import MixtureDrafter
from latticebpd.drafting.none import NoDrafter
from latticebpd.drafting.oracle import GoldDrafter, OracleDrafter
from latticebpd.drafting.previous_output import PreviousOutputDrafter
from latticebpd.drafting.prompt_ngram import PromptNgramDrafter
from latticebpd.drafting.saved_topk import SavedTopKDrafter, load_top_k

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
