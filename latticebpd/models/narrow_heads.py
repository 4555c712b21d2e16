"""Block heads for few positions: all of them in one call of our own kernel, which reads weights rounded to 8 bits.

A head asked at one position reads its weights once and computes next to nothing, so that bytes are what it costs.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from latticebpd.models import _narrow
from latticebpd.models.heads import BlockHeads
from latticebpd.models.narrow_linear import identity, is_plain


class PackedHeads:
    """Heads' weights, rounded at the first call, and anew when they are others."""

    def __init__(self) -> None:
        self._kernels: Any = None
        self._packed: tuple[object, ...] = ()
        self._kept: tuple[Tensor, ...] = ()

    def of(self, heads: BlockHeads) -> Any:
        """The kernels of these heads."""
        packed = (identity(heads.up), identity(heads.down))
        if packed != self._packed:
            up, down = (weights.detach().transpose(1, 2).contiguous() for weights in (heads.up, heads.down))
            self._kernels = _narrow.RoundedHeads(up.data_ptr(), down.data_ptr(), len(up), heads.hidden_size, heads.intermediate_size)
            self._packed, self._kept = packed, (heads.up.detach(), heads.down.detach())
        return self._kernels

    def __reduce__(self) -> tuple[type[PackedHeads], tuple[()]]:
        return PackedHeads, ()  # a copy rounds its own weights


class NarrowBlockHeads(BlockHeads):
    """Feed-forward heads that the kernel computes; what `narrow` makes of `BlockHeads`."""

    packed: PackedHeads

    def forward(self, hidden: Tensor, slots: int | None = None) -> Tensor:
        if torch.is_grad_enabled() or torch.is_autocast_enabled("cpu") or not all(map(is_plain, (hidden, self.up, self.down))):
            return super().forward(hidden, slots)
        flat, count = hidden.reshape(-1, self.hidden_size).contiguous(), len(range(len(self.up))[:slots])
        states = flat.new_empty((*hidden.shape[:-1], count, self.hidden_size))
        self.packed.of(self).states(flat.data_ptr(), len(flat), count, states.data_ptr(), torch.get_num_threads())
        return states
