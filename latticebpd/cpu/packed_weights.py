"""Weights that kernels read in a layout of their own, and tensors that they take."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn


class PackedWeights:
    """Weights in a kernel's layout: packed at the first call, and again after a weight has changed."""

    def __init__(self) -> None:
        self.kernels: Any = None
        self._versions: tuple[object, ...] = ()
        self._sources: tuple[Tensor, ...] = ()  # kept, so that no other weight comes to lie at an address

    def packed(self, pack: Callable[[], Any], *weights: Tensor) -> Any:
        """The kernels that ``pack`` makes of these weights."""
        versions = tuple(map(weight_version, weights))
        if versions != self._versions:
            self.kernels = pack()
            self._versions = versions
            self._sources = tuple(weight.detach() for weight in weights)
        return self.kernels

    def __reduce__(self) -> tuple[type[PackedWeights], tuple[()]]:
        return type(self), ()  # a copy packs its own weights


def can_compute(input: Tensor, weight: Tensor) -> bool:
    """Whether a kernel can compute a product, ``[..., inputs]`` and ``[outputs, inputs]``."""
    learning = torch.is_grad_enabled() and (input.requires_grad or weight.requires_grad)
    plain = is_plain(input) and is_plain(weight) and not torch.is_autocast_enabled("cpu")
    return plain and not learning and input.shape[-1:] == weight.shape[1:]


def is_plain(tensor: Tensor) -> bool:
    """Whether a tensor is float32 numbers in memory, as kernels take them; a trace would not see what they write."""
    wrapped = torch._C._is_tracing() or torch._C._functorch.is_functorch_wrapped_tensor(tensor)
    numbers = tensor.dtype is torch.float32 and tensor.device.type == "cpu"
    return numbers and type(tensor) in (Tensor, nn.Parameter) and not wrapped


def weight_version(tensor: Tensor) -> tuple[object, ...]:
    """Changes when the weight's storage or version changes."""
    return tensor.data_ptr(), None if tensor.is_inference() else tensor._version, tensor.shape, tensor.stride()
