"""Passes over few tokens made cheap on a CPU: a stock model's linear layers and attention computed by our own kernels (``_narrow``).

Verifying a draft is a pass over a few tokens.  What it must cost is reading the weights once; libraries made for long texts take two to
four times as long.  The kernel reads weights that were laid out for it, and computes every token's outputs alike, to the last bit,
whatever stands beside it in the pass: a draft verified together, the same tokens one by one, a prompt.  So a draft changes nothing in a
text, not even by rounding.

Modules that are just `torch.nn.Linear`, on a CPU and in float32, are computed so, and SDPA attention; the rest of a model stays as it is.
"""

from __future__ import annotations

from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedModel

from latticebpd.models import (
    _narrow,
    narrow_attention,  # noqa: F401  (makes its implementation known)
)
from latticebpd.models.base import NARROW_ATTENTION, BaseModel, Model

M = TypeVar("M", bound="Model | nn.Module")


class PackedLinear:
    """``F.linear`` with a weight that hardly ever changes: it is laid out at the first call, and anew when it is another.

    The layout takes as much memory as the weight again.  What the kernel cannot do (gradients, other types and devices) is PyTorch's.
    """

    def __init__(self) -> None:
        self._panels: Any = None
        self._packed: tuple[object, ...] = ()
        self._kept: tuple[Tensor | None, ...] = ()  # what was laid out: kept, so that no other weight comes to lie at its address

    def __call__(self, input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """``[..., inputs]``, ``[outputs, inputs]`` and ``[outputs]`` -> ``[..., outputs]``."""
        outputs, inputs = weight.shape
        learning = torch.is_grad_enabled() and (input.requires_grad or weight.requires_grad)
        if not _plain(weight):  # moved or converted: the old one's memory is let go
            self._panels, self._packed, self._kept = None, (), ()
        if learning or not (_plain(input) and _plain(weight)) or input.shape[-1:] != (inputs,) or torch.is_autocast_enabled("cpu"):
            return F.linear(input, weight, bias)
        packed = (_identity(weight), None if bias is None else _identity(bias))
        if packed != self._packed:
            kept, added = weight.contiguous(), None if bias is None else bias.contiguous()
            self._panels = _narrow.Panels(kept.data_ptr(), outputs, inputs, 0 if added is None else added.data_ptr())
            self._packed, self._kept = packed, (weight.detach(), None if bias is None else bias.detach())
        rows = input.contiguous()
        output = input.new_empty((*input.shape[:-1], outputs))
        self._panels.multiply(rows.data_ptr(), output.numel() // outputs, output.data_ptr(), torch.get_num_threads())
        return output

    def __reduce__(self) -> tuple[type[PackedLinear], tuple[()]]:
        return PackedLinear, ()  # a copy lays out its own weight


def _plain(tensor: Tensor) -> bool:
    """Whether it is numbers in memory as the kernel takes them."""
    return tensor.dtype is torch.float32 and tensor.device.type == "cpu" and type(tensor) in (Tensor, nn.Parameter)


def _identity(tensor: Tensor) -> tuple[object, ...]:
    """Another one for other numbers."""
    return tensor.data_ptr(), None if tensor.is_inference() else tensor._version, tensor.shape, tensor.stride()


class NarrowLinear(nn.Linear):
    """A linear layer that the kernel computes; what `narrow` makes of `torch.nn.Linear`."""

    packed: PackedLinear

    def forward(self, input: Tensor) -> Tensor:
        return self.packed(input, self.weight, self.bias)


def narrow(model: M) -> M:
    """Have a model computed for narrow passes: its linear layers, output embedding included, and its attention; returns the model.

    The model stays the same module with the same weights; its outputs change by rounding, so what it is compared with, such as its
    ``generate()``, must be the narrowed model too.

    Args:
        model: a stock model of ``transformers``, a `BlockwiseLM`, or any other module, on a CPU in float32.

    Raises:
        ValueError: none of its layers can be computed so.
    """
    given: Any = model.model if isinstance(model, BaseModel) else model
    layers = [module for module in given.modules() if type(module) is nn.Linear and module.in_features and module.out_features]
    fitting = [layer for layer in layers if _plain(layer.weight)]
    if not fitting and not any(isinstance(module, NarrowLinear) for module in given.modules()):
        kinds = sorted({f"{layer.weight.dtype} on {layer.weight.device}".removeprefix("torch.") for layer in layers})
        raise ValueError(f"expected a model with linear layers in float32 on a CPU, got {' and '.join(kinds) or 'no linear layers'}")
    for layer in fitting:
        layer.__class__ = NarrowLinear
        layer.packed = PackedLinear()  # type: ignore[assignment]
    for stock in given.modules():
        if isinstance(stock, PreTrainedModel) and stock._supports_attention_backend and stock.config._attn_implementation == "sdpa":
            stock.set_attn_implementation(NARROW_ATTENTION)
    return model
