"""What vLLM's runner does with a proposer, in a few lines: passes over the packed tokens of a batch whose requests
come, go, change rows, are read in parts, taken from the cache, preempted and resumed. It imports no vLLM."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Writer:
    """Stands for what a model computes: states that depend on all tokens of a text, and a text that repeats itself but
    for some tokens."""

    vocab_size: int
    hidden_size: int
    layers: int

    def states(self, text: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
        """``[hidden]`` the final state after a text, and ``[layers, hidden]`` those of all layers."""
        drawn = self._draws(text).standard_normal((self.layers + 1, self.hidden_size)).astype(np.float32)
        return drawn[0], drawn[1:]

    def next_token(self, text: Sequence[int]) -> int:
        draws = self._draws([*text, -1])
        return int(text[-3]) if len(text) > 3 and draws.random() < 0.8 else int(draws.integers(self.vocab_size))

    def _draws(self, text: Sequence[int]) -> np.random.Generator:
        digest = hashlib.sha256(np.asarray(text, np.int64).tobytes()).digest()
        return np.random.default_rng(int.from_bytes(digest[:8], "little"))


def config(model: object, additional: Any = None, **changes: Any) -> SimpleNamespace:
    """Of ``vllm.config.VllmConfig`` what a proposer reads; changes: of the model's config."""
    sizes = {"vocab_size": 23, "hidden_size": 16, "layers": 2, "model_type": "llama", "max_model_len": 128}
    sizes |= {"enforce_eager": True, "num_speculative_tokens": 6, "full_graphs": False} | changes
    about = SimpleNamespace(
        model=str(model), max_model_len=sizes["max_model_len"], enforce_eager=sizes["enforce_eager"],
        hf_config=SimpleNamespace(model_type=sizes["model_type"]), get_hidden_size=lambda: sizes["hidden_size"],
        hf_text_config=SimpleNamespace(num_hidden_layers=sizes["layers"]), get_vocab_size=lambda: sizes["vocab_size"],
    )  # fmt: skip
    graphs = SimpleNamespace(cudagraph_mode=SimpleNamespace(has_full_cudagraphs=lambda: sizes["full_graphs"]))
    drafting = SimpleNamespace(num_speculative_tokens=sizes["num_speculative_tokens"])
    return SimpleNamespace(
        model_config=about, compilation_config=graphs, speculative_config=drafting, additional_config=additional or {}
    )


class Layer(nn.Module):
    """Returns states in two parts, as vLLM's layers do."""

    def forward(self, states: Tensor) -> tuple[Tensor, Tensor]:
        even = torch.arange(states.shape[-1]) % 2
        return states * even, states * (1 - even)


class Target(nn.Module):
    """A model as vLLM has it: packed tokens in, packed final states out."""

    def __init__(self, embeddings: Tensor, layers: int) -> None:
        super().__init__()
        self.lm_head = nn.Linear(embeddings.shape[1], embeddings.shape[0], bias=False)
        self.lm_head.weight.data = embeddings
        self.model = nn.Module()
        self.inner = self.model.layers = nn.ModuleList(Layer() for _ in range(layers))

    def forward(self, final: Tensor, inner: Tensor) -> Tensor:
        """final, inner: the answers, ``[tokens, hidden]`` and ``[tokens, layers, hidden]``."""
        for number, layer in enumerate(self.inner):
            layer(inner[:, number])
        return final


@dataclass
class Request:
    """tokens: the text so far. computed: how many of them are in the cache. draft: what is verified next."""

    tokens: list[int]
    computed: int = 0
    draft: list[int] = field(default_factory=list)


def provide_forward_context(patch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Stands for ``vllm.forward_context``; its ``attn_metadata`` is that of the pass under way."""
    context, module = SimpleNamespace(attn_metadata=None), ModuleType("vllm.forward_context")
    module.get_forward_context = lambda: context  # type: ignore[attr-defined]
    patch.setitem(sys.modules, "vllm", ModuleType("vllm"))
    patch.setitem(sys.modules, "vllm.forward_context", module)
    return context


def step(
    target: Target, proposer: Any, context: Any, writer: Writer, batch: Sequence[Request], parts: Sequence[int]
) -> None:
    """One pass over a batch and the drafts after it.  parts: how many tokens of each request are read at most.

    A request's whole draft is read with its last token; of a text that is not in the cache yet at most so many tokens,
    and nothing is written until all are read.
    """
    read: list[list[tuple[int, ...]]] = []
    for request, most in zip(batch, parts, strict=True):
        text = request.tokens + request.draft
        end = min(len(text), request.computed + most) if request.computed < len(request.tokens) - 1 else len(text)
        read.append([tuple(text[: at + 1]) for at in range(request.computed, end)])
    answers = [writer.states(prefix) for prefixes in read for prefix in prefixes]
    bounds = np.cumsum([0, *map(len, read)])
    lengths = [request.computed + len(prefixes) for request, prefixes in zip(batch, read, strict=True)]
    about = SimpleNamespace(query_start_loc=torch.tensor(bounds), seq_lens=torch.tensor(lengths))
    context.attn_metadata = {"model.layers.0.self_attn.attn": about}
    target(*(torch.from_numpy(np.stack(each)) for each in zip(*answers, strict=True)))
    context.attn_metadata = None
    sampled = [advance(request, len(prefixes), writer) for request, prefixes in zip(batch, read, strict=True)]
    ids = np.zeros((len(batch) + 1, 256), np.int32)
    for row, request in enumerate(batch):
        ids[row, : len(request.tokens)] = request.tokens
    counts = np.array([*(len(request.tokens) for request in batch), 0], np.int32)
    drafts = proposer.propose(sampled, counts, ids, slot_mappings=None)
    for request, draft in zip(batch, drafts, strict=True):
        request.draft = draft


def advance(request: Request, read: int, writer: Writer) -> list[int]:
    """What a request has written once so many more tokens are read."""
    if request.computed + read < len(request.tokens):
        request.computed += read
        return []
    written: list[int] = []
    checked = request.draft[: request.computed + read - len(request.tokens)]
    for drafted in [*checked, None]:
        token = writer.next_token(request.tokens)
        request.tokens.append(token)
        written.append(token)
        if token != drafted:
            break
    request.computed = len(request.tokens) - 1
    return written
