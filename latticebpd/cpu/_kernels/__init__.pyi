"""The compiled CPU kernels. Arrays come and go by address; `latticebpd.cpu` has checked them.

Unless noted, they are float32 and contiguous. ``isa`` is an index into the processor's instruction sets, 0 the widest.
"""

from collections.abc import Sequence

def isas() -> int:
    """Number of instruction sets of this processor that there are kernels for."""

def int8_isas() -> int:
    """The same for `Int8Weights`; results are the same bits with all of them."""

class Int8Weights:
    """A packed and quantized matrix ``[outputs, inputs]``."""

    def __init__(self, weight: int, outputs: int, inputs: int, isa: int = 0) -> None: ...
    def multiply(self, x: int, rows: int, y: int, threads: int, /) -> None:
        """``[rows, inputs]`` -> ``[rows, outputs]``."""

class Int8Heads:
    """Packed and quantized feed-forward heads, ``up [heads, inner, inputs]`` and ``down [heads, size, inner]``."""

    def __init__(self, up: int, down: int, heads: int, inner: int, size: int, inputs: int, /) -> None: ...
    def states(self, x: int, rows: int, heads: int, to: int, threads: int, /) -> None:
        """``[rows, inputs]`` -> ``[rows, heads, size]`` of the first ``heads`` heads."""

    def top_k(
        self,
        x: int,
        rows: int,
        heads: int,
        projection: Int8Weights,
        k: int,
        tokens: int,
        log_probs: int,
        to: int,
        threads: int,
        /,
    ) -> None:
        """``[rows, inputs]`` -> the ``k`` best tokens (int32) of each head after the projection ``[tokens, size]`` and
        their log-probabilities, ``[rows, heads, k]``, as of `top_k`; to: the states of `states`."""

def top_k(
    x: int, rows: int, count: int, k: int, values: int, indices: int, log_sums: int, threads: int, isa: int = 0
) -> None:
    """``[rows, count]`` -> the ``k`` largest numbers of each row and their indices (int32), ``[rows, k]``, largest
    first, equal ones by lower index; and ``log_sums [rows]``, ln of the sum of all exponentials. Where that is not
    finite, values are NaN."""

def move(buffer: int, heads: int, positions: int, bytes: int, moves: Sequence[tuple[int, int, int]], /) -> None:
    """Copy vectors of ``bytes`` bytes in a buffer ``[rows, heads, positions]``; moves: (row, source, destination)."""
