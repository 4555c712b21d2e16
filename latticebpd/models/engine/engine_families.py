"""Model families that the engine computes, as descriptions of their layers.

A family is what its layers have: norms before and after, biases, norms of queries and keys, windows, layers without
rotary positions, caps of scores and logits, a factor of embeddings. What a model has beyond that is refused by name,
and PyTorch computes it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from latticebpd.cpu import _engine
from latticebpd.models.transformers.transformers_model import rope_kinds

GELU = frozenset({"gelu_pytorch_tanh"})
ATTENTION_CAP, LOGIT_CAP = "attn_logit_softcapping", "final_logit_softcapping"
STOCK_MODULES = ("transformers.models.", "transformers.activations", "torch.nn.modules.")
"""Where the classes of modules are that compute what their weights say."""


@dataclass(frozen=True)
class LayerTraits:
    """What distinguishes a family.

    norm_offset: added to norms' weights.  sandwich: norms after attention and feed-forward network, too.
    fused: queries, keys and values are one matrix, gate and up another.  slides: whether the configuration's window is
    that of all layers; None: ``layer_types`` says of which.  caps: names in the configuration of those that it applies.
    """

    norm_offset: float = 0.0
    sandwich: bool = False
    fused: bool = False
    slides: bool | None = None
    caps: frozenset[str] = frozenset()


FAMILIES = {
    "LlamaForCausalLM": LayerTraits(slides=False),
    "MistralForCausalLM": LayerTraits(slides=True),
    "Qwen2ForCausalLM": LayerTraits(),
    "Qwen3ForCausalLM": LayerTraits(),
    "SmolLM3ForCausalLM": LayerTraits(),
    "Gemma2ForCausalLM": LayerTraits(norm_offset=1.0, sandwich=True, caps=frozenset({ATTENTION_CAP, LOGIT_CAP})),
    "Gemma3ForCausalLM": LayerTraits(norm_offset=1.0, sandwich=True, caps=frozenset({LOGIT_CAP})),
    "Phi3ForCausalLM": LayerTraits(fused=True, slides=True),
}
"""By the class of ``transformers``."""

Weights = Callable[[int, str, Tensor], Any]
"""Layer (-1: none), name and float weights ``[outputs, inputs]`` -> the matrix that the engine multiplies by."""


def unsupported_reason(model: PreTrainedModel) -> str | None:
    """Why the engine cannot compute a model; None if it can."""
    kind, config = type(model).__name__, model.config
    if kind not in FAMILIES or not type(model).__module__.startswith("transformers."):
        return f"{kind} is none of its families"
    for weight in model.parameters():
        if weight.device.type != "cpu" or weight.dtype is not torch.float32:
            return f"its weights are {weight.dtype} on {weight.device}, not float32 on a CPU"
    for module in model.modules():
        if not type(module).__module__.startswith(STOCK_MODULES):
            return f"{type(module).__module__}.{type(module).__name__} is not a module of transformers"
    if (hooked := hooked_module(model)) is not None:
        return f"{hooked or 'the model'} has a hook or a forward of its own"
    for module in model.modules():
        epsilon = getattr(module, "variance_epsilon", getattr(module, "eps", None))
        if epsilon not in (None, config.rms_norm_eps):
            return f"a norm's epsilon is {epsilon}, its configuration's {config.rms_norm_eps}"
    activation = getattr(config, "hidden_activation", None) or config.hidden_act
    if activation not in GELU | {"silu"}:
        return f"its activation is {activation}"
    if rope := {each.get("rope_type", each.get("type")) for each in rope_kinds(config)} & {"dynamic", "longrope"}:
        return f"its rotary positions ({rope.pop()}) depend on a text's length"
    if getattr(config, "layer_types", None) and not set(config.layer_types) <= {"full_attention", "sliding_attention"}:
        return "its layers do more than attend to texts and windows"
    if getattr(config, "use_bidirectional_attention", None):
        return "its tokens attend to later ones"
    sizes = (_head_size(config), config.intermediate_size)
    if any(size % 16 for size in sizes):
        return f"its heads and hidden layers have {sizes[0]} and {sizes[1]} numbers, no multiples of 16"
    return None


def hooked_module(model: nn.Module) -> str | None:
    """The name of a module whose outputs are not its class's; None if there is none."""
    name: str
    for name, module in model.named_modules():
        hooks = (*module._forward_hooks.values(), *module._forward_pre_hooks.values())
        # transformers leaves its own hooks, which collect hidden states.
        library = (str(getattr(hook, "__module__", "")).startswith("transformers.") for hook in hooks)
        if "forward" in vars(module) or not all(library):
            return name
    return None


def transformer(model: PreTrainedModel, weights: Weights, isa: int = 0) -> Any:
    """The engine's copy of a model, for which `unsupported_reason` has none.

    weights: makes its matrices.  isa: index of an instruction set, the widest first.
    """
    family, config, decoder = FAMILIES[type(model).__name__], model.config, model.model
    settings = _engine.Settings()
    settings.heads, settings.num_kv_heads = config.num_attention_heads, config.num_key_value_heads
    settings.head_size, settings.epsilon = _head_size(config), config.rms_norm_eps
    settings.scale = float(decoder.layers[0].self_attn.scaling)
    settings.attention_softcap, settings.logit_softcap = (
        (getattr(config, name, None) or 0.0) if name in family.caps else 0.0 for name in (ATTENTION_CAP, LOGIT_CAP)
    )
    settings.embedding_scale = float(getattr(decoder.embed_tokens, "embed_scale", 1.0))
    settings.gelu = (getattr(config, "hidden_activation", None) or config.hidden_act) in GELU
    kinds = _rotations(decoder.rotary_emb)
    for frequencies, factor in kinds.values():
        settings.add_rotation(frequencies.float().tolist(), float(factor))
    layers = [_layer(each, number, family, config, list(kinds), weights) for number, each in enumerate(decoder.layers)]
    embedding = weights(-1, "embedding", decoder.embed_tokens.weight)
    output = model.get_output_embeddings()
    tied = output.weight.data_ptr() == decoder.embed_tokens.weight.data_ptr()
    projection = embedding if tied else weights(-1, "projection", output.weight)
    if getattr(output, "bias", None) is not None:
        raise ValueError("expected an output embedding without a bias")
    return _engine.Transformer(settings, layers, embedding, projection, _norm(decoder.norm, family), isa)


def _layer(layer: Any, number: int, family: LayerTraits, config: Any, rotations: list[str], weights: Weights) -> Any:
    attention, mlp, own = layer.self_attn, layer.mlp, _engine.Layer()
    own.input_norm = _norm(layer.input_layernorm, family)
    if family.sandwich:
        own.attention_output_norm = _norm(layer.post_attention_layernorm, family)
        own.mlp_norm = _norm(layer.pre_feedforward_layernorm, family)
        own.mlp_output_norm = _norm(layer.post_feedforward_layernorm, family)
    else:
        own.mlp_norm = _norm(layer.post_attention_layernorm, family)
    if hasattr(attention, "q_norm"):
        own.query_norm, own.key_norm = _norm(attention.q_norm, family), _norm(attention.k_norm, family)
    parts: dict[str, tuple[Tensor, Tensor | None]]
    if family.fused:
        heads, groups = config.num_attention_heads * _head_size(config), config.num_key_value_heads * _head_size(config)
        query, key, value = attention.qkv_proj.weight.split([heads, groups, groups])
        gate, up = mlp.gate_up_proj.weight.chunk(2)
        names = {"query": query, "key": key, "value": value, "output": attention.o_proj.weight}
        names |= {"gate": gate, "up": up, "down": mlp.down_proj.weight}
        parts = {name: (weight, None) for name, weight in names.items()}
    else:
        modules = {"query": attention.q_proj, "key": attention.k_proj, "value": attention.v_proj}
        modules |= {"output": attention.o_proj, "gate": mlp.gate_proj, "up": mlp.up_proj, "down": mlp.down_proj}
        parts = {name: (module.weight, module.bias) for name, module in modules.items()}
    matrices = []
    for name, (weight, bias) in parts.items():
        matrices.append(weights(number, name, weight.detach()))
        if bias is not None:
            matrices[-1].set_bias(bias.detach().tolist())
    own.set_matrices(matrices)
    types = getattr(config, "layer_types", None) if family.slides is None else None
    slides = types[number] == "sliding_attention" if types else bool(family.slides)
    own.window = (getattr(config, "sliding_window", None) or 0) if slides else 0
    kind = types[number] if types and types[number] in rotations else rotations[0]
    own.rotation = rotations.index(kind) if getattr(attention, "use_rope", True) else -1
    return own


def _norm(module: Any, family: LayerTraits) -> list[float]:
    weights: Tensor = module.weight.detach().float()
    return (weights + family.norm_offset if family.norm_offset else weights).tolist()


def _rotations(rotary: Any) -> dict[str, tuple[Tensor, float]]:
    """Frequencies and factor of each kind of layers; one kind where all layers share them."""
    kinds = {name.removesuffix("_inv_freq") for name, _ in rotary.named_buffers() if name.endswith("_inv_freq")}
    kinds = {kind for kind in kinds if not kind.endswith("original") and kind != "original"}
    if not kinds:
        return {"all": (rotary.inv_freq, rotary.attention_scaling)}
    return {
        kind: (getattr(rotary, f"{kind}_inv_freq"), getattr(rotary, f"{kind}_attention_scaling"))
        for kind in sorted(kinds)
    }


def _head_size(config: Any) -> int:
    return int(getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads)
