"""A blockwise model small enough for a test, and the oracle of its text."""

from __future__ import annotations

from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from latticebpd.drafters.heads.blockwise import BlockwiseLM
from latticebpd.drafters.heads.head_networks import FeedForwardHeads

NEW = 40
"""Tokens that most decodes write."""


def tiny_model(seed: int = 0, num_heads: int = 5, vocab_size: int = 23, eos_token_id: int | None = None) -> BlockwiseLM:
    """A random blockwise model with peaked outputs, so that greedy decoding has no near-ties."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=vocab_size,
        hidden_size=16,
        num_hidden_layers=2,
        intermediate_size=32,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=128,
        initializer_range=0.6,
        bos_token_id=None,
        eos_token_id=eos_token_id,
        pad_token_id=None,
    )
    heads = FeedForwardHeads(16, num_heads, 8)
    torch.nn.init.normal_(heads.down, std=0.5)
    return BlockwiseLM(LlamaForCausalLM(config), heads).eval()


def greedy(model: BlockwiseLM, prompt: list[int], new: int = NEW) -> list[int]:
    """The oracle: transformers' own greedy decoding, the new tokens only."""
    ids = torch.tensor([prompt])
    base: Any = model.base
    out = base.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=new, pad_token_id=0)
    return [int(token) for token in out[0, len(prompt) :]]
