"""Drafter layers with int8 weights, a quarter of the bytes to read (``_kernels/int8_linear.hpp``, ``int8_heads.hpp``).

A draft need not be exact: the target model, which verifies it, keeps its float32 layers.
"""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F
from torch import Tensor

from latticebpd.cpu import _kernels
from latticebpd.cpu.linear import PackedWeights, can_compute, multiply


class Int8Linear(PackedWeights):
    """``F.linear`` with a quantized weight; what the kernel cannot do (gradients, other types) is PyTorch's."""

    def __call__(self, input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """``[..., inputs]``, ``[outputs, inputs]`` and ``[outputs]`` -> ``[..., outputs]``."""
        if not can_compute(input, weight):
            return F.linear(input, weight, bias)

        def pack() -> _kernels.Int8Weights:
            contiguous = weight.detach().contiguous()
            return _kernels.Int8Weights(contiguous.data_ptr(), *contiguous.shape)

        output = multiply(self._packed(pack, weight), input, len(weight))
        return output if bias is None else output + bias


class PackedHeads(PackedWeights):
    """Feed-forward block heads with quantized weights, all of them in one call."""

    def of(self, up: Tensor, down: Tensor) -> Any:
        """The kernels of ``up [heads, hidden, inner]`` and ``down [heads, inner, hidden]``, float32."""

        def pack() -> _kernels.Int8Heads:
            rows = [weights.detach().transpose(1, 2).contiguous() for weights in (up, down)]
            return _kernels.Int8Heads(rows[0].data_ptr(), rows[1].data_ptr(), *up.shape)

        return self._packed(pack, up, down)
