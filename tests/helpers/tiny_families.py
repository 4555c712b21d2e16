"""Random models of many families, so small that a decode takes milliseconds, with outputs so peaked that ties do not
occur."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from transformers import (
    BartConfig,
    BartForConditionalGeneration,
    BloomConfig,
    BloomForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MarianConfig,
    MarianMTModel,
    OPTConfig,
    OPTForCausalLM,
    PreTrainedModel,
    T5Config,
    T5ForConditionalGeneration,
)

VOCABULARY = 23
POSITIONS = 96
_SEQ2SEQ: dict[str, Any] = {
    "d_model": 16, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 2, "decoder_attention_heads": 2,
    "encoder_ffn_dim": 16, "decoder_ffn_dim": 16, "max_position_embeddings": POSITIONS, "init_std": 0.6,
    "decoder_start_token_id": 1,
    "forced_eos_token_id": None,
}  # fmt: skip


def _llama(ids: dict[str, Any]) -> PreTrainedModel:
    return LlamaForCausalLM(
        LlamaConfig(
            hidden_size=16, num_hidden_layers=2, intermediate_size=32, num_attention_heads=2, num_key_value_heads=1,
            max_position_embeddings=POSITIONS, initializer_range=0.6, **ids,
        )
    )  # fmt: skip


def _gpt2(ids: dict[str, Any]) -> PreTrainedModel:
    return GPT2LMHeadModel(
        GPT2Config(n_positions=POSITIONS, n_embd=16, n_layer=2, n_head=2, initializer_range=0.5, **ids)
    )


def _opt(ids: dict[str, Any]) -> PreTrainedModel:
    return OPTForCausalLM(
        OPTConfig(
            hidden_size=16, num_hidden_layers=2, ffn_dim=32, num_attention_heads=2, max_position_embeddings=POSITIONS,
            init_std=0.5,
            word_embed_proj_dim=16, **ids,
        )
    )  # fmt: skip


def _bloom(ids: dict[str, Any]) -> PreTrainedModel:
    return BloomForCausalLM(BloomConfig(hidden_size=16, n_layer=2, n_head=2, initializer_range=0.5, **ids))


def _t5(ids: dict[str, Any]) -> PreTrainedModel:
    return T5ForConditionalGeneration(
        T5Config(
            d_model=16, d_kv=8, d_ff=16, num_layers=2, num_heads=2, relative_attention_num_buckets=8,
            relative_attention_max_distance=16,
            initializer_factor=4.0, **ids | {"decoder_start_token_id": 1},
        )
    )  # fmt: skip


def _marian(ids: dict[str, Any]) -> PreTrainedModel:
    return MarianMTModel(MarianConfig(**_SEQ2SEQ, **ids))


def _bart(ids: dict[str, Any]) -> PreTrainedModel:
    return BartForConditionalGeneration(BartConfig(**_SEQ2SEQ, **ids))


FAMILIES: dict[str, Callable[[dict[str, Any]], PreTrainedModel]] = {
    "llama": _llama, "gpt2": _gpt2, "opt": _opt, "bloom": _bloom, "t5": _t5, "marian": _marian, "bart": _bart,
}  # fmt: skip


def tiny(
    family: str, seed: int = 0, dtype: torch.dtype = torch.float32, eos: int | None = None, attention: str = "sdpa"
) -> PreTrainedModel:
    """A random model of a family; padding is token 0, which no family's text is likely to contain."""
    torch.manual_seed(seed)
    model: Any = FAMILIES[family]({"vocab_size": VOCABULARY, "bos_token_id": 1, "eos_token_id": eos, "pad_token_id": 0})
    if family != "bloom":  # has one implementation
        model.set_attn_implementation(attention)
    model.generation_config.eos_token_id = eos
    return model.to(dtype).eval()
