"""The usual drafters over the lattices of a blockwise model's heads."""

from __future__ import annotations

from latticebpd.drafters.heads.blockwise import BlockwiseLM
from latticebpd.drafters.heads.head_family import HeadLattices
from latticebpd.drafters.lattice_drafter import LatticeDrafter
from latticebpd.drafters.strategies import BestTree, NBestPaths, Vanilla
from latticebpd.scoring.rescoring import LanguageModel, as_scorer


class VanillaDrafter(LatticeDrafter):
    """The best token of every head, as it is (Stern 2018); arguments as for ``HeadLattices``."""

    def __init__(self, model: BlockwiseLM, slots: int | None = None) -> None:
        super().__init__(HeadLattices(model, 1, slots), Vanilla())


class PathsDrafter(LatticeDrafter):
    """The ``p`` best rescored paths of the heads' lattice (Kim 2024, section 7.2).

    model, k, slots: as for ``HeadLattices``.
    lm: as for ``latticebpd.rescore``; None is the paper's 0-gram.
    alpha: weight of the language model; None takes the one that is stored with it, and 1 where none is.
    """

    def __init__(
        self,
        model: BlockwiseLM,
        lm: LanguageModel,
        p: int = 16,
        alpha: float | None = None,
        k: int = 16,
        slots: int | None = None,
    ) -> None:
        super().__init__(HeadLattices(model, k, slots), NBestPaths(as_scorer(lm, alpha, f"{p}-best"), p))


class TreeDrafter(LatticeDrafter):
    """The best prefix tree of ``num_nodes`` nodes of the heads' lattice; other arguments as for ``PathsDrafter``."""

    def __init__(
        self,
        model: BlockwiseLM,
        lm: LanguageModel,
        num_nodes: int = 64,
        alpha: float | None = None,
        k: int = 16,
        slots: int | None = None,
    ) -> None:
        super().__init__(HeadLattices(model, k, slots), BestTree(as_scorer(lm, alpha, f"{num_nodes}-tree"), num_nodes))
