"""Tiny random models of as many families as ``transformers`` has that write texts, made from their configuration
classes."""

from __future__ import annotations

import contextlib
import inspect
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSeq2SeqLM, PreTrainedModel
from transformers.models.auto.modeling_auto import MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES as ENCODER_DECODERS

VOCABULARY = 29
POSITIONS = 64

# Every configuration takes of these what it knows by name; the values fit together.
_SHAPE: dict[str, Any] = {
    "vocab_size": VOCABULARY, "unpadded_vocab_size": VOCABULARY, "hidden_size": 32, "intermediate_size": 48,
    "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": POSITIONS, "initializer_range": 0.5,
    "init_std": 0.5,
    "forced_eos_token_id": None, "forced_bos_token_id": None, "is_decoder": True, "type_vocab_size": 2,
    "tie_word_embeddings": False,
    # the same under older names
    "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": POSITIONS, "n_ctx": POSITIONS, "n_inner": 48,
    "rotary_dim": 4,
    "d_model": 32, "d_ff": 48, "d_kv": 8, "num_layers": 2, "num_heads": 4, "num_decoder_layers": 2, "ffn_dim": 48,
    "word_embed_proj_dim": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 48, "decoder_ffn_dim": 48, "max_target_positions": POSITIONS, "max_source_positions": POSITIONS,
    "max_encoder_position_embeddings": POSITIONS, "max_decoder_position_embeddings": POSITIONS, "attention_window": 8,
    "relative_attention_num_buckets": 8, "relative_attention_max_distance": 16, "emb_dim": 32, "n_layers": 2,
    "n_heads": 4,
    "embedding_size": 32, "dim": 32,
    # mixtures of experts
    "num_experts": 4, "num_local_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32,
    "n_routed_experts": 4, "n_group": 1,
    "topk_group": 1, "n_shared_experts": 1, "first_k_dense_replace": 1, "expert_capacity": 64,
    "router_jitter_noise": 0.0,
}  # fmt: skip
_IDS: dict[str, Any] = {"bos_token_id": 1, "eos_token_id": None, "pad_token_id": 0, "decoder_start_token_id": 1}
_LINEAR: dict[str, Any] = {"layer_types": ["linear_attention", "full_attention"]}
_LATENT: dict[str, Any] = {
    "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 8, "kv_lora_rank": 16, "q_lora_rank": 16,
    "num_key_value_heads": 4,
}  # fmt: skip
_OWN: dict[str, dict[str, Any]] = {
    "gpt_neo": {"attention_types": [[["global", "local"], 1]], "window_size": 8},
    "blenderbot": {"encoder_no_repeat_ngram_size": 0},
    "fsmt": {"num_beams": 1, "langs": ["en", "de"], "src_vocab_size": VOCABULARY, "tgt_vocab_size": VOCABULARY},
    "gemma3n_text": {
        "layer_types": ["sliding_attention", "full_attention"], "num_kv_shared_layers": 0,
        "hidden_size_per_layer_input": 8,
        "vocab_size_per_layer_input": VOCABULARY, "laurel_rank": 4, "activation_sparsity_pattern": [0.0, 0.0],
        "intermediate_size": [48, 48],
    },
    **dict.fromkeys(("qwen3_next", "qwen3_5_text", "qwen3_5_moe_text"), _LINEAR),
    **dict.fromkeys(("deepseek_v2", "deepseek_v3", "youtu", "minicpm3"), _LATENT),
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1, "mamba_d_state": 4, "mamba_dt_rank": 4},
    "recurrent_gemma": {"num_hidden_layers": 3, "block_types": ("recurrent", "recurrent", "attention")},
    "lfm3": {"layer_types": ["conv", "full_attention"]},
    "falcon_h1": {"mamba_d_ssm": 32, "mamba_n_heads": 4, "mamba_d_head": 8, "mamba_d_state": 4},
    "granitemoehybrid": {"layer_types": ["mamba", "attention"], "mamba_n_heads": 8, "mamba_d_head": 8},
}  # fmt: skip


def tiny_of(kind: str, **settings: Any) -> PreTrainedModel:
    """A random model of the family that ``transformers`` calls ``kind``; ``settings`` go before the common shape."""
    cls = type(AutoConfig.for_model(kind))
    known = set(inspect.signature(cls.__init__).parameters) | set(cls.attribute_map.values())
    with contextlib.suppress(Exception):  # some have no default
        known |= set(cls().to_dict())
    shape = {name: value for name, value in _SHAPE.items() if name in known}
    for common, own in cls.attribute_map.items():
        if own in shape:
            shape.pop(common, None)
    if kind in ENCODER_DECODERS:
        shape.pop("is_decoder", None)
    torch.manual_seed(0)
    auto: Any = AutoModelForSeq2SeqLM if kind in ENCODER_DECODERS else AutoModelForCausalLM
    model: PreTrainedModel = auto.from_config(cls(**{**shape, **_IDS, **_OWN.get(kind, {}), **settings}))
    return model.eval()
