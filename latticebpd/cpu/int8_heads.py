"""Block heads for few positions: all of them in one call of our own kernel, which reads weights rounded to 8 bits.

A head asked at one position reads its weights once and computes next to nothing, so that bytes are what it costs.
"""

from __future__ import annotations

from typing import Any, Protocol

from torch import Tensor, nn

from latticebpd.cpu import _kernels
from latticebpd.cpu.linear import weight_version


class FeedForward(Protocol):
    """Feed-forward heads: ``up [heads, hidden, inner]`` and ``down [heads, inner, hidden]``, float32."""

    up: nn.Parameter
    down: nn.Parameter
    hidden_size: int
    intermediate_size: int


class PackedHeads:
    """Heads' weights, rounded at the first call, and anew when they are others."""

    def __init__(self) -> None:
        self._kernels: Any = None
        self._packed: tuple[object, ...] = ()
        self._kept: tuple[Tensor, ...] = ()

    def of(self, heads: FeedForward) -> Any:
        """The kernels of these heads."""
        packed = (weight_version(heads.up), weight_version(heads.down))
        if packed != self._packed:
            up, down = (weights.detach().transpose(1, 2).contiguous() for weights in (heads.up, heads.down))
            self._kernels = _kernels.RoundedHeads(
                up.data_ptr(), down.data_ptr(), len(up), heads.hidden_size, heads.intermediate_size
            )
            self._packed, self._kept = packed, (heads.up.detach(), heads.down.detach())
        return self._kernels

    def __reduce__(self) -> tuple[type[PackedHeads], tuple[()]]:
        return PackedHeads, ()  # a copy rounds its own weights
