"""A tokenizer whose tokens are letters, for the tiny models."""

from __future__ import annotations

from tokenizers import Tokenizer
from tokenizers.decoders import Fuse
from tokenizers.models import BPE
from transformers import PreTrainedTokenizerFast


def letter_tokenizer() -> PreTrainedTokenizerFast:
    """Token i is the i-th letter."""
    tokenizer = Tokenizer(BPE({chr(ord("a") + i): i for i in range(23)}, []))
    tokenizer.decoder = Fuse()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)
