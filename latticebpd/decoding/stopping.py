"""When a text ends: the one place that commits tokens.

A text ends with an end-of-text token, where a stopping criterion says so (stop strings are one), or at its length
limit.  Tokens are committed one by one, so that nothing behind the end is ever part of the text or of a count.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import torch
from transformers import PreTrainedTokenizerBase, StoppingCriteriaList, StopStringCriteria

from latticebpd.models.base import BaseModel, Model


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
    finished: no more tokens will come.
    """

    tokens: list[int]
    max_length: int
    rules: StopRules
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


def end_of_text_ids(model: Model, eos_token_id: int | Sequence[int] | None) -> frozenset[int]:
    """The given ids, or the model's own; an empty sequence stands for none."""
    if eos_token_id is None:
        return frozenset(BaseModel.of(model).eos_ids)
    return frozenset([eos_token_id] if isinstance(eos_token_id, int) else eos_token_id)


def length_limits(model: Model, prompt_lengths: Sequence[int], max_new_tokens: int) -> list[int]:
    """How long each text may become: its prompt and ``max_new_tokens``, but no longer than the model has positions.

    Raises:
        ValueError: ``max_new_tokens`` below 1, or a prompt that fills all positions.
    """
    if max_new_tokens < 1:
        raise ValueError(f"expected max_new_tokens >= 1, got {max_new_tokens}")
    positions = BaseModel.of(model).max_positions
    if positions is None:  # no bound, as with T5's relative positions
        return [length + max_new_tokens for length in prompt_lengths]
    if max(prompt_lengths) >= positions:
        raise ValueError(f"expected prompts of fewer than {positions} tokens (the model's positions), got {max(prompt_lengths)}; cut it")
    return [min(length + max_new_tokens, positions) for length in prompt_lengths]


def stopping_criteria_of(
    criteria: StoppingCriteriaList | None, stop_strings: str | Sequence[str] | None, tokenizer: PreTrainedTokenizerBase | None
) -> StoppingCriteriaList:
    """The given criteria and one for the stop strings.

    Raises:
        ValueError: stop strings without a tokenizer.
    """
    all_criteria = StoppingCriteriaList(criteria or [])
    if stop_strings:
        if tokenizer is None:
            raise ValueError("expected a tokenizer together with stop_strings, got none; pass tokenizer=")
        all_criteria.append(StopStringCriteria(tokenizer, [stop_strings] if isinstance(stop_strings, str) else list(stop_strings)))
    return all_criteria
