"""When a text ends: the only code that commits tokens.

A text ends with an end-of-text token, by a stopping criterion (stop strings are one), or at its length limit. Tokens
are committed one by one, so nothing after the end is ever part of the text or of a count.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

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
from latticebpd.decoding.processors import node_processors, processed
from latticebpd.decoding.prompts import Prompts
from latticebpd.target.stock_model import BaseModel


@dataclass
class Text:
    """One growing row.

    tokens: the prompt and the committed tokens.
    max_length: of ``tokens``.
    eos_ids: tokens that end the text and stay in it.
    criteria: ``transformers``' stopping criteria, called after every token with this row's text alone.
    processors: of the text's logits.
    finished: no more tokens will come.
    """

    tokens: list[int]
    max_length: int
    eos_ids: frozenset[int]
    criteria: StoppingCriteriaList
    processors: LogitsProcessorList
    finished: bool = field(default=False, init=False)
    prompt_length: int = field(init=False)

    def __post_init__(self) -> None:
        self.prompt_length = len(self.tokens)

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
        return bool(self.criteria) and bool(torch.as_tensor(self.criteria(torch.tensor([self.tokens]), None)).all())

    def processed(self, drafted: list[int], logits: Tensor) -> Tensor:
        """``[vocab]`` logits after the text and ``drafted`` tokens, as the processors leave them."""
        return processed(self.processors, [*self.tokens, *drafted], logits) if self.processors else logits


def begin_texts(
    base: BaseModel,
    settings: GenerationSettings,
    prompts: Prompts,
    logits_processor: LogitsProcessorList | None = None,
    stopping_criteria: StoppingCriteriaList | None = None,
    tokenizer: PreTrainedTokenizerBase | None = None,
) -> list[Text]:
    """The texts of a decode: their prompts, stop rules and processors.

    The caller's processors and criteria replace those of the same kind that the generation config asks for.

    Raises:
        ValueError: a prompt that fills all positions, texts that cross LongRoPE's boundary, a processor that cannot be
            applied, or stop strings without a tokenizer.
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
            raise ValueError(
                f"expected prompts of fewer than {positions} tokens (the model's positions), got {max(lengths)}; cut it"
            )
        limits = [min(limit, positions) for limit in limits]
    base.check_rope_limit(min(lengths) - 1, max(limits))  # the first pass may leave out a prompt's last token
    processors = node_processors(settings, logits_processor, width, prompts.tokens, prompts.sources, limits)
    return [
        Text(list(tokens), limit, eos_ids, StoppingCriteriaList(others), each)
        for tokens, limit, each in zip(prompts.tokens, limits, processors, strict=True)
    ]
