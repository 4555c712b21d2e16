"""Verifiers of non-autoregressive drafts, their sources, and the oracle of their texts."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from tests.helpers.tiny_families import VOCABULARY, tiny

MASK, END = 2, 5
NEW = 20
SOURCES = [[3, 4, 7, 9, END], [8, 6, END], [10, 11, 12, END], [21, END]]


def padded(sources: list[list[int]]) -> tuple[Tensor, Tensor]:
    width = max(map(len, sources))
    ids = torch.tensor([source + [0] * (width - len(source)) for source in sources])
    return ids, (ids != 0).long()


def greedy(verifier: Any, sources: list[list[int]], new: int = NEW) -> Tensor:
    ids, mask = padded(sources)
    out: Tensor = verifier.generate(ids, attention_mask=mask, do_sample=False, max_new_tokens=new)
    return out


def verifier_of(family: str, seed: int, eos: int | None = END) -> PreTrainedModel:
    """A random model whose text varies: an output embedding of its own, and attention turned down."""
    model = tiny(family, seed, eos=eos)
    torch.manual_seed(seed)
    output = torch.nn.Linear(16, VOCABULARY, bias=False)
    torch.nn.init.normal_(output.weight)
    model.set_output_embeddings(output)
    model.config.tie_word_embeddings = False
    with torch.no_grad():
        for name, parameter in model.get_decoder().named_parameters():
            if name.endswith("out_proj.weight"):
                parameter.mul_(0.15)
    return model
