"""Logits processors: each node's logits are processed with that node's own prefix.

A tree's nodes stand for different texts, so a processor is called for one node at a time, ``[1, length]`` ids and
``[1, vocab]`` scores, with the row's text (padding left out) and the drafted tokens down to the node.  That is what
``generate()`` shows it for one row.  Processors for which that is not enough, because they look at the other rows of
a batch or remember earlier calls, are refused by name.

A model's generation config may ask for processors as well (a repetition penalty, forced or forbidden tokens);
``generate()`` heeds it, and so does this module.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import (
    ForcedBOSTokenLogitsProcessor,
    ForcedEOSTokenLogitsProcessor,
    InfNanRemoveLogitsProcessor,
    LogitsProcessorList,
    MinLengthLogitsProcessor,
    MinNewTokensLengthLogitsProcessor,
    NoBadWordsLogitsProcessor,
    NoRepeatNGramLogitsProcessor,
    PreTrainedModel,
    RepetitionPenaltyLogitsProcessor,
    SequenceBiasLogitsProcessor,
    SuppressTokensAtBeginLogitsProcessor,
    SuppressTokensLogitsProcessor,
)

REMEMBERING = frozenset({
    "UnbatchedClassifierFreeGuidanceLogitsProcessor",
    "ClassifierFreeGuidanceLogitsProcessor",
    "DiaClassifierFreeGuidanceLogitsProcessor",
    "AlternatingCodebooksLogitsProcessor",
    "SynthIDTextWatermarkLogitsProcessor",
    "EtaLogitsWarper",
})  # fmt: skip
BY_ROW = frozenset({
    "EncoderNoRepeatNGramLogitsProcessor",
    "EncoderRepetitionPenaltyLogitsProcessor",
    "PrefixConstrainedLogitsProcessor",
})  # fmt: skip
UNSUPPORTED_SETTINGS = (
    "encoder_no_repeat_ngram_size",
    "encoder_repetition_penalty",
    "exponential_decay_length_penalty",
    "guidance_scale",
    "watermarking_config",
)
"""Settings of a generation config that only ``generate()`` itself can honour; refused unless neutral."""


def node_processors(
    model: PreTrainedModel, given: LogitsProcessorList | None, prompts: Sequence[Sequence[int]], max_length: int, eos_ids: frozenset[int]
) -> LogitsProcessorList:
    """All processors of a decode: those of the model's generation config, then the given ones.

    Args:
        model: its ``generation_config`` is read.
        given: the caller's.
        prompts: without padding; of an encoder–decoder, the decoder's.
        max_length: the longest text, prompt included.
        eos_ids: tokens that end a text.

    Raises:
        ValueError: a processor or a setting that cannot be applied node by node.
    """
    for processor in given or []:
        name = type(processor).__name__
        if name in REMEMBERING:
            raise ValueError(f"expected logits processors that depend on a text and its scores alone, got {name}; use generate() for it")
        if name in BY_ROW and len(prompts) > 1:
            raise ValueError(f"expected one prompt with {name}, which tells rows apart by index, got {len(prompts)}; decode one by one")
    processors = _configured(model, {len(prompt) for prompt in prompts}, max_length, eos_ids)
    processors.extend(given or [])
    return processors


def _configured(model: PreTrainedModel, lengths: set[int], max_length: int, eos_ids: frozenset[int]) -> LogitsProcessorList:
    """The processors that the model's generation config asks for, in ``generate()``'s order."""
    config: Any = model.generation_config
    processors = LogitsProcessorList()
    if config is None:
        return processors
    for name in UNSUPPORTED_SETTINGS:
        if getattr(config, name, None) not in (None, 0, 1.0):
            raise ValueError(f"expected a generation config without {name}, got {getattr(config, name)}; set it to None on the model")
    device = str(model.device)
    eos = torch.tensor(sorted(eos_ids), device=model.device) if eos_ids else None
    if config.sequence_bias is not None:
        processors.append(SequenceBiasLogitsProcessor(config.sequence_bias))
    if config.repetition_penalty not in (None, 1.0):
        processors.append(RepetitionPenaltyLogitsProcessor(config.repetition_penalty))
    if config.no_repeat_ngram_size:
        processors.append(NoRepeatNGramLogitsProcessor(config.no_repeat_ngram_size))
    if config.bad_words_ids is not None:
        processors.append(NoBadWordsLogitsProcessor(config.bad_words_ids, eos))
    if config.min_length and eos is not None:
        processors.append(MinLengthLogitsProcessor(config.min_length, eos, device=device))
    if config.min_new_tokens and eos is not None:
        _same_length("min_new_tokens", lengths)
        processors.append(MinNewTokensLengthLogitsProcessor(max(lengths), config.min_new_tokens, eos, device=device))
    if config.forced_bos_token_id is not None:
        processors.append(ForcedBOSTokenLogitsProcessor(config.forced_bos_token_id))
    if config.forced_eos_token_id is not None:
        _same_length("forced_eos_token_id", lengths)
        processors.append(ForcedEOSTokenLogitsProcessor(max_length, config.forced_eos_token_id, device=device))
    if config.remove_invalid_values:
        processors.append(InfNanRemoveLogitsProcessor())
    if config.suppress_tokens is not None:
        processors.append(SuppressTokensLogitsProcessor(config.suppress_tokens, device=device))
    if config.begin_suppress_tokens is not None:
        _same_length("begin_suppress_tokens", lengths)
        begin = max(lengths)
        if begin == 1 and config.forced_bos_token_id is not None:
            begin = 2
        processors.append(SuppressTokensAtBeginLogitsProcessor(config.begin_suppress_tokens, begin, device=device))
    return processors


def _same_length(name: str, lengths: set[int]) -> None:
    """Some processors count from where the prompt ends, and can know one such place only."""
    if len(lengths) > 1:
        raise ValueError(
            f"expected prompts of one length with {name} in the generation config, got lengths {sorted(lengths)}; decode them one by one"
        )


def processed(processors: LogitsProcessorList, tokens: list[int], logits: Tensor) -> Tensor:
    """``[vocab]`` logits of what follows ``tokens``, as the processors leave them."""
    ids: Any = torch.tensor([tokens], device=logits.device)
    scores: Tensor = processors(ids, logits[None].float())
    return scores[0]
