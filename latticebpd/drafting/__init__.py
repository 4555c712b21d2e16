"""Drafters: ``base`` says what one is.

Most draft from lattices: ``lattice_drafter`` joins a source of lattices (``sources``) and a strategy (``strategies``), ``names``
makes them by name.  The others need no lattice, one idea per file.
"""

from latticebpd.drafting.base import Drafter, State, needs_hidden
from latticebpd.drafting.gold import GoldDrafter
from latticebpd.drafting.lattice_drafter import (
    GadDrafter,
    GadPathsDrafter,
    GadTreeDrafter,
    LatticeDrafter,
    OracleDrafter,
    PathsDrafter,
    SavedTopKDrafter,
    TreeDrafter,
    VanillaDrafter,
)
from latticebpd.drafting.mixture import MixtureDrafter
from latticebpd.drafting.names import drafter_named, strategy_named
from latticebpd.drafting.none import NoDrafter
from latticebpd.drafting.previous_output import PreviousOutputDrafter
from latticebpd.drafting.prompt_ngram import PromptNgramDrafter
from latticebpd.drafting.sources import HasHeads, Heads, Masks, SavedTopK, Source, lattices_from_logits, load_top_k
from latticebpd.drafting.strategies import Best, Oracle, Strategy, Tree, Vanilla

__all__ = [
    "Best",
    "Drafter",
    "GadDrafter",
    "GadPathsDrafter",
    "GadTreeDrafter",
    "GoldDrafter",
    "HasHeads",
    "Heads",
    "LatticeDrafter",
    "Masks",
    "MixtureDrafter",
    "NoDrafter",
    "Oracle",
    "OracleDrafter",
    "PathsDrafter",
    "PreviousOutputDrafter",
    "PromptNgramDrafter",
    "SavedTopK",
    "SavedTopKDrafter",
    "Source",
    "State",
    "Strategy",
    "Tree",
    "TreeDrafter",
    "Vanilla",
    "VanillaDrafter",
    "drafter_named",
    "lattices_from_logits",
    "load_top_k",
    "needs_hidden",
    "strategy_named",
]
