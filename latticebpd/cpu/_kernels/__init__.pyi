"""The compiled CPU kernels. Arrays come and go by address; `latticebpd.cpu` has checked them.

Unless noted, they are float32 and contiguous. ``isa`` is an index into the processor's instruction sets, 0 the widest.
"""

from collections.abc import Sequence

def isas() -> int:
    """Number of instruction sets of this processor that there are kernels for."""

def int8_isas() -> int:
    """The same for `Int8Weights`; results are the same bits with all of them."""

class Panels:
    """A packed matrix ``[outputs, inputs]`` and bias."""

    def __init__(self, weight: int, outputs: int, inputs: int, bias: int = 0, isa: int = 0) -> None: ...
    def multiply(self, x: int, rows: int, y: int, threads: int, /) -> None:
        """``[rows, inputs]`` -> ``[rows, outputs]``."""

class Int8Weights:
    """A packed and quantized matrix ``[outputs, inputs]``."""

    def __init__(self, weight: int, outputs: int, inputs: int, isa: int = 0) -> None: ...
    def multiply(self, x: int, rows: int, y: int, threads: int, /) -> None:
        """``[rows, inputs]`` -> ``[rows, outputs]``."""

class QuantizedArgmax:
    """The argmax of a product; ``panels`` are of the same matrix ``[outputs, inputs]`` and bias."""

    def __init__(
        self, panels: Panels, weight: int, outputs: int, inputs: int, bias: int = 0, isa: int = 0, int8_isa: int = 0
    ) -> None: ...
    def argmax(self, x: int, rows: int, to: int, threads: int, /) -> None:
        """``[rows, inputs]`` -> ``[rows]`` int64: index of each row's largest output, of equal ones the lowest; -1
        where numbers are too large, too small or NaN to tell."""

class Int8Heads:
    """Packed and quantized feed-forward heads, ``up [heads, inner, size]`` and ``down [heads, size, inner]``."""

    def __init__(self, up: int, down: int, heads: int, size: int, inner: int, /) -> None: ...
    def states(self, x: int, rows: int, heads: int, to: int, threads: int, /) -> None:
        """``[rows, size]`` -> ``[rows, heads, size]`` of the first ``heads`` heads."""

class LlamaLayer:
    """A packed decoder layer of Llama's kind without its attention.

    matrices: of q, k, v, o, gate, up and down: address of the weight, outputs, address of the bias or 0.
    norms: addresses of both norms' weights. epsilons: the norms'. shape: size, heads, groups, head size, inner size.
    """

    def __init__(
        self,
        matrices: Sequence[tuple[int, int, int]],
        norms: tuple[int, int],
        shape: tuple[int, int, int, int, int],
        epsilons: tuple[float, float],
        isa: int = 0,
    ) -> None: ...
    def before_attention(
        self, x: int, rows: int, cosines: int, sines: int, positions: int, to: int, threads: int, /
    ) -> None:
        """``[rows, size]`` and ``[positions, head size]`` cosines and sines -> queries, keys and values, ``[rows, heads
        + 2 groups, head size]``."""
    def after_attention(self, x: int, attended: int, rows: int, to: int, threads: int, /) -> None:
        """The layer's input ``[rows, size]``, attention's output ``[rows, heads, head size]`` -> ``[rows, size]``."""

def attend(
    addresses: Sequence[int], shape: Sequence[int], strides: Sequence[int], mask_kind: int, scale: float,
    threads: int, isa: int = 0,
) -> None:  # fmt: skip
    """Attention, see `latticebpd.cpu.attention`.

    addresses: queries, keys, values, mask, output. shape: rows, heads, groups, columns, keys, size.
    strides: three each of queries, keys and values, four of the mask.
    """

def top_k(
    x: int, rows: int, count: int, k: int, values: int, indices: int, log_sums: int, threads: int, isa: int = 0
) -> None:
    """``[rows, count]`` -> the ``k`` largest numbers of each row and their indices (int32), ``[rows, k]``, largest
    first, equal ones by lower index; and ``log_sums [rows]``, ln of the sum of all exponentials. Where that is not
    finite, values are NaN."""

def move(buffer: int, heads: int, positions: int, bytes: int, moves: Sequence[tuple[int, int, int]], /) -> None:
    """Copy vectors of ``bytes`` bytes in a buffer ``[rows, heads, positions]``; moves: (row, source, destination)."""
