"""Attention of a few tokens to a cache by a CPU kernel (``_kernels/attention.hpp``), an implementation for
``transformers``.

PyTorch's kernel sums in blocks that depend on the number of keys and columns. This one adds the values of the keys that
a column sees in the order of the text: a drafted token's result is that of the same token read alone, to the last bit.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

from latticebpd.cpu import _kernels

CPU_ATTENTION = "latticebpd_cpu"
"""The attention implementation of a model with CPU kernels."""

_NONE, _CAUSAL, _VISIBLE, _ADDED = range(4)


def attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """``[rows, heads, columns, size]`` queries, ``[rows, groups, keys, size]`` keys and values -> ``[rows, columns,
    heads, size]``.

    Arguments are those of ``transformers``' implementations; what the kernel cannot do is `sdpa_attention_forward`'s.
    """
    rows, heads, columns, size = query.shape
    groups, keys = key.shape[1:3]
    if (
        dropout
        or any(kwargs.get(name) is not None for name in ("position_bias", "cache", "softcap"))
        or not all(map(_is_plain, (query, key, value)))
        or size % 16
        or value.shape != key.shape
        or key.shape[0] != rows
        or heads % groups
        or not (rows and columns and keys)
        or (attention_mask is not None and not mask_fits(attention_mask, (rows, heads, columns, keys)))
    ):
        return sdpa_attention_forward(module, query, key, value, attention_mask, dropout, scaling, is_causal, **kwargs)
    causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
    mask = mask_view(attention_mask, rows, columns, causal)
    return run_attention(query, key, value, mask, size**-0.5 if scaling is None else scaling), None


@dataclass(frozen=True)
class MaskView:
    """A mask's kind, its address, and its strides by row, head, column and key."""

    kind: int
    address: int
    strides: tuple[int, ...]


def mask_view(mask: Tensor | None, rows: int, columns: int, causal: bool) -> MaskView:
    """mask: see `mask_fits`; None: all keys or, if ``causal``, keys with index <= column index."""
    if mask is None:
        return MaskView(_CAUSAL if causal and columns > 1 else _NONE, 0, (0, 0, 0, 0))
    mask = mask.expand(rows, -1, -1, -1)
    strides = (mask.stride(0), mask.stride(1) if mask.shape[1] > 1 else 0, *mask.stride()[2:])
    return MaskView(_VISIBLE if mask.dtype is torch.bool else _ADDED, mask.data_ptr(), strides)


def run_attention(query: Tensor, key: Tensor, value: Tensor, mask: MaskView, scale: float) -> Tensor:
    """``[rows, columns, heads, size]``; shapes and types as `attend` has checked them."""
    rows, heads, columns, size = query.shape
    output = query.new_empty((rows, columns, heads, size))
    _kernels.attend(
        (query.data_ptr(), key.data_ptr(), value.data_ptr(), mask.address, output.data_ptr()),
        (rows, heads, key.shape[1], columns, key.shape[2], size),
        (*query.stride()[:3], *key.stride()[:3], *value.stride()[:3], *mask.strides),
        mask.kind,
        scale,
        torch.get_num_threads(),
    )
    return output


def mask_fits(mask: Tensor, shape: tuple[int, int, int, int]) -> bool:
    """Whether a mask is ``[rows or 1, heads or 1, columns, keys]``, of what is visible or what is added to scores."""
    return (
        mask.ndim == 4
        and all(own in (1, size) for own, size in zip(mask.shape[:2], shape[:2], strict=True))
        and mask.shape[2:] == shape[2:]
        and mask.dtype in (torch.bool, torch.float32)
        and mask.device.type == "cpu"
    )


def _is_plain(tensor: Tensor) -> bool:
    return (
        tensor.dtype is torch.float32
        and tensor.device.type == "cpu"
        and tensor.stride(-1) == 1
        and not (tensor.requires_grad and torch.is_grad_enabled())
    )


AttentionInterface.register(CPU_ATTENTION, attend)
AttentionMaskInterface.register(CPU_ATTENTION, sdpa_mask)
