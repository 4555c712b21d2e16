"""Block drafters as sources of lattices: decodes equal to ``generate()``, contexts that are kept, chains of bigrams."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from latticebpd import custom_generate, generate
from latticebpd.decoding.pass_costs import profile
from latticebpd.drafters import (
    BestTree,
    BlockLattices,
    LatticeDrafter,
    MarkovAndConfidenceHeads,
    MixtureDrafter,
    PromptNgramDrafter,
    State,
    Vanilla,
)
from latticebpd.drafters.block.block_lattices import block_lattices
from latticebpd.drafters.block.block_network import BlockDrafter
from latticebpd.drafters.drafter import needs_layers
from latticebpd.lattices.drafts import DraftTree
from latticebpd.lattices.sausage import greedy_chain
from latticebpd.models.transformers.transformers_model import TransformersModel
from latticebpd.scoring.rescoring import as_scorer
from tests.helpers.block_drafters import MASK, VOCAB, tiny_drafter, tiny_target
from tests.helpers.trigrams import trigram

PROMPTS = [[5, 9, 12, 4, 7], [3, 20], [11, 6, 1, 8, 14, 22, 2, 19]]
KINDS: dict[str, dict[str, Any]] = {
    "dflash": {},
    "causal": {"causal_head": True},
    "from the anchor": {"sample_from_anchor": True},
    "causal from the anchor": {"causal_head": True, "sample_from_anchor": True},
    "reduced": {"draft_tokens": [1, 3, 4, 7, 8, 11, 12, 19, 20, 25, 29]},
    "dspark": {"sample_from_anchor": True, "markov_rank": 3, "confidence": True, "confidence_with_markov": True},
    "reduced dspark": {"markov_rank": 3, "confidence": True, "draft_tokens": list(range(3, 23)), "own_head": True},
}


def layer_states(target: PreTrainedModel, tokens: list[int], layers: tuple[int, ...]) -> Tensor:
    """Of all tokens, by a plain pass."""
    with torch.inference_mode():
        states = target(input_ids=torch.tensor([tokens]), output_hidden_states=True).hidden_states
    return torch.cat([states[layer + 1][0] for layer in layers], dim=-1)


def padded() -> tuple[list[list[int]], list[list[int]]]:
    width = max(map(len, PROMPTS))
    return [[0] * (width - len(row)) + row for row in PROMPTS], [
        [0] * (width - len(row)) + [1] * len(row) for row in PROMPTS
    ]


def greedy(target: PreTrainedModel, new: int) -> list[list[int]]:
    return [
        target.generate(torch.tensor([row]), do_sample=False, max_new_tokens=new)[0, len(row) :].tolist()
        for row in PROMPTS
    ]


@pytest.mark.parametrize("kind", KINDS)
def test_drafters_with_weights_rounded_to_8_bits_draft_nearly_the_same(kind: str) -> None:
    target, text = tiny_target(), [5, 9, 12, 4, 7]
    plain, rounded = (tiny_drafter(target, **KINDS[kind]) for _ in range(2))
    rounded.use_int8()
    assert not [each for each in rounded.modules() if isinstance(each, nn.Linear)]
    assert rounded.state_dict().keys() == plain.state_dict().keys()
    states = layer_states(target, text, plain.config.target_layer_ids)[:-1]
    with torch.inference_mode():
        approximate, expected = (
            drafter.output(TransformersModel.of(target).projection)(
                BlockLattices(drafter, target).filler.states([State(0, text, 2, None, 9, (), states)])
            )
            for drafter in (rounded, plain)
        )
    assert 0 < (approximate - expected).norm() < 0.08 * expected.norm()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("family", ["llama", "qwen2"])
def test_texts_of_a_batch_are_those_of_generate(family: str, kind: str) -> None:
    target = tiny_target(family)
    drafter = tiny_drafter(target, **KINDS[kind])
    ids, mask = padded()
    expected = greedy(target, 14)
    for strategy in (Vanilla(), BestTree(as_scorer(trigram(VOCAB), 0.5), 12)):
        run = LatticeDrafter(BlockLattices(drafter, target, 5), strategy)
        out = generate(target, ids, run, max_new_tokens=14, attention_mask=mask, trace=True)
        for row, text in enumerate(expected):
            written = [token for block in out.blocks(row) for token in block]
            assert written == text


@pytest.mark.parametrize("use_cache", [True, False])
def test_the_states_a_drafter_sees_are_those_of_a_plain_pass(use_cache: bool) -> None:
    target, seen = tiny_target(seed=3), []

    class Watcher:
        """Drafts a branching tree, half of it right, so that columns are kept out of order."""

        needs_layers = (0, 3)

        def propose(self, states: list[State]) -> list[DraftTree]:
            for state in states:
                assert state.layers is not None
                seen.append((list(state.tokens), state.layers.clone()))
            right = [greedy_texts[state.row][len(state.tokens) - state.prompt_length :] for state in states]
            return [
                DraftTree.from_paths([[7, 8], text[:2], [*text[:1], 9]]) if len(text) > 1 else DraftTree.empty()
                for text in right
            ]

        def observe(self, rows: Any, tokens: Any) -> None:
            pass

    ids, mask = padded()
    greedy_texts = greedy(target, 12)
    out = generate(target, ids, Watcher(), max_new_tokens=12, attention_mask=mask, use_cache=use_cache)
    assert out.block_efficiency > 1.5
    assert len(seen) > 6
    for tokens, states in seen:
        torch.testing.assert_close(states, layer_states(target, tokens, (0, 3))[:-1], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", ["dflash", "causal from the anchor"])
def test_a_kept_context_gives_the_lattices_of_one_read_anew(kind: str) -> None:
    target = tiny_target(seed=3)
    drafter = tiny_drafter(target, **KINDS[kind])
    kept = BlockLattices(drafter, target, 4)

    class Compared:
        needs_layers = kept.needs_layers
        drafts = LatticeDrafter(kept, Vanilla())
        compared = 0

        def propose(self, states: list[State]) -> list[DraftTree]:
            lattices = kept.lattices(states)
            for lattice, state in zip(lattices, states, strict=True):
                (single,) = BlockLattices(drafter, target, 4).lattices([state])
                assert lattice is not None
                assert single is not None
                assert np.array_equal(lattice.tokens, single.tokens)
                np.testing.assert_allclose(lattice.log_probs, single.log_probs, atol=1e-4)
                self.compared += 1
            return [
                DraftTree.from_paths([text])
                for text in (greedy_texts[s.row][len(s.tokens) - s.prompt_length :][:2] for s in states)
            ]

        def observe(self, rows: Any, tokens: Any) -> None:
            pass

    ids, mask = padded()
    greedy_texts = greedy(target, 16)
    compared = Compared()
    generate(target, ids, compared, max_new_tokens=16, attention_mask=mask)
    assert compared.compared > 10


def test_lattices_hold_the_best_tokens_of_the_drafters_own_pass() -> None:
    target = tiny_target()
    drafter = tiny_drafter(target, draft_tokens=[2, 5, 8, 9, 30])
    text = [4, 17, 9, 21]
    states = layer_states(target, text, drafter.config.target_layer_ids)[:-1]
    (lattice,) = BlockLattices(drafter, target, 3).lattices([State(0, text, 2, None, 9, (), states)])
    assert lattice is not None
    assert lattice.slots == 3
    embedded = target.get_input_embeddings().weight[[21, MASK, MASK, MASK]][None]
    with torch.inference_mode():
        hidden = drafter(
            states[None],
            torch.arange(3)[None],
            embedded,
            torch.arange(3, 7)[None],
            torch.ones(1, 4, 7, dtype=torch.bool),
        )
        log_probs = (hidden[0, 1:] @ target.get_output_embeddings().weight[[2, 5, 8, 9, 30]].T).log_softmax(-1)
    best = log_probs.sort(dim=-1, descending=True)
    assert lattice.tokens.tolist() == np.array([2, 5, 8, 9, 30])[best.indices[:, :3].numpy()].tolist()
    np.testing.assert_allclose(lattice.log_probs, best.values[:, :3].numpy(), atol=1e-4)


def test_a_lattice_has_no_more_slots_than_may_be_drafted_or_were_asked_for() -> None:
    target = tiny_target()
    drafter = tiny_drafter(target, block_size=6)
    states = layer_states(target, [4, 5, 6], drafter.config.target_layer_ids)[:-1]

    def slots(depth: int, wanted: int | None = None) -> int:
        (lattice,) = BlockLattices(drafter, target, 3, wanted).lattices(
            [State(0, [4, 5, 6], 3, None, depth, (), states)]
        )
        assert lattice is not None
        return lattice.slots

    assert [slots(9), slots(2), slots(9, 4), slots(3, 4)] == [5, 2, 4, 3]


def test_rows_that_come_and_go_keep_the_texts_of_generate() -> None:
    """A mixture asks its second drafter for some rows at some calls only."""
    target = tiny_target(seed=3)
    lattices = LatticeDrafter(BlockLattices(tiny_drafter(target), target, 4), BestTree(as_scorer(None), 8))
    mixed = MixtureDrafter(PromptNgramDrafter(block_size=6, num_nodes=6), lattices, num_nodes=8)
    assert needs_layers(mixed) == lattices.needs_layers == (1, 2)
    ids, mask = padded()
    out = generate(target, ids, mixed, max_new_tokens=30, attention_mask=mask, trace=True)
    for row, text in enumerate(greedy(target, 30)):
        assert [token for block in out.blocks(row) for token in block] == text


def test_costs_of_drafting_are_measured_with_the_layers_states() -> None:
    target = tiny_target(seed=3)
    source = BlockLattices(tiny_drafter(target), target, 4)
    shapes: list[tuple[int, ...]] = []

    class Watched(LatticeDrafter):
        def propose(self, states: Sequence[State]) -> list[DraftTree]:
            shapes.extend(tuple(each.layers.shape) for each in states if each.layers is not None)
            return super().propose(states)

    costs = profile(target, (1, 4), (1, 2), 6, 2, Watched(source, BestTree(as_scorer(None), 8)))
    assert len(costs.drafting) == 2
    assert shapes == [(5, 2 * target.config.hidden_size)] * 9  # three turns of one row and of two


def test_transformers_own_generate_drafts_by_blocks() -> None:
    target: Any = tiny_target(seed=3)
    drafter = LatticeDrafter(BlockLattices(tiny_drafter(target, layers=1), target, 4), BestTree(as_scorer(None), 8))
    ids = torch.tensor([PROMPTS[0]])
    written = target.generate(ids, custom_generate=custom_generate(drafter), do_sample=False, max_new_tokens=12)
    assert written.tolist() == target.generate(ids, do_sample=False, max_new_tokens=12).tolist()


def test_drafters_that_need_other_layers_cannot_be_mixed() -> None:
    target = tiny_target()
    one, two = (
        LatticeDrafter(
            BlockLattices(tiny_drafter(target, target_layer_ids=ids), target, 4), BestTree(as_scorer(None), 8)
        )
        for ids in ((0,), (1,))
    )
    with pytest.raises(
        ValueError, match=r"expected drafters that need the same layers of the model, got \(0,\) and \(1,\)"
    ):
        MixtureDrafter(one, two)


def test_states_without_layers_are_refused() -> None:
    target = tiny_target()
    source = BlockLattices(tiny_drafter(target), target, 4)
    with pytest.raises(
        ValueError, match="expected the target's layers' states of 2 tokens, which the drafter reads, got none"
    ):
        source.lattices([State(0, [1, 2, 3], 2, None, 5)])


@pytest.mark.parametrize(("k", "kind"), [(0, "dflash"), (12, "reduced")])
def test_more_arcs_than_the_drafter_knows_tokens_are_refused(k: int, kind: str) -> None:
    target = tiny_target()
    drafter = tiny_drafter(target, **KINDS[kind])
    states = layer_states(target, [4, 5, 6], drafter.config.target_layer_ids)[:-1]
    with pytest.raises(ValueError, match="arcs per slot"):
        BlockLattices(drafter, target, k).lattices([State(0, [4, 5, 6], 3, None, 5, (), states)])


def chain_by_hand(drafter: BlockDrafter, logits: Tensor, anchor: int, path: list[int], hidden: Tensor) -> float:
    """The log-probability of a path in the chain, one softmax after the other; with the mass of the confidence head, if
    there is one."""
    total, previous = 0.0, anchor
    assert drafter.markov_head is not None
    w1, w2 = drafter.markov_head.markov_w1.weight, drafter.markov_head.markov_w2.weight
    for slot, token in enumerate(path):
        total += float((logits[slot] + w2 @ w1[previous]).log_softmax(-1)[token])
        if drafter.confidence_head is not None:
            proj = drafter.confidence_head.proj
            read = torch.cat([hidden[slot], w1[previous]]) if drafter.config.confidence_with_markov else hidden[slot]
            total += math.log(torch.sigmoid(proj.weight[0] @ read + proj.bias[0]))
        previous = token
    return total


@pytest.mark.parametrize("heads", [{}, {"confidence": True}, {"confidence": True, "confidence_with_markov": True}])
@torch.inference_mode()
def test_paths_weigh_what_the_chain_of_softmaxes_says(heads: dict[str, bool]) -> None:
    target = tiny_target()
    drafter = tiny_drafter(target, block_size=4, markov_rank=3, **heads)
    hidden, anchor = torch.randn(2, 3, 24), 17
    output = drafter.output(TransformersModel.of(target).projection)
    lattice = block_lattices(drafter, output, hidden, [4, anchor], 4)[1]
    assert lattice.transitions is not None
    logits = output(hidden)[1]
    for arcs in itertools.product(range(4), repeat=3):
        path = [int(lattice.tokens[slot, arc]) for slot, arc in enumerate(arcs)]
        weight = sum(float(lattice.log_probs[slot, arc]) for slot, arc in enumerate(arcs))
        weight += sum(float(lattice.transitions[slot, arcs[slot], arcs[slot + 1]]) for slot in range(2))
        assert weight == pytest.approx(chain_by_hand(drafter, logits, anchor, path, hidden[1]), abs=1e-4)


@torch.inference_mode()
def test_the_greedy_chain_is_dsparks() -> None:
    target = tiny_target()
    drafter = tiny_drafter(target, block_size=6, sample_from_anchor=True, markov_rank=3)
    hidden, anchors = torch.randn(20, 6, 24), list(range(20))
    output = drafter.output(TransformersModel.of(target).projection)
    assert drafter.markov_head is not None
    differing = 0
    for row, (lattice, wide) in enumerate(
        zip(*(block_lattices(drafter, output, hidden, anchors, k) for k in (1, VOCAB)), strict=True)
    ):
        previous, chain = anchors[row], []
        for slot in range(6):
            logits = output(hidden[row, slot]) + drafter.markov_head(torch.tensor(previous))
            previous = int(logits.argmax())
            chain.append(previous)
        assert (
            lattice.tokens[:, 0].tolist()
            == chain
            == greedy_chain(wide.tokens, wide.log_probs, wide.transitions).tolist()
        )
        differing += chain != output(hidden[row]).argmax(-1).tolist()
    assert differing  # the bigram has a say


@torch.inference_mode()
def test_heads_can_be_left_out() -> None:
    target = tiny_target()
    drafter = tiny_drafter(target, block_size=4, markov_rank=3, confidence=True, confidence_with_markov=True)
    plain = BlockDrafter(replace(drafter.config, markov_rank=0, confidence=False, confidence_with_markov=False))
    plain.load_state_dict(drafter.state_dict(), strict=False)
    hidden, output = torch.randn(2, 3, 24), drafter.output(TransformersModel.of(target).projection)
    expected = block_lattices(plain, output, hidden, [1, 2], 4)
    assert block_lattices(drafter, output, hidden, [1, 2], 4, MarkovAndConfidenceHeads(False, False)) == expected
    assert block_lattices(drafter, output, hidden, [1, 2], 4, MarkovAndConfidenceHeads(bigram=False)) == expected
    tied = block_lattices(drafter, output, hidden, [1, 2], VOCAB, MarkovAndConfidenceHeads(confidence=False))
    for lattice in tied:  # without the confidence head a slot has all the mass
        np.testing.assert_allclose(np.exp(lattice.log_probs).sum(axis=1), 1, atol=1e-4)


@torch.inference_mode()
def test_a_confidence_head_alone_is_a_slots_mass() -> None:
    target = tiny_target()
    drafter = tiny_drafter(target, block_size=4, confidence=True)
    hidden, output = torch.randn(1, 3, 24), drafter.output(TransformersModel.of(target).projection)
    (lattice,) = block_lattices(drafter, output, hidden, [1], VOCAB)
    assert lattice.transitions is None
    assert drafter.confidence_head is not None
    np.testing.assert_allclose(
        np.exp(lattice.log_probs).sum(axis=1), torch.sigmoid(drafter.confidence_head(hidden[0])), atol=1e-4
    )
