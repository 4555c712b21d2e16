"""A GGUF file's blocks as the engine's matrices: exactly what is in the file, in no more memory."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from latticebpd.cpu import _engine
from latticebpd.target.gguf_file import GgufFile

if TYPE_CHECKING:
    from torch import Tensor

NAMES = {
    "query": "attn_q", "key": "attn_k", "value": "attn_v", "output": "attn_output",
    "gate": "ffn_gate", "up": "ffn_up", "down": "ffn_down",
}  # fmt: skip
INTERLEAVED = frozenset({"llama", "mistral", "smollm3"})
"""Architectures whose rotated numbers lie next to each other in the file, in ``transformers`` half a head apart."""


class GgufWeights:
    """The matrices of a file; memory: where they are copied to."""

    def __init__(self, path: Path, memory: Any) -> None:
        self.path, self.memory = path, memory
        self.file = GgufFile.open(path)
        architecture = str(self.file.fields.get("general.architecture"))
        self.interleaved = architecture in INTERLEAVED
        self.heads = {
            "query": int(self.file.fields.get(f"{architecture}.attention.head_count", 0)),
            "key": int(self.file.fields.get(f"{architecture}.attention.head_count_kv", 0)),
        }

    def matrix(self, layer: int, name: str, weight: Tensor) -> Any:
        """layer, name: see `engine_families.Weights`.  weight: of the model, whose shape must be the file's."""
        return self.stored(layer, name, tuple(weight.shape))

    def name(self, layer: int, name: str) -> str:
        """The name in the file."""
        outside = {"embedding": "token_embd.weight", "projection": "output.weight"}
        return outside[name] if layer < 0 else f"blk.{layer}.{NAMES[name]}.weight"

    def stored(self, layer: int, name: str, shape: tuple[int, ...] | None = None) -> Any:
        """The matrix of a layer (-1: none); ValueError where there is none, or one of another shape."""
        found = self.file.tensors.get(self.name(layer, name))
        if found is None or len(found.shape) != 2 or shape not in (None, tuple(found.shape)):
            wanted = f"the tensor {self.name(layer, name)}" + (
                f" of {' x '.join(map(str, shape))} weights" if shape else ""
            )
            got = "none" if found is None else " x ".join(map(str, found.shape))
            raise ValueError(f"{self.path}: expected {wanted}, got {got}")
        outputs, inputs = found.shape
        order = self._order(name, outputs) if self.interleaved and name in self.heads else []
        return _engine.Matrix.of_blocks(self.memory, int(found.type), found.data.reshape(-1), outputs, inputs, order)

    def _order(self, name: str, outputs: int) -> list[int]:
        """For each output of ``transformers``' order its row in the file."""
        size = outputs // self.heads[name]
        own = np.arange(size).reshape(2, size // 2).T.reshape(-1)  # file's row -> index in a head
        inverse = np.argsort(own)
        return (np.arange(self.heads[name])[:, None] * size + inverse).reshape(-1).tolist()
