"""DFlash 2's candidate selector: a bigram of low rank over a slot's best tokens, weighed by the slot's state.

    score_s(b | a) = U_s(b) + <P[a] * (W h_s), S[b]>        U_s: the logits of slot s, h_s: its state

for candidates b of slot s and a of the slot before, or the anchor. All scores of a block exist before it is searched.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


class CandidateSelector(nn.Module):
    """``P``, ``S``: ``[vocab, rank]`` codebooks of the target's vocabulary; ``W``: ``[rank, hidden]``. A new one adds
    nothing."""

    def __init__(self, vocab_size: int, hidden_size: int, rank: int) -> None:
        super().__init__()
        self.hidden_projection = nn.Linear(hidden_size, rank, bias=False)
        self.predecessor_codebook = nn.Parameter(torch.empty(vocab_size, rank).normal_(std=0.1))
        self.successor_codebook = nn.Parameter(torch.zeros(vocab_size, rank))

    def forward(self, hidden: Tensor, previous: Tensor, candidates: Tensor) -> Tensor:
        """``[..., hidden]`` states, ``[..., i]`` tokens before them and ``[..., k]`` candidates -> ``[..., i, k]``
        float32, to be added to logits."""
        weighed = self.predecessor_codebook[previous] * self.hidden_projection(hidden)[..., None, :]
        return weighed.float() @ self.successor_codebook[candidates].float().transpose(-1, -2)
