"""DFlash 2's convolutions: each sublayer of a layer reads and returns columns mixed with those before them.

    out[i, c] = sum_t (base[t, c] + delta[i, t, c // group]) x[i - t, c]        x is zero before a block's first column

for tap t and channel c. One projection of a sublayer's normalised input gives the ``delta`` of both sides, input (0)
and output (1); the residual is added outside. The context's keys and values are not convolved.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers.models.qwen3.modeling_qwen3 import Qwen3DecoderLayer


class GroupedConvolution(nn.Module):
    """The convolutions around one sublayer; a new one changes nothing.

    base_kernel: ``[2, taps, hidden]``.  kernel_projection: ``[2 * taps * hidden / group, hidden]``.
    """

    def __init__(self, hidden_size: int, taps: int, group_size: int, block_size: int) -> None:
        super().__init__()
        self.taps, self.group_size, self.block_size = taps, group_size, block_size
        identity = torch.zeros(2, taps, hidden_size)
        identity[:, 0] = 1.0
        self.base_kernel = nn.Parameter(identity)
        self.kernel_projection = nn.Linear(hidden_size, 2 * taps * (hidden_size // group_size), bias=False)
        nn.init.zeros_(self.kernel_projection.weight)

    def kernels(self, normed: Tensor) -> Tensor:
        """``[rows, columns, hidden]`` -> ``[2, rows, columns, taps, hidden]``: the weights of either side."""
        delta = self.kernel_projection(normed).unflatten(-1, (2, self.taps, -1)).movedim(-3, 0)
        return self.base_kernel[:, None, None] + delta.repeat_interleave(self.group_size, dim=-1)

    def forward(self, columns: Tensor, kernel: Tensor) -> Tensor:
        """``[rows, blocks * block_size, hidden]``, each block convolved by itself."""
        blocks = columns.unflatten(1, (-1, self.block_size))
        taps = [F.pad(blocks, (0, 0, tap, 0))[:, :, : self.block_size] for tap in range(self.taps)]
        return (kernel * torch.stack(taps, dim=-2).flatten(1, 2)).sum(dim=-2)


class ConvolvedLayer(Qwen3DecoderLayer):
    """Qwen3's layer with convolutions around attention and MLP."""

    def __init__(self, layers: Any, index: int, convolutions: tuple[int, int, int]) -> None:
        """convolutions: taps, channels of a group, columns of a block."""
        super().__init__(layers, index)
        self.attention_conv = GroupedConvolution(layers.hidden_size, *convolutions)
        self.mlp_conv = GroupedConvolution(layers.hidden_size, *convolutions)

    def forward(self, hidden_states: Tensor, **attention: Any) -> Tensor:
        normed = self.input_layernorm(hidden_states)
        before, after = self.attention_conv.kernels(normed)
        attended, _ = self.self_attn(hidden_states=self.attention_conv(normed, before), **attention)
        hidden_states = hidden_states + self.attention_conv(attended, after)
        normed = self.post_attention_layernorm(hidden_states)
        before, after = self.mlp_conv.kernels(normed)
        return hidden_states + self.mlp_conv(self.mlp(self.mlp_conv(normed, before)), after)
