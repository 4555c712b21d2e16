"""Models and tokenizers by name, as every ``--model`` takes them.

A name is a directory that ``save_pretrained`` wrote, with or without block heads; a ``.gguf`` file; a model
of the catalogue (``latticebpd models list``); or a Hub id.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TypeAlias

import torch
from tokenizers import Tokenizer
from transformers import AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase, PreTrainedTokenizerFast

from fst.printable import plain_words
from latticebpd.drafters.heads.blockwise import BlockwiseLM, is_blockwise
from latticebpd.models.catalogue import resolved
from latticebpd.models.gguf.gguf_checkpoints import load_gguf, load_gguf_tokenizer
from latticebpd.models.gguf.gguf_file import is_gguf
from latticebpd.models.transformers.checkpoints import load_base

Name: TypeAlias = "str | os.PathLike[str]"


def load_model(name: Name, dtype: torch.dtype = torch.float32) -> BlockwiseLM | PreTrainedModel:
    """A blockwise model if the directory has heads, else the causal LM or encoder–decoder itself; ready for inference.

    ValueError, here and below, where there is no such model, or it cannot be read.
    """
    path = resolved(name)
    return BlockwiseLM.from_pretrained(path, dtype) if is_blockwise(path) else load_stock(path, dtype)


def load_blockwise(name: Name) -> BlockwiseLM:
    """A model with heads; ValueError for one without."""
    model = load_model(name)
    if not isinstance(model, BlockwiseLM):
        remedy = "see `latticebpd train heads`"
        raise ValueError(f"{os.fspath(name)}: expected a model with heads, got one without; {remedy}")
    return model


def load_stock(name: Name, dtype: torch.dtype = torch.float32) -> PreTrainedModel:
    """The causal LM or encoder–decoder of a name, without heads."""
    path = resolved(name)
    return load_gguf(path, dtype) if is_gguf(path) else load_base(path, dtype)


def load_tokenizer(name: Name) -> PreTrainedTokenizerBase:
    """A model's tokenizer, with ``transformers``' interface; ValueError where none can be read."""
    path = resolved(name)
    if is_gguf(path):
        return load_gguf_tokenizer(path)
    names = ("*token*", "*vocab*", "*.model", "*.bpe", "*.tiktoken")
    # Without any of them transformers would go and ask the hub.
    if Path(path).is_dir() and not any(any(Path(path).glob(name)) for name in names):
        raise ValueError(f"{path}: expected a tokenizer next to the model (tokenizer.json), found none")
    file = Path(path) / "tokenizer.json"
    try:
        if file.exists() and not (Path(path) / "tokenizer_config.json").exists():
            tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer.from_file(str(file)))
            template = Path(path) / "chat_template.jinja"
            tokenizer.chat_template = template.read_text(encoding="utf-8") if template.is_file() else None
            return tokenizer
        return AutoTokenizer.from_pretrained(path, trust_remote_code=False, local_files_only=Path(path).is_dir())
    except Exception as error:  # tokenizers and transformers raise many kinds for what is one mistake here
        problem = "expected a tokenizer next to the model (tokenizer.json)"
        raise ValueError(f"{path}: {problem}: {plain_words(error)}") from error
