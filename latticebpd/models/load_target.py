"""Target models and tokenizers by name, as every ``--model`` takes them.

A name is a directory that ``save_pretrained`` wrote; a ``.gguf`` file; a model of the catalogue (``latticebpd models
list``); or a Hub id. `load_target` decides, once, whether the CPU engine or PyTorch computes the model.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from fst.files import FileStamp
from fst.printable import plain_words
from latticebpd.checks import expect
from latticebpd.models.catalogue import GGUF_NAME, model_source, resolved
from latticebpd.models.engine.engine_model import BEAMS, EngineModel, file_hash, gguf_model, gguf_of, unchanged_hash
from latticebpd.models.gguf.gguf_file import is_gguf
from latticebpd.models.gguf.gguf_tokenizer import tokenizer_of_gguf
from latticebpd.models.gguf.gguf_weights import GgufWeights
from latticebpd.models.model_tokenizer import ModelTokenizer
from latticebpd.models.target_model import TargetModel
from latticebpd.models.weight_kinds import FLOAT32, GGUF, TORCH, WEIGHTS

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

Name: TypeAlias = "str | os.PathLike[str]"


def load_target(
    name: Name,
    weights: str | None = None,
    *,
    device: str | torch.device | None = None,
    dtype: str | torch.dtype | None = None,
    ignore_beams: bool = False,
    on_engine: bool = True,
    default: str = FLOAT32,
) -> TargetModel:
    """The target model of a name, ready for inference; ValueError where there is none, or it cannot be read.

    weights: what passes are computed from: ``"gguf"`` (the blocks of a GGUF file), ``"float32"`` or ``"int8"`` by the
        CPU engine, ``"torch"`` by PyTorch. None: the file's where there is one, else ``default``; and PyTorch where the
        engine does not know the model, for another device or type, or without ``on_engine``.
    device, dtype: of a model on PyTorch, by default the CPU and float32.
    ignore_beams: decode greedily even if the model's generation config asks for beam search.
    on_engine: whether the model's drafter can run next to the engine.
    """
    expect(weights in (None, *WEIGHTS), f"weights among {', '.join(WEIGHTS)}", repr(weights))
    plain = str(device or "cpu") == "cpu" and _type_name(dtype) == FLOAT32
    if weights not in (None, TORCH):
        asked = f"device {device or 'cpu'} and dtype {_type_name(dtype)}"
        expect(plain, f"float32 on the CPU with weights={weights!r}", asked, "use weights='torch'")
        wanted = "weights='torch' for a drafter that only drafts for models on PyTorch"
        expect(on_engine, wanted, f"weights={weights!r}", of=os.fspath(name))
    if device is not None:
        _check_device(device)
    path = model_source(name)
    by_engine = weights != TORCH and plain and on_engine
    if by_engine and weights in (None, GGUF) and (model := gguf_model(Path(path))) is not None:
        model = model.without_beams() if ignore_beams else model
        return replace(model, reload=_again(path, model.weights, ignore_beams))
    stock = load_stock(name, dtype)
    if ignore_beams:
        search_no_beams(stock)
    target = _on_engine(stock, Path(path), weights, default) if by_engine else _on_pytorch(stock, device)
    if isinstance(target, EngineModel):
        return replace(target, reload=_again(path, target.weights, ignore_beams))
    return target


def _check_device(device: str | torch.device) -> None:
    """ValueError, before a model is read, for a device that is not there."""
    import torch

    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, TypeError) as error:
        wanted, reason = "a device such as cpu or cuda that PyTorch has here", str(error).splitlines()[0]
        raise ValueError(f"expected {wanted}, got {device!r}: {reason}") from error


def _again(path: Name, weights: str, ignore_beams: bool) -> Callable[[], TargetModel]:
    """What loads an engine's model again, which can be pickled."""
    name = Path(path).absolute() if Path(path).exists() else path
    return partial(load_target, name, weights, ignore_beams=ignore_beams)


def search_no_beams(model: PreTrainedModel) -> None:
    """Replace a model's generation config by a copy without beam search."""
    config: Any = copy.deepcopy(model.generation_config)
    model.generation_config = config
    for name, neutral in BEAMS.items():
        if getattr(config, name, None) is not None:
            setattr(config, name, neutral)


def _on_pytorch(model: Any, device: str | torch.device | None) -> TargetModel:
    from latticebpd.models.transformers.transformers_model import TransformersModel

    return TransformersModel(model if device is None else model.to(device))


def _on_engine(model: PreTrainedModel, path: Path, weights: str | None, default: str) -> TargetModel:
    """The engine's copy of a stock model that was loaded from a path."""
    from latticebpd.models.engine.engine_copy import engine_copy
    from latticebpd.models.engine.engine_families import unsupported_reason

    known = gguf_of(path)
    if weights is None and unsupported_reason(model) is not None:
        return _on_pytorch(model, None)
    hash_weights = (lambda: _checkpoint_fingerprint(path)) if path.exists() else None  # a hub's are hashed now
    if path.is_file():
        hash_weights = partial(unchanged_hash, FileStamp.of(path))
    kind = weights or (default if known is None else GGUF)
    try:
        return engine_copy(model, kind, known, hash_weights=hash_weights)
    except ValueError:
        if weights is not None or known is None:
            raise
        return engine_copy(model, default, hash_weights=hash_weights)


def _checkpoint_fingerprint(path: Path) -> str:
    """Of the weights that ``transformers`` reads from a path: equal for the same numbers in single and half precision,
    as when heads were attached to a model."""
    from latticebpd.models.transformers.checkpoints import stored_fingerprint

    return file_hash([path]) if path.is_file() else str(stored_fingerprint(path))


def file_fingerprints(name: Name) -> set[str]:
    """The fingerprints that models of a name have on the engine, but for what says that they were quantized: of its
    checkpoint, and of the GGUF file in its folder."""
    path = Path(resolved(name))
    return {_checkpoint_fingerprint(each) for each in (path, path / GGUF_NAME) if each.exists()}


def _type_name(dtype: str | torch.dtype | None) -> str:
    return FLOAT32 if dtype is None else str(dtype).removeprefix("torch.")


def torch_type(dtype: str | torch.dtype | None) -> torch.dtype:
    """A floating-point type of PyTorch by its name, with or without ``torch.``; ValueError for any other name."""
    import torch

    kind = getattr(torch, _type_name(dtype), None)
    if not (isinstance(kind, torch.dtype) and kind.is_floating_point):
        raise ValueError(f"expected a dtype such as float32, bfloat16 or float16, got {dtype!r}")
    return kind


def load_stock(name: Name, dtype: str | torch.dtype | None = None) -> PreTrainedModel:
    """The causal LM or encoder–decoder of a name as ``transformers`` has it, on the CPU."""
    from latticebpd.models.gguf.gguf_checkpoints import load_gguf
    from latticebpd.models.transformers.checkpoints import load_base

    path, kind = model_source(name), torch_type(dtype)
    return load_gguf(path, kind) if is_gguf(path) else load_base(path, kind)


def tokenizer_for(target: TargetModel, name: Name) -> Any:
    """The tokenizer of a target that was loaded by a name: for a GGUF file on the engine one that loads no
    ``transformers``, else as ``transformers`` has it; ValueError if there is none that can be read."""
    if isinstance(target, EngineModel) and isinstance(target.embeddings, GgufWeights):
        path = Path(model_source(name))
        try:
            return ModelTokenizer.of_folder(path) if path.is_dir() else tokenizer_of_gguf(target.embeddings.file)
        except ValueError:
            pass  # transformers may read it
    return load_tokenizer(name)


def load_tokenizer(name: Name) -> PreTrainedTokenizerBase:
    """A model's tokenizer, with ``transformers``' interface; ValueError where none can be read."""
    from tokenizers import Tokenizer
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    from latticebpd.models.gguf.gguf_checkpoints import load_gguf_tokenizer

    path = model_source(name)
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
