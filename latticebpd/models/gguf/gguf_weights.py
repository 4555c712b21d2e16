"""A GGUF file's blocks as the engine's matrices: exactly what is in the file, in no more memory."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from latticebpd.cpu import _engine
from latticebpd.models.gguf.gguf_file import GgufFile, GgufTensor

if TYPE_CHECKING:
    from torch import Tensor

NAMES = {
    "query": "attn_q", "key": "attn_k", "value": "attn_v", "output": "attn_output",
    "gate": "ffn_gate", "up": "ffn_up", "down": "ffn_down",
}  # fmt: skip
FUSED = {
    "query": ("attn_qkv", 0), "key": ("attn_qkv", -2), "value": ("attn_qkv", -1), "gate": ("ffn_up", 0),
    "up": ("ffn_up", -1),
}  # fmt: skip
"""Of Phi-3: the matrix that holds another one's rows, and where they begin, in heights of that one."""
MANY = 1024
"""Rows of a matrix after which a file's pages are not needed again soon."""
INTERLEAVED = frozenset({"llama"})
"""Architectures whose rotated numbers lie next to each other in the file, in ``transformers`` half a head apart."""


class GgufWeights:
    """The matrices of a file; memory: where they are copied to."""

    def __init__(self, path: Path, memory: Any) -> None:
        self.path, self.memory = path, memory
        self.file = GgufFile.open(path)
        self.architecture = str(self.file.fields.get("general.architecture"))

    def matrix(self, layer: int, name: str, weight: Tensor) -> Any:
        """layer, name: see `engine_families.Weights`.  weight: of the model, which the file must be of."""
        matrix, wanted = self.stored(layer, name, tuple(weight.shape)), weight.detach().numpy()
        if not all(_close(matrix.row(row), wanted[row]) for row in self.some_rows(len(wanted))):
            raise ValueError(f"{self.path}: expected the model's weights as {self.name(layer, name)}, got others")
        return matrix

    @staticmethod
    def some_rows(outputs: int) -> set[int]:
        """Numbers of the rows by which a matrix is recognised."""
        return {1 % outputs, outputs // 2, outputs - 1}

    def is_row(self, layer: int, name: str, row: int, wanted: NDArray[Any]) -> bool:
        """Whether a row of a matrix, in ``transformers``' order, is this one, but for rounding."""
        tensor = self.file.tensors[self.name(layer, name)]
        order = self.order(name, tensor.shape[0])
        return _close(dequantized(_rows(tensor, order[row] if order else row, 1))[0], wanted)

    def name(self, layer: int, name: str) -> str:
        """The name in the file."""
        outside = {"embedding": "token_embd.weight", "projection": "output.weight"}
        stored = FUSED[name][0] if self._is_fused(name) else NAMES.get(name)
        return outside[name] if layer < 0 else f"blk.{layer}.{stored}.weight"

    def stored(self, layer: int, name: str, shape: tuple[int, ...] | None = None) -> Any:
        """The matrix of a layer (-1: none); ValueError where there is none, or one of another shape."""
        self.file.stamp.check()
        stored = self.name(layer, name)
        tensor = self.file.tensors.get(stored)
        if tensor is not None and shape and len(tensor.shape) == 2 and self._is_fused(name):
            tensor = _rows(tensor, FUSED[name][1] * shape[0], shape[0])
        if tensor is None or len(tensor.shape) != 2 or shape not in (None, tuple(tensor.shape)):
            wanted = f"the tensor {stored}" + (f" of {' x '.join(map(str, shape))} weights" if shape else "")
            got = "none" if tensor is None else " x ".join(map(str, tensor.shape))
            raise ValueError(f"{self.path}: expected {wanted}, got {got}")
        outputs, inputs = tensor.shape
        order = self.order(name, outputs)
        blocks = tensor.data.reshape(-1)
        try:
            matrix = _engine.Matrix.of_blocks(self.memory, int(tensor.type), blocks, outputs, inputs, order)
            self.file.release_pages(blocks)
            return matrix
        except ValueError as error:
            raise ValueError(f"{self.path}: {stored} ({tensor.type.name}): {error}") from None

    def input_embeddings(self, tokens: NDArray[np.int64]) -> NDArray[np.float32]:
        """``[n, hidden]`` float32 of some tokens."""
        return self._embeddings("token_embd.weight", tokens)

    def output_embeddings(self, tokens: NDArray[np.int64]) -> NDArray[np.float32]:
        """``[n, hidden]`` float32 of some tokens."""
        return self._embeddings(
            "output.weight" if "output.weight" in self.file.tensors else "token_embd.weight", tokens
        )

    def _embeddings(self, name: str, tokens: NDArray[np.int64]) -> NDArray[np.float32]:
        """Rows of a matrix; of many, the file's pages are released then. ValueError after a change of the file."""
        self.file.stamp.check()
        tensor = self.file.tensors[name]
        blocks = tensor.data.reshape(tensor.shape[0], -1)[tokens]
        rows = dequantized(GgufTensor(tensor.name, tensor.type, (len(tokens), tensor.shape[1]), blocks))
        if len(tokens) >= MANY:
            self.file.release_pages(tensor.data)
        return rows

    def order(self, name: str, outputs: int) -> list[int]:
        """For each output of ``transformers``' order its row in the file; empty where they are the same; ValueError if
        the file's heads do not divide the outputs."""
        field = {"query": "head_count", "key": "head_count_kv"}.get(name)
        if field is None or self.architecture not in INTERLEAVED:
            return []
        field = f"{self.architecture}.attention.{field}"
        heads = self.file.fields.get(field)
        if type(heads) is not int or heads < 1 or outputs % (2 * heads):
            raise ValueError(f"{self.path}: expected {field} to divide {outputs} rows into even heads, got {heads!r}")
        return np.arange(outputs).reshape(heads, -1, 2).swapaxes(1, 2).reshape(-1).tolist()

    def _is_fused(self, name: str) -> bool:
        return self.architecture == "phi3" and name in FUSED


def _rows(tensor: GgufTensor, begin: int, count: int) -> GgufTensor:
    """Some rows of a matrix; begin: from its end, if negative."""
    rows = tensor.data.reshape(tensor.shape[0], -1)[begin % tensor.shape[0] :][:count]
    return GgufTensor(tensor.name, tensor.type, (len(rows), tensor.shape[1]), rows)


def _close(row: NDArray[Any], wanted: NDArray[Any]) -> bool:
    return row.shape == wanted.shape and np.allclose(row, wanted, rtol=0, atol=0.01 * np.abs(wanted).max())


def dequantized(tensor: GgufTensor) -> NDArray[np.float32]:
    """A tensor's numbers in its shape, ``[outputs, inputs]`` of a matrix; ValueError for a type that no engine has."""
    try:
        return _engine.dequantized(int(tensor.type), tensor.data.reshape(-1)).reshape(tensor.shape)
    except ValueError as error:
        raise ValueError(f"{tensor.name} ({tensor.type.name}): {error}") from None
