"""Models in llama.cpp's GGUF format, as stock ``transformers`` models.

``transformers`` reads the weights in full precision. This module also removes the mark of a quantised model, which
forbids saving, restores the pre-tokenizer that the file names, and adds nothing before a text unless the file asks it.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig, PreTrainedModel, PreTrainedTokenizerBase

from fst.printable import plain_words
from latticebpd.checks import extra_module
from latticebpd.models.gguf.gguf_file import GgufFile
from latticebpd.models.gguf.gguf_tokenizer import DIGITS_ALONE
from latticebpd.models.transformers.checkpoints import check_layer_count

OF_THE_FILE = frozenset({"quantization_config", "_name_or_path", "_model_name_or_path"})
"""Fields of a configuration about the file that the weights came from."""


def load_gguf(path: str | os.PathLike[str], dtype: torch.dtype = torch.float32) -> PreTrainedModel:
    """The causal LM of a GGUF file, ready for inference; ValueError for a damaged file, an architecture that
    ``transformers`` does not read, or a missing extra."""
    file = _opened(path)
    path = Path(file.path)
    try:
        # transformers would be busy for long with a damaged number of layers.
        layers = next((value for name, value in file.fields.items() if name.endswith(".block_count")), None)
        check_layer_count("a block_count", layers, len(file.tensors))
        arguments: dict[str, Any] = {"gguf_file": path.name, "dtype": dtype, "trust_remote_code": False}
        read: Any = AutoModelForCausalLM.from_pretrained(path.parent, **arguments)
        config = {name: value for name, value in read.config.to_dict().items() if name not in OF_THE_FILE}
        for name, value in config.items():
            if isinstance(value, float):  # stored in float32: 9.999999747378752e-06 was 1e-05
                config[name] = float(str(torch.tensor(value).numpy()))
        plain: PreTrainedModel = type(read)(type(read.config)(**config)).to(dtype)
        plain.load_state_dict(read.state_dict(), strict=False)
    except Exception as error:  # transformers and gguf raise many kinds of errors for damaged files
        wanted = "expected a GGUF file of a causal LM that transformers reads"
        raise ValueError(f"{path}: {wanted}: {plain_words(error)}") from error
    plain.tie_weights()
    plain.generation_config = GenerationConfig.from_model_config(plain.config)
    plain.eval()
    return plain


def load_gguf_tokenizer(path: str | os.PathLike[str]) -> PreTrainedTokenizerBase:
    """The tokenizer of a GGUF file, chat template included; ValueError for a damaged file or a missing extra."""
    from tokenizers import Tokenizer, pre_tokenizers

    file = _opened(path)
    path, fields = Path(file.path), file.fields
    try:
        tokenizer: Any = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name, trust_remote_code=False)
        backend: Tokenizer = tokenizer.backend_tokenizer
        if fields.get("tokenizer.ggml.pre") in DIGITS_ALONE:
            digits = pre_tokenizers.Digits(individual_digits=True)
            backend.pre_tokenizer = pre_tokenizers.Sequence([digits, backend.pre_tokenizer])
        if not fields.get("tokenizer.ggml.add_bos_token"):
            record = {**json.loads(backend.to_str()), "post_processor": None}
            tokenizer._tokenizer = Tokenizer.from_str(json.dumps(record))
    except Exception as error:
        wanted = "expected a GGUF file with a tokenizer that transformers reads"
        raise ValueError(f"{path}: {wanted}: {plain_words(error)}") from error
    return tokenizer


def _opened(path: str | os.PathLike[str]) -> GgufFile:
    """The file, by its absolute name; ValueError for a damaged one, or a missing extra."""
    file = GgufFile.open(Path(path).resolve())
    for package in ("accelerate", "gguf"):
        extra_module(package, "gguf", f"the GGUF file {os.fspath(path)}")
    return file
