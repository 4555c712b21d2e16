"""The family of prediction heads (Stern 2018, Kim 2024, Medusa): they lie next to the model that they draft for."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from latticebpd.cpu._engine import chain_weights
from latticebpd.drafters.family import FamilySource, LoadOptions, PositionLattices, Target
from latticebpd.drafters.heads.blockwise import BlockwiseLM, is_blockwise
from latticebpd.drafters.heads.head_source import HeadSource
from latticebpd.drafters.text_states import MAX_LOGITS, entropy, text_states
from latticebpd.drafters.top_k import lattices_from_logits
from latticebpd.lattices.sausage import SausageLattice
from latticebpd.lattices.values import as_tensor
from latticebpd.models.transformers.checkpoints import weights_fingerprint

DRAFTS_ONLY = None
recognises = is_blockwise


def load(path: Path, target: Target, options: LoadOptions) -> FamilySource:
    """The heads of the target itself, which were loaded with it; ValueError for those of another model."""
    if path != target.path or not isinstance(target.model, BlockwiseLM):
        wanted, got = "a block drafter or a mask-filling model", "a model with heads"
        raise ValueError(f"{path}: expected {wanted}, found {got}; give it as --model")
    return HeadLattices(target.model, bigram=options.bigram)


class HeadLattices(HeadSource):
    """The outputs of prediction heads (Stern 2018): they read one hidden state per row, all rows at once.

    model: the heads; those of a ``BlockwiseLM`` are heads 2..h.
    k: arcs per slot.
    slots: ask the first so many heads only; None asks all.  A head costs a projection to the vocabulary, and
        a small tree seldom reaches the last ones.
    bigram: use the heads' transitions, if they have some.
    """

    def __init__(self, model: BlockwiseLM, k: int = 16, slots: int | None = None, bigram: bool = True) -> None:
        super().__init__(model, k, slots, bigram)
        self.target: Any = model  # a blockwise model is its heads' own target
        self.fingerprint, self.vocab_size = model.tokenizer_fingerprint, model.vocab_size
        self._shortlist = getattr(model, "shortlist", None)
        self.num_tokens = self.vocab_size if self._shortlist is None else len(self._shortlist)

    @torch.inference_mode()
    def _drawn(self, read: list[list[Any]], last: list[int], slots: int) -> list[SausageLattice]:
        states = torch.stack([torch.cat(list(map(as_tensor, parts))) for parts in read])
        return self._lattices(states, torch.tensor(last, device=states.device), slots)[0]

    def _lattices(self, hidden: Tensor, following: Tensor, slots: int | None) -> tuple[list[SausageLattice], Tensor]:
        """Those of ``[n, states]`` and the tokens after them, and the logits ``[n, slots, tokens]``."""
        if not self.has_transitions:
            logits = self.heads.head_logits(hidden, slots, following)
            return lattices_from_logits(logits, self.k, self._shortlist), logits
        states = self.heads.heads(self.heads.head_inputs(hidden, following), slots)
        logits = self.heads.head_projection(states)
        drawn = lattices_from_logits(logits, self.k, self._shortlist)
        tokens, log_probs = (np.stack([getattr(each, name) for each in drawn]) for name in ("tokens", "log_probs"))
        tensors = (torch.from_numpy(each).to(states.device) for each in (tokens, log_probs))
        pairs = self.heads.pair_scores(states, *tensors).float().cpu().numpy()
        weights = chain_weights(log_probs, log_probs[:, 0], pairs)
        return list(map(SausageLattice, tokens, *weights)), logits

    @property
    def weights(self) -> str:
        return weights_fingerprint(self.target)

    def with_shape(self, k: int, slots: int | None = None) -> Self:
        return type(self)(self.target, k, slots, self.bigram)

    @torch.inference_mode()
    def lattices_of_text(self, text: Sequence[int], positions: range, source: Sequence[int] = ()) -> PositionLattices:
        states, own = text_states(self.target, text, positions, source)
        hidden = torch.cat([states[n][0, positions.start : positions.stop] for n in (-1, *self.heads.layers)], dim=-1)
        following = torch.tensor(text[positions.start + 1 : positions.stop + 1], device=hidden.device)
        step = max(1, MAX_LOGITS // (self.num_slots * self.vocab_size))
        for begin in range(0, len(positions), step):
            rows = slice(begin, begin + step)
            drawn, logits = self._lattices(hidden[rows], following[rows], self.slots)
            yield drawn, torch.cat([own[rows], entropy(logits)], dim=1)
