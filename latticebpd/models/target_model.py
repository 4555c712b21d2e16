"""The target model: what decoding, drafting and measuring ask of it, whoever computes it.

There are two kinds. `EngineModel` is a copy for the CPU engine, with arrays in and out; `TransformersModel` is a stock
model of ``transformers`` on PyTorch, with tensors in and out. `latticebpd.load` decides which, once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import numpy as np

from latticebpd.models.engine.engine_model import EngineModel

if TYPE_CHECKING:
    from latticebpd.models.transformers.transformers_model import Model

AnyModel: TypeAlias = "TargetModel | Model"
"""A target model, or a model of ``transformers`` (with heads or without) that becomes one."""


class TargetModel(Protocol):
    """A causal LM, or on PyTorch an encoder–decoder."""

    @property
    def weights(self) -> str:
        """What passes are computed from: a name in ``weight_kinds.WEIGHTS``."""

    @property
    def device(self) -> Any:
        """Where its outputs are: ``"cpu"`` for the engine, a ``torch.device`` for PyTorch."""

    @property
    def dtype(self) -> Any:
        """Of its hidden states: ``"float32"`` for the engine, a ``torch.dtype`` for PyTorch."""

    @property
    def is_encoder_decoder(self) -> bool:
        """Whether it encodes a source."""

    @property
    def vocab_size(self) -> int:
        """Tokens that it writes."""

    @property
    def source_vocab_size(self) -> int:
        """Tokens that it reads as a prompt or source."""

    @property
    def hidden_size(self) -> int: ...

    @property
    def num_layers(self) -> int: ...

    @property
    def max_positions(self) -> int | None:
        """Tokens of the longest text that it can read; None for no limit."""

    @property
    def num_parameters(self) -> int: ...

    @property
    def generation(self) -> dict[str, Any]:
        """The fields of its generation config that are set."""

    @property
    def eos_ids(self) -> list[int]:
        """The tokens that end its texts."""

    @property
    def pad_id(self) -> int | None:
        """The token that fills rows, if it has one."""

    @property
    def fingerprint(self) -> str:
        """A hash of its weights."""

    def check_layers(self, layers: Sequence[int]) -> None:
        """ValueError for layers, counted from 1, that the model does not have."""

    def check_rope_limit(self, shortest: int, longest: int) -> None:
        """ValueError for texts across the length above which the rotary factors of all positions change."""

    def array(self, values: np.ndarray) -> Any:
        """An array as this kind of model returns its results: as it is, or as a tensor."""


def target_model(model: AnyModel) -> TargetModel:
    """The target model itself, or that of a model of ``transformers``; ValueError for anything else."""
    if isinstance(model, EngineModel):
        return model
    from latticebpd.models.transformers.transformers_model import TransformersModel

    return TransformersModel.of(model)
