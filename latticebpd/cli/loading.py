"""Models and tokenizers from directories, for commands that take any ``transformers`` model."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from latticebpd.models.blockwise import BlockwiseLM


def load_model(directory: Path) -> BlockwiseLM | PreTrainedModel:
    """A blockwise model, where the directory holds heads; else a causal LM or an encoder–decoder as it is; in float32.

    Raises:
        ValueError: the directory holds no model that can be read.
    """
    from latticebpd.models.blockwise import BlockwiseLM, is_blockwise
    from latticebpd.models.loading import load_base

    if not directory.is_dir():
        raise ValueError(f"{directory}: expected the directory of a model (config.json, model.safetensors), found none")
    return BlockwiseLM.from_pretrained(directory) if is_blockwise(directory) else load_base(directory)


def load_pretrained_tokenizer(directory: Path) -> PreTrainedTokenizerBase:
    """The tokenizer beside a model, with ``transformers``' interface.

    Raises:
        ValueError: there is none that can be read.
    """
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    from latticebpd.cli.console import load_tokenizer

    if (directory / "tokenizer.json").exists() and not (directory / "tokenizer_config.json").exists():
        return PreTrainedTokenizerFast(tokenizer_object=load_tokenizer(directory / "tokenizer.json"))
    try:
        tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(directory)
    except Exception as error:  # transformers raises many kinds for what is one mistake here
        raise ValueError(f"{directory}: expected a tokenizer beside the model (tokenizer.json): {error}") from error
    return tokenizer
