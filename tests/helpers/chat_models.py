"""The bundled model with a chat template, which it has never seen."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from latticebpd.drafters.bundled import LM, MODEL
from latticebpd.models.load_target import load_stock, load_tokenizer
from tests.helpers.tokenizers import TEMPLATE


def save_chat_model(directory: Path, heads: bool = False, template: str = TEMPLATE) -> Path:
    """Write it; with its heads and n-gram model, or without."""
    if heads:
        shutil.copytree(MODEL, directory)
        shutil.copy(LM, directory / "lm.fst")
    else:
        load_stock(MODEL).save_pretrained(directory)
    tokenizer: Any = load_tokenizer(MODEL)
    tokenizer.add_special_tokens({"bos_token": "<|endoftext|>", "eos_token": "<|endoftext|>"})
    tokenizer.chat_template = template
    tokenizer.save_pretrained(directory)
    return directory
