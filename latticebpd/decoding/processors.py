"""Logits processors: each node's logits are processed with that node's own prefix.

A tree's nodes stand for different texts, so a processor is called for one node at a time, ``[1, length]`` ids and
``[1, vocab]`` scores, with the row's text (padding left out) and the drafted tokens down to the node.  That is what
``generate()`` shows it for one row.  Processors for which that is not enough, because they look at the other rows of
a batch or remember earlier calls, are refused by name.

In a padded batch ``generate()`` counts columns, padding included; so those that count from a text's beginning are told
how much padding was taken off.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import (
    ExponentialDecayLengthPenalty,
    ForcedBOSTokenLogitsProcessor,
    ForcedEOSTokenLogitsProcessor,
    LogitsProcessor,
    LogitsProcessorList,
    MinLengthLogitsProcessor,
    MinNewTokensLengthLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    SuppressTokensAtBeginLogitsProcessor,
)

from latticebpd.decoding.generation_config import GenerationSettings

REMEMBERING = frozenset({
    "UnbatchedClassifierFreeGuidanceLogitsProcessor",
    "ClassifierFreeGuidanceLogitsProcessor",
    "DiaClassifierFreeGuidanceLogitsProcessor",
    "AlternatingCodebooksLogitsProcessor",
    "SynthIDTextWatermarkLogitsProcessor",
})  # fmt: skip
BY_ROW = frozenset({
    "EncoderNoRepeatNGramLogitsProcessor",
    "EncoderRepetitionPenaltyLogitsProcessor",
    "PrefixConstrainedLogitsProcessor",
})  # fmt: skip
COUNTING: dict[type[LogitsProcessor], str] = {
    MinLengthLogitsProcessor: "min_length",
    MinNewTokensLengthLogitsProcessor: "prompt_length_to_skip",
    ForcedEOSTokenLogitsProcessor: "max_length",
    ExponentialDecayLengthPenalty: "regulation_start",
    SuppressTokensAtBeginLogitsProcessor: "begin_index",
}
"""Processors that count columns -> where they hold the number they compare with."""


def node_processors(
    settings: GenerationSettings,
    given: LogitsProcessorList | None,
    width: int,
    prompts: Sequence[Sequence[int]],
    sources: Sequence[Sequence[int]],
    max_lengths: Sequence[int],
) -> list[LogitsProcessorList]:
    """Every row's processors: those of the model's generation config, then the given ones.

    Args:
        settings: the generation config and what the caller set besides.
        given: the caller's.
        width: columns of the prompts as they were given, padding included.
        prompts: without padding; of an encoder–decoder, the decoder's.
        sources: without padding; of a causal LM, empty.
        max_lengths: of each text, its prompt included.

    Raises:
        ValueError: a processor that cannot be applied node by node.
    """
    for processor in given or []:
        name = type(processor).__name__
        if name in REMEMBERING:
            raise ValueError(
                f"expected logits processors that depend on a text and its scores alone, got {name}; use generate()"
                " for it"
            )
        if name in BY_ROW and len(prompts) > 1:
            raise ValueError(
                f"expected one prompt with {name}, which tells rows apart by index, got {len(prompts)}; decode one"
                " by one"
            )
    rows = []
    for row, (prompt, source, max_length) in enumerate(zip(prompts, sources, max_lengths, strict=True)):
        padding = width - len(prompt)
        made = settings.processors(width, max_length + padding, source or prompt, given or [])
        rows.append(LogitsProcessorList(_of_row(made, row, padding)))
    return rows


def _of_row(processors: LogitsProcessorList, row: int, padding: int) -> list[Any]:
    """The processors for one row's text, from which ``padding`` columns were taken off at its beginning."""
    found = []
    for processor in processors:
        if padding and isinstance(processor, ForcedBOSTokenLogitsProcessor):
            continue  # acts in texts of one column, which a padded text never is
        for kind, name in COUNTING.items():
            if isinstance(processor, kind):
                processor = copy.copy(processor)
                setattr(processor, name, getattr(processor, name) - padding)
        ignored = getattr(processor, "prompt_ignore_length", None)  # of all rows, or of each
        if isinstance(processor, RepetitionPenaltyLogitsProcessor) and ignored is not None:
            processor = copy.copy(processor)
            processor.prompt_ignore_length = max(
                0, int(ignored[row] if isinstance(ignored, Tensor) else ignored) - padding
            )
        found.append(processor)
    return found


def processed(processors: LogitsProcessorList, tokens: list[int], logits: Tensor) -> Tensor:
    """``[vocab]`` logits of what follows ``tokens``, as the processors leave them."""
    ids: Any = torch.tensor([tokens], device=logits.device)
    scores: Tensor = processors(ids, logits[None].float())
    return scores[0]
