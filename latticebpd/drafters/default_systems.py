"""What drafts, and from how large a lattice, where nobody says."""

from __future__ import annotations

from latticebpd.drafters.system_names import CALIBRATED
from latticebpd.scoring.rescoring import LanguageModel, calibrated_scorer, is_calibrated


def default_system(
    lm: LanguageModel,
    alpha: float | None = None,
    num_nodes: int | None = None,
    by_cost: bool = False,
    has_heads: bool = True,
) -> str:
    """A calibrated tree where the language model has a calibration, else copies and a tree; without heads, copies
    alone.

    Args:
        lm, alpha: the language model and the weight that it is given, if any; a calibration has its own.
        num_nodes: of the trees; by default 16, and 64 where they are cut.
        by_cost: trees are to be cut to what pays, so they may be large.
    """
    if not has_heads:
        return f"{num_nodes or 16}-copies"
    size = num_nodes or (64 if by_cost else 16)
    if alpha is None and is_calibrated(lm):
        return f"{size}-calibrated"
    return f"{size}-tree" if by_cost else f"copies+{size}-tree"


def default_block_system(lm: LanguageModel, alpha: float | None = None) -> str:
    """The system of a block drafter.

    Args:
        lm, alpha: the language model that was given beside the drafter, if any, and its weight: one that lies beside
            the target may be calibrated, but for the target's heads.
    """
    return "16-calibrated" if alpha is None and is_calibrated(lm) else "16-tree"


def lattice_shape(k: int | None, slots: int | None, system: str, lm: LanguageModel) -> tuple[int, int | None]:
    """Arcs per slot, and slots: as told, else what a calibrated system was fitted to and needs, else 16 and all, which
    is None."""
    calibration = calibrated_scorer(lm).calibration if system.endswith(f"-{CALIBRATED}") and is_calibrated(lm) else None
    if calibration is None:
        return 16 if k is None else k, slots
    return calibration.k if k is None else k, calibration.slots if slots is None else slots
