"""Linear layers of drafters with int8 weights (``_kernels/int8_linear.hpp``), a quarter of the bytes to read.

A draft need not be exact: the target model, which verifies it, keeps its float32 layers.
"""

from __future__ import annotations

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
