"""A tokenizer whose tokens are letters; a chat template; what two tokenizers must agree on."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer
from tokenizers.decoders import Fuse
from tokenizers.models import BPE
from transformers import PreTrainedTokenizerFast

from latticebpd.models.chat_templates import render_chat
from tests.helpers.tiny_families import VOCABULARY, tiny

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


def saved_with_letters(folder: Path, kind: str = "llama", seed: int = 3) -> Path:
    """A tiny model in a folder as `save_pretrained` writes it, with a tokenizer of letters and nothing else."""
    tiny(kind, seed=seed).save_pretrained(folder)
    letters().save_pretrained(folder)
    return folder


TEXTS = (
    "", " ", "the cat sat on the mat", "  Two  spaces\tand a tab.\r\n\n\n   Lines \n", "It's 1999, they've 12345.6!",
    "naïve Zürich — “quotes” … ½ Ⅷ ١٢٣", "日本語のテキスト 😀 \u200b\ufeff\u3000x",
    "def f(x):\n    return x**2  # 0x1F\n",
    "<s>[INST] hi [/INST]</s>", "<|im_start|>user\nhi<|im_end|><|endoftext|>", "a <mask> b<image>c <tool> <think>",
    "\x00\x01\x7f", "qqqq", "don 't do n't , no . ' ok ' ?", "👩\u200d👩\u200d👧",
)  # fmt: skip
"""Words, whitespace, digits, other scripts, code, special tokens in texts."""


def assert_same_tokenizer(ours: Any, theirs: Any, conversations: Sequence[list[dict[str, str]]] = ()) -> None:
    """Ids of `TEXTS`, texts of ids, special tokens and prompts."""
    assert ours.special_tokens_map == theirs.special_tokens_map
    assert (ours.all_special_tokens, ours.all_special_ids) == (theirs.all_special_tokens, theirs.all_special_ids)
    assert ours.get_vocab() == theirs.get_vocab()
    assert len(ours) == len(theirs)
    for name in ("bos", "eos", "unk", "pad", "sep", "cls", "mask"):
        assert getattr(ours, f"{name}_token") == getattr(theirs, f"{name}_token")
        assert getattr(ours, f"{name}_token_id") == getattr(theirs, f"{name}_token_id")
    generator = random.Random(0)
    for text in TEXTS:
        for special in (True, False):
            ids = ours(text, add_special_tokens=special)["input_ids"]
            assert ids == theirs(text, add_special_tokens=special)["input_ids"], text
        drawn = [generator.randrange(len(ours)) for _ in range(30)]
        for tokens in (ids, drawn, drawn[0], [drawn, ids], np.array(drawn)):
            for skip in (True, False):
                assert ours.decode(tokens, skip_special_tokens=skip) == theirs.decode(tokens, skip_special_tokens=skip)
            for clean in (True, False):
                expected = theirs.decode(tokens, clean_up_tokenization_spaces=clean)
                assert ours.decode(tokens, clean_up_tokenization_spaces=clean) == expected
        assert ours.convert_ids_to_tokens(drawn) == theirs.convert_ids_to_tokens(drawn)
    assert ours(list(TEXTS))["input_ids"] == theirs(list(TEXTS))["input_ids"]
    assert ours.convert_ids_to_tokens(0) == theirs.convert_ids_to_tokens(0)
    assert ours.convert_tokens_to_ids(["the", "nowhere"]) == theirs.convert_tokens_to_ids(["the", "nowhere"])
    assert ours.chat_template == theirs.chat_template
    for chat in conversations:
        for options in ({}, {"add_generation_prompt": True}, {"tools": [{"name": "é"}]}):
            template = ours.get_chat_template(tools=options.get("tools"))
            text = render_chat(template, chat, **ours.special_tokens_map, **options)
            assert text == theirs.apply_chat_template(chat, tokenize=False, **options)
            expected = theirs.apply_chat_template(chat, return_dict=True, **options)["input_ids"]
            assert ours(text, add_special_tokens=False)["input_ids"] == expected


INFILL = ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", "<|repo_name|>", "<|file_sep|>")


def letters_of_code() -> PreTrainedTokenizerFast:
    """Letters, blanks, ends of lines, and tokens for filling in the middle."""
    characters = [*"abcdefghijklmnop", " ", "\n"]
    tokenizer = Tokenizer(BPE({character: i for i, character in enumerate(characters)}, []))
    tokenizer.decoder = Fuse()
    tokenizer.add_special_tokens(list(INFILL))
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)
