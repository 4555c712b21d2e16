"""Attention to grouped keys and values that copies none of them, for long batches of single tokens on a GPU.

Several query heads share a group of keys. With a mask, ``sdpa`` of ``transformers`` copies the keys and values once for
each of these heads, which costs far more than to attend. Here the heads of a group are the rows of one attention.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch.nn.functional as F
from torch import Tensor
from transformers import AttentionInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

NAME = "grouped"


def attend(
    module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **options: Any
) -> tuple[Tensor, None]:
    """``[rows, n, heads, width]``, as ``sdpa`` of ``transformers``.

    query: ``[rows, heads, n, width]``.  key, value: ``[rows, groups, keys, width]``.
    attention_mask: ``[rows, 1, n, keys]``, True at what is visible.
    """
    rows, heads, length, width = query.shape
    groups = key.shape[1]
    if length > 1 or heads == groups or attention_mask is None:
        read, _ = sdpa_attention_forward(module, query, key, value, attention_mask, **options)
        return read, None
    together = query.view(rows, groups, heads // groups, width)
    out = F.scaled_dot_product_attention(
        together, key, value, attn_mask=attention_mask.expand(-1, -1, heads // groups, -1), scale=options.get("scaling")
    )
    return out.reshape(rows, 1, heads, width), None


@contextmanager
def grouped_attention(model: PreTrainedModel) -> Iterator[None]:
    """A model that attends by ``sdpa`` uses `attend` for a while; others stay as they are."""
    if model.config._attn_implementation != "sdpa":
        yield
        return
    AttentionInterface.register(NAME, attend)
    AttentionMaskInterface.register(NAME, sdpa_mask)
    model.set_attn_implementation(NAME)
    try:
        yield
    finally:
        model.set_attn_implementation("sdpa")
