"""Logits processors: each node's logits are processed with that node's own prefix.

A processor is called for one node at a time, with ``[1, length]`` ids (the row's text without padding, then the drafted
tokens down to the node) and ``[1, vocab]`` scores, as ``generate()`` does for one row. Processors that look at other
rows or remember earlier calls are refused by name. ``generate()`` counts columns, padding included; the thresholds of
processors that count from the beginning of a text are shifted by the padding.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

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
            expected = "logits processors that depend on a text and its scores alone"
            raise ValueError(f"expected {expected}, got {name}; use generate() for it")
        if name in BY_ROW and len(prompts) > 1:
            expected = f"one prompt with {name}, which tells rows apart by index"
            raise ValueError(f"expected {expected}, got {len(prompts)}; decode one by one")
    rows = []
    for row, (prompt, source, max_length) in enumerate(zip(prompts, sources, max_lengths, strict=True)):
        padding = width - len(prompt)
        processors: list[Any] = settings.processors(width, max_length + padding, source or prompt, given or [])
        if padding:  # ForcedBOS acts on texts of one column, which a padded one never is
            processors = [each for each in processors if not isinstance(each, ForcedBOSTokenLogitsProcessor)]
        rows.append(LogitsProcessorList(_shifted(each, row, padding) for each in processors))
    return rows


def _shifted(processor: Any, row: int, padding: int) -> Any:
    """The processor of a row whose text lacks the first ``padding`` columns; a copy if it counts columns."""
    counts = [name for kind, name in COUNTING.items() if isinstance(processor, kind)]
    changes = {name: getattr(processor, name) - padding for name in counts}
    ignored = getattr(processor, "prompt_ignore_length", None)  # one number, or one for each row
    if isinstance(processor, RepetitionPenaltyLogitsProcessor) and ignored is not None:
        own = int(ignored[row] if isinstance(ignored, Tensor) else ignored)
        changes["prompt_ignore_length"] = max(0, own - padding)
    if changes:
        processor = copy.copy(processor)
        vars(processor).update(changes)
    return processor
