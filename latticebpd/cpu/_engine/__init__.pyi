from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]

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
    def of_numbers(memory: WeightMemory, numbers: NDArray[np.float32], quantized: bool) -> Matrix: ...
    def set_bias(self, bias: Sequence[float]) -> None:
        """Before the first product: other threads may be computing one."""
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
    num_kv_heads: int
    head_size: int
    epsilon: float
    scale: float
    attention_softcap: float
    logit_softcap: float
    embedding_scale: float
    gelu: bool
    def add_rotation(self, frequencies: Sequence[float], factor: float) -> None: ...

class Cache:
    """Keys and values of one text. For one call at a time: a pass works without Python's lock, and a call for a cache
    that another thread's call is using is a ValueError. Threads share a `Transformer` and have caches of their own."""

    length: int
    memory: int  # bytes
    def __init__(self, model: Transformer) -> None: ...
    def first(self, tokens: int) -> Cache: ...
    def keep(self, columns: Sequence[int]) -> None: ...
    def cut(self, tokens: int) -> None: ...
    def __copy__(self) -> Cache: ...

class Transformer:
    hidden_size: int
    max_cheap_rows: int
    """Rows that take hardly longer than one."""
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
    def logits_of(
        self, states: NDArray[np.float32], tokens: NDArray[np.int64], counts: list[int], threads: int
    ) -> NDArray[np.float32]:
        """Of each state the logits of ``counts`` tokens, ascending, one state's after another's."""

class Int8Weights:
    """Weights ``[outputs, inputs]``, quantized to int8."""

    def __init__(self, weights: Floats, /) -> None: ...
    def multiply(self, x: Floats, threads: int, /) -> Floats:
        """``[rows, inputs]`` -> ``[rows, outputs]``."""

class Int8Heads:
    """Feed-forward heads, ``up [heads, inner, inputs]`` and ``down [heads, size, inner]``, quantized to int8; the first
    ``size`` inputs are the state, which heads add to."""

    def __init__(self, up: Floats, down: Floats, /) -> None: ...
    def states(self, x: Floats, heads: int, threads: int, /) -> Floats:
        """``[rows, inputs]`` -> ``[rows, heads, size]`` of the first ``heads`` heads."""

class HeadLattices:
    """Lattices of heads, their projection ``[tokens, size]`` and its tokens' ids; with transitions ``up [2, width,
    size]``, of a state and the token before, and ``down [width, size]``, where the width is not 0."""

    def __init__(
        self, heads: Int8Heads, projection: Int8Weights, ids: Sequence[int], up: Floats, down: Floats, /
    ) -> None: ...
    def lattices(self, inputs: Floats, slots: int, k: int, tied: bool, threads: int, /) -> tuple[NDArray[Any], ...]:
        """``[rows, inputs]``, all but the final states of which is normalised here, -> the ``k`` best tokens (int32) of
        each head and their log-probabilities, ``[rows, slots, k]``; if tied, transitions ``[rows, slots - 1, k, k]``.
        ValueError for states that are not finite."""

def chain_weights(log_probs: Floats, start: Floats, pairs: Floats, /) -> tuple[Floats, Floats]:
    """The ``log_probs`` and ``transitions`` of lattices whose arcs have scores after the arcs before them: those of a
    Markov chain (DSpark, DFlash 2, LiLiCorr; heads with transitions). ``chains.hpp`` has the formulas.

    log_probs: ``[rows, slots, k]`` of the drafter's marginals; only their sums matter. start: ``[rows, k]`` scores of
    the first slot's arcs. pairs: ``[rows, slots - 1, k, k]`` scores of arc j of slot s + 1 after arc i of slot s.
    """

EPSILON: float
"""Added to the mean square of a vector before it is divided by the root."""

def top_k(x: Floats, k: int, threads: int, isa: int = 0) -> tuple[Floats, NDArray[np.int32], Floats]:
    """``[rows, count]`` -> the ``k`` largest numbers of each row and their indices, ``[rows, k]``, largest first, equal
    ones by lower index; and ``[rows]``, ln of the sum of all exponentials. Where that is not finite, values are NaN."""

def move(buffer: NDArray[np.uint8], moves: Sequence[tuple[int, int, int]], /) -> None:
    """Copy vectors of bytes in a buffer ``[rows, heads, positions, bytes]``; moves: (row, source, destination)."""
