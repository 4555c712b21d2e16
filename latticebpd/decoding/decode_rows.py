"""The rows of a decode: prompts without their padding, and the texts that grow from them.

Padding never reaches the model: each row is its own tokens, on whichever side it was padded. Only ``Text.commit`` adds
tokens. A text ends with an end-of-text token, by a stopping criterion (stop strings are one), or at its length limit;
tokens are committed one by one, so nothing after the end is ever part of the text or of a count.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import torch
from torch import Tensor
from transformers import (
    EosTokenCriteria,
    LogitsProcessorList,
    MaxLengthCriteria,
    PreTrainedTokenizerBase,
    StoppingCriteriaList,
)

from latticebpd.decoding.generation_config import GenerationSettings
from latticebpd.decoding.processors import check_processors, without_padding
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
    """

    prefix: Tensor
    tokens: list[list[int]]
    sources: list[list[int]]
    encoded: EncodedSource | None


def prepare(base: BaseModel, input_ids: Ids, attention_mask: Mask | None, settings: GenerationSettings) -> Prompts:
    """Check the prompts, remove their padding and, for an encoder–decoder, encode them.

    Without a mask the rule is ``generate()``'s: padding tokens are padding unless they also end texts. ValueError for
    wrong shapes, ids outside the vocabulary, empty prompts, sources too long for the encoder, or no start token.
    """
    ids, pad = _check_ids(input_ids, base.source_vocab_size), settings.config.pad_token_id
    if attention_mask is None:
        attention_mask = torch.ones_like(ids) if pad is None or pad in settings.eos_ids else ids != pad
    mask = torch.as_tensor(attention_mask).cpu().bool()
    mask = mask[None] if mask.ndim == 1 else mask
    rows = unpadded(ids, mask)
    if not base.is_encoder_decoder:
        return Prompts(ids, rows, [[] for _ in rows], None)
    base.check_sources(ids.shape[1])
    starts = torch.tensor(settings.start_ids(len(rows)))[:, None]
    source = EncodedSource.encode(base, ids.to(base.device), mask.long().to(base.device))
    return Prompts(starts, starts.tolist(), rows, source)


def _check_ids(input_ids: Ids, vocab_size: int) -> Tensor:
    """The prompts as a tensor ``[rows, n]``."""
    try:
        ids = torch.as_tensor(input_ids).cpu()
    except (ValueError, TypeError) as error:
        what = "expected prompts of equal length [rows, n]; pad them and pass an attention_mask"
        raise ValueError(f"{what} ({error})") from error
    ids = ids[None] if ids.ndim == 1 else ids
    if ids.ndim != 2 or not ids.numel():
        shape = tuple(ids.shape)
        raise ValueError(f"expected prompts [rows, n] or one prompt [n] of at least one token, got shape {shape}")
    low, high = ids.min(), ids.max()
    if ids.is_floating_point() or ids.dtype == torch.bool or low < 0 or high >= vocab_size:
        raise ValueError(f"expected token ids from 0 to {vocab_size - 1}, got {ids.dtype} from {low} to {high}")
    return ids.long()


def unpadded(ids: Tensor, mask: Tensor) -> list[list[int]]:
    """Each row's tokens under the mask, both ``[rows, n]``; ValueError for another shape or a row without tokens."""
    if mask.shape != ids.shape:
        wanted, got = tuple(ids.shape), tuple(mask.shape)
        raise ValueError(f"expected an attention_mask of the prompts' shape {wanted}, got {got}")
    rows = [line[read].tolist() for line, read in zip(ids, mask, strict=True)]
    if not all(rows):
        empty = f"none in row {rows.index([])}; is the attention mask all zero?"
        raise ValueError(f"expected at least one token in every prompt, got {empty}")
    return rows


@dataclass
class Text:
    """One growing row.

    tokens: the prompt and the committed tokens.
    max_length: of ``tokens``.
    eos_ids: tokens that end the text and stay in it.
    criteria: ``transformers``' stopping criteria, called after every token with this row's text alone.
    processors: of the text's logits.
    shown: what criteria and processors see in place of the prompt, by default the prompt.
    finished: no more tokens will come.
    """

    tokens: list[int]
    max_length: int
    eos_ids: frozenset[int]
    criteria: StoppingCriteriaList
    processors: LogitsProcessorList
    shown: list[int] = field(init=False)
    finished: bool = field(default=False, init=False)
    prompt_length: int = field(init=False)

    def __post_init__(self) -> None:
        self.prompt_length, self.shown = len(self.tokens), list(self.tokens)

    @property
    def new_tokens(self) -> list[int]:
        return self.tokens[self.prompt_length :]

    @property
    def max_depth(self) -> int:
        """How many tokens may be drafted: the model itself adds one after them."""
        return self.max_length - len(self.tokens) - 1

    def commit(self, tokens: Iterable[int]) -> list[int]:
        """Append tokens until the text ends; return those appended."""
        committed: list[int] = []
        for token in tokens:
            if self.finished:
                break
            self.tokens.append(token)
            committed.append(token)
            self.finished = len(self.tokens) >= self.max_length or token in self.eos_ids or self._meets_criteria()
        return committed

    def _meets_criteria(self) -> bool:
        if not self.criteria:
            return False
        ids: Any = torch.tensor([[*self.shown, *self.new_tokens]])
        return bool(torch.as_tensor(self.criteria(ids, None)).all())

    def processed(self, drafted: list[int], logits: Tensor) -> Tensor:
        """``[vocab]`` logits after the text and ``drafted`` tokens, as the processors leave them."""
        if not self.processors:
            return logits
        ids: Any = torch.tensor([[*self.shown, *self.new_tokens, *drafted]], device=logits.device)
        scores: Tensor = self.processors(ids, logits[None].to(torch.float32, copy=True))  # which may write in place
        return scores[0]


def begin_texts(
    base: BaseModel,
    settings: GenerationSettings,
    prompts: Prompts,
    logits_processor: LogitsProcessorList | None = None,
    stopping_criteria: StoppingCriteriaList | None = None,
    tokenizer: PreTrainedTokenizerBase | None = None,
) -> list[Text]:
    """The texts of a decode: their prompts, stop rules and processors.

    The caller's processors and criteria replace those of the same kind from the generation config. ValueError for a
    prompt that fills all positions, texts that cross LongRoPE's boundary, an inapplicable processor, or stop strings
    without a tokenizer.
    """
    width = prompts.prefix.shape[1]
    criteria = settings.criteria(width, stopping_criteria or [], tokenizer)
    eos_ids = frozenset(int(id_) for each in criteria if type(each) is EosTokenCriteria for id_ in each.eos_token_id)
    columns = min(each.max_length for each in criteria if type(each) is MaxLengthCriteria)
    others = [each for each in criteria if type(each) not in (EosTokenCriteria, MaxLengthCriteria)]
    lengths, positions = list(map(len, prompts.tokens)), base.max_positions
    limits = [length + max(columns - width, 1) for length in lengths]
    if positions is not None:  # no bound with relative positions, as T5's
        if max(lengths) >= positions:
            most = f"prompts of fewer than {positions} tokens (the model's positions)"
            raise ValueError(f"expected {most}, got {max(lengths)}; cut it")
        limits = [min(limit, positions) for limit in limits]
    base.check_rope_limit(min(lengths) - 1, max(limits))  # the first pass may leave out a prompt's last token
    own: list[Any] = logits_processor or []
    check_processors(own, len(lengths))
    texts = []
    for row, (tokens, source, limit) in enumerate(zip(prompts.tokens, prompts.sources, limits, strict=True)):
        padding = width - len(tokens)
        processors = without_padding(settings.processors(width, limit + padding, source or tokens, own), row, padding)
        texts.append(Text(list(tokens), limit, eos_ids, StoppingCriteriaList(others), processors))
    return texts


def until_end(tokens: list[int], eos_ids: frozenset[int]) -> list[int]:
    """The tokens up to and with the first that ends a text; all without one."""
    end = next((i for i, token in enumerate(tokens) if token in eos_ids), len(tokens))
    return tokens[: end + 1]
