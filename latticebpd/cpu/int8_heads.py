"""Block heads for few positions: one call of a CPU kernel that reads int8 weights (``_kernels/int8_heads.hpp``).

The cost of a head at one position is reading its weights.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from latticebpd.cpu import _kernels
from latticebpd.cpu.linear import PackedWeights


class PackedHeads(PackedWeights):
    """Quantized weights of feed-forward heads."""

    def of(self, up: Tensor, down: Tensor) -> Any:
        """The kernels of ``up [heads, hidden, inner]`` and ``down [heads, inner, hidden]``, float32."""

        def pack() -> _kernels.Int8Heads:
            rows = [weights.detach().transpose(1, 2).contiguous() for weights in (up, down)]
            return _kernels.Int8Heads(rows[0].data_ptr(), rows[1].data_ptr(), *up.shape)

        return self._packed(pack, up, down)
