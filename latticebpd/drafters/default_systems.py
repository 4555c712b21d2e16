"""Default system and lattice shape."""

from __future__ import annotations

from latticebpd.drafters.cost_curve import CostCurve
from latticebpd.drafters.family import DrafterLattices
from latticebpd.drafters.system_names import CALIBRATED, COPIES, SystemName
from latticebpd.scoring.rescoring import LanguageModel, calibrated_scorer, is_calibrated

ARCS = 16
"""Arcs per slot, where nothing asks for others."""


def default_system(
    source: DrafterLattices | None,
    lm: LanguageModel = None,
    lm_from_caller: bool = False,
    alpha: float | None = None,
    num_nodes: int | None = None,
    by_cost: bool = False,
) -> str:
    """A calibrated tree where the language model has a calibration, and without a drafter; else the family's own
    default.

    lm, alpha: the language model and its weight, if any; a calibration has its own.
    lm_from_caller: the caller named the language model; else it lies next to the target, perhaps calibrated for heads.
    num_nodes: of the trees; by default 16, and 64 where they are cut by cost.
    by_cost: trees are cut to what pays off, so they may be large.
    """
    size = num_nodes or (64 if by_cost else 16)
    if source is None:
        return f"{size}-{CALIBRATED}"
    rescored = lm if lm_from_caller or source.uses_target_calibration else None
    if alpha is None and is_calibrated(rescored):
        return f"{size}-{CALIBRATED}"
    return f"{size}-tree" if by_cost else source.default_system(lm_from_caller).format(n=size)


def lattice_shape(
    k: int | None, slots: int | None, system: str, lm: LanguageModel, costs: CostCurve | None = None
) -> tuple[int, int | None]:
    """Arcs per slot, and slots: as given, else what a calibrated system was fitted to and needs, else 16 and None (all
    slots).

    More than 16 arcs bring trees of up to 16 nodes nothing (`benchmarks/smollm2/trees.md`) and cost time.

    costs: of passes, by which trees are cut: they need fewer slots where only small ones pay off.
    """
    calibration = calibrated_scorer(lm).calibration if system.endswith(f"-{CALIBRATED}") and is_calibrated(lm) else None
    if calibration is None:
        return ARCS if k is None else k, slots
    nodes, most = SystemName.parse(system.removeprefix(f"{COPIES}+")).size, calibration.slots
    if costs is not None and calibration.trees:
        # Trees that are cut call by call are mostly near the size that promises the most tokens a second.
        best = max(calibration.trees, key=lambda each: each.tokens / costs.of_calls(1, each.nodes, each.tokens))
        nodes, most = min(nodes, best.nodes), best.slots
    if slots is None and most is not None:  # a tree is no deeper than its number of nodes
        slots = min(most, nodes)
    return min(calibration.k, max(ARCS, nodes)) if k is None else k, slots
