"""Models in llama.cpp's GGUF format, as stock ``transformers`` models.

``transformers`` reads the weights and puts them into its own classes in full precision. Three things it leaves undone
are
done here: the mark of a quantised model, which forbids saving, goes; the pre-tokenizer that the file names
(``tokenizer.ggml.pre``) is the tokenizer's; nothing is put before a text unless the file asks for it.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig, PreTrainedModel, PreTrainedTokenizerBase

DIGITS_ALONE = frozenset({"smollm", "starcoder", "refact", "command-r"})
"""Pre-tokenizers of llama.cpp that split every digit off before GPT-2's pattern, which alone ``transformers``
restores."""

OF_THE_FILE = frozenset({"quantization_config", "_name_or_path", "_model_name_or_path"})
"""What a configuration says about the file that the weights came from."""


def is_gguf(path: str | os.PathLike[str]) -> bool:
    """Whether a path is a GGUF file, by its first four bytes."""
    path = Path(path)
    if not path.is_file():
        return False
    with open(path, "rb") as file:
        return file.read(4) == b"GGUF"


def load_gguf(path: str | os.PathLike[str], dtype: torch.dtype = torch.float32) -> PreTrainedModel:
    """The causal LM of a GGUF file, ready for inference.

    Raises:
        ValueError: the file is damaged or of an architecture that ``transformers`` does not read, or the extra is
            missing.
    """
    path = _checked(path)
    try:
        _check_layers(path)
        read: Any = AutoModelForCausalLM.from_pretrained(
            path.parent, gguf_file=path.name, dtype=dtype, trust_remote_code=False
        )
        # The weights are in full precision now; and an epsilon of 9.999999747378752e-06 is a float32 that was 1e-05.
        config = {name: _as_float32(value) for name, value in read.config.to_dict().items() if name not in OF_THE_FILE}
        plain: PreTrainedModel = type(read)(type(read.config)(**config)).to(dtype)
        plain.load_state_dict(read.state_dict(), strict=False)
    except Exception as error:  # transformers and gguf raise many kinds for what is one mistake here
        raise ValueError(f"{path}: expected a GGUF file of a causal LM that transformers reads: {error!r}") from error
    plain.tie_weights()
    plain.generation_config = GenerationConfig.from_model_config(plain.config)
    plain.eval()
    return plain


def load_gguf_tokenizer(path: str | os.PathLike[str]) -> PreTrainedTokenizerBase:
    """The tokenizer of a GGUF file, chat template included.

    Raises:
        ValueError: the file is damaged, or the extra is missing.
    """
    from tokenizers import Tokenizer, pre_tokenizers

    path = _checked(path)
    try:
        tokenizer: Any = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name, trust_remote_code=False)
        kind = _fields(path, "tokenizer.ggml.pre")["tokenizer.ggml.pre"]
        backend: Tokenizer = tokenizer.backend_tokenizer
        if kind in DIGITS_ALONE:
            backend.pre_tokenizer = pre_tokenizers.Sequence(
                [pre_tokenizers.Digits(individual_digits=True), backend.pre_tokenizer]
            )
        if not _fields(path, "tokenizer.ggml.add_bos_token")["tokenizer.ggml.add_bos_token"]:
            record = json.loads(backend.to_str())
            record["post_processor"] = None
            tokenizer._tokenizer = Tokenizer.from_str(json.dumps(record))
    except ValueError:
        raise
    except Exception as error:  # as above
        raise ValueError(f"{path}: expected a GGUF file with a tokenizer that transformers reads: {error!r}") from error
    return tokenizer  # type: ignore[no-any-return]


def _checked(path: str | os.PathLike[str]) -> Path:
    try:
        import accelerate  # noqa: F401
        import gguf  # noqa: F401
    except ImportError as error:
        raise ValueError(
            f"{os.fspath(path)}: GGUF files need two more packages: pip install 'latticebpd[gguf]'"
        ) from error
    if not is_gguf(path):
        raise ValueError(f"{os.fspath(path)}: expected a GGUF file, found none")
    return Path(path).resolve()


def _check_layers(path: Path) -> None:
    """ValueError where the header names no number of layers, or more than there are tensors: transformers would be busy
    for long."""
    from gguf import GGUFReader

    reader = GGUFReader(path)
    layers = next((field.contents() for name, field in reader.fields.items() if name.endswith(".block_count")), None)
    if not isinstance(layers, int) or not 1 <= layers <= len(reader.tensors):
        raise ValueError(f"expected a block_count from 1 to {len(reader.tensors)}, the number of tensors, got {layers}")


def _fields(path: Path, *names: str) -> dict[str, Any]:
    from gguf import GGUFReader

    fields = GGUFReader(path).fields
    return {name: fields[name].contents() if name in fields else None for name in names}


def _as_float32(value: Any) -> Any:
    """A number that was stored in float32, as the shortest decimal that means it."""
    return float(str(torch.tensor(value).numpy())) if isinstance(value, float) else value
