"""Logits processors: each node's logits are processed with that node's own prefix.

The nodes of a tree stand for different texts, so a processor is called for one node at a time, with ``[1, length]`` ids
(the row's text without padding, then the drafted tokens down to the node) and ``[1, vocab]`` scores. That is what
``generate()`` shows it for one row. Processors that look at other rows or remember earlier calls are refused by name.

In a padded batch ``generate()`` counts columns, padding included; the thresholds of processors that count from the
beginning of a text are shifted by the padding.
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
    "UnbatchedClassifierFreeGuidanceLogitsProcessor", "ClassifierFreeGuidanceLogitsProcessor",
    "DiaClassifierFreeGuidanceLogitsProcessor", "AlternatingCodebooksLogitsProcessor",
    "SynthIDTextWatermarkLogitsProcessor",
})  # fmt: skip
BY_ROW = frozenset({
    "EncoderNoRepeatNGramLogitsProcessor", "EncoderRepetitionPenaltyLogitsProcessor",
    "PrefixConstrainedLogitsProcessor",
})  # fmt: skip
COUNTING: dict[type[LogitsProcessor], str] = {
    MinLengthLogitsProcessor: "min_length",
    MinNewTokensLengthLogitsProcessor: "prompt_length_to_skip",
    ForcedEOSTokenLogitsProcessor: "max_length",
    ExponentialDecayLengthPenalty: "regulation_start",
    SuppressTokensAtBeginLogitsProcessor: "begin_index",
}
"""Processors that count columns -> the attribute with their threshold."""


def node_processors(
    settings: GenerationSettings,
    given: LogitsProcessorList | None,
    width: int,
    prompts: Sequence[Sequence[int]],
    sources: Sequence[Sequence[int]],
    max_lengths: Sequence[int],
) -> list[LogitsProcessorList]:
    """Every row's processors: those of the generation config and the caller's.

    Args:
        settings: the generation config with the caller's arguments.
        given: the caller's processors.
        width: columns of the prompts, padding included.
        prompts: without padding; of an encoder–decoder, the decoder's.
        sources: without padding; empty for a causal LM.
        max_lengths: of each text, its prompt included.

    Raises:
        ValueError: a processor that cannot be applied node by node.
    """
    for name in [type(processor).__name__ for processor in given or []]:
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
        processors = settings.processors(width, max_length + padding, source or prompt, given or [])
        rows.append(
            LogitsProcessorList(
                _shifted(each, row, padding)
                for each in processors  # ForcedBOS acts on texts of one column, which a padded one never is
                if not (padding and isinstance(each, ForcedBOSTokenLogitsProcessor))
            )
        )
    return rows


def _shifted(processor: Any, row: int, padding: int) -> Any:
    """The processor of a row whose text lacks the first ``padding`` columns; a copy if it counts columns."""
    changes = {
        name: getattr(processor, name) - padding for kind, name in COUNTING.items() if isinstance(processor, kind)
    }
    ignored = getattr(processor, "prompt_ignore_length", None)  # one number, or one for each row
    if isinstance(processor, RepetitionPenaltyLogitsProcessor) and ignored is not None:
        own = int(ignored[row] if isinstance(ignored, Tensor) else ignored)
        changes["prompt_ignore_length"] = max(0, own - padding)
    if changes:
        processor = copy.copy(processor)
        vars(processor).update(changes)
    return processor


def processed(processors: LogitsProcessorList, tokens: list[int], logits: Tensor) -> Tensor:
    """``[vocab]`` logits of what follows ``tokens``, as the processors leave them."""
    ids: Any = torch.tensor([tokens], device=logits.device)
    scores: Tensor = processors(ids, logits[None].float())
    return scores[0]
