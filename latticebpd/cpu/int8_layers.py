"""Drafter layers with int8 weights, a quarter of the bytes to read (``_engine/int8_heads.hpp``).

A draft need not be exact: the target model, which verifies it, keeps its weights.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from latticebpd.cpu import _engine
from latticebpd.cpu.packed_weights import PackedWeights, can_compute


class Int8Linear(PackedWeights):
    """``F.linear`` with a quantized weight; what the kernel cannot do (gradients, other types) is PyTorch's."""

    def __call__(self, input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """``[..., inputs]``, ``[outputs, inputs]`` and ``[outputs]`` -> ``[..., outputs]``."""
        if not can_compute(input, weight):
            return F.linear(input, weight, bias)
        kernels = self.packed(lambda: _engine.Int8Weights(weight.detach().numpy()), weight)
        product = kernels.multiply(input.detach().reshape(-1, input.shape[-1]).numpy(), torch.get_num_threads())
        output = torch.from_numpy(product).view(*input.shape[:-1], len(weight))
        return output if bias is None else output + bias


class Int8Layer(nn.Module):
    """A linear layer's weight and bias, in int8 at inference."""

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        self.weight, self.bias, self.product = layer.weight, layer.bias, Int8Linear()

    def forward(self, input: Tensor) -> Tensor:
        return self.product(input, self.weight, self.bias)


def use_int8_layers(drafter: nn.Module) -> None:
    """Put an `Int8Layer` in the place of each linear layer of a drafter."""
    for parent in [*drafter.modules()]:
        for name, layer in [*parent.named_children()]:
            if type(layer) is nn.Linear:
                setattr(parent, name, Int8Layer(layer))
