"""Random models of sizes that the CPU engine computes."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from latticebpd import BlockwiseLM
from latticebpd.drafters.heads.engine_heads import EngineHeads
from latticebpd.drafters.heads.head_networks import FeedForwardHeads
from latticebpd.models.engine.engine_copy import engine_copy
from latticebpd.models.engine.engine_model import EngineModel
from tests.helpers.tiny_families import VOCABULARY
from tests.helpers.tokenizers import letters


def stock(seed: int = 0) -> LlamaForCausalLM:
    """Of sizes that the engine computes, with peaked outputs."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=32, num_hidden_layers=2, intermediate_size=64, num_attention_heads=2,
        num_key_value_heads=1, max_position_embeddings=128, initializer_range=0.5, bos_token_id=None, eos_token_id=None,
        pad_token_id=0,
    )  # fmt: skip
    return LlamaForCausalLM(config).eval()


def on_engine(weights: str = "float32", seed: int = 0) -> EngineModel:
    """The engine's copy of `stock`."""
    return engine_copy(stock(seed), weights)


def with_heads(target: EngineModel) -> EngineHeads:
    """Random heads for a copy of `stock`; ``.target`` is the copy."""
    torch.manual_seed(1)
    heads = FeedForwardHeads(32, 5, 16)
    torch.nn.init.normal_(heads.down, std=0.5)
    with TemporaryDirectory() as folder:
        BlockwiseLM(stock(), heads).save_heads(folder)
        return EngineHeads(Path(folder), target, letters())
