"""Block heads for few positions: every head's two products by our own kernel, which reads weights rounded to 8 bits.

A head asked at one position reads its weights once and computes next to nothing, so that bytes are what it costs.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from latticebpd.models.heads import BlockHeads
from latticebpd.models.narrow_linear import identity, is_plain
from latticebpd.models.narrow_rounded import multiplied, rounded


class PackedHeads:
    """Heads' weights, rounded at the first call, and anew when they are others.

    up, down: of every head.
    """

    def __init__(self) -> None:
        self.up: list[Any] = []
        self.down: list[Any] = []
        self._packed: tuple[object, ...] = ()
        self._kept: tuple[Tensor, ...] = ()

    def round(self, heads: BlockHeads) -> None:
        packed = (identity(heads.up), identity(heads.down))
        if packed != self._packed:
            self.up, self.down = ([rounded(each.T) for each in weights.detach()] for weights in (heads.up, heads.down))
            self._packed, self._kept = packed, (heads.up.detach(), heads.down.detach())

    def __reduce__(self) -> tuple[type[PackedHeads], tuple[()]]:
        return PackedHeads, ()  # a copy rounds its own weights


class NarrowBlockHeads(BlockHeads):
    """Feed-forward heads that the kernel computes; what `narrow` makes of `BlockHeads`."""

    packed: PackedHeads

    def forward(self, hidden: Tensor, slots: int | None = None) -> Tensor:
        if torch.is_grad_enabled() or torch.is_autocast_enabled("cpu") or not all(map(is_plain, (hidden, self.up, self.down))):
            return super().forward(hidden, slots)
        self.packed.round(self)
        flat = hidden.reshape(-1, self.hidden_size)
        states = [
            multiplied(down, F.silu(multiplied(up, flat, self.intermediate_size), inplace=True), self.hidden_size)
            for up, down in list(zip(self.packed.up, self.packed.down, strict=True))[:slots]
        ]
        found = flat + torch.stack(states) if states else flat.new_empty((0, *flat.shape))
        return found.transpose(0, 1).reshape(*hidden.shape[:-1], len(states), self.hidden_size)
