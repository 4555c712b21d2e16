"""A model's copy that computes passes over few tokens on a CPU: an immutable snapshot, shared by threads.

Weights are those of the model in float32, quantized to int8, or the blocks of a GGUF file unchanged. Results are
batch-invariant, bit for bit: the same in a draft tree, a prompt or a batch, for any thread count and instruction set.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from latticebpd.cpu import _engine
from latticebpd.models.catalogue import GGUF_NAME
from latticebpd.models.engine.engine_families import LOGIT_CAP, hooked_module, objection, transformer
from latticebpd.models.engine.engine_target import EngineTarget
from latticebpd.models.gguf.gguf_weights import GgufWeights
from latticebpd.models.weight_kinds import FILE, FLOAT32, INT8, TORCH, WEIGHTS

GROUP = 32
"""Weights that share a scale, where they are quantized; rows of another length stay float32."""
SAMPLES = 256
"""Numbers of each weight by which a changed one is recognised."""


@dataclass(frozen=True, eq=False)
class Engine:
    """transformer: the compiled model.  weights: a name in ``WEIGHTS``.  fingerprint: of its source model."""

    transformer: Any
    weights: str
    fingerprint: tuple[Any, ...]


_engines: weakref.WeakKeyDictionary[PreTrainedModel, Engine] = weakref.WeakKeyDictionary()


def make_engine(model: PreTrainedModel, weights: str = FLOAT32, file: Path | None = None, isa: int = 0) -> Engine:
    """An engine of a stock model; the ValueError for one that the engine cannot compute says why.

    file: the GGUF file of the weights, for ``weights="file"``.
    """
    if weights not in WEIGHTS[:3]:
        raise ValueError(f"expected weights among {', '.join(WEIGHTS)}, got {weights!r}")
    if (reason := objection(model)) is not None:
        raise ValueError(f"expected a model that the CPU engine computes, but {reason}; use weights='torch'")
    memory = _engine.WeightMemory()
    if weights == FILE:
        if file is None:
            raise ValueError("expected a GGUF file for weights='file', got none; use 'int8' or 'float32'")
        matrix_of = GgufWeights(file, memory).matrix
    else:

        def matrix_of(layer: int, name: str, weight: Tensor) -> Any:
            quantized = weights == INT8 and weight.shape[1] % GROUP == 0
            return _engine.Matrix.of_numbers(memory, weight.detach().contiguous().numpy(), quantized)

    return Engine(transformer(model, matrix_of, isa), weights, fingerprint(model))


def engine_for(model: PreTrainedModel, path: Path, weights: str | None = None, default: str = FLOAT32) -> Engine | None:
    """The engine of a model that was loaded from a path, which its decodes run on from now on; None for PyTorch.

    weights: a name in ``WEIGHTS``, by which a ValueError says that the engine cannot compute the model; None: the
    file's where the engine knows its types and it is this model's, else ``default``, and PyTorch where the engine
    cannot compute the model.
    """
    file = path if path.is_file() else path / GGUF_NAME
    known = file if file.is_file() else None
    if weights == TORCH or (weights is None and objection(model) is not None):
        return None
    try:
        engine = make_engine(model, weights or (default if known is None else FILE), known)
    except ValueError:
        if weights is not None or known is None:
            raise
        engine = make_engine(model, default)
    use_engine(model, engine)
    return engine


def use_engine(model: PreTrainedModel, engine: Engine) -> None:
    """Let decodes with a stock model run on an engine, for as long as the model lives."""
    _engines[model] = engine


def share_engine(model: PreTrainedModel, target: EngineTarget) -> None:
    """Let decodes with a stock model run on the engine of its file, if it knows the model."""
    if objection(model) is None:
        use_engine(model, Engine(target.transformer, FILE, fingerprint(model)))


def engine_of(model: PreTrainedModel) -> Engine | None:
    """The engine that decodes with a model run on; None for PyTorch. ValueError if the model is no longer the one that
    the engine was built from."""
    if (engine := _engines.get(model)) is None:
        return None
    hooked = hooked_module(model)
    if hooked is None and fingerprint(model) == engine.fingerprint:
        return engine
    what = "changed weights" if hooked is None else f"a hook or another forward on {hooked or 'the model'}"
    raise ValueError(
        f"expected the model as it was loaded, since its engine is a copy, got {what}; load it with weights='torch', or"
        " make its engine anew"
    )


@torch.no_grad()
def fingerprint(model: PreTrainedModel) -> tuple[Any, ...]:
    """Changes when modules or weights are replaced, weights or buffers written, or modules' numbers set (a norm's
    epsilon): it holds some of each weight's numbers, and how often PyTorch wrote it."""
    parts: list[Any] = [getattr(model.config, name, None) for name in (LOGIT_CAP, "sliding_window")]  # read by forward
    for module in model.modules():
        settings = ((name, each) for name, each in vars(module).items() if type(each) in (int, float))
        parts.append((type(module), *settings))
    for name, weight in (*model.named_parameters(), *model.named_buffers()):
        flat = weight.detach().flatten()
        numbers = flat[:: max(1, len(flat) // SAMPLES)].float().cpu().numpy()
        version = None if weight.is_inference() else weight._version
        parts.append((name, weight.dtype, tuple(weight.shape), version, numbers.tobytes()))
    return tuple(parts)
