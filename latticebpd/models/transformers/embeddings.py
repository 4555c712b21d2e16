"""A target's embeddings as tensors, for drafters by PyTorch that share them."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from latticebpd.models.engine.engine_model import EngineModel
from latticebpd.models.target_model import TargetModel
from latticebpd.models.transformers.transformers_model import Projection, TransformersModel


def shared_embeddings(target: TargetModel) -> tuple[Tensor, Projection]:
    """``[vocab, hidden]`` input embeddings, and the projection onto the vocabulary; of the engine in float32."""
    if isinstance(target, EngineModel):
        tokens = np.arange(target.vocab_size)
        inputs, outputs = target.embeddings.input_embeddings(tokens), target.embeddings.output_embeddings(tokens)
        layer = nn.Linear(target.hidden_size, target.vocab_size, bias=False, device="meta")
        layer.weight = nn.Parameter(torch.from_numpy(outputs), requires_grad=False)
        return torch.from_numpy(inputs), Projection(layer)
    base: Any = TransformersModel.of(target)
    return base.model.get_input_embeddings().weight, base.projection
