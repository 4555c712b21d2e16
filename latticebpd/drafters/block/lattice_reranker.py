"""LiLiCorr's reranker: it reads the whole lattice of a block and scores every step from slot to slot.

A *point* is candidate c of slot s, with token id, log-probability and slot state h_s:

    x[s, c] = token_proj(E[id]) + pass_hidden_proj(h_s) + feature_mlp(features) + slot_embedding[s] + rank_embedding[c]
    features = (log p, p, log p - the slot's largest log p, rank / (k - 1), 1 at the first rank)

Attention layers mix all points, unmasked, with a bias for the distance of two slots. With a, the projected context
vector of the last token before the anchor, and unit vectors of the factor heads:

    g = silu(factor_input_proj [x; a; x * a])     start[c] = scale <anchor_out(a), in(g[0, c])>
                                                  pair[s, i, j] = scale <out(g[s, i]), in(g[s + 1, j])>

Log-probabilities enter only as features: the next token's distribution is the softmax of ``start``, then of the row of
the token before. All scores of a block exist before it is searched.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers.models.qwen3.modeling_qwen3 import Qwen3RMSNorm

from latticebpd.checks import expect

FEATURES = 5


@dataclass(frozen=True)
class RerankerConfig:
    """The shape of a reranker, as ``dflash_config`` names it with the prefix ``lilicorr_``.

    hidden_size: its width; 0: the drafter's. logit_scale, vector_eps: change scores, but no tensor's shape.
    """

    candidate_topk: int = 8
    hidden_size: int = 1024
    factor_dim: int = 1024
    num_layers: int = 2
    num_heads: int = 8
    mlp_ratio: float = 2.0
    logit_scale: float = 8.0
    vector_eps: float = 1e-4

    def __post_init__(self) -> None:
        for name in ("candidate_topk", "factor_dim", "num_layers", "num_heads"):
            expect(getattr(self, name) >= 1, f"lilicorr_{name} >= 1", getattr(self, name))
        divides = self.hidden_size >= 0 and self.hidden_size % self.num_heads == 0
        expect(divides, f"lilicorr_hidden_size in {self.num_heads} parts (lilicorr_num_heads)", self.hidden_size)
        expect(0 < self.mlp_ratio <= 64, "lilicorr_mlp_ratio above 0, at most 64", self.mlp_ratio)
        expect(0 < self.logit_scale <= 1e4, "lilicorr_logit_scale above 0, at most 10000", self.logit_scale)
        expect(0 < self.vector_eps < 0.5, "lilicorr_vector_eps from 0 to 0.5", self.vector_eps)


class LatticeAttention(nn.Module):
    """Attention among all points, its tensors named as those of ``nn.MultiheadAttention``."""

    def __init__(self, size: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.in_proj_weight = nn.Parameter(nn.init.xavier_uniform_(torch.empty(3 * size, size)))
        self.in_proj_bias = nn.Parameter(torch.zeros(3 * size))
        self.out_proj = nn.Linear(size, size)

    def forward(self, points: Tensor, bias: Tensor) -> Tensor:
        """``[n, points, size]`` and ``[heads, points, points]`` -> ``[n, points, size]``."""
        projected = F.linear(points, self.in_proj_weight, self.in_proj_bias).unflatten(-1, (3, self.heads, -1))
        queries, keys, values = projected.permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(queries, keys, values, attn_mask=bias.to(points.dtype))
        return self.out_proj(mixed.transpose(1, 2).flatten(2))


class RerankerLayer(nn.Module):
    """Attention and MLP, each of normalised points, added to them."""

    def __init__(self, size: int, config: RerankerConfig, eps: float) -> None:
        super().__init__()
        inner = int(size * config.mlp_ratio)
        self.attn_norm, self.attn = Qwen3RMSNorm(size, eps=eps), LatticeAttention(size, config.num_heads)
        self.mlp_norm = Qwen3RMSNorm(size, eps=eps)
        self.mlp = nn.Sequential(nn.Linear(size, inner), nn.SiLU(), nn.Linear(inner, size))

    def forward(self, points: Tensor, bias: Tensor) -> Tensor:
        points = points + self.attn(self.attn_norm(points), bias)
        return points + self.mlp(self.mlp_norm(points))


class LatticeReranker(nn.Module):
    """Scores of a block's lattice; the names of its tensors are LiLiCorr's. eps: of the norms."""

    def __init__(self, config: RerankerConfig, model_size: int, slots: int, eps: float) -> None:
        super().__init__()
        size = config.hidden_size or model_size
        self.config, self.slots = config, slots
        self.token_proj = nn.Identity() if size == model_size else nn.Linear(model_size, size)
        self.pass_hidden_proj = nn.Linear(model_size, size)
        self.feature_mlp = nn.Sequential(
            nn.LayerNorm(FEATURES), nn.Linear(FEATURES, size), nn.SiLU(), nn.Linear(size, size)
        )
        self.slot_embedding = nn.Parameter(torch.zeros(1, 1, slots, 1, size))
        self.rank_embedding = nn.Parameter(torch.zeros(1, 1, 1, config.candidate_topk, size))
        self.relative_slot_bias = nn.Parameter(torch.zeros(config.num_heads, 2 * slots + 1))
        self.same_slot_bias = nn.Parameter(torch.zeros(config.num_heads))
        self.context_proj = nn.Linear(model_size, size)
        self.layers = nn.ModuleList(RerankerLayer(size, config, eps) for _ in range(config.num_layers))
        self.output_norm, self.anchor_norm = Qwen3RMSNorm(size, eps=eps), Qwen3RMSNorm(size, eps=eps)
        self.factor_input_proj = nn.Linear(3 * size, size)
        self.out_head, self.in_head, self.anchor_out_head = (nn.Linear(size, config.factor_dim) for _ in range(3))

    def forward(self, embeddings: Tensor, log_probs: Tensor, hidden: Tensor, contexts: Tensor) -> tuple[Tensor, Tensor]:
        """``[n, k]`` scores of the first slot's candidates, ``[n, slots - 1, k, k]`` of steps, float32.

        embeddings: ``[n, slots, k, hidden]`` of the candidates, by the target; best first in every slot.
        log_probs: ``[n, slots, k]`` of them, over all tokens.
        hidden: ``[n, slots, hidden]`` slot states.
        contexts: ``[n, hidden]`` the context vector before the anchor; zeros: there is none.
        """
        _, slots, k = log_probs.shape
        wanted = f"{self.slots} slots of at most {self.config.candidate_topk} candidates (lilicorr_candidate_topk)"
        expect(slots == self.slots and k <= self.config.candidate_topk, wanted, f"{slots} of {k}")
        features = self.feature_mlp(_features(log_probs.float()).to(hidden.dtype))
        points = self.token_proj(embeddings) + self.pass_hidden_proj(hidden)[:, :, None] + features
        points = (points + self.slot_embedding[:, 0] + self.rank_embedding[:, 0, :, :k]).flatten(1, 2)
        bias = self._slot_bias(k)
        for layer in self.layers:
            points = layer(points, bias)
        points = self.output_norm(points).unflatten(1, (slots, k))
        anchor = self.anchor_norm(self.context_proj(contexts) * contexts.any(dim=-1, keepdim=True))
        spread = anchor[:, None, None].expand_as(points)
        factors = F.silu(self.factor_input_proj(torch.cat([points, spread, points * spread], dim=-1)))
        leaving, entering, first = (
            F.normalize(head(inputs).float(), dim=-1, eps=self.config.vector_eps)
            for head, inputs in ((self.out_head, factors), (self.in_head, factors), (self.anchor_out_head, anchor))
        )
        start = torch.einsum("nf,nkf->nk", first, entering[:, 0])
        pairs = leaving[:, :-1] @ entering[:, 1:].transpose(-1, -2)
        return self.config.logit_scale * start, self.config.logit_scale * pairs

    def _slot_bias(self, k: int) -> Tensor:
        """``[heads, slots * k, slots * k]``: of query and key by the distance of their slots."""
        slots = torch.arange(self.slots, device=self.same_slot_bias.device).repeat_interleave(k)
        distance = slots[:, None] - slots
        return self.relative_slot_bias[:, distance + self.slots] + self.same_slot_bias[:, None, None] * (distance == 0)


def _features(log_probs: Tensor) -> Tensor:
    """``[..., k]`` -> ``[..., k, features]``."""
    k = log_probs.shape[-1]
    ranks = torch.arange(k, device=log_probs.device, dtype=log_probs.dtype)
    further = (ranks / max(k - 1, 1), (ranks == 0).to(log_probs.dtype))
    below = log_probs - log_probs.amax(dim=-1, keepdim=True)
    return torch.stack([log_probs, log_probs.exp(), below, *(each.expand_as(log_probs) for each in further)], dim=-1)
