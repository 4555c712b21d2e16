"""The block drafter's pass against an independent one, written piece by piece from the formulas."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import DynamicCache

from latticebpd.drafters.block.block_network import (
    BlockDrafter,
    anchored_blocks,
    check_target,
    config_for,
    default_layer_ids,
)
from latticebpd.models.transformers.transformers_model import TransformersModel
from tests.helpers.block_drafters import MASK, VOCAB, tiny_drafter, tiny_target

SIZE, HEADS, KEY_HEADS, HEAD = 24, 4, 2, 6


def rms_norm(x: Tensor, weight: Tensor, eps: float = 1e-6) -> Tensor:
    return x / (x.square().mean(-1, keepdim=True) + eps).sqrt() * weight


def rotated(x: Tensor, positions: Tensor, base: float = 10000.0) -> Tensor:
    """``[n, heads, size]``: the pair (i, i + size / 2) turned by position * base ** (-2 i / size)."""
    half = x.shape[-1] // 2
    angle = positions[:, None, None] * base ** (-torch.arange(half) / half)
    a, b = x[..., :half], x[..., half:]
    return torch.cat([a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()], -1)


def attended(queries: Tensor, keys: Tensor, values: Tensor, visible: Tensor) -> Tensor:
    """``[n, heads, size]`` queries, ``[m, key heads, size]`` keys and values, ``[n, m]`` bool -> ``[n, heads *
    size]``."""
    out = []
    for head in range(queries.shape[1]):
        group = head // (queries.shape[1] // keys.shape[1])
        scores = queries[:, head] @ keys[:, group].T / math.sqrt(queries.shape[2])
        out.append(torch.where(visible, scores, -torch.inf).softmax(-1) @ values[:, group])
    return torch.cat(out, -1)


def reference(
    weights: dict[str, Tensor], layers: int, states: Tensor, block: Tensor, anchor: int, causal: bool
) -> Tensor:
    """One row, one block: ``[anchor, layers * hidden]`` states and ``[n, hidden]`` embeddings -> ``[n, hidden]``."""
    context = rms_norm(states @ weights["fc.weight"].T, weights["hidden_norm.weight"])
    n = len(block)
    before, here = torch.arange(anchor), torch.arange(anchor, anchor + n)
    own = torch.ones(n, n, dtype=torch.bool)
    visible = torch.cat([torch.ones(n, anchor, dtype=torch.bool), own.tril() if causal else own], 1)
    for index in range(layers):
        w = {
            name.removeprefix(f"layers.{index}."): tensor
            for name, tensor in weights.items()
            if name.startswith(f"layers.{index}.")
        }
        x = rms_norm(block, w["input_layernorm.weight"])
        both = torch.cat([context, x])
        q = rms_norm((x @ w["self_attn.q_proj.weight"].T).view(n, HEADS, HEAD), w["self_attn.q_norm.weight"])
        k = rms_norm((both @ w["self_attn.k_proj.weight"].T).view(-1, KEY_HEADS, HEAD), w["self_attn.k_norm.weight"])
        v = (both @ w["self_attn.v_proj.weight"].T).view(-1, KEY_HEADS, HEAD)
        k = rotated(k, torch.cat([before, here]))
        block = block + attended(rotated(q, here), k, v, visible) @ w["self_attn.o_proj.weight"].T
        x = rms_norm(block, w["post_attention_layernorm.weight"])
        gate = x @ w["mlp.gate_proj.weight"].T
        block = block + (gate * gate.sigmoid() * (x @ w["mlp.up_proj.weight"].T)) @ w["mlp.down_proj.weight"].T
    return rms_norm(block, weights["norm.weight"])


def weights_of(drafter: BlockDrafter) -> dict[str, Tensor]:
    return {name: tensor.detach() for name, tensor in drafter.state_dict().items()}


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("layers", [1, 3])
def test_a_pass_over_many_anchors_computes_what_the_formulas_say_of_each(layers: int, causal: bool) -> None:
    drafter = tiny_drafter(tiny_target(), layers, 4, causal_head=causal)
    width = len(drafter.config.target_layer_ids) * SIZE
    states, block = torch.randn(2, 9, width), torch.randn(2, 12, SIZE)
    anchors = torch.tensor([[1, 4, 9], [3, 3, 7]])
    positions, visible = anchored_blocks(anchors, 4, 9, causal)
    with torch.inference_mode():
        output = drafter(states, torch.arange(9).expand(2, -1), block, positions, visible)
    for row in range(2):
        for number, anchor in enumerate(anchors[row].tolist()):
            part = slice(4 * number, 4 * number + 4)
            expected = reference(weights_of(drafter), layers, states[row, :anchor], block[row, part], anchor, causal)
            torch.testing.assert_close(output[row, part], expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("causal", [False, True])
def test_a_context_read_piece_by_piece_is_the_context_read_at_once(causal: bool) -> None:
    drafter = tiny_drafter(tiny_target(), 2, 4, causal_head=causal)
    states, block = torch.randn(1, 7, 2 * SIZE), torch.randn(1, 4, SIZE)
    positions, visible = anchored_blocks(torch.tensor([[7]]), 4, 7, causal)
    cache: Any = DynamicCache()
    with torch.inference_mode():
        for begin, end in ((0, 3), (3, 4), (4, 7)):
            drafter.read(states[:, begin:end], torch.arange(begin, end)[None], cache)
        pieces = drafter.fill(block, positions, visible, cache)
        full = drafter(states, torch.arange(7)[None], block, positions, visible)
    torch.testing.assert_close(pieces, full)


@pytest.mark.parametrize(("from_anchor", "said"), [(False, [1, 2, 3, 5, 6, 7]), (True, list(range(8)))])
def test_the_columns_that_say_slots(from_anchor: bool, said: list[int]) -> None:
    drafter = tiny_drafter(tiny_target(), 1, 4, sample_from_anchor=from_anchor)
    columns = torch.arange(8.0)[None, :, None].expand(1, 8, SIZE)
    assert drafter.slot_states(columns)[0, :, :, 0].flatten().tolist() == said
    assert drafter.config.slots == len(said) // 2


def test_gradients_reach_every_weight_that_a_loss_on_all_heads_uses() -> None:
    target = tiny_target()
    drafter = tiny_drafter(
        target, 2, 4, markov_rank=3, confidence=True, confidence_with_markov=True, draft_tokens=[1, 4, 9, 30]
    )
    positions, visible = anchored_blocks(torch.tensor([[2, 5]]), 4, 6, False)
    hidden = drafter(torch.randn(1, 6, 2 * SIZE), torch.arange(6)[None], torch.randn(1, 8, SIZE), positions, visible)
    said, previous = drafter.slot_states(hidden), torch.randint(VOCAB, (1, 2, 3))
    assert drafter.markov_head is not None
    logits = drafter.output(TransformersModel.of(target).projection)(said) + drafter.markov_head(previous)
    assert logits.shape == (1, 2, 3, 4)
    (logits.logsumexp(-1).sum() + drafter.confidence(said, previous).sum()).backward()
    silent = [
        name for name, parameter in drafter.named_parameters() if parameter.grad is None or not parameter.grad.any()
    ]
    assert not silent


def test_logits_of_a_reduced_vocabulary_are_those_of_its_tokens() -> None:
    target, hidden = tiny_target(), torch.randn(3, SIZE)
    projection = TransformersModel.of(target).projection
    reduced = tiny_drafter(target, draft_tokens=[2, 3, 11]).output(projection)(hidden)
    torch.testing.assert_close(reduced, projection(hidden)[:, [2, 3, 11]])
    own = tiny_drafter(target, draft_tokens=[2, 3, 11], own_head=True)
    assert own.lm_head is not None
    torch.testing.assert_close(own.output(projection)(hidden), hidden @ own.lm_head.weight.T)


@pytest.mark.parametrize(
    ("draft", "target", "layers"), [(1, 30, (15,)), (2, 30, (1, 27)), (5, 36, (1, 9, 17, 25, 33)), (3, 4, (1, 1, 1))]
)
def test_default_layers_are_dflashs(draft: int, target: int, layers: tuple[int, ...]) -> None:
    assert default_layer_ids(draft, target) == layers


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"block_size": 1}, "expected block_size >= 2, got 1"),
        ({"mask_token_id": VOCAB}, f"expected mask_token_id below {VOCAB}"),
        ({"target_layer_ids": (1, 5)}, "expected target_layer_ids below 5"),
        ({"target_layer_ids": ()}, "expected target_layer_ids >= 0, one or more"),
        ({"draft_vocab_size": VOCAB + 1}, f"expected draft_vocab_size from 1 to {VOCAB}"),
        ({"markov_rank": -1}, "expected markov_rank >= 0"),
        ({"confidence_with_markov": True}, "expected a confidence head and a markov_rank > 0"),
    ],
)
def test_numbers_that_describe_no_drafter_are_refused_by_name(parts: dict[str, Any], message: str) -> None:
    inputs = {"block_size": 4, "mask_token_id": MASK} | parts
    with pytest.raises(ValueError, match=message):
        config_for(tiny_target(), 2, **inputs)


@pytest.mark.parametrize("tokens", [[3, 2, 9], [1, 2], [1, 2, VOCAB], None])
def test_a_reduced_vocabulary_that_is_none_is_refused(tokens: list[int] | None) -> None:
    with pytest.raises(ValueError, match="expected draft_tokens"):
        BlockDrafter(config_for(tiny_target(), 1, 4, MASK, draft_vocab_size=3), tokens)


def test_a_drafter_of_another_target_is_refused_by_field() -> None:
    drafter = tiny_drafter(tiny_target(), tokenizer_fingerprint="sha256:a")
    check_target(drafter, tiny_target("qwen2"), "sha256:a")
    with pytest.raises(ValueError, match="the vocabulary sha256:b"):
        check_target(drafter, tiny_target(), "sha256:b")
    other = tiny_target()
    other.config.vocab_size = VOCAB + 1
    with pytest.raises(ValueError, match=f"expected a block drafter with vocab_size {VOCAB + 1}"):
        check_target(drafter, other)
