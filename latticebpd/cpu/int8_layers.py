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

        def pack() -> _engine.Int8Weights:
            contiguous = weight.detach().contiguous()
            return _engine.Int8Weights(contiguous.data_ptr(), *contiguous.shape)

        rows, output = input.contiguous(), input.new_empty((*input.shape[:-1], len(weight)))
        kernels, count = self.packed(pack, weight), output.numel() // max(1, len(weight))
        kernels.multiply(rows.data_ptr(), count, output.data_ptr(), torch.get_num_threads())
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
