"""The compiled kernels of `latticebpd.models.narrow`; numbers come and go by their addresses, which that module has checked."""

def kinds() -> int:
    """How many ways of computing this processor has; 0 is the quickest."""

class Panels:
    """A matrix ``[outputs, inputs]``, laid out."""

    def __init__(self, weight: int, outputs: int, inputs: int, bias: int = 0, kind: int = 0) -> None: ...
    def multiply(self, x: int, rows: int, y: int, threads: int = 1) -> None:
        """``[rows, inputs]`` -> ``[rows, outputs]``."""

def attend(
    addresses: tuple[int, int, int, int, int],
    shape: tuple[int, int, int, int, int, int],
    strides: tuple[int, ...],
    looks: int,
    scale: float,
    threads: int = 1,
    kind: int = 0,
) -> None:
    """Attention, as `latticebpd.models.narrow_attention` describes it.

    addresses: queries, keys, values, mask, output.  shape: rows, heads, groups, columns, places, size.
    strides: three each of queries, keys and values, four of the mask.  looks: what the mask is.
    """
