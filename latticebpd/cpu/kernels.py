"""Passes over few tokens made cheap on a CPU: a stock model computed by our own kernels (``_kernels``), as far as they
go.

Verifying a draft is a pass over a few tokens. What it must cost is reading the weights once; libraries made for long
texts take two to four times as long. The kernel reads weights that were laid out for it, and computes every token's
outputs alike, to the last bit,
whatever stands beside it in the pass: a draft verified together, the same tokens one by one, a prompt. So a draft
changes nothing in a text, not even by rounding. Where a greedy text's next token is all that is wanted of logits, most
of the output embedding is read
in 8 bits: the few tokens that these leave in question are computed as all would be (``_kernels/screened.hpp``).

Replaced are modules that are just `torch.nn.Linear`, on a CPU and in float32, SDPA attention, and Llama's decoder
layers; the rest of a model stays as it is. A module with a method ``use_cpu_kernels()`` is asked to adopt its own:
block heads, which only draft, read int8 weights (``int8_heads.py``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from torch import nn
from transformers import PreTrainedModel

from latticebpd.cpu import llama_layer
from latticebpd.cpu.attention import CPU_ATTENTION
from latticebpd.cpu.linear import CpuLinear, PackedLinear, is_plain
from latticebpd.cpu.llama_layer import CpuLlamaLayer, PackedLayer, Pass

M = TypeVar("M")


def use_cpu_kernels(model: M) -> M:
    """Have a model computed for narrow passes: its linear layers, output embedding included, and its attention; returns
    the model.

    The model stays the same module with the same weights; its outputs change by rounding, so what it is compared with,
    such as its ``generate()``, must be the narrowed model too.

    Args:
        model: a stock model of ``transformers``, a `BlockwiseLM`, or any other module, on a CPU in float32.

    Raises:
        ValueError: none of its layers can be computed so.
    """
    given: Any = model if isinstance(model, nn.Module) else getattr(model, "model", model)  # of a `BaseModel`
    layers = [
        module for module in given.modules() if type(module) is nn.Linear and module.in_features and module.out_features
    ]
    fitting = [layer for layer in layers if is_plain(layer.weight)]
    if not fitting and not any(isinstance(module, CpuLinear) for module in given.modules()):
        kinds = sorted({f"{layer.weight.dtype} on {layer.weight.device}".removeprefix("torch.") for layer in layers})
        raise ValueError(
            f"expected a model with linear layers in float32 on a CPU, got {' and '.join(kinds) or 'no linear layers'}"
        )
    for layer in fitting:
        layer.__class__ = CpuLinear
        layer.packed = PackedLinear()  # type: ignore[assignment]
    last: list[Pass] = []
    for module in given.modules():
        if llama_layer.fits(module):
            module.__class__ = CpuLlamaLayer
            module.packed, module.last = PackedLayer(), last
        use_cpu_kernels: Callable[[], None] | None = getattr(module, "use_cpu_kernels", None)
        if use_cpu_kernels is not None:
            use_cpu_kernels()
    for stock in given.modules():
        if (
            isinstance(stock, PreTrainedModel)
            and stock._supports_attention_backend
            and stock.config._attn_implementation == "sdpa"
        ):
            stock.set_attn_implementation(CPU_ATTENTION)
    return model
