"""Linear layers for few tokens, computed by our own kernel (``_kernels/linear.hpp``), which reads weights that were
laid out for it."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from latticebpd.cpu import _kernels


class PackedLinear:
    """``F.linear`` with a weight that hardly ever changes: it is laid out at the first call, and anew when it is
    another.

    The layout takes as much memory as the weight again, a quarter more once `largest` is asked for. What the kernel
    cannot do (gradients, other types and devices) is PyTorch's.
    """

    def __init__(self) -> None:
        self._panels: Any = None
        self._screened: Any = None
        self._packed: tuple[object, ...] = ()
        self._kept: tuple[
            Tensor | None, ...
        ] = ()  # what was laid out: kept, so that no other weight comes to lie at its address

    def __call__(self, input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """``[..., inputs]``, ``[outputs, inputs]`` and ``[outputs]`` -> ``[..., outputs]``."""
        if not self._fits(input, weight, bias):
            return F.linear(input, weight, bias)
        rows, outputs = input.contiguous(), len(weight)
        output = input.new_empty((*input.shape[:-1], outputs))
        self._panels.multiply(rows.data_ptr(), output.numel() // outputs, output.data_ptr(), torch.get_num_threads())
        return output

    def largest(self, input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """``[..., inputs]`` -> ``[...]`` int64: the place of the largest output, of equal ones the first, from a
        quarter of the bytes."""
        if not self._fits(input, weight, bias):
            return F.linear(input, weight, bias).argmax(dim=-1)
        if self._screened is None:
            (outputs, inputs), kept, added = (
                weight.shape,
                weight.contiguous(),
                None if bias is None else bias.contiguous(),
            )
            self._screened = _kernels.Screened(
                self._panels, kept.data_ptr(), outputs, inputs, 0 if added is None else added.data_ptr()
            )
        rows, found = input.contiguous(), input.new_empty(input.shape[:-1], dtype=torch.int64)
        self._screened.largest(rows.data_ptr(), found.numel(), found.data_ptr(), torch.get_num_threads())
        if (unknown := found < 0).any():
            found[unknown] = self(rows[unknown], weight, bias).argmax(dim=-1)
        return found

    def _fits(self, input: Tensor, weight: Tensor, bias: Tensor | None) -> bool:
        """Whether the kernel can compute it, for which the weight is laid out then."""
        outputs, inputs = weight.shape
        learning = torch.is_grad_enabled() and (input.requires_grad or weight.requires_grad)
        if not is_plain(weight):  # moved or converted: the old one's memory is let go
            self._panels, self._screened, self._packed, self._kept = None, None, (), ()
        if (
            learning
            or not (is_plain(input) and is_plain(weight))
            or input.shape[-1:] != (inputs,)
            or torch.is_autocast_enabled("cpu")
        ):
            return False
        packed = (weight_version(weight), None if bias is None else weight_version(bias))
        if packed != self._packed:
            kept, added = weight.contiguous(), None if bias is None else bias.contiguous()
            self._panels = _kernels.Panels(kept.data_ptr(), outputs, inputs, 0 if added is None else added.data_ptr())
            self._packed, self._kept, self._screened = (
                packed,
                (weight.detach(), None if bias is None else bias.detach()),
                None,
            )
        return True

    def __reduce__(self) -> tuple[type[PackedLinear], tuple[()]]:
        return PackedLinear, ()  # a copy lays out its own weight


def is_plain(tensor: Tensor) -> bool:
    """Whether it is numbers in memory as the kernel takes them."""
    return tensor.dtype is torch.float32 and tensor.device.type == "cpu" and type(tensor) in (Tensor, nn.Parameter)


def weight_version(tensor: Tensor) -> tuple[object, ...]:
    """Another one for other numbers."""
    return tensor.data_ptr(), None if tensor.is_inference() else tensor._version, tensor.shape, tensor.stride()


class CpuLinear(nn.Linear):
    """A linear layer that the kernel computes; what `narrow` makes of `torch.nn.Linear`."""

    packed: PackedLinear

    def forward(self, input: Tensor) -> Tensor:
        return self.packed(input, self.weight, self.bias)

    def largest(self, input: Tensor) -> Tensor:
        """``[..., inputs]`` -> ``[...]`` int64: the place of the largest output, of equal ones the first."""
        if self._forward_hooks or self._forward_pre_hooks:  # whoever listens may change what is put out
            found: Tensor = self(input).argmax(dim=-1)
            return found
        return self.packed.largest(input, self.weight, self.bias)
