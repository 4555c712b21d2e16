"""Models of one's own, as ``transformers`` makes and saves them: Llamas with random weights, whose texts end with
``</s>``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from lm_training.data.corpus import train_tokenizer
from tests.helpers.gguf_files import LETTERS, written
from tests.helpers.tokenizers import TEMPLATE

SIZES: dict[str, Any] = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}


def _llama(vocab_size: int) -> LlamaForCausalLM:
    torch.manual_seed(0)
    ids: dict[str, Any] = {"vocab_size": vocab_size, "bos_token_id": 1, "eos_token_id": 2}
    return LlamaForCausalLM(LlamaConfig(**SIZES, **ids, initializer_range=0.6)).eval()


def own_llama(folder: Path, text: str, further: Sequence[str] = ()) -> None:
    """Write a model and a byte-level tokenizer of ``text``, with a chat template; further: special tokens."""
    backend = train_tokenizer([text], vocab_size=300, special_tokens=("<unk>", "<s>", "</s>", *further))
    named = {"unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>"}
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, chat_template=TEMPLATE, **named)
    _llama(len(tokenizer)).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def own_gguf(path: Path) -> None:
    """Write a model as a GGUF file, of 8 bits, with a tokenizer of bytes and a chat template."""
    written(path, _llama(len(LETTERS["ggml.tokens"])), {}, tokenizer=LETTERS)
