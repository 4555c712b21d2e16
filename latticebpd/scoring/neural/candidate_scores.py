"""A language model's log-probabilities of a few candidate tokens after each of many prefixes.

A prefix's log-probabilities are its logits less one constant, which takes a projection to the full vocabulary. Where
the constant does not matter, or not yet, the candidates' own rows of the output embedding suffice.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from latticebpd.target.forward import Verified

PROJECTED = 256
"""The most prefixes whose logits over the full vocabulary are in memory at a time."""

UNSEEN = -1000.0
"""The least log-probability (Kim 2024, appendix C.3): a path stays finite where the model rules out a token."""


@dataclass(frozen=True, eq=False)
class Outputs:
    """What a model predicts after each of ``n`` prefixes.

    rows, columns: ``[n]`` the positions of the prefixes' last tokens in the pass ``verified``.
    embedding: weight and bias of the output embedding, if logits are exactly its product with the hidden state.
    """

    verified: Verified
    rows: Sequence[int]
    columns: Sequence[int]
    embedding: tuple[Tensor, Tensor | None] | None = None

    @torch.inference_mode()
    def log_probs(self, candidates: np.ndarray) -> np.ndarray:
        """``[n, k]`` token ids -> ``[n, k]`` natural log p(token | prefix), at least ``UNSEEN``, float64.

        Ids that the model does not know have ``UNSEEN``; results for negative ids are meaningless.
        """
        if len(self.rows) > PROJECTED:
            parts = np.array_split(np.arange(len(self.rows)), -(-len(self.rows) // PROJECTED))
            return np.concatenate([self.at(part).log_probs(candidates[part]) for part in parts])
        logits = _float32(self.verified.logits_of(self.rows, self.columns))
        chosen = logits.gather(1, _known(candidates, logits.shape[1], logits.device))
        return _bounded(chosen - logits.logsumexp(dim=1, keepdim=True), candidates < logits.shape[1])

    @torch.inference_mode()
    def scores(self, candidates: np.ndarray) -> np.ndarray:
        """``log_probs`` plus a constant for each prefix, without a projection to the full vocabulary if possible."""
        if self.embedding is None:
            return self.log_probs(candidates)
        weight, bias = self.embedding
        ids = _known(candidates, len(weight), weight.device)
        chosen = torch.einsum("nkh,nh->nk", weight[ids], self.hidden)
        return _bounded(_float32(chosen if bias is None else chosen + bias[ids]), candidates < len(weight))

    def at(self, indices: np.ndarray) -> Outputs:
        """Those of some prefixes, in this order."""
        rows, columns = ([values[i] for i in indices.tolist()] for values in (self.rows, self.columns))
        return replace(self, rows=rows, columns=columns)

    @property
    def hidden(self) -> Tensor:
        """``[n, hidden]``."""
        return self.verified.hidden[list(self.rows), list(self.columns)]


@torch.inference_mode()
def log_norms(levels: Sequence[Outputs]) -> list[np.ndarray]:
    """The constants in the ``scores`` of several outputs of one reader, ``[n]`` each, from one projection."""
    if not levels or (embedding := levels[0].embedding) is None:
        return [np.zeros(len(level.rows)) for level in levels]
    hidden = torch.cat([level.hidden for level in levels]).split(PROJECTED)
    sums = torch.cat([_float32(F.linear(part, *embedding)).logsumexp(dim=1).double().cpu() for part in hidden])
    return [part.numpy() for part in sums.split([len(level.rows) for level in levels])]


def _known(candidates: np.ndarray, vocab_size: int, device: torch.device) -> Tensor:
    """The candidates' ids, others replaced by ids that the model knows."""
    return torch.from_numpy(candidates.clip(0, vocab_size - 1).astype(np.int64)).to(device)


def _float32(logits: Tensor) -> Tensor:
    """In float32 at least."""
    return logits if logits.dtype == torch.float64 else logits.float()


def _bounded(values: Tensor, known: np.ndarray) -> np.ndarray:
    return np.where(known, np.maximum(values.double().cpu().numpy(), UNSEEN), UNSEEN)
