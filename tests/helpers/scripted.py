"""A model that writes what a test tells it to, with a tokenizer of bytes and of tokens of the test's own."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from tokenizers import AddedToken, Tokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel

from latticebpd.constraints.model_tokens import ModelTokens
from latticebpd.loading import Loaded
from latticebpd.models.model_tokenizer import ModelTokenizer
from latticebpd.models.target_model import target_model

POSITIONS = 512
END = "<end>"


def tokenizer_of_bytes(special: Sequence[str], ordinary: Sequence[str] = ()) -> ModelTokenizer:
    """Bytes, ``<end>``, and added tokens."""
    tokenizer = Tokenizer(BPE({letter: token for token, letter in enumerate(sorted(ByteLevel.alphabet()))}, []))
    tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = ByteLevelDecoder()
    tokenizer.add_special_tokens([AddedToken(text, special=True) for text in (END, *special)])
    tokenizer.add_tokens(list(ordinary))
    return ModelTokenizer(tokenizer, {"eos_token": END}, special)


class Scripted:
    """A model whose next token depends on nothing but the position, as `write` says.

    It is GPT-2 without attention and feed-forward layers, a position's embedding a dimension of its own.
    """

    def __init__(self, tokenizer: ModelTokenizer) -> None:
        self.tokenizer = tokenizer
        size = len(tokenizer)
        config = GPT2Config(
            vocab_size=size, n_positions=POSITIONS, n_embd=POSITIONS, n_layer=1, n_head=1, n_inner=4,
            tie_word_embeddings=False, bos_token_id=None, eos_token_id=tokenizer.convert_tokens_to_ids(END),
        )  # fmt: skip
        self.model = GPT2LMHeadModel(config).eval()
        block: Any = self.model.transformer.h[0]
        with torch.no_grad():
            self.model.transformer.wte.weight.zero_()
            self.model.transformer.wpe.weight.copy_(torch.eye(POSITIONS))
            for layer in (block.attn.c_proj, block.mlp.c_proj):
                layer.weight.zero_()
        self.loaded = Loaded("scripted", Path("scripted"), Path("scripted"), target_model(self.model))
        vars(self.loaded)["tokenizer"] = tokenizer

    def write(self, text: str, after: int, special: Sequence[str] = ()) -> None:
        """From now on: a text after a prompt of so many tokens, and its end from there on.  special: texts of which
        special tokens are written as such."""
        head: nn.Linear = self.model.lm_head
        end = self.tokenizer.convert_tokens_to_ids(END)
        script = ModelTokens(self.tokenizer.backend_tokenizer, len(self.tokenizer)).writing(special).encode(text)
        with torch.no_grad():
            head.weight.zero_()
            for position in range(after - 1, POSITIONS):
                place = position - after + 1
                head.weight[script[place] if place < len(script) else end, position] = 1.0
