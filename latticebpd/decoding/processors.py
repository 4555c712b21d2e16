"""Logits processors: each node's logits are processed with that node's own prefix.

A processor is called for one node at a time, with ``[1, length]`` ids (the row's text without padding, then the drafted
tokens down to the node) and ``[1, vocab]`` scores, as ``generate()`` does for one row. Processors that look at other
rows or remember earlier calls are refused by name. ``generate()`` counts columns, padding included; the thresholds of
processors that count from the beginning of a text are shifted by the padding.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import Any

import transformers
from torch import Tensor
from transformers import LogitsProcessor, LogitsProcessorList

from latticebpd.checks import expect

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
    transformers.MinLengthLogitsProcessor: "min_length",
    transformers.MinNewTokensLengthLogitsProcessor: "prompt_length_to_skip",
    transformers.ForcedEOSTokenLogitsProcessor: "max_length",
    transformers.ExponentialDecayLengthPenalty: "regulation_start",
    transformers.SuppressTokensAtBeginLogitsProcessor: "begin_index",
}
"""Processors that count columns -> the attribute with their threshold."""


def check_processors(processors: Iterable[LogitsProcessor], rows: int) -> None:
    """ValueError for a caller's processor that cannot be applied node by node to so many rows."""
    for name in [type(processor).__name__ for processor in processors]:
        wanted = "logits processors that depend on a text and its scores only"
        expect(name not in REMEMBERING, wanted, name, "use generate() for it")
        wanted = f"one prompt with {name}, which tells rows apart by index"
        expect(name not in BY_ROW or rows <= 1, wanted, rows, "decode one by one")


def without_padding(processors: Iterable[Any], row: int, padding: int) -> LogitsProcessorList:
    """The processors of a row whose text lacks the first ``padding`` columns."""
    if padding:  # ForcedBOS acts on texts of one column, which a padded one never is
        processors = [each for each in processors if not isinstance(each, transformers.ForcedBOSTokenLogitsProcessor)]
    return LogitsProcessorList(_shifted(each, row, padding) for each in processors)


def _shifted(processor: Any, row: int, padding: int) -> Any:
    """The processor, or a copy if it counts columns."""
    counts = [name for kind, name in COUNTING.items() if isinstance(processor, kind)]
    changes = {name: getattr(processor, name) - padding for name in counts}
    ignored = getattr(processor, "prompt_ignore_length", None)  # one number, or one for each row
    if isinstance(processor, transformers.RepetitionPenaltyLogitsProcessor) and ignored is not None:
        own = int(ignored[row] if isinstance(ignored, Tensor) else ignored)
        changes["prompt_ignore_length"] = max(0, own - padding)
    if changes:
        processor = copy.copy(processor)
        vars(processor).update(changes)
    return processor
