"""Block heads for few positions: every head's two products by our own kernel, which reads weights that were laid out for it.

A head asked at one position reads its weights once and computes next to nothing; PyTorch's batched product takes twice as long.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from latticebpd.models import _narrow
from latticebpd.models.heads import BlockHeads
from latticebpd.models.narrow_linear import identity, is_plain


class PackedHeads:
    """Heads' weights, laid out at the first call, and anew when they are others.

    up, down: of every head.
    """

    def __init__(self) -> None:
        self.up: list[Any] = []
        self.down: list[Any] = []
        self._packed: tuple[object, ...] = ()
        self._kept: tuple[Tensor, ...] = ()

    def lay_out(self, heads: BlockHeads) -> None:
        packed = (identity(heads.up), identity(heads.down))
        if packed != self._packed:
            self.up, self.down = _panels(heads.up), _panels(heads.down)
            self._packed, self._kept = packed, (heads.up.detach(), heads.down.detach())

    def __reduce__(self) -> tuple[type[PackedHeads], tuple[()]]:
        return PackedHeads, ()  # a copy lays out its own weights


class NarrowBlockHeads(BlockHeads):
    """Feed-forward heads that the kernel computes; what `narrow` makes of `BlockHeads`."""

    packed: PackedHeads

    def forward(self, hidden: Tensor, slots: int | None = None) -> Tensor:
        if torch.is_grad_enabled() or torch.is_autocast_enabled("cpu") or not all(map(is_plain, (hidden, self.up, self.down))):
            return super().forward(hidden, slots)
        self.packed.lay_out(self)
        flat, threads = hidden.reshape(-1, self.hidden_size).contiguous(), torch.get_num_threads()
        count, rows = len(self.packed.up[:slots]), len(flat)
        inner = flat.new_empty((count, rows, self.intermediate_size))
        states = flat.new_empty((count, rows, self.hidden_size))
        for panels, to in zip(self.packed.up, inner, strict=False):
            panels.multiply(flat.data_ptr(), rows, to.data_ptr(), threads)
        F.silu(inner, inplace=True)
        for panels, given, to in zip(self.packed.down, inner, states, strict=False):
            panels.multiply(given.data_ptr(), rows, to.data_ptr(), threads)
        return (states + flat).transpose(0, 1).reshape(*hidden.shape[:-1], count, self.hidden_size)


def _panels(weights: Tensor) -> list[Any]:
    """``[heads, inputs, outputs]`` -> each head's, laid out."""
    turned = [each.T.contiguous() for each in weights.detach()]
    return [_narrow.Panels(each.data_ptr(), *each.shape) for each in turned]
