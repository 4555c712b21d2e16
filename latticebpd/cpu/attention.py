"""Attention of a few tokens to a cache, computed by our own kernel (``_kernels/attention.hpp``).

It is an attention implementation of ``transformers``. PyTorch's kernel adds values up in blocks that depend on how many
keys and columns there are. This one adds those of the keys that a column looks at, in the order of the text: a drafted
token's result is that of the same token read alone, to the last bit.
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
"""The attention implementation of a model that `latticebpd.cpu.kernels` has changed."""

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
    """``[rows, heads, columns, size]`` queries, ``[rows, groups, places, size]`` keys and values -> ``[rows, columns,
    heads, size]``.

    Arguments are those of ``transformers``' implementations; what the kernel cannot do is `sdpa_attention_forward`'s.
    """
    rows, heads, columns, size = query.shape
    groups, places = key.shape[1:3]
    if (
        dropout
        or kwargs.get("position_bias") is not None
        or kwargs.get("cache") is not None
        or kwargs.get("softcap") is not None
        or not all(map(_plain, (query, key, value)))
        or size % 16
        or value.shape != key.shape
        or key.shape[0] != rows
        or heads % groups
        or not (rows and columns and places)
        or (attention_mask is not None and not fits(attention_mask, (rows, heads, columns, places)))
    ):
        return sdpa_attention_forward(module, query, key, value, attention_mask, dropout, scaling, is_causal, **kwargs)
    causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
    return run_attention(
        query, key, value, mask_view(attention_mask, rows, columns, causal), size**-0.5 if scaling is None else scaling
    ), None


@dataclass(frozen=True)
class MaskView:
    """What columns look at: its kind, where its numbers lie, and their strides by row, head, column and place."""

    kind: int
    address: int
    strides: tuple[int, ...]


def mask_view(mask: Tensor | None, rows: int, columns: int, causal: bool) -> MaskView:
    """mask: one that `fits`; None: everything or, where ``causal``, what stands before."""
    if mask is None:
        return MaskView(_CAUSAL if causal and columns > 1 else _NONE, 0, (0, 0, 0, 0))
    seen = mask.expand(rows, -1, -1, -1)
    strides = (seen.stride(0), seen.stride(1) if seen.shape[1] > 1 else 0, *seen.stride()[2:])
    return MaskView(_VISIBLE if mask.dtype is torch.bool else _ADDED, seen.data_ptr(), strides)


def run_attention(query: Tensor, key: Tensor, value: Tensor, looks: MaskView, scale: float) -> Tensor:
    """``[rows, columns, heads, size]``; shapes and types as `attend` has checked them."""
    rows, heads, columns, size = query.shape
    output = query.new_empty((rows, columns, heads, size))
    _kernels.attend(
        (query.data_ptr(), key.data_ptr(), value.data_ptr(), looks.address, output.data_ptr()),
        (rows, heads, key.shape[1], columns, key.shape[2], size),
        (*query.stride()[:3], *key.stride()[:3], *value.stride()[:3], *looks.strides),
        looks.kind,
        scale,
        torch.get_num_threads(),
    )
    return output


def fits(mask: Tensor, shape: tuple[int, int, int, int]) -> bool:
    """Whether it is what columns see, or adds to their scores; for all rows and heads alike or for each."""
    alike = mask.ndim == 4 and all(own in (1, whole) for own, whole in zip(mask.shape[:2], shape[:2], strict=True))
    return (
        alike
        and mask.shape[2:] == shape[2:]
        and mask.dtype in (torch.bool, torch.float32)
        and mask.device.type == "cpu"
    )


def _plain(tensor: Tensor) -> bool:
    return (
        tensor.dtype is torch.float32
        and tensor.device.type == "cpu"
        and tensor.stride(-1) == 1
        and not (tensor.requires_grad and torch.is_grad_enabled())
    )


AttentionInterface.register(CPU_ATTENTION, attend)
AttentionMaskInterface.register(CPU_ATTENTION, sdpa_mask)
