"""Tiny targets and block drafters with random weights."""

from __future__ import annotations

from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel, Qwen2Config, Qwen2ForCausalLM

from latticebpd.drafters.block.block_network import BlockDrafter, config_for

VOCAB, MASK, LAYERS = 31, 30, 5
SHAPE: dict[str, Any] = {
    "vocab_size": VOCAB, "hidden_size": 24, "intermediate_size": 32, "num_hidden_layers": LAYERS,
    "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 256, "bos_token_id": None, "eos_token_id": 2,
    "pad_token_id": 0,
    "tie_word_embeddings": False,
}  # fmt: skip


ENGINE_SHAPE = {"hidden_size": 32, "num_attention_heads": 2}
"""Sizes that the CPU engine computes."""


def tiny_target(family: str = "llama", seed: int = 0, **sizes: int) -> PreTrainedModel:
    """A decoder-only model whose greedy texts wander; sizes: others than those of `SHAPE`."""
    torch.manual_seed(seed)
    shape = {**SHAPE, **sizes}
    model: PreTrainedModel = (
        LlamaForCausalLM(LlamaConfig(**shape)) if family == "llama" else Qwen2ForCausalLM(Qwen2Config(**shape))
    )
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.normal_(0, 0.35)
    return model.eval()


def tiny_drafter(
    target: PreTrainedModel, layers: int = 2, block_size: int = 4, seed: int = 1, **parts: Any
) -> BlockDrafter:
    """A drafter of a target, its heads not silent as new ones are."""
    torch.manual_seed(seed)
    tokens = parts.pop("draft_tokens", None)
    own_head = parts.pop("own_head", False)
    if tokens is not None:
        parts["draft_vocab_size"] = len(tokens)
    drafter = BlockDrafter(config_for(target, layers, block_size, MASK, **parts), tokens, own_head)
    with torch.no_grad():
        for parameter in drafter.parameters():
            parameter.normal_(0, 0.3) if parameter.ndim > 1 else parameter.normal_(1, 0.2)
    return drafter.eval()
