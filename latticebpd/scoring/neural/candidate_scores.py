"""What a language model says behind prefixes: log-probabilities of a few candidates, by as little work as they take.

A prefix's log-probabilities are its logits less one constant, which takes a projection to the whole vocabulary.  Where
nothing depends on it, or not yet, the candidates' own rows of the output embedding are enough.
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
"""Prefixes whose logits over the whole vocabulary are in memory at a time."""

UNSEEN = -1000.0
"""The least log-probability that counts (Kim 2024, appendix C.3): a model that rules a token out leaves every path
finite."""


@dataclass(frozen=True, eq=False)
class Outputs:
    """What the model says behind each of ``n`` prefixes.

    verified: a pass; rows, columns: ``[n]``, where in it the prefixes end.
    embedding: weight and bias of the output embedding, if logits are nothing but its product with the hidden state.
    """

    verified: Verified
    rows: Sequence[int]
    columns: Sequence[int]
    embedding: tuple[Tensor, Tensor | None] | None = None

    @torch.inference_mode()
    def log_probs(self, candidates: np.ndarray) -> np.ndarray:
        """``[n, k]`` token ids -> ``[n, k]`` natural log p(token | prefix), at least ``UNSEEN``, in float64.

        Ids that the model does not know have the least; what stands at ids below 0 means nothing.
        """
        if len(self.rows) > PROJECTED:
            parts = np.array_split(np.arange(len(self.rows)), -(-len(self.rows) // PROJECTED))
            return np.concatenate([self.at(part).log_probs(candidates[part]) for part in parts])
        logits = _wide(self.verified.logits_of(self.rows, self.columns))
        chosen = logits.gather(1, _known(candidates, logits.shape[1], logits.device)) - logits.logsumexp(
            dim=1, keepdim=True
        )
        return _finite(chosen, candidates < logits.shape[1])

    @torch.inference_mode()
    def scores(self, candidates: np.ndarray) -> np.ndarray:
        """``log_probs`` and a constant for each prefix: without a projection to the whole vocabulary, where that can be
        saved."""
        if self.embedding is None:
            return self.log_probs(candidates)
        weight, bias = self.embedding
        ids = _known(candidates, len(weight), weight.device)
        chosen = torch.einsum("nkh,nh->nk", weight[ids], self.hidden)
        return _finite(_wide(chosen if bias is None else chosen + bias[ids]), candidates < len(weight))

    def at(self, places: np.ndarray) -> Outputs:
        """Those of the given places, in this order."""
        return replace(
            self,
            rows=[self.rows[place] for place in places.tolist()],
            columns=[self.columns[place] for place in places.tolist()],
        )

    @property
    def hidden(self) -> Tensor:
        """``[n, hidden]``."""
        return self.verified.hidden[list(self.rows), list(self.columns)]


@torch.inference_mode()
def log_norms(levels: Sequence[Outputs]) -> list[np.ndarray]:
    """The constants in the ``scores`` of each of several outputs of one reader, ``[n]`` each: one projection for
    all."""
    embedding = levels[0].embedding
    if embedding is None:
        return [np.zeros(len(level.rows)) for level in levels]
    hidden = torch.cat([level.hidden for level in levels]).split(PROJECTED)
    sums = torch.cat([_wide(F.linear(part, *embedding)).logsumexp(dim=1).double().cpu() for part in hidden])
    return [part.numpy() for part in sums.split([len(level.rows) for level in levels])]


def _known(candidates: np.ndarray, vocab_size: int, device: torch.device) -> Tensor:
    """The candidates' ids, or some other where the model has none such."""
    return torch.from_numpy(candidates.clip(0, vocab_size - 1).astype(np.int64)).to(device)


def _wide(logits: Tensor) -> Tensor:
    """In float32 at least."""
    return logits if logits.dtype == torch.float64 else logits.float()


def _finite(values: Tensor, known: np.ndarray) -> np.ndarray:
    return np.where(known, np.maximum(values.double().cpu().numpy(), UNSEEN), UNSEEN)
