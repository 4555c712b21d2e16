"""How well models predict held-out text, and what drafts save."""

from __future__ import annotations

import math

import torch

from latticebpd.decoding.generation_config import beams_ignored
from latticebpd.decoding.loop import generate
from latticebpd.drafters import Drafter
from latticebpd.lattices.texts import Texts, padded
from latticebpd.models.transformers.transformers_model import Model

TOP = (1, 4, 16)
"""Accuracy is the share of labels among so many best tokens."""


def token_measures(loss: float, right: float, labels: float, digits: int) -> dict[str, float]:
    """Mean cross-entropy, perplexity with so many digits, and accuracy, of sums over labels."""
    mean = loss / max(labels, 1)
    perplexity = round(math.exp(min(mean, 700.0)), digits)
    return {"loss": round(mean, 4), "perplexity": perplexity, "accuracy": round(right / max(labels, 1), 4)}


def block_efficiency(model: Model, drafter: Drafter, prompts: Texts, count: int, max_new_tokens: int) -> float:
    """Of decoding the first so many prompts together, over all of them."""
    ids, mask = map(torch.from_numpy, padded([prompts[index] for index in range(min(count, len(prompts)))], 0))
    with beams_ignored(model):
        return generate(model, ids, drafter, attention_mask=mask, max_new_tokens=max_new_tokens).block_efficiency
