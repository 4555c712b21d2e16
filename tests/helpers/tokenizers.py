"""A tokenizer whose tokens are letters."""

from __future__ import annotations

from tokenizers import Tokenizer
from tokenizers.decoders import Fuse
from tokenizers.models import BPE
from transformers import PreTrainedTokenizerFast

from tests.helpers.tiny_families import VOCABULARY


def letters() -> PreTrainedTokenizerFast:
    tokenizer = Tokenizer(BPE({chr(ord("a") + i): i for i in range(VOCABULARY)}, []))
    tokenizer.decoder = Fuse()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)
