"""Logits of many rows at once -> lattices, the top-k taken where the logits are."""

from __future__ import annotations

import numpy as np
from torch import Tensor

from latticebpd.cpu import _engine
from latticebpd.cpu.packed_weights import is_plain
from latticebpd.lattices.sausage import PADDING, SausageLattice
from latticebpd.machine import num_threads


def lattices_from_logits(logits: Tensor, k: int, shortlist: np.ndarray | None = None) -> list[SausageLattice]:
    """``SausageLattice.from_logits`` for ``[rows, slots, vocab]`` tensors, the top-k taken on the tensor's own device.

    Ties at the k-th rank go to the lower token id, as in ``from_logits``.

    shortlist: ``[vocab]`` the tokens that the logits are of, ascending; None: 0, 1, ...
    """
    top = _compiled_top_k(logits.detach().numpy(), k) if is_plain(logits) and k >= 1 else _exact_top_k(logits, k)
    return [
        SausageLattice(tokens if shortlist is None else np.where(tokens < 0, PADDING, shortlist[tokens]), log_probs)
        for tokens, log_probs in top
    ]


def _compiled_top_k(logits: np.ndarray, k: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """PyTorch's top-k takes four times as long."""
    rows, slots, tokens = logits.shape
    values, indices, totals = _engine.top_k(logits.reshape(rows * slots, tokens), min(k, tokens), num_threads())
    log_probs = (values - totals[:, None]).reshape(rows, slots, -1)
    return list(zip(indices.reshape(log_probs.shape), log_probs, strict=True))


def _exact_top_k(logits: Tensor, k: int) -> list[tuple[np.ndarray, np.ndarray]]:
    # One spare candidate shows whether the k-th rank is tied; then the exact rule decides over all tokens.
    values, tokens = logits.topk(min(k + 1, logits.shape[-1]), dim=-1)
    log_probs = values[..., :k] - logits.logsumexp(dim=-1, keepdim=True)
    host_values, host_log_probs = (each.cpu().float().numpy() for each in (values, log_probs))
    host_tokens = tokens.cpu().numpy()
    tied = (host_values[..., k:] == host_values[..., k - 1, None]).any(axis=(-2, -1))
    exact = {row: SausageLattice.from_logits(logits[row], k) for row in np.flatnonzero(tied).tolist()}
    return [
        (exact[row].tokens, exact[row].log_probs) if row in exact else (host_tokens[row, :, :k], host_log_probs[row])
        for row in range(len(host_values))
    ]
