"""Rescoring a lattice with a language model (Kim 2024, section 7.2).

A *rescorer* ranks the paths of a lattice by ``sum(log_prob) + alpha * sum(log p_LM(token | context, path so far))``.
The n-gram rescorer finds the exact best paths, or the exact best prefix tree, in the compiled core of ``fst``.
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
from fst.automaton import MAX_ORDER
from latticebpd.drafts import Drafts, DraftTree
from latticebpd.lattice import PADDING, SausageLattice

if TYPE_CHECKING:
    import kenlm


@runtime_checkable
class Rescorer(Protocol):
    """Anything that can rank a lattice's paths; a neural rescorer is one."""

    def rescore(self, lattice: SausageLattice, p: int, alpha: float, context: Sequence[int]) -> Drafts:
        """The ``p`` best drafts, best first."""

    def draft_tree(
        self, lattice: SausageLattice, num_nodes: int, alpha: float, context: Sequence[int], kept_log_mass: np.ndarray | None
    ) -> DraftTree:
        """The best prefix tree of at most ``num_nodes`` nodes."""


LanguageModel: TypeAlias = "fst.NgramModel | Rescorer | kenlm.Model | str | os.PathLike[str] | None"


class NgramRescorer:
    """Exact search over lattice and n-gram model; without a model, over the lattice alone (the paper's 0-gram)."""

    def __init__(self, lm: fst.NgramModel | None) -> None:
        self.lm = lm

    def rescore(self, lattice: SausageLattice, p: int, alpha: float, context: Sequence[int]) -> Drafts:
        return Drafts(*fst.nbest_paths(lattice.tokens, lattice.log_probs, self.lm, p=p, alpha=alpha, context=context))

    def draft_tree(
        self, lattice: SausageLattice, num_nodes: int, alpha: float, context: Sequence[int], kept_log_mass: np.ndarray | None
    ) -> DraftTree:
        return DraftTree(
            *fst.best_first_tree(
                lattice.tokens,
                lattice.log_probs,
                self.lm,
                num_nodes=num_nodes,
                alpha=alpha,
                context=context,
                kept_log_mass=kept_log_mass,
            )
        )


def as_rescorer(lm: LanguageModel) -> Rescorer:
    """The rescorer that ``lm`` names: itself, an n-gram model's, that of a model file, or the 0-gram for None.

    Raises:
        ValueError: ``lm`` is none of these, or the file is no model.
    """
    if isinstance(lm, NgramRescorer):  # the usual case at every call; the protocol below is slow to ask
        return lm
    if lm is None or isinstance(lm, fst.NgramModel):
        return NgramRescorer(lm)
    if isinstance(lm, str | os.PathLike):
        path = Path(lm).resolve()
        return _loaded(path, path.stat().st_mtime_ns)
    if isinstance(lm, Rescorer):
        return lm
    if type(lm).__module__ == "kenlm":
        from latticebpd.kenlm_rescorer import KenlmRescorer

        return KenlmRescorer(lm)
    raise ValueError(
        f"expected an fst.NgramModel, the path of an ARPA or FST file, a kenlm.Model, a rescorer or None as lm, got {type(lm).__name__}"
    )


def check_vocabulary(lm: LanguageModel, fingerprint: str | None, vocab_size: int | None = None, owner: str = "the model") -> None:
    """Refuse an n-gram model that was made for another vocabulary than ``owner``'s, as far as both tell theirs.

    Args:
        lm: anything; only n-gram models are looked at.
        fingerprint: hash of the owner's vocabulary, or None if unknown.
        vocab_size: number of the owner's tokens, or None if unknown.
        owner: who it is, for the message.
    """
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
def _loaded(path: Path, modified: int) -> NgramRescorer:
    del modified  # part of the key, so that a rewritten file is read again
    return NgramRescorer(fst.NgramModel.load(path))


def rescore(
    lattice: SausageLattice, lm: LanguageModel, p: int = 16, alpha: float = 1.0, context: Sequence[int] | np.ndarray = ()
) -> Drafts:
    """The ``p`` best drafts of a lattice under a language model.

    Args:
        lattice: top-k outputs of the heads.
        lm: an ``fst.NgramModel``, the path of an ARPA or FST file, a ``kenlm.Model``, a rescorer object, or None (no
            rescoring).
        p: number of drafts; fewer come back if the lattice has fewer paths.
        alpha: weight of the language model, >= 0; 0 ranks by the lattice alone.
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
    return as_rescorer(lm).rescore(lattice, p, alpha, _history(context))


def draft_tree(
    lattice: SausageLattice,
    lm: LanguageModel,
    num_nodes: int = 64,
    alpha: float = 1.0,
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
    return as_rescorer(lm).draft_tree(lattice, num_nodes, alpha, _history(context), mass)


def rescore_batch(
    lattices: Sequence[SausageLattice],
    lm: LanguageModel,
    p: int = 16,
    alpha: float = 1.0,
    contexts: Sequence[Sequence[int] | np.ndarray] | None = None,
) -> list[Drafts]:
    """:func:`rescore` of several lattices of one shape: for n-gram models, one search over all of them."""
    rescorer, histories = as_rescorer(lm), _histories(contexts, len(lattices))
    if not isinstance(rescorer, NgramRescorer):
        return [rescorer.rescore(lattice, p, alpha, history) for lattice, history in zip(lattices, histories, strict=True)]
    tokens, scores, counts = fst.nbest_paths_batch(*_stacked(lattices), rescorer.lm, p=p, alpha=alpha, contexts=_padded(histories))
    return [Drafts(tokens[row, :count], scores[row, :count]) for row, count in enumerate(counts.tolist())]


def draft_tree_batch(
    lattices: Sequence[SausageLattice],
    lm: LanguageModel,
    num_nodes: int = 64,
    alpha: float = 1.0,
    contexts: Sequence[Sequence[int] | np.ndarray] | None = None,
) -> list[DraftTree]:
    """:func:`draft_tree` of several lattices of one shape: for n-gram models, one search over all of them."""
    rescorer, histories = as_rescorer(lm), _histories(contexts, len(lattices))
    if not isinstance(rescorer, NgramRescorer):
        return [
            replace(rescorer.draft_tree(lattice, num_nodes, alpha, history, None), lattice=lattice)
            for lattice, history in zip(lattices, histories, strict=True)
        ]
    tokens, parents, log_probs, counts = fst.best_first_tree_batch(
        *_stacked(lattices), rescorer.lm, num_nodes=num_nodes, alpha=alpha, contexts=_padded(histories)
    )
    return [
        DraftTree(tokens[row, :count], parents[row, :count], log_probs[row, :count], lattices[row])
        for row, count in enumerate(counts.tolist())
    ]


def _histories(contexts: Sequence[Sequence[int] | np.ndarray] | None, rows: int) -> list[list[int]]:
    return [[] for _ in range(rows)] if contexts is None else [_history(context) for context in contexts]


def _stacked(lattices: Sequence[SausageLattice]) -> tuple[np.ndarray, np.ndarray]:
    return np.stack([lattice.tokens for lattice in lattices]), np.stack([lattice.log_probs for lattice in lattices])


def _padded(histories: list[list[int]]) -> np.ndarray:
    """``[n, c]``, -1 on the left."""
    width = max(map(len, histories))
    return np.array([[PADDING] * (width - len(history)) + history for history in histories], dtype=np.int64).reshape(-1, width)


def _history(context: Sequence[int] | np.ndarray) -> list[int]:
    """As much of the context as any n-gram model can look back on, so that a long text costs no more than a short one."""
    return [int(token) for token in context[-MAX_ORDER:]]
