"""What a request changes of the model's scores before a token is chosen, in vLLM's order: biases, the penalty of all
tokens of the text, those of the answer's tokens."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers import LogitsProcessor, RepetitionPenaltyLogitsProcessor, SequenceBiasLogitsProcessor

from latticebpd.serving.schema import INVALID, GenerationRequest, RequestError


class AnswerPenalties(LogitsProcessor):
    """OpenAI's penalties: from the score of each token that the answer has, ``presence`` is subtracted once and
    ``frequency`` for each time.

    prompt_length: tokens before the answer.
    """

    def __init__(self, prompt_length: int, presence: float, frequency: float) -> None:
        self.prompt_length, self.presence, self.frequency = prompt_length, presence, frequency

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        tokens, counts = torch.unique(input_ids[0, self.prompt_length :], return_counts=True)
        scores[:, tokens] -= self.frequency * counts
        scores[:, tokens] -= self.presence
        return scores


def processors_of(
    asked: GenerationRequest, prompt_length: int, vocab_size: int, repetition_penalty: float
) -> list[LogitsProcessor]:
    """A request's logits processors; RequestError for a bias of no token.

    repetition_penalty: of requests that give none, which the decode has already.
    """
    processors: list[Any] = []
    if asked.logit_bias:
        if (largest := max(asked.logit_bias)) >= vocab_size:
            expected = f"expected token ids from 0 to {vocab_size - 1}"
            raise RequestError(400, f"logit_bias: {expected}, got {largest}", INVALID, "logit_bias")
        biases: Any = [[[token], float(bias)] for token, bias in asked.logit_bias.items()]
        processors.append(SequenceBiasLogitsProcessor(biases))
    if asked.repetition_penalty not in (None, repetition_penalty):
        processors.append(RepetitionPenaltyLogitsProcessor(float(asked.repetition_penalty)))
    if asked.presence_penalty or asked.frequency_penalty:
        presence, frequency = asked.presence_penalty or 0.0, asked.frequency_penalty or 0.0
        processors.append(AnswerPenalties(prompt_length, presence, frequency))
    return processors
