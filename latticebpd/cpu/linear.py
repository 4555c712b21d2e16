"""Linear layers for few tokens by a CPU kernel that reads packed weights (``_kernels/linear.hpp``)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from latticebpd.cpu import _kernels


class PackedWeights:
    """Weights in a kernel's layout: packed at the first call, and again after a weight has changed."""

    def __init__(self) -> None:
        self.kernels: Any = None
        self._versions: tuple[object, ...] = ()
        self._sources: tuple[Tensor | None, ...] = ()  # kept, so that no other weight comes to lie at an address

    def _packed(self, pack: Callable[[], Any], *weights: Tensor | None) -> Any:
        """The kernels that ``pack`` makes of these weights."""
        versions = tuple(None if weight is None else weight_version(weight) for weight in weights)
        if versions != self._versions:
            self.kernels = pack()
            self._versions = versions
            self._sources = tuple(None if weight is None else weight.detach() for weight in weights)
        return self.kernels

    def __reduce__(self) -> tuple[type[PackedWeights], tuple[()]]:
        return type(self), ()  # a copy packs its own weights


class PackedLinear(PackedWeights):
    """``F.linear``; what the kernel cannot do (gradients, other types and devices) is PyTorch's.

    Packed weights take as much memory as the weight, and a quarter more after a call of `argmax`.
    """

    def __init__(self) -> None:
        super().__init__()
        self._argmax: Any = None

    def __call__(self, input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """``[..., inputs]``, ``[outputs, inputs]`` and ``[outputs]`` -> ``[..., outputs]``."""
        panels = self._panels(input, weight, bias)
        return F.linear(input, weight, bias) if panels is None else multiply(panels, input, len(weight))

    def argmax(self, input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """``[..., inputs]`` -> ``[...]`` int64: index of the largest output, of equal ones the lowest.

        It reads a quarter of the weight's bytes.
        """
        panels = self._panels(input, weight, bias)
        if panels is None:
            return F.linear(input, weight, bias).argmax(dim=-1)
        if self._argmax is None:
            self._argmax = _kernel(_kernels.QuantizedArgmax, weight, bias, panels)
        rows, indices = input.contiguous(), input.new_empty(input.shape[:-1], dtype=torch.int64)
        self._argmax.argmax(rows.data_ptr(), indices.numel(), indices.data_ptr(), torch.get_num_threads())
        if (unknown := indices < 0).any():
            indices[unknown] = self(rows[unknown], weight, bias).argmax(dim=-1)
        return indices

    def _panels(self, input: Tensor, weight: Tensor, bias: Tensor | None) -> Any:
        """The packed weight; None where the kernel cannot compute the product."""
        if not is_plain(weight):  # moved or converted: free the packed one
            self.kernels, self._argmax, self._versions, self._sources = None, None, (), ()

        def pack() -> Any:
            self._argmax = None
            return _kernel(_kernels.Panels, weight, bias)

        return self._packed(pack, weight, bias) if can_compute(input, weight) else None


def _kernel(kind: Callable[..., Any], weight: Tensor, bias: Tensor | None, *first: Any) -> Any:
    """A kernel of a weight and a bias, which it copies."""
    weight, bias = weight.contiguous(), None if bias is None else bias.contiguous()
    return kind(*first, weight.data_ptr(), *weight.shape, 0 if bias is None else bias.data_ptr())


def multiply(kernels: Any, input: Tensor, outputs: int) -> Tensor:
    """``[..., inputs]`` -> ``[..., outputs]`` by packed weights."""
    rows, output = input.contiguous(), input.new_empty((*input.shape[:-1], outputs))
    kernels.multiply(rows.data_ptr(), output.numel() // max(1, outputs), output.data_ptr(), torch.get_num_threads())
    return output


def can_compute(input: Tensor, weight: Tensor) -> bool:
    """Whether a kernel can compute a product, ``[..., inputs]`` and ``[outputs, inputs]``."""
    learning = torch.is_grad_enabled() and (input.requires_grad or weight.requires_grad)
    plain = is_plain(input) and is_plain(weight) and not torch.is_autocast_enabled("cpu")
    return plain and not learning and input.shape[-1:] == weight.shape[1:]


def is_plain(tensor: Tensor) -> bool:
    """Whether a tensor is float32 numbers in memory, as kernels take them."""
    return tensor.dtype is torch.float32 and tensor.device.type == "cpu" and type(tensor) in (Tensor, nn.Parameter)


def weight_version(tensor: Tensor) -> tuple[object, ...]:
    """Changes when the weight's storage or version changes."""
    return tensor.data_ptr(), None if tensor.is_inference() else tensor._version, tensor.shape, tensor.stride()


class CpuLinear(nn.Linear):
    """A linear layer with CPU kernels."""

    packed: PackedLinear

    def forward(self, input: Tensor) -> Tensor:
        return self.packed(input, self.weight, self.bias)

    def argmax(self, input: Tensor) -> Tensor:
        """``[..., inputs]`` -> ``[...]`` int64: index of the largest output, of equal ones the lowest."""
        if self._forward_hooks or self._forward_pre_hooks:  # which may change the outputs
            outputs: Tensor = self(input)
            return outputs.argmax(dim=-1)
        return self.packed.argmax(input, self.weight, self.bias)
