"""Which optimizer teaches which weight: Muon the matrices of layers, AdamW embeddings, norms, biases and heads."""

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
    output: nn.Module | None = None,
    by_adamw: Iterable[Tensor] = (),
    dtype: torch.dtype | None = None,
) -> list[torch.optim.Optimizer]:
    """Optimizers of all weights that are taught, at their peak rates.

    Args:
        options: ``learning_rate``, ``weight_decay`` and ``muon_learning_rate``; at a rate of 0 there is no Muon.
        betas: AdamW's.
        output: the output embedding, if it is no ``nn.Embedding``.
        by_adamw: further weights that are AdamW's, whatever their shape.
        dtype: Muon's, of its matrix products.
    """
    apart = {id(each.weight) for each in module.modules() if isinstance(each, nn.Embedding)} | set(map(id, by_adamw))
    apart |= set() if output is None else {id(output.weight)}
    matrices: list[Tensor] = []
    others: list[Tensor] = []
    for parameter in module.parameters():
        if parameter.requires_grad:
            of_layer = parameter.ndim == 2 and id(parameter) not in apart and options.muon_learning_rate > 0
            (matrices if of_layer else others).append(parameter)
    found: list[torch.optim.Optimizer] = [
        torch.optim.AdamW(others, lr=options.learning_rate, betas=betas, weight_decay=options.weight_decay)
    ]
    if matrices:
        found.append(
            Muon(matrices, lr=options.muon_learning_rate, weight_decay=options.weight_decay, momentum=0.95, dtype=dtype)
        )
    return found
