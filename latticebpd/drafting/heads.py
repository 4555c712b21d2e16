"""Drafters that turn the outputs of prediction heads into lattices (Stern 2018; Kim 2024).

The heads read one hidden state per row, that of the last accepted node, and all rows at once; the searches over
the rows' lattices are one batch as well, and so are a neural rescorer's passes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from latticebpd.drafting.base import State
from latticebpd.lattices.drafts import DraftTree
from latticebpd.lattices.sausage import PADDING, SausageLattice
from latticebpd.scoring.rescoring import LanguageModel, Rescorer, as_rescorer, check_vocabulary, draft_tree_batch, rescore_batch


class HasHeads(Protocol):
    """Prediction heads beside a base model; ``BlockwiseLM`` is one."""

    tokenizer_fingerprint: str | None

    @property
    def vocab_size(self) -> int: ...

    def head_logits(self, hidden: Tensor, slots: int | None = None) -> Tensor:
        """``[rows, hidden]`` -> ``[rows, slots, vocab]``: slot ``i`` predicts the token ``i + 1`` after the next token.

        The tokens are those of the vocabulary or, where the heads have one, of the attribute ``shortlist`` (ids, ascending).

        slots: only the first so many, if there are more.
        """


class HeadsDrafter:
    """Base of the drafters that see the heads' outputs as lattices.

    Args:
        model: the heads; those of a ``BlockwiseLM`` are heads 2..h.
        k: arcs per slot.
        slots: draft with the first so many heads only; None uses all.  A head costs a projection to the vocabulary, and
            a small tree seldom reaches the last ones.
    """

    def __init__(self, model: HasHeads, k: int = 16, slots: int | None = None) -> None:
        if slots is not None and slots < 1:
            raise ValueError(f"expected slots >= 1, or None for all, got {slots}")
        self.model, self.k, self.slots = model, k, slots

    @torch.inference_mode()
    def lattices(self, states: Sequence[State]) -> list[SausageLattice]:
        """The lattice that starts right after each state's tokens, with as many slots as the length limit leaves."""
        reachable = max(state.max_depth for state in states)
        slots = reachable if self.slots is None else min(reachable, self.slots)
        logits = self.model.head_logits(torch.stack([state.hidden for state in states]), slots)
        found = lattices_from_logits(logits, self.k, getattr(self.model, "shortlist", None))
        return [_cut(lattice, state.max_depth) for lattice, state in zip(found, states, strict=True)]

    def propose(self, states: Sequence[State]) -> list[DraftTree]:
        return self.draft(self.lattices(states), states)

    def draft(self, lattices: list[SausageLattice], states: Sequence[State]) -> list[DraftTree]:
        """One tree for each lattice; the lattices of rows close to their limit have fewer slots than others."""
        raise NotImplementedError

    def observe(self, rows: Sequence[int], tokens: Sequence[Sequence[int]]) -> None:
        pass


class VanillaDrafter(HeadsDrafter):
    """The best token of every head, as it is (Stern 2018)."""

    def __init__(self, model: HasHeads, slots: int | None = None) -> None:
        super().__init__(model, 1, slots)

    def draft(self, lattices: list[SausageLattice], states: Sequence[State]) -> list[DraftTree]:
        return [DraftTree.from_paths(lattice.tokens.T, lattice) for lattice in lattices]


class PathsDrafter(HeadsDrafter):
    """The ``p`` best rescored paths (Kim 2024, section 7.2), stored as a prefix tree.

    Args:
        lm: as for ``latticebpd.rescore``; None is the paper's 0-gram.
        p: number of drafts.
        alpha: weight of the language model; None takes the one that is stored with it, and 1 where none is.
    """

    def __init__(
        self, model: HasHeads, lm: LanguageModel, p: int = 16, alpha: float | None = None, k: int = 16, slots: int | None = None
    ) -> None:
        super().__init__(model, k, slots)
        self.rescorer, self.p, self.alpha = _fitting_rescorer(model, lm), p, alpha

    def draft(self, lattices: list[SausageLattice], states: Sequence[State]) -> list[DraftTree]:
        drafts = rescore_batch(lattices, self.rescorer, self.p, self.alpha, [state.tokens for state in states])
        return [DraftTree.from_paths(best.tokens, lattice) for best, lattice in zip(drafts, lattices, strict=True)]


class TreeDrafter(HeadsDrafter):
    """The best prefix tree of ``num_nodes`` nodes, whatever paths they lie on.

    Every slot is taken to hold the right token.  The top-k mass of heads trained on people's text is a poor price for
    depth: the base model's greedy text, which decides, is far easier to guess.  For heads trained on the model's own
    text it makes no difference (`benchmarks/README.md`).
    """

    def __init__(
        self, model: HasHeads, lm: LanguageModel, num_nodes: int = 64, alpha: float | None = None, k: int = 16, slots: int | None = None
    ) -> None:
        super().__init__(model, k, slots)
        self.rescorer, self.num_nodes, self.alpha = _fitting_rescorer(model, lm), num_nodes, alpha

    def draft(self, lattices: list[SausageLattice], states: Sequence[State]) -> list[DraftTree]:
        return draft_tree_batch(lattices, self.rescorer, self.num_nodes, self.alpha, [state.tokens for state in states])


def _cut(lattice: SausageLattice, slots: int) -> SausageLattice:
    return lattice if lattice.slots <= slots else SausageLattice(lattice.tokens[:slots], lattice.log_probs[:slots])


def _fitting_rescorer(model: HasHeads, lm: LanguageModel) -> Rescorer:
    rescorer = as_rescorer(lm)
    check_vocabulary(rescorer, model.tokenizer_fingerprint, model.vocab_size)
    return rescorer


def lattices_from_logits(logits: Tensor, k: int, shortlist: np.ndarray | None = None) -> list[SausageLattice]:
    """``SausageLattice.from_logits`` for ``[rows, slots, vocab]`` tensors, the top-k taken on the tensor's own device.

    Ties at the k-th place go to the lower token id, as in ``from_logits``.

    Args:
        shortlist: ``[vocab]`` the tokens that the logits are of, ascending; None: 0, 1, ...
    """
    found = _lattices_of_places(logits, k)
    if shortlist is None:
        return found
    return [SausageLattice(np.where(each.tokens < 0, PADDING, shortlist[each.tokens]), each.log_probs) for each in found]


def _lattices_of_places(logits: Tensor, k: int) -> list[SausageLattice]:
    # One spare candidate shows whether the k-th place is tied; then the exact rule decides over all tokens.
    values, tokens = logits.topk(min(k + 1, logits.shape[-1]), dim=-1)
    log_probs = values[..., :k] - logits.logsumexp(dim=-1, keepdim=True)
    host_values, host_tokens, host_log_probs = values.cpu().float().numpy(), tokens.cpu().numpy(), log_probs.cpu().float().numpy()
    if host_values.shape[-1] > k:
        tied = (host_values[..., k] == host_values[..., k - 1]).any(axis=-1)
    else:
        tied = np.zeros(len(host_values), dtype=bool)
    return [
        SausageLattice.from_logits(logits[row], k) if tied[row] else SausageLattice(host_tokens[row, :, :k], host_log_probs[row])
        for row in range(len(host_values))
    ]


def lattice_from_logits(logits: Tensor, k: int) -> SausageLattice:
    """``lattices_from_logits`` of one row, ``[slots, vocab]``."""
    return lattices_from_logits(logits[None], k)[0]
