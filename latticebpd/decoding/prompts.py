"""What a decode starts from: prompts without their padding, or an encoder–decoder's sources.

Padding never reaches the model: each row is its own tokens, on whichever side it was padded.  The padded tensor is
kept for the output, which looks like ``generate()``'s.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from latticebpd.decoding.generation_config import GenerationSettings
from latticebpd.target.forward import EncodedSource
from latticebpd.target.stock_model import BaseModel, Model


@dataclass(frozen=True, eq=False)
class Prompts:
    """A batch of prompts.

    given: ``[rows, n]`` int64, what the output's rows begin with: the prompts as they came, or the decoder's start.
    tokens: each row's tokens, at least one, without padding.
    sources: each row's source tokens without padding; empty for a causal LM.
    encoded: what the decoder reads of them; None for a causal LM.
    vocab_size: of the decoder, which drafted tokens must stay below.
    """

    given: Tensor
    tokens: list[list[int]]
    sources: list[list[int]]
    encoded: EncodedSource | None
    vocab_size: int

    def __len__(self) -> int:
        return len(self.tokens)


def prepare(
    model: Model,
    input_ids: Tensor | Sequence[int] | Sequence[Sequence[int]],
    attention_mask: Tensor | Sequence[Sequence[int]] | None,
    settings: GenerationSettings,
) -> Prompts:
    """Check the prompts, take their padding off and, for an encoder–decoder, encode them.

    Raises:
        ValueError: wrong shapes, ids outside the vocabulary, a prompt without tokens, a source that is longer than the
            encoder can read, or no start token for the decoder.
    """
    base = BaseModel.of(model)
    ids = _ids(input_ids, base.source_vocab_size)
    mask = _mask(ids, attention_mask, settings.config.pad_token_id, settings.eos_ids)
    rows = [line[kept].tolist() for line, kept in zip(ids, mask, strict=True)]
    empty = [row for row, tokens in enumerate(rows) if not tokens]
    if empty:
        raise ValueError(
            f"expected at least one token in every prompt, got none in row {empty[0]}; is the attention mask all zero?"
        )
    if not base.is_encoder_decoder:
        return Prompts(ids, rows, [[] for _ in rows], None, base.vocab_size)
    base.check_sources(ids.shape[1])
    given = torch.tensor(settings.start_ids(len(rows)))[:, None]
    source = EncodedSource.encode(base, ids.to(base.device), mask.long().to(base.device))
    return Prompts(given, given.tolist(), rows, source, base.vocab_size)


def _ids(input_ids: Tensor | Sequence[int] | Sequence[Sequence[int]], vocabulary: int) -> Tensor:
    try:
        ids = torch.as_tensor(input_ids).cpu()
    except (ValueError, TypeError) as error:
        raise ValueError(
            f"expected prompts of equal length [rows, n]; pad them and pass an attention_mask ({error})"
        ) from error
    if ids.ndim == 1:
        ids = ids[None]
    if ids.ndim != 2 or not ids.numel():
        raise ValueError(
            f"expected prompts [rows, n] or one prompt [n] of at least one token, got shape {tuple(ids.shape)}"
        )
    if ids.is_floating_point() or ids.dtype == torch.bool or int(ids.min()) < 0 or int(ids.max()) >= vocabulary:
        raise ValueError(
            f"expected token ids from 0 to {vocabulary - 1}, got {ids.dtype} from {ids.min()} to {ids.max()}"
        )
    return ids.long()


def _mask(
    ids: Tensor, attention_mask: Tensor | Sequence[Sequence[int]] | None, pad: int | None, eos_ids: Sequence[int]
) -> Tensor:
    """``[rows, n]`` bool. Without a mask the rule is ``generate()``'s: padding tokens are padding unless they end
    texts."""
    if attention_mask is None:
        return ids != pad if pad is not None and pad not in eos_ids else torch.ones_like(ids, dtype=torch.bool)
    mask = torch.as_tensor(attention_mask).cpu().bool()
    mask = mask[None] if mask.ndim == 1 else mask
    if mask.shape != ids.shape:
        raise ValueError(
            f"expected an attention_mask of the prompts' shape {tuple(ids.shape)}, got {tuple(mask.shape)}"
        )
    return mask
