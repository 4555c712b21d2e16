"""Logits of many rows at once -> lattices, the top-k taken where the logits are."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from torch import Tensor

from latticebpd.lattices.sausage import PADDING, SausageLattice


def lattices_from_logits(logits: Tensor, k: int, shortlist: np.ndarray | None = None) -> list[SausageLattice]:
    """``SausageLattice.from_logits`` for ``[rows, slots, vocab]`` tensors, the top-k taken on the tensor's own device.

    Ties at the k-th place go to the lower token id, as in ``from_logits``.

    Args:
        shortlist: ``[vocab]`` the tokens that the logits are of, ascending; None: 0, 1, ...
    """
    found = _lattices_of_places(logits, k)
    if shortlist is None:
        return found
    return [replace(each, tokens=np.where(each.tokens < 0, PADDING, shortlist[each.tokens])) for each in found]


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
