"""Models and tokenizers from directories, for commands that take any ``transformers`` model."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from latticebpd.models import BlockwiseLM


def load_model(directory: Path) -> BlockwiseLM | PreTrainedModel:
    """A blockwise model, where the directory holds heads; else a causal LM or an encoder–decoder as it is; in float32.

    Raises:
        ValueError: the directory holds no model that can be read.
    """
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSeq2SeqLM

    from latticebpd.models import HEADS_CONFIG, BlockwiseLM

    if not directory.is_dir():
        raise ValueError(f"{directory}: expected the directory of a model (config.json, model.safetensors), found none")
    if (directory / HEADS_CONFIG).exists():
        return BlockwiseLM.from_pretrained(directory)
    try:
        config = AutoConfig.from_pretrained(directory)
        kind = AutoModelForSeq2SeqLM if config.is_encoder_decoder else AutoModelForCausalLM
        model: PreTrainedModel = kind.from_pretrained(directory, dtype=torch.float32, use_safetensors=True)
    except Exception as error:  # transformers raises many kinds for what is one mistake here: no readable model
        raise ValueError(f"{directory}: expected a transformers model (config.json, model.safetensors): {error}") from error
    model.eval()
    return model


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
    except Exception as error:  # as above
        raise ValueError(f"{directory}: expected a tokenizer beside the model (tokenizer.json): {error}") from error
    return tokenizer
