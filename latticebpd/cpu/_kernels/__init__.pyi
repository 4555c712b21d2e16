"""The compiled kernels of `latticebpd.cpu.kernels`; numbers come and go by their addresses, which that module has
checked."""

from collections.abc import Sequence

def kinds() -> int:
    """How many ways of computing this processor has; 0 is the quickest."""

class Panels:
    """A matrix ``[outputs, inputs]``, laid out."""

    def __init__(self, weight: int, outputs: int, inputs: int, bias: int = 0, kind: int = 0) -> None: ...
    def multiply(self, x: int, rows: int, y: int, threads: int = 1) -> None:
        """``[rows, inputs]`` -> ``[rows, outputs]``."""

def rounded_kinds() -> int:
    """How many ways of computing `Rounded` this processor has; 0 is the quickest, and all give the same bits."""

class Rounded:
    """A matrix ``[outputs, inputs]`` rounded to 8 bits, laid out."""

    def __init__(self, weight: int, outputs: int, inputs: int, kind: int = 0) -> None: ...
    def multiply(self, x: int, rows: int, y: int, threads: int = 1) -> None:
        """``[rows, inputs]`` -> ``[rows, outputs]``."""

class Screened:
    """A matrix laid out in ``panels``, ``[outputs, inputs]``, with its bias, and once more rounded to 8 bits."""

    def __init__(
        self,
        panels: Panels,
        weight: int,
        outputs: int,
        inputs: int,
        bias: int = 0,
        kind: int = 0,
        rounded_kind: int = 0,
    ) -> None: ...
    def largest(self, x: int, rows: int, to: int, threads: int = 1) -> None:
        """``[rows, inputs]`` -> ``[rows]`` int64: the place of each row's largest output in ``panels``' product, of
        equal ones the first; -1 where numbers are too large or too small to tell, or none."""

class RoundedHeads:
    """Feed-forward heads, ``up [heads, inner, size]`` and ``down [heads, size, inner]``, rounded to 8 bits and laid
    out."""

    def __init__(self, up: int, down: int, heads: int, size: int, inner: int) -> None: ...
    def states(self, x: int, rows: int, heads: int, to: int, threads: int = 1) -> None:
        """``[rows, size]`` -> ``[rows, heads, size]`` of the first so many heads."""

def move(buffer: int, heads: int, places: int, bytes: int, moves: Sequence[tuple[int, int, int]]) -> None:
    """Of a buffer ``[rows, heads, places]`` of vectors of so many bytes: in each row named, what stands at one place
    also at another."""

def best(
    x: int, rows: int, count: int, k: int, values: int, places: int, totals: int, threads: int = 1, kind: int = 0
) -> None:
    """Of each row of ``[rows, count]`` numbers the ``k`` largest and their places, ``[rows, k]`` float32 and int32,
    largest first and of equal ones those that come first, and ``totals [rows]``, ln of the sum of all exponentials;
    where that is not finite, values are NaN."""

class Layer:
    """A decoder layer of Llama's kind without its attention, laid out.

    matrices: of q, k, v, o, gate, up and down each the weight's address, its outputs, and the bias's address or 0.
    norms: addresses of the two norms' weights. shape: size, heads, groups, head size, inner size; ``epsilons``: the
        norms'.
    """

    def __init__(
        self,
        matrices: Sequence[tuple[int, int, int]],
        norms: tuple[int, int],
        shape: tuple[int, int, int, int, int],
        epsilons: tuple[float, float],
        kind: int = 0,
    ) -> None: ...
    def before(self, x: int, rows: int, cosines: int, sines: int, turns: int, to: int, threads: int = 1) -> None:
        """``[rows, size]`` -> ``[rows, heads + 2 groups, head size]``: queries, keys and values; cosines, sines:
        ``[turns, head size]``."""
    def after(self, x: int, attended: int, rows: int, to: int, threads: int = 1) -> None:
        """The layer's input ``[rows, size]`` and what was attended to, ``[rows, heads, head size]`` -> its output
        ``[rows, size]``."""

def attend(
    addresses: tuple[int, int, int, int, int],
    shape: tuple[int, int, int, int, int, int],
    strides: tuple[int, ...],
    looks: int,
    scale: float,
    threads: int = 1,
    kind: int = 0,
) -> None:
    """Attention, as `latticebpd.cpu.attention` describes it.

    addresses: queries, keys, values, mask, output.  shape: rows, heads, groups, columns, places, size.
    strides: three each of queries, keys and values, four of the mask.  looks: what the mask is.
    """
