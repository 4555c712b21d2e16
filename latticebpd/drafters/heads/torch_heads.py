"""Heads of every kind by PyTorch, next to their own base model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from latticebpd.cpu._engine import chain_weights
from latticebpd.drafters.family import MAX_LOGITS
from latticebpd.drafters.heads.blockwise import BlockwiseLM
from latticebpd.drafters.text_states import entropy
from latticebpd.drafters.top_k import lattices_from_logits
from latticebpd.lattices.sausage import SausageLattice
from latticebpd.lattices.values import as_tensor
from latticebpd.models.transformers.checkpoints import weights_fingerprint
from latticebpd.models.transformers.transformers_model import TransformersModel


class TorchHeads:
    """The heads of a blockwise model; methods as of `EngineHeads`."""

    def __init__(self, model: BlockwiseLM) -> None:
        self.model, self.target = model, TransformersModel(model.base)
        self.layers, self.num_heads, self.has_transitions = model.layers, model.num_heads, model.has_transitions
        self.fingerprint, self.vocab_size = model.tokenizer_fingerprint, model.vocab_size
        self.shortlist = model.shortlist
        self.num_tokens = self.vocab_size if self.shortlist is None else len(self.shortlist)

    @property
    def weights_fingerprint(self) -> str:
        return weights_fingerprint(self.model)

    def joined(self, parts: Sequence[Sequence[Any]]) -> Tensor:
        return torch.stack([torch.cat(list(map(as_tensor, row))) for row in parts])

    @torch.inference_mode()
    def draw(
        self, states: Tensor, last: Sequence[int], slots: int | None, k: int, transitions: bool
    ) -> list[SausageLattice]:
        following = torch.tensor(last, device=states.device)
        if not (transitions and self.has_transitions and k > 1):
            logits = self.model.head_logits(states, slots, following)
            return lattices_from_logits(logits, k, self.shortlist)
        outputs = self.model.heads(self.model.head_inputs(states, following), slots)
        drawn = lattices_from_logits(self.model.head_projection(outputs), k, self.shortlist)
        tokens, log_probs = (np.stack([getattr(each, name) for each in drawn]) for name in ("tokens", "log_probs"))
        tensors = (torch.from_numpy(each).to(states.device) for each in (tokens, log_probs))
        pairs = self.model.pair_scores(outputs, *tensors).float().cpu().numpy()
        weights = chain_weights(log_probs, log_probs[:, 0], pairs)
        return list(map(SausageLattice, tokens, *weights))

    @torch.inference_mode()
    def entropies(self, states: Tensor, last: Sequence[int], slots: int | None) -> np.ndarray:
        following, step = torch.tensor(last, device=states.device), max(1, MAX_LOGITS // self.num_tokens)
        parts = zip(states.split(step), following.split(step), strict=True)
        nats = [entropy(self.model.head_logits(read, slots, after)) for read, after in parts]
        return torch.cat(nats).cpu().numpy()
