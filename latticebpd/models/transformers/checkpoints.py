"""Stock models from directories and hubs."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSeq2SeqLM, PreTrainedModel

from fst.files import errors_naming, replacing_files
from fst.printable import plain_words
from latticebpd.models.number_fields import CONFIG, GENERATION, Number, check_numbers

ROTATIONS = ("rope_parameters", "rope_scaling")
"""Parts of ``config.json``."""


def load_base(model: str | os.PathLike[str], dtype: torch.dtype = torch.float32, **kwargs: Any) -> PreTrainedModel:
    """A causal LM or an encoder-decoder from a directory (a blockwise model's too) or a Hub id, ready for
    inference; ValueError if it does not exist or is damaged.

    kwargs: for ``transformers``. Code of the model's repository runs only with ``trust_remote_code``.
    """
    kwargs = {"use_safetensors": True, "trust_remote_code": False, "local_files_only": Path(model).is_dir(), **kwargs}
    name = str(model)
    if not Path(model).is_dir() and (Path(model).is_absolute() or name.startswith(".") or name.count("/") > 1):
        expected = "expected the directory of a model (config.json, model.safetensors) or a Hub id"
        raise ValueError(f"{model}: {expected}, found neither")
    check_json(Path(model, "config.json"), CONFIG)
    check_json(Path(model, "generation_config.json"), GENERATION)
    try:
        _check_permissions(Path(model))
        shared = {name: kwargs[name] for name in ("trust_remote_code", "local_files_only")}
        config = AutoConfig.from_pretrained(model, **shared)
        _check_layers(Path(model), config)
        family = AutoModelForSeq2SeqLM if config.is_encoder_decoder else AutoModelForCausalLM
        loaded: Any = family.from_pretrained(model, dtype=dtype, output_loading_info=True, **kwargs)
    except Exception as error:  # damaged values in config.json raise any kind of error
        raise ValueError(f"{model}: the base model cannot be read: {plain_words(error)}") from error
    base: PreTrainedModel
    base, report = loaded
    if missing := sorted(report["missing_keys"]):  # which transformers would fill with random numbers
        expected = "expected weights for all that config.json describes"
        raise ValueError(f"{model}: {expected}, but {len(missing)} are missing, such as {missing[0]}")
    for module in base.modules():
        if type(module).__name__.endswith("SinusoidalPositionalEmbedding"):
            module.requires_grad_(False)  # constants, which transformers 5 makes trainable when it loads them
    base.eval()
    return base


def check_json(file: Path, table: Mapping[str, Number]) -> None:
    """ValueError for a number out of range in a JSON file, also in the parts that describe a text model and rotary
    positions."""
    record: Any = None
    with suppress(ValueError, OSError, RecursionError):  # transformers says what else is wrong, or missing
        record = json.loads(file.read_text(encoding="utf-8"))
    if isinstance(record, dict):
        parts: list[Any] = [record, record.get("text_config")]
        parts += [part.get(name) for name in ROTATIONS for part in parts if isinstance(part, dict)]
        for part in parts:
            if isinstance(part, dict):
                check_numbers(table, part, file)


def check_layer_count(name: str, layers: Any, tensors: int) -> None:
    """ValueError for a damaged number of layers, before a model of that size is built."""
    if not isinstance(layers, int) or not 1 <= layers <= tensors:
        raise ValueError(f"expected {name} from 1 to {tensors}, the number of tensors, got {layers}")


def _check_permissions(directory: Path) -> None:
    """PermissionError for a file that this user may not read, which libraries would ignore or call missing."""
    for file in sorted([*directory.glob("*"), *directory.glob("latticebpd/*")]):  # heads lie in a folder of theirs
        if file.suffix in (".json", ".safetensors") and file.is_file():
            open(file, "rb").close()


def _check_layers(directory: Path, config: Any) -> None:
    tensors = 0
    for file in directory.glob("model*.safetensors"):
        with safe_open(file, framework="pt") as archive:
            tensors += len(archive.keys())
    for name in ("num_hidden_layers", "encoder_layers", "decoder_layers", "num_decoder_layers"):
        layers = getattr(config.get_text_config(), name, None)
        if tensors and isinstance(layers, int):
            check_layer_count(name, layers, tensors)


_CONVERSION = (
    "import torch, safetensors.torch as s; "
    "s.save_file({{k: v.clone() for k, v in torch.load({source!r}, 'cpu', weights_only=True).items()}}, {target!r})"
)


def save_tensors(path: Path, tensors: dict[str, Tensor], metadata: dict[str, str] | None = None) -> None:
    """Write a safetensors file, atomically.

    The library writes to a file of a random name first, which a process that is killed leaves: so it gets a temporary
    folder, which the next process deletes.
    """
    with replacing_files(path.parent) as folder, errors_naming(path, folder):
        save_file(tensors, folder / path.name, metadata)


def safetensors_in(directory: Path, wanted: str) -> list[Path]:
    """A checkpoint's safetensors files, whatever their names; wanted: the usual name, for the message.

    The ValueError for a checkpoint of pickled weights has a command that converts them.
    """
    if files := sorted(directory.glob("*.safetensors")):
        return files
    pickled = min([*directory.glob("*.pt"), *directory.glob("*.bin")], default=None)
    if pickled is None:
        raise ValueError(f"{directory}: expected {wanted}, found no safetensors file")
    command = _CONVERSION.format(source=str(pickled), target=str(pickled.with_suffix(".safetensors")))
    raise ValueError(f'{pickled}: expected safetensors, got pickled weights; convert them once: python -c "{command}"')


def weights_fingerprint(model: nn.Module) -> str:
    """A hash of a model's weights: equal for equal numbers of one type, wherever they were loaded from."""
    digest = hashlib.sha256()
    for name, tensor in sorted(model.named_parameters()):
        digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode())
        digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return f"sha256:{digest.hexdigest()[:16]}"


def stored_fingerprint(directory: str | os.PathLike[str], samples: int = 1 << 15) -> str | None:
    """A hash of a directory's ``model*.safetensors``, if any: tensors' names, shapes and a sample of their numbers.

    Fast also for large models, and enough to distinguish target models; equal in single and half precision.
    """
    files = sorted(Path(directory).glob("model*.safetensors"))
    lines: dict[str, bytes] = {}
    for file in files:
        try:
            with safe_open(file, framework="pt") as archive:
                for name in archive.keys():  # noqa: SIM118  (not a dict)
                    tensor = archive.get_tensor(name).flatten()
                    some = tensor[:: max(1, len(tensor) // samples)].to(torch.float16)
                    lines[name] = f"{name} {archive.get_slice(name).get_shape()}".encode() + some.numpy().tobytes()
        except (SafetensorError, OSError) as error:
            raise ValueError(f"{file}: expected a safetensors file: {error}; is the copy complete?") from error
    digest = hashlib.sha256(b"".join(lines[name] for name in sorted(lines)))
    return f"sha256:{digest.hexdigest()[:16]}" if files else None
