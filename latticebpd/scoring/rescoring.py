"""Rescoring a lattice with a language model (Kim 2024, section 7.2).

A *rescorer* ranks the paths of a lattice by ``sum(log_prob) + alpha * sum(log p_LM(token | context, path so far))``.
``ngram_rescorer.py``, ``kenlm_rescorer.py`` and ``neural/`` hold the rescorers that there are.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, runtime_checkable

import numpy as np

import fst
from latticebpd.lattices.drafts import Drafts, DraftTree
from latticebpd.lattices.sausage import SausageLattice
from latticebpd.scoring.ngram import NgramRescorer

if TYPE_CHECKING:
    import kenlm

__all__ = [
    "BatchRescorer",
    "LanguageModel",
    "NgramRescorer",
    "Rescorer",
    "alpha_path",
    "as_rescorer",
    "check_vocabulary",
    "draft_tree",
    "draft_tree_batch",
    "rescore",
    "rescore_batch",
    "weight_of",
]


@runtime_checkable
class Rescorer(Protocol):
    """Anything that can rank a lattice's paths.

    ``context`` is all that comes before the lattice.  A rescorer may have an attribute ``alpha``, its weight wherever none
    is given, and, as ``BatchRescorer``, take many lattices at once.
    """

    def rescore(self, lattice: SausageLattice, p: int, alpha: float, context: Sequence[int]) -> Drafts:
        """The ``p`` best drafts, best first."""

    def draft_tree(
        self, lattice: SausageLattice, num_nodes: int, alpha: float, context: Sequence[int], kept_log_mass: np.ndarray | None
    ) -> DraftTree:
        """The best prefix tree of at most ``num_nodes`` nodes."""


@runtime_checkable
class BatchRescorer(Rescorer, Protocol):
    """A rescorer that takes many lattices at once, of any shapes."""

    def rescore_batch(
        self, lattices: Sequence[SausageLattice], p: int, alpha: float, contexts: Sequence[Sequence[int] | np.ndarray]
    ) -> list[Drafts]:
        """``rescore`` of every lattice."""

    def draft_tree_batch(
        self, lattices: Sequence[SausageLattice], num_nodes: int, alpha: float, contexts: Sequence[Sequence[int] | np.ndarray]
    ) -> list[DraftTree]:
        """``draft_tree`` of every lattice; each tree knows its lattice."""


LanguageModel: TypeAlias = "fst.NgramModel | Rescorer | kenlm.Model | str | os.PathLike[str] | None"


def as_rescorer(lm: LanguageModel) -> Rescorer:
    """The rescorer that ``lm`` names: itself, an n-gram model's, that of a model's file or directory, or the 0-gram for None.

    Models from files bring the weight with them that ``latticebpd tune --write`` stored.

    Raises:
        ValueError: ``lm`` is none of these, or the file is no model.
    """
    if isinstance(lm, NgramRescorer):  # the usual case at every call; the protocol below is slow to ask
        return lm
    if lm is None or isinstance(lm, fst.NgramModel):
        return NgramRescorer(lm)
    if isinstance(lm, str | os.PathLike):
        path = Path(lm).resolve()
        tuned = alpha_path(path)
        return _loaded(path, path.stat().st_mtime_ns, tuned.stat().st_mtime_ns if tuned.exists() else None)
    if isinstance(lm, Rescorer):
        return lm
    if type(lm).__module__ == "kenlm":
        from latticebpd.scoring.kenlm import KenlmRescorer

        return KenlmRescorer(lm)
    raise ValueError(
        "expected an fst.NgramModel, the path of an ARPA or FST file or of a neural rescorer, a kenlm.Model, a rescorer or None as lm, "
        f"got {type(lm).__name__}"
    )


def alpha_path(model: str | os.PathLike[str]) -> Path:
    """Where the tuned weight of an n-gram model's file is stored: beside it (``latticebpd.analysis.tuning``)."""
    return Path(f"{os.fspath(model)}.alpha.json")


def weight_of(rescorer: Rescorer, alpha: float | None) -> float:
    """``alpha``; where it is None, the rescorer's own, and 1 where that has none."""
    return float(getattr(rescorer, "alpha", 1.0)) if alpha is None else alpha


def check_vocabulary(lm: LanguageModel, fingerprint: str | None, vocab_size: int | None = None, owner: str = "the model") -> None:
    """Refuse a model that was made for another vocabulary than ``owner``'s, as far as both tell theirs.

    Args:
        lm: anything; only n-gram models and rescorers with a ``check_vocabulary`` of their own are looked at.
        fingerprint: hash of the owner's vocabulary, or None if unknown.
        vocab_size: number of the owner's tokens, or None if unknown.
        owner: who it is, for the message.
    """
    own_check = getattr(lm, "check_vocabulary", None)
    if own_check is not None:
        own_check(fingerprint, vocab_size, owner)
        return
    model = lm.lm if isinstance(lm, NgramRescorer) else lm
    if not isinstance(model, fst.NgramModel):
        return
    if fingerprint and model.fingerprint and fingerprint != model.fingerprint:
        raise ValueError(
            f"expected an n-gram model over the vocabulary of {owner} ({fingerprint}), got one over {model.fingerprint}; "
            "train one on text encoded with the same tokenizer"
        )
    if vocab_size is not None and model.vocab_size > vocab_size:
        raise ValueError(
            f"expected an n-gram model over at most {vocab_size} tokens (the vocabulary of {owner}), got one over {model.vocab_size}; "
            "train one on text encoded with the same tokenizer"
        )


@lru_cache(maxsize=8)
def _loaded(path: Path, modified: int, tuned: int | None) -> Rescorer:
    del modified  # part of the key, so that a rewritten file is read again
    if path.is_dir():
        from latticebpd.scoring.neural import NeuralRescorer

        return NeuralRescorer.from_pretrained(path)
    if tuned is None:
        return NgramRescorer(fst.NgramModel.load(path))
    from latticebpd.analysis.tuning import Tuning

    return NgramRescorer(fst.NgramModel.load(path), Tuning.load(alpha_path(path)).alpha)


def rescore(
    lattice: SausageLattice, lm: LanguageModel, p: int = 16, alpha: float | None = None, context: Sequence[int] | np.ndarray = ()
) -> Drafts:
    """The ``p`` best drafts of a lattice under a language model.

    Args:
        lattice: top-k outputs of the heads.
        lm: an ``fst.NgramModel``, the path of an ARPA or FST file or of a neural rescorer's directory, a ``kenlm.Model``, a
            rescorer object (``latticebpd.scoring.neural.NeuralRescorer``), or None (no rescoring).
        p: number of drafts; fewer come back if the lattice has fewer paths.
        alpha: weight of the language model, >= 0; 0 ranks by the lattice alone; None takes the weight that is stored with the
            model, and 1 where none is.
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
    rescorer = as_rescorer(lm)
    return rescorer.rescore(lattice, p, weight_of(rescorer, alpha), _listed(context))


def draft_tree(
    lattice: SausageLattice,
    lm: LanguageModel,
    num_nodes: int = 64,
    alpha: float | None = None,
    context: Sequence[int] | np.ndarray = (),
    kept_log_mass: Any = None,
) -> DraftTree:
    """The prefix tree of at most ``num_nodes`` nodes with the greatest expected number of accepted tokens.

    A node's probability is the product, along its path, of the rescored weights normalised over each slot's
    arcs.  No child outweighs its parent, so the ``num_nodes`` most probable prefixes form a tree and, if the
    probabilities were true, no other tree of that size would have more tokens accepted.

    Args:
        lattice, lm, alpha, context: as for :func:`rescore`.
        num_nodes: budget of nodes, the tokens that the verifier will see.
        kept_log_mass: ``[slots]`` natural log of the probability that each slot's right token is among its arcs;
            None for certainty, ``lattice.kept_log_mass`` for what the heads themselves say.
    """
    mass = None if kept_log_mass is None else np.asarray(kept_log_mass, dtype=np.float64)
    rescorer = as_rescorer(lm)
    return rescorer.draft_tree(lattice, num_nodes, weight_of(rescorer, alpha), _listed(context), mass)


def rescore_batch(
    lattices: Sequence[SausageLattice],
    lm: LanguageModel,
    p: int = 16,
    alpha: float | None = None,
    contexts: Sequence[Sequence[int] | np.ndarray] | None = None,
) -> list[Drafts]:
    """:func:`rescore` of several lattices, together where the rescorer can do that."""
    rescorer = as_rescorer(lm)
    weight, texts = weight_of(rescorer, alpha), [()] * len(lattices) if contexts is None else contexts
    if hasattr(rescorer, "rescore_batch"):
        found: list[Drafts] = rescorer.rescore_batch(lattices, p, weight, texts)
        return found
    return [rescorer.rescore(lattice, p, weight, _listed(text)) for lattice, text in zip(lattices, texts, strict=True)]


def draft_tree_batch(
    lattices: Sequence[SausageLattice],
    lm: LanguageModel,
    num_nodes: int = 64,
    alpha: float | None = None,
    contexts: Sequence[Sequence[int] | np.ndarray] | None = None,
) -> list[DraftTree]:
    """:func:`draft_tree` of several lattices, together where the rescorer can do that; each tree knows its lattice."""
    rescorer = as_rescorer(lm)
    weight, texts = weight_of(rescorer, alpha), [()] * len(lattices) if contexts is None else contexts
    if hasattr(rescorer, "draft_tree_batch"):
        found: list[DraftTree] = rescorer.draft_tree_batch(lattices, num_nodes, weight, texts)
        return found
    return [
        replace(rescorer.draft_tree(lattice, num_nodes, weight, _listed(text), None), lattice=lattice)
        for lattice, text in zip(lattices, texts, strict=True)
    ]


def _listed(context: Sequence[int] | np.ndarray) -> list[int]:
    return [int(token) for token in context]
