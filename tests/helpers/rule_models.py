"""Causal models that follow a rule instead of weights, so that what a decode takes can be worked out on paper."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers import GenerationMixin, LlamaConfig, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutput

VOCABULARY = 97


class RuleModel(PreTrainedModel, GenerationMixin):
    """Writes ``rule(tokens so far)``, with probability close to one; the padding token is 0."""

    config_class = LlamaConfig

    def __init__(self, rule: Callable[[Sequence[int]], int], eos: int | None = None) -> None:
        super().__init__(
            LlamaConfig(
                vocab_size=VOCABULARY, hidden_size=4, num_hidden_layers=1, num_attention_heads=1, intermediate_size=4,
                max_position_embeddings=256, bos_token_id=None, eos_token_id=eos, pad_token_id=0,
            )
        )  # fmt: skip
        self.rule = rule
        self.unused = nn.Linear(1, 1)  # a model has a device and a type by its parameters
        self.texts_read = 0

    def get_output_embeddings(self) -> nn.Module:
        return nn.Identity()

    def forward(self, input_ids: Tensor, use_cache: bool = False, output_hidden_states: bool = False) -> Any:
        self.texts_read += len(input_ids)
        logits = torch.zeros(*input_ids.shape, VOCABULARY)
        for row, tokens in enumerate(input_ids.tolist()):
            for end in range(len(tokens)):
                logits[row, end, self.rule(tokens[: end + 1]) % VOCABULARY] = 20.0
        return CausalLMOutput(logits=logits, hidden_states=(torch.zeros(*input_ids.shape, 4),))


def follows_its_predecessor(tokens: Sequence[int]) -> int:
    """Every token is one more than the token before it."""
    return tokens[-1] + 1


def knows_its_place(tokens: Sequence[int]) -> int:
    """A token depends on nothing but where it stands."""
    return 5 * len(tokens) + 3


def follows_the_last_but_one(tokens: Sequence[int]) -> int:
    """Two interleaved chains: every token is two more than the last but one."""
    return (tokens[-2] if len(tokens) > 1 else 40) + 2


def adds_up(tokens: Sequence[int]) -> int:
    """Every token depends on all before it."""
    return 1 + sum(tokens)
