"""CPU kernels for passes over few tokens: a stock model's linear layers, attention and Llama layers; the rest falls
back to PyTorch.

Verifying a draft is a pass over a few tokens, which need not cost more than reading the weights once; libraries for
long texts take two to four times as long. The kernels read packed weights, and are batch-invariant: a token's results
are the same bits in a draft, by itself or in a prompt. So drafts change nothing in a text, not even by rounding. Where
only a greedy text's next token is asked for, most of the output embedding is read in int8, and the few tokens that this
leaves in question are computed in float32 (``_kernels/quantized_argmax.hpp``).

Replaced are modules that are exactly `torch.nn.Linear`, on a CPU and in float32, SDPA attention, and Llama's decoder
layers. A module with a method ``use_cpu_kernels()`` adopts its own: block heads, which only draft, get int8 weights.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from torch import nn
from transformers import PreTrainedModel

from latticebpd.cpu import llama_layer
from latticebpd.cpu.attention import CPU_ATTENTION
from latticebpd.cpu.linear import CpuLinear, PackedLinear, is_plain
from latticebpd.cpu.llama_layer import CpuLlamaLayer, PackedLayer, PassInputs

M = TypeVar("M")


def use_cpu_kernels(model: M) -> M:
    """Let CPU kernels compute a model's passes over few tokens, its output embedding included; returns the model.

    The model stays the same module with the same weights. Its outputs change by rounding: compare it with outputs of
    the changed model, such as those of its ``generate()``.

    Args:
        model: a stock model of ``transformers``, a `BlockwiseLM`, or any other module, on a CPU in float32.

    Raises:
        ValueError: no layer can be computed by the kernels.
    """
    root: Any = model if isinstance(model, nn.Module) else getattr(model, "model", model)  # of a `BaseModel`
    layers = [
        module for module in root.modules() if type(module) is nn.Linear and module.in_features and module.out_features
    ]
    plain = [layer for layer in layers if is_plain(layer.weight)]
    if not plain and not any(isinstance(module, CpuLinear) for module in root.modules()):
        kinds = sorted({f"{layer.weight.dtype} on {layer.weight.device}".removeprefix("torch.") for layer in layers})
        raise ValueError(
            f"expected a model with linear layers in float32 on a CPU, got {' and '.join(kinds) or 'no linear layers'}"
        )
    for layer in plain:
        layer.__class__ = CpuLinear
        layer.packed = PackedLinear()  # type: ignore[assignment]
    last: list[PassInputs] = []
    for module in root.modules():
        if llama_layer.fits(module):
            module.__class__ = CpuLlamaLayer
            module.packed, module.last = PackedLayer(), last
        adopt: Callable[[], None] | None = getattr(module, "use_cpu_kernels", None)
        if adopt is not None:
            adopt()
        if (
            isinstance(module, PreTrainedModel)
            and module._supports_attention_backend
            and module.config._attn_implementation == "sdpa"
        ):
            module.set_attn_implementation(CPU_ATTENTION)
    return model
