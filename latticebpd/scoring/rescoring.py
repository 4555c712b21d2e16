"""Rescoring a lattice with a language model (Kim 2024, section 7.2).

``as_scorer`` decides which scorer a language model makes, and at which weight.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

import fst
from latticebpd.lattices.drafts import Drafts, DraftTree
from latticebpd.lattices.sausage import SausageLattice
from latticebpd.scoring.calibrated import CalibratedScorer
from latticebpd.scoring.calibration import Calibration, calibration_path, stored_calibration
from latticebpd.scoring.ngram import NgramScorer
from latticebpd.scoring.scorer import Scorer
from latticebpd.scoring.weights import RESCORER_CONFIG, Tuning, alpha_path, checked_alpha, stored_tunings, weight_for

if TYPE_CHECKING:
    import kenlm

LanguageModel: TypeAlias = "fst.NgramModel | Scorer | Tuned | kenlm.Model | str | os.PathLike[str] | None"


@dataclass(frozen=True, eq=False)
class Tuned:
    """A scorer, what its weight was tuned to, system by system, and its calibration; what is stored with a model's
    file."""

    scorer: Scorer
    tunings: tuple[Tuning, ...]
    calibration: Calibration | None = None


def as_scorer(lm: LanguageModel, alpha: float | None = None, system: str | None = None) -> Scorer:
    """The scorer that ``lm`` names: itself, an n-gram model's, that of a model's file or directory, or the 0-gram for
    None.

    Args:
        lm: as for :func:`rescore`.
        alpha: its weight; None takes what ``latticebpd tune --write`` stored with the model's file for ``system`` or
            one like it, else the scorer's own, which is 1 where nobody gave one.
        system: what is drafted, such as ``16-best``.

    Raises:
        ValueError: ``lm`` is none of these, the file is no model, or the weight is none.
    """
    scorer = _scorer(lm)
    if isinstance(scorer, Tuned):
        alpha = weight_for(scorer.tunings, system) if alpha is None else alpha
        scorer = scorer.scorer
    return scorer if alpha is None or alpha == scorer.alpha else scorer.with_alpha(checked_alpha(alpha))


def calibrated_scorer(lm: LanguageModel) -> CalibratedScorer:
    """The scorer of calibrated trees that ``lm`` names: itself, or that of an n-gram model's file with a calibration
    beside it.

    Raises:
        ValueError: ``lm`` has no calibration.
    """
    if (found := _calibrated(lm)) is None:
        name = "none" if lm is None else os.fspath(lm) if isinstance(lm, str | os.PathLike) else type(lm).__name__
        raise ValueError(
            f"expected an n-gram model with a calibration beside its file, got {name}; make one by `latticebpd"
            " calibrate`"
        )
    return found


def is_calibrated(lm: LanguageModel) -> bool:
    """Whether :func:`calibrated_scorer` has one for it."""
    return _calibrated(lm) is not None


def _calibrated(lm: LanguageModel) -> CalibratedScorer | None:
    found = _scorer(lm)
    if isinstance(found, Tuned) and found.calibration is not None and isinstance(found.scorer, NgramScorer):
        return CalibratedScorer(found.scorer, found.calibration)
    return found if isinstance(found, CalibratedScorer) else None


def tuned(lm: LanguageModel, tunings: tuple[Tuning, ...]) -> Tuned:
    """The model at these weights; its calibration stays."""
    calibrated = _calibrated(lm)
    return (
        Tuned(as_scorer(lm), tunings)
        if calibrated is None
        else Tuned(calibrated.ngram, tunings, calibrated.calibration)
    )


def set_aside_by(lm: LanguageModel) -> tuple[Tuning | Calibration, ...]:
    """The records of whatever was fitted on examples and came with a model's file."""
    found = _scorer(lm)
    if not isinstance(found, Tuned):
        return ()
    return found.tunings if found.calibration is None else (*found.tunings, found.calibration)


def tunings_of(lm: LanguageModel) -> tuple[Tuning, ...]:
    """The tunings that came with a model's file."""
    found = _scorer(lm)
    return found.tunings if isinstance(found, Tuned) else ()


def _scorer(lm: LanguageModel) -> Scorer | Tuned:
    if isinstance(lm, NgramScorer | Tuned):  # the usual case at every call; the protocol below is slow to ask
        return lm
    if lm is None or isinstance(lm, fst.NgramModel):
        return NgramScorer(lm)
    if isinstance(lm, str | os.PathLike):
        path = Path(lm).resolve()
        stored = path / RESCORER_CONFIG if path.is_dir() else alpha_path(path)
        beside = (stored, calibration_path(path))
        return _loaded(
            path, path.stat().st_mtime_ns, tuple(each.stat().st_mtime_ns if each.exists() else None for each in beside)
        )
    if isinstance(lm, Scorer):
        return lm
    if type(lm).__module__ == "kenlm":
        from latticebpd.scoring.kenlm import KenlmScorer

        return KenlmScorer(lm)
    raise ValueError(
        "expected an fst.NgramModel, the path of an ARPA or FST file or of a neural rescorer, a kenlm.Model, a scorer"
        f" or None as lm, got {type(lm).__name__}"
    )


@lru_cache(maxsize=8)
def _loaded(path: Path, modified: int, beside: tuple[int | None, ...]) -> Scorer | Tuned:
    del modified, beside  # parts of the key, so that rewritten files are read again
    scorer: Scorer
    if path.is_dir():
        from latticebpd.scoring.neural import NeuralRescorer

        scorer = NeuralRescorer.from_pretrained(path)
    else:
        scorer = NgramScorer(fst.NgramModel.load(path))
    tunings, calibration = stored_tunings(path), None if path.is_dir() else stored_calibration(path)
    return Tuned(scorer, tunings, calibration) if tunings or calibration else scorer


def check_vocabulary(
    lm: LanguageModel, fingerprint: str | None, vocab_size: int | None = None, owner: str = "the model"
) -> None:
    """Refuse a model that was made for another vocabulary than ``owner``'s, as far as both tell theirs.

    Args:
        lm: anything; only scorers with a ``check_vocabulary`` of their own are asked.
        fingerprint: hash of the owner's vocabulary, or None if unknown.
        vocab_size: number of the owner's tokens, or None if unknown.
        owner: who it is, for the message.
    """
    check = getattr(as_scorer(lm), "check_vocabulary", None)
    if check is not None:
        check(fingerprint, vocab_size, owner)


def rescore(
    lattice: SausageLattice,
    lm: LanguageModel,
    p: int = 16,
    alpha: float | None = None,
    context: Sequence[int] | np.ndarray = (),
) -> Drafts:
    """The ``p`` best drafts of a lattice under a language model.

    Args:
        lattice: top-k outputs of the heads.
        lm: an ``fst.NgramModel``, the path of an ARPA or FST file or of a neural rescorer's directory, a
            ``kenlm.Model``, a scorer (``latticebpd.NeuralRescorer``, or your own), or None (no rescoring).
        p: number of drafts; fewer come back if the lattice has fewer paths.
        alpha: weight of the language model, >= 0; 0 ranks by the lattice alone; None takes the weight that is stored
            with the model, and 1 where none is.
        context: tokens before the lattice.  Empty means no history, never an implied ``<s>``.

    Returns:
        Distinct drafts, best first; ties go to the lexicographically smaller token sequence.

    Raises:
        ValueError: an argument out of range, or a model file that is none.

    Example:
        >>> lattice = SausageLattice([[3, 7], [4, 8]], [[-0.1, -2.4], [-0.7, -0.7]])
        >>> rescore(lattice, None, p=2).tokens.tolist()
        [[3, 4], [3, 8]]
    """
    return as_scorer(lm, alpha, f"{p}-best").paths([lattice], [context], p)[0]


def draft_tree(
    lattice: SausageLattice,
    lm: LanguageModel,
    num_nodes: int = 64,
    alpha: float | None = None,
    context: Sequence[int] | np.ndarray = (),
) -> DraftTree:
    """The prefix tree of at most ``num_nodes`` nodes with the greatest expected number of accepted tokens.

    A node's probability is the product, along its path, of the rescored weights normalised over each slot's
    arcs.  No child outweighs its parent, so the ``num_nodes`` most probable prefixes form a tree and, if the
    probabilities were true, no other tree of that size would have more tokens accepted.

    Args:
        lattice, lm, alpha, context: as for :func:`rescore`.
        num_nodes: budget of nodes, the tokens that the verifier will see.
    """
    return as_scorer(lm, alpha, f"{num_nodes}-tree").trees([lattice], [context], num_nodes)[0]
