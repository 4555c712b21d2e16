"""A tokenizer whose tokens are letters; a chat template."""

from __future__ import annotations

from tokenizers import Tokenizer
from tokenizers.decoders import Fuse
from tokenizers.models import BPE
from transformers import PreTrainedTokenizerFast

from tests.helpers.tiny_families import VOCABULARY

TEMPLATE = (
    "{% for message in messages %}{% if loop.first and message['role'] != 'system' %}<s>system\nBe kind.</s>\n{% endif"
    " %}<s>{{ message['role'] }}\n{{ message['content'] }}</s>\n{% endfor %}{% if add_generation_prompt"
    " %}<s>assistant\n{% endif %}"
)
"""A template with a system prompt of its own, whose turns end with ``</s>``."""


def letters() -> PreTrainedTokenizerFast:
    tokenizer = Tokenizer(BPE({chr(ord("a") + i): i for i in range(VOCABULARY)}, []))
    tokenizer.decoder = Fuse()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)
