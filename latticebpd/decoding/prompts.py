"""The prompts of a decode without their padding, or an encoder–decoder's sources.

Padding never reaches the model: each row is its own tokens, on whichever side it was padded. The padded tensor is kept
for the output, which looks like ``generate()``'s.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor

from latticebpd.decoding.generation_config import GenerationSettings
from latticebpd.target.forward import EncodedSource
from latticebpd.target.stock_model import BaseModel

Ids: TypeAlias = Tensor | Sequence[int] | Sequence[Sequence[int]]
Mask: TypeAlias = Tensor | Sequence[Sequence[int]]


@dataclass(frozen=True, eq=False)
class Prompts:
    """A batch of prompts.

    prefix: ``[rows, n]`` int64, what the output's rows begin with: the padded prompts, or the decoder's start tokens.
    tokens: each row's tokens, at least one, without padding.
    sources: each row's source tokens without padding; empty for a causal LM.
    encoded: the encoder's output; None for a causal LM.
    vocab_size: of the decoder; drafted tokens are smaller.
    """

    prefix: Tensor
    tokens: list[list[int]]
    sources: list[list[int]]
    encoded: EncodedSource | None
    vocab_size: int

    def __len__(self) -> int:
        return len(self.tokens)


def prepare(base: BaseModel, input_ids: Ids, attention_mask: Mask | None, settings: GenerationSettings) -> Prompts:
    """Check the prompts, remove their padding and, for an encoder–decoder, encode them.

    Without a mask the rule is ``generate()``'s: padding tokens are padding unless they also end texts.

    Raises:
        ValueError: wrong shapes, ids outside the vocabulary, a prompt without tokens, a source that is longer than the
            encoder can read, or no start token for the decoder.
    """
    ids, pad = _check_ids(input_ids, base.source_vocab_size), settings.config.pad_token_id
    if attention_mask is not None:
        mask = torch.as_tensor(attention_mask).cpu().bool()
    else:
        mask = torch.ones_like(ids).bool() if pad is None or pad in settings.eos_ids else ids != pad
    mask = mask[None] if mask.ndim == 1 else mask
    rows = unpadded(ids, mask)
    if not base.is_encoder_decoder:
        return Prompts(ids, rows, [[] for _ in rows], None, base.vocab_size)
    base.check_sources(ids.shape[1])
    starts = torch.tensor(settings.start_ids(len(rows)))[:, None]
    source = EncodedSource.encode(base, ids.to(base.device), mask.long().to(base.device))
    return Prompts(starts, starts.tolist(), rows, source, base.vocab_size)


def _check_ids(input_ids: Ids, vocab_size: int) -> Tensor:
    """The prompts as a tensor ``[rows, n]``."""
    try:
        ids = torch.as_tensor(input_ids).cpu()
    except (ValueError, TypeError) as error:
        raise ValueError(
            f"expected prompts of equal length [rows, n]; pad them and pass an attention_mask ({error})"
        ) from error
    ids = ids[None] if ids.ndim == 1 else ids
    if ids.ndim != 2 or not ids.numel():
        raise ValueError(
            f"expected prompts [rows, n] or one prompt [n] of at least one token, got shape {tuple(ids.shape)}"
        )
    low, high = ids.min(), ids.max()
    if ids.is_floating_point() or ids.dtype == torch.bool or low < 0 or high >= vocab_size:
        raise ValueError(f"expected token ids from 0 to {vocab_size - 1}, got {ids.dtype} from {low} to {high}")
    return ids.long()


def unpadded(ids: Tensor, mask: Tensor) -> list[list[int]]:
    """Each row's tokens under the mask, both ``[rows, n]``.

    Raises:
        ValueError: a mask of another shape, or a row without tokens.
    """
    if mask.shape != ids.shape:
        raise ValueError(
            f"expected an attention_mask of the prompts' shape {tuple(ids.shape)}, got {tuple(mask.shape)}"
        )
    rows = [line[read].tolist() for line, read in zip(ids, mask, strict=True)]
    if not all(rows):
        raise ValueError(
            f"expected at least one token in every prompt, got none in row {rows.index([])}; is the attention mask all"
            " zero?"
        )
    return rows
