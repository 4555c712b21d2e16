"""Copies of stock models for the CPU engine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor
from transformers import PreTrainedModel

from latticebpd.cpu import _engine
from latticebpd.models.engine.engine_families import transformer, unsupported_reason
from latticebpd.models.engine.engine_model import EngineModel
from latticebpd.models.gguf.gguf_weights import GgufWeights
from latticebpd.models.transformers.checkpoints import weights_fingerprint
from latticebpd.models.transformers.transformers_model import TransformersModel
from latticebpd.models.weight_kinds import FLOAT32, GGUF, INT8, WEIGHTS

GROUP = 32
"""Weights that share a scale, where they are quantized; rows of another length stay float32."""


@dataclass(frozen=True, eq=False)
class FloatEmbeddings:
    """Input and output embeddings, ``[vocab, hidden]`` each; the same array where they are tied."""

    inputs: NDArray[np.float32]
    outputs: NDArray[np.float32]

    def input_embeddings(self, tokens: NDArray[np.int64]) -> NDArray[np.float32]:
        return self.inputs[tokens]

    def output_embeddings(self, tokens: NDArray[np.int64]) -> NDArray[np.float32]:
        return self.outputs[tokens]


def engine_copy(
    model: PreTrainedModel,
    weights: str = FLOAT32,
    file: Path | None = None,
    isa: int = 0,
    hash_weights: Callable[[], str] | None = None,
) -> EngineModel:
    """The engine's copy of a stock model; the ValueError for one that the engine cannot compute says why.

    The copy keeps the embeddings of the model and nothing else of it, so that the rest is freed with the model.

    weights: ``"float32"``, ``"int8"``, or ``"gguf"``: the blocks of ``file``, which must be of this model.
    isa: index of an instruction set, the widest first.
    hash_weights: a hash of the file that the model is from; by default its weights are hashed now.
    """
    if weights not in (kinds := WEIGHTS[:3]):
        raise ValueError(f"expected weights among {', '.join(kinds)}, got {weights!r}")
    if (reason := unsupported_reason(model)) is not None:
        raise ValueError(f"expected a model that the CPU engine computes, but {reason}; use weights='torch'")
    memory = _engine.WeightMemory()
    if weights == GGUF:
        if file is None:
            raise ValueError("expected a GGUF file for weights='gguf', got none; use 'int8' or 'float32'")
        matrix_of = GgufWeights(file, memory).matrix
    else:

        def matrix_of(layer: int, name: str, weight: Tensor) -> Any:
            quantized = weights == INT8 and weight.shape[1] % GROUP == 0
            return _engine.Matrix.of_numbers(memory, weight.detach().contiguous().numpy(), quantized)

    compiled, stock = transformer(model, matrix_of, isa), TransformersModel(model)
    layers: tuple[Any, Any] = model.get_input_embeddings(), model.get_output_embeddings()
    inputs, outputs = (each.weight.detach().numpy() for each in layers)
    digest = weights_fingerprint(model) if hash_weights is None else ""
    return EngineModel(
        weights, str(model.config.model_type), stock.vocab_size, stock.hidden_size, stock.num_layers,
        stock.num_parameters, stock.max_positions, stock.generation, FloatEmbeddings(inputs, outputs),
        lambda: compiled, hash_weights or (lambda: digest),
    )  # fmt: skip
