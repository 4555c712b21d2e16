"""Muon for the layers' matrices, AdamW for embeddings, norms, biases and heads.

Muon is momentum with orthogonalised matrix updates (Jordan et al., 2024). ``torch.optim.Muon`` iterates in bfloat16,
which is a hundred times slower on processors without bfloat16 arithmetic. This one keeps the parameters' type and
batches all matrices of one shape.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

# Quintic that brings every singular value into [0.7, 1.2] within five steps.
_COEFFICIENTS = (3.4445, -4.7750, 2.0315)
MOMENTUM = 0.95


def orthogonalise(matrices: Tensor, steps: int = 5) -> Tensor:
    """Approximate the nearest semi-orthogonal matrix of each of ``[n, rows, columns]``."""
    a, b, c = _COEFFICIENTS
    wide = matrices if matrices.shape[-2] <= matrices.shape[-1] else matrices.mT
    x: Tensor = wide / (wide.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(steps):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x if wide is matrices else x.mT


class Muon(torch.optim.Optimizer):
    """For matrices only; other parameters need AdamW. An update's root mean square is about ``lr * 0.2`` for every
    shape. Momentum is Nesterov's, weight decay decoupled; dtype: of the matrix products, by default the parameters'.
    """

    def __init__(self, params: Iterable[Any], lr: float, weight_decay: float, dtype: torch.dtype | None) -> None:
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay})
        self.dtype = dtype

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """One update of every parameter that has a gradient."""
        for group in self.param_groups:
            same_shape: dict[torch.Size, list[Tensor]] = defaultdict(list)
            for parameter in group["params"]:
                if parameter.grad is not None:
                    same_shape[parameter.shape].append(parameter)
            for shape, parameters in same_shape.items():
                updates = []
                for parameter in parameters:
                    state = self.state[parameter]
                    assert parameter.grad is not None
                    if "momentum" not in state:
                        state["momentum"] = torch.zeros_like(parameter)
                    state["momentum"].lerp_(parameter.grad, 1 - MOMENTUM)
                    updates.append(parameter.grad.lerp(state["momentum"], MOMENTUM))
                scale = 0.2 * max(shape) ** 0.5
                stacked = torch.stack(updates).to(self.dtype or updates[0].dtype)
                for parameter, update in zip(parameters, orthogonalise(stacked), strict=True):
                    parameter.mul_(1 - group["lr"] * group["weight_decay"])
                    parameter.add_(update, alpha=-group["lr"] * scale)


def adamw_and_muon(
    module: nn.Module,
    options: Any,
    betas: tuple[float, float] = (0.9, 0.95),
    by_adamw: Iterable[Tensor] = (),
    dtype: torch.dtype | None = None,
) -> list[torch.optim.Optimizer]:
    """Optimizers of all weights that require gradients, at their peak rates.

    options: ``learning_rate``, ``weight_decay`` and ``muon_learning_rate``; a rate of 0 leaves all to AdamW. by_adamw:
    further weights for AdamW, whatever their shape.
    """
    excluded = {id(each.weight) for each in module.modules() if isinstance(each, nn.Embedding)} | set(map(id, by_adamw))
    matrices: list[Tensor] = []
    others: list[Tensor] = []
    for weight in module.parameters():
        if weight.requires_grad:
            by_muon = weight.ndim == 2 and id(weight) not in excluded and options.muon_learning_rate > 0
            (matrices if by_muon else others).append(weight)
    adamw = torch.optim.AdamW(others, lr=options.learning_rate, betas=betas, weight_decay=options.weight_decay)
    return [adamw, Muon(matrices, options.muon_learning_rate, options.weight_decay, dtype)] if matrices else [adamw]
