"""A model that repeats itself for ever: whatever is taught on its text can become right at every place."""

from __future__ import annotations

import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from latticebpd.lattices.texts import Texts


def periodic(period: int = 3, num_layers: int = 1) -> tuple[LlamaForCausalLM, Texts]:
    """A base model that repeats ``0 1 .. period - 1`` for ever, and its text.

    Attention and feed-forward layers add nothing (their output matrices are zero), so a token's hidden state is its own
    embedding, and the output embedding says which token is next.
    """
    config = LlamaConfig(
        vocab_size=8, hidden_size=8, num_hidden_layers=num_layers, num_attention_heads=1, intermediate_size=8,
        tie_word_embeddings=False,
        bos_token_id=None, eos_token_id=None, pad_token_id=None,
    )  # fmt: skip
    torch.manual_seed(0)
    base = LlamaForCausalLM(config).eval()
    with torch.no_grad():
        for layer in base.model.layers:
            layer.self_attn.o_proj.weight.zero_()
            layer.mlp.down_proj.weight.zero_()
        base.model.embed_tokens.weight.copy_(torch.eye(8))
        base.lm_head.weight.zero_()
        for token in range(period):
            base.lm_head.weight[(token + 1) % period, token] = 5.0
    rows = [np.array([(start + position) % period for position in range(24)], np.uint16) for start in range(period)] * 4
    return base, Texts.of_rows(rows, [1] * len(rows), np.uint16)
