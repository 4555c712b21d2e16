"""The tokenizer that reads text for training, and the token that ends its texts."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from latticebpd import console
from latticebpd.checks import expect
from latticebpd.models.catalogue import resolved
from latticebpd.models.gguf.gguf_file import GgufFile, is_gguf
from latticebpd.models.gguf.gguf_tokenizer import tokenizer_of_gguf
from latticebpd.models.model_tokenizer import ModelTokenizer
from lm_training.data.corpus import END_OF_TEXT

FILE = "tokenizer.json"
WANTED = f"a tokenizer of the tokenizers library ({FILE})"
ENDS = (END_OF_TEXT, "</s>", "<|end_of_text|>", "<eos>", "<|im_end|>")
"""Tokens that end texts, for tokenizers that name none: the first of them that the vocabulary has."""
SHOWN = 12
"""Special tokens that an error lists."""


def text_tokenizer(name: str | os.PathLike[str], end_of_text: str | None = None) -> tuple[Tokenizer, int]:
    """A tokenizer and the id of the token that ends its texts.

    name: a ``tokenizer.json``, or what ``--model`` takes: a folder, a ``.gguf`` file, a Hub id.
    end_of_text: a token, or its id in digits; None: the tokenizer's own (``eos_token`` of ``tokenizer_config.json``),
        else the first of :data:`ENDS` that it has.
    Raises ValueError: there is no such tokenizer or token, or no token that ends texts by default.
    """
    tokenizer, own = named_tokenizer(name)
    return tokenizer, end_of_text_id(tokenizer, end_of_text or own, os.fspath(name))


def end_of_text_id(tokenizer: Tokenizer, end_of_text: str | None = None, name: str | None = None) -> int:
    """The id of the token that ends texts, see :func:`text_tokenizer`; ``name`` is the tokenizer's, for errors."""
    size = tokenizer.get_vocab_size()
    if end_of_text is not None and end_of_text.isascii() and end_of_text.isdigit():
        expect(int(end_of_text) < size, f"--end-of-text below {size}, the tokenizer's size", end_of_text, of=name)
        return int(end_of_text)
    for token in ENDS if end_of_text is None else (end_of_text,):
        if (number := tokenizer.token_to_id(token)) is not None:
            return number
    wanted = f"a tokenizer with {'an end-of-text token' if end_of_text is None else f'the token {end_of_text!r}'}"
    special = [token.content for token in tokenizer.get_added_tokens_decoder().values() if token.special][:SHOWN]
    others = f"; its special tokens are {' '.join(special)}" if special else ""
    remedy = f"name one, or its id, with --end-of-text{others}"
    raise ValueError(f"{f'{name}: ' if name else ''}expected {wanted}, got one of {size} tokens without it; {remedy}")


def named_tokenizer(name: str | os.PathLike[str]) -> tuple[Tokenizer, str | None]:
    """A tokenizer and the token that ends its texts, if it names one."""
    path = Path(name)
    if path.suffix == ".json" or (path.is_file() and not is_gguf(path)) or (path.is_absolute() and not path.exists()):
        tokenizer = console.load_tokenizer(path)
        # The settings next to a model's tokenizer name its end of text; the ids are those of the file alone.
        has_settings = path.name == FILE and path.with_name("tokenizer_config.json").is_file()
        return tokenizer, ModelTokenizer.of_folder(path.parent).eos_token if has_settings else None
    loaded = tokenizer_of(resolved(name))
    expect(getattr(loaded, "backend_tokenizer", None) is not None, WANTED, type(loaded).__name__, of=os.fspath(name))
    return loaded.backend_tokenizer, loaded.eos_token


def tokenizer_of(path: Path | str) -> Any:
    """A model's tokenizer: a `ModelTokenizer`, or where that cannot read it, one of ``transformers``."""
    if isinstance(path, Path) and (path / FILE).is_file():
        return ModelTokenizer.of_folder(path)
    try:
        if is_gguf(path):
            return tokenizer_of_gguf(GgufFile.open(path))
    except ValueError:
        pass  # transformers may read it
    from latticebpd.models.load_target import load_tokenizer

    console.quiet_transformers()
    return load_tokenizer(path)
