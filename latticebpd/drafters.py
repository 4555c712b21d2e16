"""Drafters: who guesses the next tokens.

A drafter has two methods.  ``propose`` looks at the text so far and returns a tree of guesses; ``observe`` hears
which tokens were committed since.  To add a drafter, write a class with these two methods; nothing else changes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from latticebpd.drafts import DraftTree
from latticebpd.lattice import SausageLattice, oracle_path
from latticebpd.models import BlockwiseLM
from latticebpd.rescoring import LanguageModel, Rescorer, as_rescorer, check_vocabulary, draft_tree, rescore


@dataclass(frozen=True)
class State:
    """The moment before a draft.

    tokens: the prompt and everything committed, the last being the next token, which the base model chose itself.
    prompt_length: how many of them are the prompt.
    hidden: ``[hidden]``, the base model's final hidden state that predicted the last token.
    max_depth: how many further tokens may be drafted before the length limit cuts them off.
    """

    tokens: Sequence[int]
    prompt_length: int
    hidden: Tensor
    max_depth: int


class Drafter(Protocol):
    """Proposes draft trees."""

    def propose(self, state: State) -> DraftTree:
        """Guess what follows ``state.tokens``; no deeper than ``state.max_depth``."""

    def observe(self, tokens: Sequence[int]) -> None:
        """Hear the tokens that were committed after the last proposal."""


class NoDrafter:
    """Drafts nothing: plain greedy decoding, one token a call."""

    def propose(self, state: State) -> DraftTree:
        return DraftTree.empty()

    def observe(self, tokens: Sequence[int]) -> None:
        pass


class HeadsDrafter:
    """Base of the drafters that turn the block heads' outputs into a lattice.

    Args:
        model: the blockwise model; its heads 2..h make the lattice's slots.
        k: arcs per slot.
    """

    def __init__(self, model: BlockwiseLM, k: int = 16) -> None:
        self.model, self.k = model, k

    @torch.inference_mode()
    def lattice(self, state: State) -> SausageLattice | None:
        """The lattice that starts right after ``state.tokens``; None where nothing may be drafted."""
        if state.max_depth < 1:
            return None
        return lattice_from_logits(self.model.head_logits(state.hidden)[: state.max_depth], self.k)

    def propose(self, state: State) -> DraftTree:
        lattice = self.lattice(state)
        return DraftTree.empty() if lattice is None else self.draft(lattice, state)

    def draft(self, lattice: SausageLattice, state: State) -> DraftTree:
        raise NotImplementedError

    def observe(self, tokens: Sequence[int]) -> None:
        pass


class VanillaDrafter(HeadsDrafter):
    """The best token of every head, as it is (Stern 2018)."""

    def __init__(self, model: BlockwiseLM) -> None:
        super().__init__(model, k=1)

    def draft(self, lattice: SausageLattice, state: State) -> DraftTree:
        return DraftTree.from_paths(lattice.tokens.T)


class PathsDrafter(HeadsDrafter):
    """The ``p`` best rescored paths (Kim 2024, section 7.2), stored as a prefix tree.

    Args:
        lm: as for ``latticebpd.rescore``; None is the paper's 0-gram.
        p: number of drafts.
        alpha: weight of the language model.
    """

    def __init__(self, model: BlockwiseLM, lm: LanguageModel, p: int = 16, alpha: float = 1.0, k: int = 16) -> None:
        super().__init__(model, k)
        self.rescorer, self.p, self.alpha = _fitting_rescorer(model, lm), p, alpha

    def draft(self, lattice: SausageLattice, state: State) -> DraftTree:
        return DraftTree.from_paths(rescore(lattice, self.rescorer, self.p, self.alpha, state.tokens).tokens)


class TreeDrafter(HeadsDrafter):
    """The best prefix tree of ``num_nodes`` nodes, whatever paths they lie on.

    Every slot is taken to hold the right token.  The heads' own top-k mass is a poor price for depth: they are
    trained on people's text, and the base model's greedy text, which decides, is far easier to guess.
    """

    def __init__(self, model: BlockwiseLM, lm: LanguageModel, num_nodes: int = 64, alpha: float = 1.0, k: int = 16) -> None:
        super().__init__(model, k)
        self.rescorer, self.num_nodes, self.alpha = _fitting_rescorer(model, lm), num_nodes, alpha

    def draft(self, lattice: SausageLattice, state: State) -> DraftTree:
        return draft_tree(lattice, self.rescorer, self.num_nodes, self.alpha, state.tokens)


class OracleDrafter(HeadsDrafter):
    """The lattice's best path in hindsight: what perfect rescoring would draft (Kim 2024, section 6.3).

    Args:
        continuation: the base model's own output after the prompt, known beforehand.
    """

    def __init__(self, model: BlockwiseLM, continuation: Sequence[int], k: int = 16) -> None:
        super().__init__(model, k)
        self.continuation = list(continuation)

    def draft(self, lattice: SausageLattice, state: State) -> DraftTree:
        done = len(state.tokens) - state.prompt_length
        return DraftTree.from_paths([oracle_path(lattice, self.continuation[done:]).tolist()])


def _fitting_rescorer(model: BlockwiseLM, lm: LanguageModel) -> Rescorer:
    rescorer = as_rescorer(lm)
    check_vocabulary(rescorer, model.tokenizer_fingerprint, model.vocab_size)
    return rescorer


def lattice_from_logits(logits: Tensor, k: int) -> SausageLattice:
    """``SausageLattice.from_logits`` for tensors, with the top-k taken on the tensor's own device.

    Ties at the k-th place go to the lower token id, as in ``from_logits``.
    """
    # One spare candidate shows whether the k-th place is tied; then the exact rule decides over all tokens.
    values, tokens = logits.topk(min(k + 1, logits.shape[-1]), dim=-1)
    if values.shape[-1] > k and bool((values[:, k] == values[:, k - 1]).any()):
        return SausageLattice.from_logits(logits, k)
    log_probs = values[:, :k] - logits.logsumexp(dim=-1, keepdim=True)
    return SausageLattice(tokens[:, :k].cpu().numpy(), log_probs.float().cpu().numpy())
