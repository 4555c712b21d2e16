"""Llama's decoder layer for few tokens: all but its attention in two calls of our own kernels (``_kernels/layer.hpp``).

A layer's products read its weights; beside them stand dozens of operations on a few numbers, which take PyTorch longer
to call
than to compute: norms, rotary positions, views, gates, residuals. Here queries, keys and values are one product, gate
and up another. Every token is computed by itself, in the same steps in any company.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache
from transformers.models.llama.modeling_llama import LlamaAttention, LlamaDecoderLayer, LlamaMLP, LlamaRMSNorm

from latticebpd.cpu import _kernels
from latticebpd.cpu.attention import CPU_ATTENTION, MaskView, attend, mask_view, run_attention
from latticebpd.cpu.attention import fits as mask_fits
from latticebpd.cpu.linear import CpuLinear, is_plain

_ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
_MLP = ("gate_proj", "up_proj", "down_proj")
_NORMS = ("input_layernorm", "post_attention_layernorm")


class PackedLayer:
    """A layer's weights, laid out at the first call, and anew when one of them is another.

    heads, groups, head_size: of its attention.
    """

    def __init__(self) -> None:
        self.kernels: Any = None
        self.heads = self.groups = self.head_size = 0
        self._modules: list[tuple[Any, str, Any]] = []  # what the layer consisted of: in whom, by what name, the part
        self._weights: list[tuple[Any, str, Tensor, int | None, int, tuple[int, ...]]] = []  # and of what numbers

    def of(self, layer: LlamaDecoderLayer) -> bool:
        """Lay out the layer's weights if that is to be done; False where a part is no longer what it was: replaced, or
        listened to."""
        for holder, name, part in self._modules:
            if holder[name] is not part or part._forward_hooks or part._forward_pre_hooks:
                return self._anew(layer)
        for holder, name, weight, version, address, stride in self._weights:
            if holder[name] is not weight or weight.data_ptr() != address or weight.stride() != stride:
                return self._anew(layer)
            if version is not None and weight._version != version:
                return self._anew(layer)
        return self.kernels is not None or self._anew(layer)

    def _anew(self, layer: Any) -> bool:
        holders = [(layer.self_attn._modules, name) for name in _ATTENTION] + [
            (layer.mlp._modules, name) for name in _MLP
        ]
        linears = [holder[name] for holder, name in holders]
        norms = [layer._modules[name] for name in _NORMS]
        self.kernels, self._modules, self._weights = None, [], []
        if any(type(each) is not CpuLinear or each._forward_hooks or each._forward_pre_hooks for each in linears):
            return False
        weights = [(each._parameters, name) for each in linears for name in ("weight", "bias")]
        weights = [*weights, *((each._parameters, "weight") for each in norms)]
        given: list[Any] = [holder[name] for holder, name in weights]
        if not all(each is None or is_plain(each) for each in given):
            return False
        attention, config = layer.self_attn, layer.self_attn.config
        self.heads, self.groups, self.head_size = (
            config.num_attention_heads,
            config.num_key_value_heads,
            attention.head_dim,
        )
        whole: list[Any] = [None if each is None else each.contiguous() for each in given]
        address = [0 if each is None else each.data_ptr() for each in whole]
        self.kernels = _kernels.Layer(
            [(address[i], len(whole[i]), address[i + 1]) for i in range(0, 14, 2)],
            (address[14], address[15]),
            (config.hidden_size, self.heads, self.groups, self.head_size, config.intermediate_size),
            (norms[0].variance_epsilon, norms[1].variance_epsilon),
        )
        self._modules = [(*place, part) for place, part in zip(holders, linears, strict=True)]
        self._weights = [
            (*place, each, None if each.is_inference() else each._version, each.data_ptr(), each.stride())
            for place, each in zip(weights, given, strict=True)
            if each is not None
        ]
        return True

    def __reduce__(self) -> tuple[type[PackedLayer], tuple[()]]:
        return PackedLayer, ()  # a copy lays out its own weights


@dataclass(frozen=True, eq=False)
class Pass:
    """What all layers share in a pass.

    given: positions and mask, by which it is known again.  cosines, sines: ``[turns, head size]``.
    """

    given: tuple[Any, Tensor | None]
    cosines: Tensor
    sines: Tensor
    turns: int
    looks: MaskView


class CpuLlamaLayer(LlamaDecoderLayer):
    """A decoder layer that the kernels compute; what `narrow` makes of Llama's.

    last: the pass that was last begun, one for all layers of a model.
    """

    packed: PackedLayer
    last: list[Pass]

    def forward(self, hidden_states: Tensor, *args: Any, **kwargs: Any) -> Any:
        """As Llama's, which does whatever the kernels cannot: gradients, other caches, other attention."""
        cache = kwargs.get("past_key_values")
        learning = torch.is_grad_enabled() or self.training or torch.is_autocast_enabled("cpu")
        if args or learning or not is_plain(hidden_states) or not (cache is None or type(cache) is DynamicCache):
            return super().forward(hidden_states, *args, **kwargs)
        this = self._pass(hidden_states, kwargs.get("position_embeddings"), kwargs.get("attention_mask"))
        packed = self.packed
        attention: Any = self._modules["self_attn"]
        if this is None or not packed.of(self):
            return super().forward(hidden_states, *args, **kwargs)
        kernels, heads, threads, x = packed.kernels, packed.heads, torch.get_num_threads(), hidden_states.contiguous()
        rows, columns, size = x.shape
        made = x.new_empty((rows, columns, heads + 2 * packed.groups, packed.head_size))
        kernels.before(
            x.data_ptr(),
            rows * columns,
            this.cosines.data_ptr(),
            this.sines.data_ptr(),
            this.turns,
            made.data_ptr(),
            threads,
        )
        query, key, value = made.transpose(1, 2).split_with_sizes((heads, packed.groups, packed.groups), 1)
        if cache is not None:
            key, value = cache.update(key, value, attention.layer_idx)
        mask, scale = this.given[1], attention.scaling
        known = key.dtype is torch.float32 and key.stride(-1) == 1 == value.stride(-1) and len(key) == rows
        if known and (mask is None or mask.shape[3] == key.shape[2]):
            seen = run_attention(query, key, value, this.looks, scale)
        else:
            seen = attend(attention, query, key, value, mask, scaling=scale)[0].contiguous()
        output = x.new_empty((rows, columns, size))
        kernels.after(x.data_ptr(), seen.data_ptr(), rows * columns, output.data_ptr(), threads)
        return output

    def _pass(self, hidden: Tensor, turns: Any, mask: Tensor | None) -> Pass | None:
        """The pass that a layer is asked to be part of; None where the kernels cannot compute it."""
        if self.last and self.last[0].given[0] is turns and self.last[0].given[1] is mask:
            return self.last[0]
        attention: Any = self.self_attn
        rows, columns, _ = hidden.shape
        heads, size = attention.config.num_attention_heads, attention.head_dim
        if attention.config._attn_implementation != CPU_ATTENTION or turns is None or not all(map(is_plain, turns)):
            return None
        if mask is not None and not mask_fits(mask, (rows, heads, columns, mask.shape[-1])):
            return None
        cosines, sines = (each.contiguous() for each in turns)
        looks = mask_view(mask, rows, columns, True)
        self.last[:] = [Pass((turns, mask), cosines, sines, cosines.numel() // size, looks)]
        return self.last[0]


def fits(layer: Any) -> bool:
    """Whether it is Llama's own layer, of sizes that the kernels take."""
    if (
        type(layer) is not LlamaDecoderLayer
        or type(layer.self_attn) is not LlamaAttention
        or type(layer.mlp) is not LlamaMLP
    ):
        return False
    if any(type(getattr(layer, name)) is not LlamaRMSNorm for name in _NORMS):
        return False
    config = layer.mlp.config
    sizes = (config.hidden_size, config.intermediate_size, layer.self_attn.head_dim)
    return config.hidden_act == "silu" and not any(size % 16 for size in sizes)
