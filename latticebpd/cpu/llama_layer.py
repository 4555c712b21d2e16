"""Llama's decoder layer for few tokens: two calls of CPU kernels (``_kernels/llama_layer.hpp``) around its attention.

Next to its products, a layer is dozens of operations on a few numbers (norms, rotary embedding, views, gates,
residuals), which PyTorch takes longer to call than to compute. Here queries, keys and values are one product, gate and
up another. Results are batch-invariant.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache
from transformers.models.llama.modeling_llama import LlamaAttention, LlamaDecoderLayer, LlamaMLP, LlamaRMSNorm

from latticebpd.cpu import _kernels
from latticebpd.cpu.attention import CPU_ATTENTION, MaskView, attend, mask_fits, mask_view, run_attention
from latticebpd.cpu.linear import CpuLinear, PackedWeights, is_plain

_ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
_MLP = ("gate_proj", "up_proj", "down_proj")
_NORMS = ("input_layernorm", "post_attention_layernorm")


class PackedLayer(PackedWeights):
    """The packed weights of a layer, and its attention's heads, groups and head size."""

    def __init__(self) -> None:
        super().__init__()
        self.heads = self.groups = self.head_size = 0
        self._modules: list[tuple[dict[str, Any], str, Any]] = []  # (parent dict, key, module)
        self._weights: list[tuple[dict[str, Any], str, Tensor, int | None, int, tuple[int, ...]]] = []
        # (parent dict, key, weight, version, address, stride)

    def update(self, layer: LlamaDecoderLayer) -> bool:
        """Pack the layer's weights where they have changed; False where a module is replaced or hooked."""
        for parent, key, module in self._modules:
            if parent[key] is not module or module._forward_hooks or module._forward_pre_hooks:
                return self._pack(layer)
        for parent, key, weight, version, address, stride in self._weights:
            if parent[key] is not weight or weight.data_ptr() != address or weight.stride() != stride:
                return self._pack(layer)
            if version is not None and weight._version != version:
                return self._pack(layer)
        return self.kernels is not None or self._pack(layer)

    def _pack(self, layer: Any) -> bool:
        attention, config = layer.self_attn, layer.self_attn.config
        slots = [(attention._modules, name) for name in _ATTENTION] + [(layer.mlp._modules, name) for name in _MLP]
        linears = [parent[key] for parent, key in slots]
        norms = [layer._modules[name] for name in _NORMS]
        self.kernels, self._modules, self._weights = None, [], []
        if any(type(each) is not CpuLinear or each._forward_hooks or each._forward_pre_hooks for each in linears):
            return False
        weight_slots = [(each._parameters, name) for each in linears for name in ("weight", "bias")]
        weight_slots += [(each._parameters, "weight") for each in norms]
        weights: list[Any] = [parent[key] for parent, key in weight_slots]
        if not all(each is None or is_plain(each) for each in weights):
            return False
        self.heads, self.groups = config.num_attention_heads, config.num_key_value_heads
        self.head_size = attention.head_dim
        contiguous: list[Any] = [None if each is None else each.contiguous() for each in weights]
        address = [0 if each is None else each.data_ptr() for each in contiguous]
        self.kernels = _kernels.LlamaLayer(
            [(address[i], len(contiguous[i]), address[i + 1]) for i in range(0, 14, 2)],
            (address[14], address[15]),
            (config.hidden_size, self.heads, self.groups, self.head_size, config.intermediate_size),
            (norms[0].variance_epsilon, norms[1].variance_epsilon),
        )
        self._modules = [(*slot, module) for slot, module in zip(slots, linears, strict=True)]
        self._weights = [
            (*slot, each, None if each.is_inference() else each._version, each.data_ptr(), each.stride())
            for slot, each in zip(weight_slots, weights, strict=True)
            if each is not None
        ]
        return True


@dataclass(frozen=True, eq=False)
class PassInputs:
    """What all layers of a pass share.

    arguments: position embeddings and mask, by which the pass is recognised.
    cosines, sines: ``[positions, head size]``.
    """

    arguments: tuple[Any, Tensor | None]
    cosines: Tensor
    sines: Tensor
    positions: int
    mask: MaskView


class CpuLlamaLayer(LlamaDecoderLayer):
    """A decoder layer with CPU kernels.

    last: the inputs of the latest pass, in a list that all layers of a model share.
    """

    packed: PackedLayer
    last: list[PassInputs]

    def forward(self, hidden_states: Tensor, *args: Any, **kwargs: Any) -> Any:
        """As Llama's, which computes what the kernels cannot: gradients, other caches, other attention."""
        cache = kwargs.get("past_key_values")
        learning = torch.is_grad_enabled() or self.training or torch.is_autocast_enabled("cpu")
        if args or learning or not is_plain(hidden_states) or not (cache is None or type(cache) is DynamicCache):
            return super().forward(hidden_states, *args, **kwargs)
        inputs = self._inputs(hidden_states, kwargs.get("position_embeddings"), kwargs.get("attention_mask"))
        packed = self.packed
        attention: Any = self._modules["self_attn"]
        if inputs is None or not packed.update(self):
            return super().forward(hidden_states, *args, **kwargs)
        kernels, heads, threads, x = packed.kernels, packed.heads, torch.get_num_threads(), hidden_states.contiguous()
        rows, columns, _ = x.shape
        states = x.new_empty((rows, columns, heads + 2 * packed.groups, packed.head_size))
        cosines, sines = inputs.cosines.data_ptr(), inputs.sines.data_ptr()
        kernels.before_attention(
            x.data_ptr(), rows * columns, cosines, sines, inputs.positions, states.data_ptr(), threads
        )
        query, key, value = states.transpose(1, 2).split_with_sizes((heads, packed.groups, packed.groups), 1)
        if cache is not None:
            key, value = cache.update(key, value, attention.layer_idx)
        mask, scale = inputs.arguments[1], attention.scaling
        plain = key.dtype is torch.float32 and key.stride(-1) == 1 == value.stride(-1) and len(key) == rows
        if plain and (mask is None or mask.shape[3] == key.shape[2]):
            attended = run_attention(query, key, value, inputs.mask, scale)
        else:
            attended = attend(attention, query, key, value, mask, scaling=scale)[0].contiguous()
        output = torch.empty_like(x)
        kernels.after_attention(x.data_ptr(), attended.data_ptr(), rows * columns, output.data_ptr(), threads)
        return output

    def _inputs(self, hidden: Tensor, embeddings: Any, mask: Tensor | None) -> PassInputs | None:
        """The inputs of the pass that this call belongs to; None where the kernels cannot compute it."""
        if self.last and self.last[0].arguments[0] is embeddings and self.last[0].arguments[1] is mask:
            return self.last[0]
        attention: Any = self.self_attn
        rows, columns, _ = hidden.shape
        heads, size = attention.config.num_attention_heads, attention.head_dim
        known = attention.config._attn_implementation == CPU_ATTENTION and embeddings is not None
        if not known or not all(map(is_plain, embeddings)):
            return None
        if mask is not None and not mask_fits(mask, (rows, heads, columns, mask.shape[-1])):
            return None
        cosines, sines = (each.contiguous() for each in embeddings)
        view = mask_view(mask, rows, columns, True)
        self.last[:] = [PassInputs((embeddings, mask), cosines, sines, cosines.numel() // size, view)]
        return self.last[0]


def fits(layer: Any) -> bool:
    """Whether a module is Llama's own layer, of sizes that the kernels take."""
    if type(layer) is not LlamaDecoderLayer or any(type(getattr(layer, name)) is not LlamaRMSNorm for name in _NORMS):
        return False
    if type(layer.self_attn) is not LlamaAttention or type(layer.mlp) is not LlamaMLP:
        return False
    config = layer.mlp.config
    sizes = (config.hidden_size, config.intermediate_size, layer.self_attn.head_dim)
    return config.hidden_act == "silu" and not any(size % 16 for size in sizes)
