"""Linear layers of drafters: weights rounded to 8 bits by our own kernel (``_kernels/rounded.hpp``), a quarter of the
bytes to be read.

A draft need not be exact, for what it is worth is decided by the base model, whose own layers stay as they are.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from latticebpd.cpu import _kernels
from latticebpd.cpu.linear import is_plain, weight_version


class Int8Linear:
    """``F.linear`` with a weight that hardly ever changes: it is rounded at the first call, and anew when it is
    another.

    What the kernel cannot do (gradients, other types and devices) is PyTorch's.
    """

    def __init__(self) -> None:
        self._rounded: Any = None
        self._of: tuple[object, ...] = ()
        self._kept: Tensor | None = None  # what was rounded: kept, so that no other weight comes to lie at its address

    def __call__(self, input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """``[..., inputs]``, ``[outputs, inputs]`` and ``[outputs]`` -> ``[..., outputs]``."""
        learning = torch.is_grad_enabled() and (input.requires_grad or weight.requires_grad)
        plain = is_plain(input) and is_plain(weight) and not torch.is_autocast_enabled("cpu")
        if learning or not plain or input.shape[-1:] != weight.shape[1:]:
            return F.linear(input, weight, bias)
        if self._of != weight_version(weight):
            whole = weight.detach().contiguous()
            self._rounded, self._of, self._kept = (
                _kernels.Rounded(whole.data_ptr(), *whole.shape),
                weight_version(weight),
                weight.detach(),
            )
        rows, output = input.contiguous(), input.new_empty((*input.shape[:-1], len(weight)))
        self._rounded.multiply(
            rows.data_ptr(), rows.numel() // max(1, rows.shape[-1]), output.data_ptr(), torch.get_num_threads()
        )
        return output if bias is None else output + bias

    def __reduce__(self) -> tuple[type[Int8Linear], tuple[()]]:
        return Int8Linear, ()  # a copy rounds its own weight
