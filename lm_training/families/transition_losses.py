"""What a candidate selector (DFlash 2) or a reranker (LiLiCorr) learns, next to its block drafter's own loss.

*Selector* (as in ``speculators``): cross-entropy of a slot's token among its candidates, after the text's own previous
token; a token that is no candidate takes the last one's rank.

*Reranker* (as in NVIDIA's Model-Optimizer): over the slots up to the first whose token is no candidate, after the
text's own previous token, with q the distribution of a step and z the target's logits,

    0.25 (- log q(x)) + 0.25 sum_c q(c) relu(z(x) - z(c))

The penalty tells one wrong candidate from another. The margin term, of weight 0 in the public recipe, is left out. How
the public recipes weigh the slots of these terms is not known: here as in the drafter's own loss.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from latticebpd.drafters.block.block_network import BlockDrafter
from latticebpd.drafters.block.learned_transitions import Candidates, top_k

CROSS_ENTROPY, PENALTY = 0.25, 0.25
"""Weights of the reranker's terms; the drafter's own loss and the selector's weigh 1."""


def selector_losses(drafter: BlockDrafter, logits: Tensor, hidden: Tensor, previous: Tensor, labels: Tensor) -> Tensor:
    """``[n]`` nats.

    logits: ``[n, tokens]`` of the drafted tokens. hidden: ``[n, hidden]`` slot states.
    previous: ``[n]`` tokens before, of the target's vocabulary. labels: ``[n]`` indices of drafted tokens.
    """
    assert drafter.candidate_selector is not None
    indices = top_k(logits, drafter.config.selector_top_k)[1]
    right = indices == labels[:, None]
    missing = ~right.any(dim=1)
    indices = torch.cat([indices[:, :-1], torch.where(missing, labels, indices[:, -1])[:, None]], dim=1)
    tokens = indices if drafter.draft_tokens is None else drafter.draft_tokens[indices]
    scores = logits.gather(1, indices) + drafter.candidate_selector(hidden, previous[:, None], tokens)[:, 0]
    wanted = torch.where(missing, indices.shape[1] - 1, right.long().argmax(dim=1))
    return F.cross_entropy(scores, wanted, reduction="none")


def teacher_forced(
    candidates: Candidates, labels: Tensor, scores: tuple[Tensor, Tensor]
) -> tuple[Tensor, Tensor, Tensor]:
    """What a walk along the text sees of lattices, all ``[rows, slots, ...]``.

    labels: ``[rows, slots]`` indices of drafted tokens, -1 where there is none.
    scores: ``start`` and ``pairs`` of the candidates.
    Returns scores ``[..., k]`` after the text's previous token, or the best candidate where it is none; the rank
    ``[...]`` of the text's token among the candidates; whether it and all before it in the block are among them.
    """
    right = candidates.indices == labels[..., None]
    inside, ranks = right.any(dim=-1).long().cumprod(dim=-1).bool(), right.long().argmax(dim=-1)
    start, pairs = scores
    rows = pairs.gather(2, ranks[:, :-1, None, None].expand(-1, -1, 1, start.shape[-1]))[:, :, 0]
    return torch.cat([start[:, None], rows], dim=1), ranks, inside


def reranker_losses(
    scores: Tensor, ranks: Tensor, inside: Tensor, candidates: Tensor, target: Callable[[Tensor], Tensor], last: Tensor
) -> Tensor:
    """``[rows, slots]`` nats, 0 where nothing is learnt.

    scores, ranks, inside: of `teacher_forced`.
    candidates: ``[rows, slots, k]`` indices of drafted tokens.
    target: from the target's states to its logits of the drafted tokens.
    last: ``[rows, slots, hidden]`` its states.
    """
    log_q, rank = scores[inside].log_softmax(dim=-1), ranks[inside][:, None]
    with torch.no_grad():
        logits = target(last[inside]).float().gather(1, candidates[inside])
        below = (logits.gather(1, rank) - logits).clamp(min=0)
    own = -CROSS_ENTROPY * log_q.gather(1, rank)[:, 0] + PENALTY * (log_q.exp() * below).sum(dim=-1)
    return torch.zeros(inside.shape, dtype=own.dtype, device=own.device).masked_scatter(inside, own)
