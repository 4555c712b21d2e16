"""When a text ends: the one place that commits tokens.

A text ends with an end-of-text token, where a stopping criterion says so (stop strings are one), or at its length
limit.  Tokens are committed one by one, so that nothing behind the end is ever part of the text or of a count.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
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
from latticebpd.target.stock_model import BaseModel, Model


@dataclass(frozen=True)
class StopRules:
    """What ends a text.

    eos_ids: tokens that end it and stay in it.
    criteria: ``transformers``' stopping criteria; each is asked after every token, with that row's text alone.
    """

    eos_ids: frozenset[int]
    criteria: StoppingCriteriaList

    def end(self, tokens: list[int]) -> bool:
        """Whether a text is complete, its last token having just been added."""
        if tokens[-1] in self.eos_ids:
            return True
        return bool(self.criteria) and bool(torch.as_tensor(self.criteria(torch.tensor([tokens]), None)).all())


@dataclass
class Text:
    """One growing row.

    tokens: the prompt and what has been committed.
    max_length: of ``tokens``.
    rules: what ends it besides.
    processors: what its logits go through.
    finished: no more tokens will come.
    """

    tokens: list[int]
    max_length: int
    rules: StopRules
    processors: LogitsProcessorList = field(default_factory=LogitsProcessorList)
    finished: bool = field(default=False, init=False)
    prompt_length: int = field(init=False)

    def __post_init__(self) -> None:
        self.prompt_length = len(self.tokens)

    @property
    def new_tokens(self) -> list[int]:
        return self.tokens[self.prompt_length :]

    @property
    def max_depth(self) -> int:
        """How many tokens may be drafted: the model itself adds one behind them."""
        return self.max_length - len(self.tokens) - 1

    def commit(self, tokens: Iterable[int]) -> list[int]:
        """Append tokens until the text ends; return those appended."""
        committed: list[int] = []
        for token in tokens:
            if self.finished:
                break
            self.tokens.append(token)
            committed.append(token)
            self.finished = len(self.tokens) >= self.max_length or self.rules.end(self.tokens)
        return committed

    def processed(self, drafted: list[int], logits: Tensor) -> Tensor:
        """``[vocab]`` logits of what follows drafted tokens behind the text, as the processors leave them."""
        return processed(self.processors, [*self.tokens, *drafted], logits) if self.processors else logits


def begin_texts(
    model: Model,
    settings: GenerationSettings,
    prompts: Prompts,
    logits_processor: LogitsProcessorList | None = None,
    stopping_criteria: StoppingCriteriaList | None = None,
    tokenizer: PreTrainedTokenizerBase | None = None,
) -> list[Text]:
    """The texts of a decode, which hold their prompts, with all that ends them and all that their logits go through.

    Processors and criteria of the caller's take the place of those of the same kind that the generation config asks
    for.

    Raises:
        ValueError: a prompt that fills all positions, texts that LongRoPE would have read anew, a processor that cannot
            be applied, or stop strings without a tokenizer.
    """
    width = prompts.given.shape[1]
    criteria = settings.criteria(width, stopping_criteria or [], tokenizer)
    eos_ids = {int(token) for each in criteria if type(each) is EosTokenCriteria for token in each.eos_token_id}
    columns = min(each.max_length for each in criteria if type(each) is MaxLengthCriteria)
    others = StoppingCriteriaList(
        [each for each in criteria if type(each) not in (EosTokenCriteria, MaxLengthCriteria)]
    )
    lengths = [len(tokens) for tokens in prompts.tokens]
    limits = length_limits(model, lengths, max(columns - width, 1))
    BaseModel.of(model).check_rope_limit(
        min(lengths) - 1, max(limits)
    )  # the first pass may leave a prompt's last token to the next
    processors = node_processors(settings, logits_processor, width, prompts.tokens, prompts.sources, limits)
    rules = StopRules(frozenset(eos_ids), others)
    return [
        Text(list(row), limit, rules, each) for row, limit, each in zip(prompts.tokens, limits, processors, strict=True)
    ]


def length_limits(model: Model, prompt_lengths: Sequence[int], max_new_tokens: int) -> list[int]:
    """How long each text may become: its prompt and ``max_new_tokens``, but no longer than the model has positions.

    Raises:
        ValueError: a prompt that fills all positions.
    """
    positions = BaseModel.of(model).max_positions
    if positions is None:  # no bound, as with T5's relative positions
        return [length + max_new_tokens for length in prompt_lengths]
    if max(prompt_lengths) >= positions:
        raise ValueError(
            f"expected prompts of fewer than {positions} tokens (the model's positions), got {max(prompt_lengths)};"
            " cut it"
        )
    return [min(length + max_new_tokens, positions) for length in prompt_lengths]
