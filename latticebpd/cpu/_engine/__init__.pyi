from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

def isas() -> int: ...
def dequantized(type: int, blocks: NDArray[np.uint8]) -> NDArray[np.float32]: ...

class WeightMemory: ...

class Matrix:
    outputs: int
    inputs: int
    @staticmethod
    def of_blocks(
        memory: WeightMemory,
        type: int,
        blocks: NDArray[np.uint8],
        outputs: int,
        inputs: int,
        order: Sequence[int] = ...,
    ) -> Matrix: ...
    @staticmethod
    def of_numbers(memory: WeightMemory, numbers: NDArray[np.float32], rounded: bool) -> Matrix: ...
    def set_bias(self, bias: Sequence[float]) -> None: ...
    def multiply(self, x: NDArray[np.float32], threads: int = 1, isa: int = 0) -> NDArray[np.float32]: ...
    def row(self, output: int) -> NDArray[np.float32]: ...

class Layer:
    input_norm: Sequence[float]
    attention_output_norm: Sequence[float]
    mlp_norm: Sequence[float]
    mlp_output_norm: Sequence[float]
    query_norm: Sequence[float]
    key_norm: Sequence[float]
    window: int
    rotation: int
    def set_matrices(self, matrices: Sequence[Matrix]) -> None: ...

class Settings:
    heads: int
    groups: int
    head_size: int
    epsilon: float
    scale: float
    attention_softcap: float
    logit_softcap: float
    embedding_scale: float
    gelu: bool
    def add_rotation(self, frequencies: Sequence[float], factor: float) -> None: ...

class Cache:
    length: int
    def __init__(self, model: Transformer) -> None: ...
    def keep(self, columns: Sequence[int]) -> None: ...
    def cut(self, tokens: int) -> None: ...
    def __copy__(self) -> Cache: ...

class Transformer:
    hidden_size: int
    together: int
    def __init__(
        self,
        settings: Settings,
        layers: Sequence[Layer],
        embedding: Matrix,
        projection: Matrix,
        norm: Sequence[float],
        isa: int = 0,
    ) -> None: ...
    def read(
        self,
        caches: Sequence[Cache],
        counts: Sequence[int],
        tokens: NDArray[np.int64],
        parents: NDArray[np.int64],
        layers: Sequence[int],
        threads: int,
        grow: bool = False,
    ) -> tuple[NDArray[np.float32], NDArray[np.float32]]: ...
    def logits(self, states: NDArray[np.float32], threads: int) -> NDArray[np.float32]: ...
    def best(self, states: NDArray[np.float32], threads: int) -> NDArray[np.int64]: ...
