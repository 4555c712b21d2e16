"""AdamW and Muon side by side: Muon trains the layers' matrices, AdamW embeddings, norms, biases and heads."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from lm_training.training.muon import Muon


def adamw_and_muon(
    module: nn.Module,
    options: Any,
    betas: tuple[float, float] = (0.9, 0.95),
    by_adamw: Iterable[Tensor] = (),
    dtype: torch.dtype | None = None,
) -> list[torch.optim.Optimizer]:
    """Optimizers of all weights that require gradients, at their peak rates.

    Args:
        options: ``learning_rate``, ``weight_decay`` and ``muon_learning_rate``; a rate of 0 leaves all to AdamW.
        betas: AdamW's.
        by_adamw: further weights for AdamW, whatever their shape.
        dtype: of Muon's matrix products.
    """
    excluded = {id(each.weight) for each in module.modules() if isinstance(each, nn.Embedding)} | set(map(id, by_adamw))
    matrices: list[Tensor] = []
    others: list[Tensor] = []
    for weight in module.parameters():
        if weight.requires_grad:
            by_muon = weight.ndim == 2 and id(weight) not in excluded and options.muon_learning_rate > 0
            (matrices if by_muon else others).append(weight)
    decay = options.weight_decay
    optimizers: list[torch.optim.Optimizer] = [
        torch.optim.AdamW(others, lr=options.learning_rate, betas=betas, weight_decay=decay)
    ]
    if matrices:
        optimizers.append(Muon(matrices, lr=options.muon_learning_rate, weight_decay=decay, dtype=dtype))
    return optimizers
