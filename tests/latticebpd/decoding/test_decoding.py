"""The loop against the base model's own generate(): lossless for every drafter, good, bad or hostile."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from transformers import GPT2Config, GPT2LMHeadModel

from latticebpd import (
    BlockwiseLM,
    DraftTree,
    NoDrafter,
    State,
    TreeDrafter,
    VanillaDrafter,
    generate,
)
from tests.helpers.blockwise_models import NEW, greedy, tiny_model
from tests.helpers.drafters import DRAFTERS, ScriptedDrafter
from tests.helpers.trigrams import trigram


@pytest.mark.parametrize("name", DRAFTERS)
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_every_drafter_yields_the_text_of_generate(name: str, seed: int) -> None:
    model = tiny_model(seed)
    prompt = [3, 1, 4, 1, 5]
    out = generate(model, prompt, DRAFTERS[name](model, [greedy(model, prompt)]), max_new_tokens=NEW)
    assert out.sequences[0, len(prompt) :].tolist() == greedy(model, prompt)
    assert out.num_tokens == NEW
    assert int(np.arange(len(out.accept_counts)) @ out.accept_counts) == NEW - sum(out.prefilled)
    assert out.accept_counts.sum() == out.num_calls


def test_right_drafts_take_one_call_per_block(model: BlockwiseLM) -> None:
    text = greedy(model, [7])
    block = 4

    def right(state: State) -> DraftTree:
        done = len(state.tokens) - 1
        return DraftTree.from_paths([text[done : done + min(block, state.max_depth)]])

    drafter = ScriptedDrafter(right)
    out = generate(model, [7], drafter, max_new_tokens=NEW)
    assert out.sequences[0, 1:].tolist() == text
    assert out.num_calls == -(-(NEW - 1) // (block + 1))
    assert drafter.observed == text[1:]


@pytest.mark.parametrize("right", [0, 1, 3])
def test_drafters_are_given_the_state_that_predicted_the_last_token(model: BlockwiseLM, right: int) -> None:
    text, states = greedy(model, [7]), list[tuple[list[int], torch.Tensor]]()

    def partly_right(state: State) -> DraftTree:
        states.append(([*state.tokens], state.hidden))
        rest = text[len(state.tokens) - 1 :][: min(4, state.max_depth)]
        wrong = [(token + 1) % 23 for token in rest]
        return DraftTree.from_paths([path for path in (wrong, [*rest[:right], *wrong[right:]]) if path])

    generate(model, [7], ScriptedDrafter(partly_right), max_new_tokens=NEW)
    assert len(states) >= NEW // 4
    for tokens, hidden in states:
        with torch.no_grad():
            expected = model.base.model(torch.tensor([tokens[:-1]])).last_hidden_state[0, -1]
        torch.testing.assert_close(torch.as_tensor(hidden), expected, atol=1e-4, rtol=1e-4)


def test_wrong_drafts_cost_a_call_per_token_and_nothing_else(model: BlockwiseLM) -> None:
    text = greedy(model, [7])

    def wrong(state: State) -> DraftTree:
        token = (text[len(state.tokens) - 1] + 1) % 23 if state.max_depth else 0
        return DraftTree.from_paths([[token] * min(3, state.max_depth)])

    out = generate(model, [7], ScriptedDrafter(wrong), max_new_tokens=NEW)
    assert out.sequences[0, 1:].tolist() == text
    assert out.num_calls == NEW - 1
    assert out.accept_counts.tolist() == [0, NEW - 1, 0, 0, 0]  # up to what a full draft would have committed
    assert out.block_efficiency == 1.0


def test_drafts_are_cut_where_the_length_limit_leaves_the_models_own_token(model: BlockwiseLM) -> None:
    text = greedy(model, [7])
    deep = ScriptedDrafter(lambda state: DraftTree.from_paths([text[len(state.tokens) - 1 :][:9]]))
    out = generate(model, [7], deep, max_new_tokens=4)
    assert out.sequences[0, 1:].tolist() == text[:4]
    assert (out.verified_tokens, out.accept_counts.tolist()) == (2, [0, 0, 0, 1])  # the prefill's token, then three


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_tree_of_guesses_leaves_the_text_as_it_is(model: BlockwiseLM, data: st.DataObject) -> None:
    text = greedy(model, [2, 9], 16)

    def arbitrary(state: State) -> DraftTree:
        if not state.max_depth:
            return DraftTree.empty()
        done = len(state.tokens) - 2
        token = st.one_of(st.integers(0, 22), st.sampled_from(text[done:]))
        return DraftTree.from_paths(
            data.draw(st.lists(st.lists(token, min_size=1, max_size=min(4, state.max_depth)), max_size=5))
        )

    out = generate(model, [2, 9], ScriptedDrafter(arbitrary), max_new_tokens=16)
    assert out.sequences[0, 2:].tolist() == text


def test_end_of_text_inside_an_accepted_block_ends_the_text_there() -> None:
    plain = greedy(tiny_model(1), [3, 1, 4])
    stop = plain[9]
    model = tiny_model(1, eos_token_id=stop)
    expected = plain[: plain.index(stop) + 1]
    right = ScriptedDrafter(
        lambda state: DraftTree.from_paths([plain[len(state.tokens) - 3 :][: min(6, state.max_depth)]])
    )
    for drafter in (NoDrafter(), right, VanillaDrafter(model)):
        out = generate(model, [3, 1, 4], drafter, max_new_tokens=NEW)
        assert out.sequences[0, 3:].tolist() == expected == greedy(model, [3, 1, 4])
        assert out.num_tokens == len(expected)
        assert int(np.arange(len(out.accept_counts)) @ out.accept_counts) == len(expected) - 1


@pytest.mark.parametrize("limit", [1, 2, 3, 5])
def test_length_limit_inside_a_block_is_kept_exactly(model: BlockwiseLM, limit: int) -> None:
    text = greedy(model, [7])
    greedy_minded = ScriptedDrafter(lambda state: DraftTree.from_paths([text[len(state.tokens) - 1 :][:8]]))
    out = generate(model, [7], greedy_minded, max_new_tokens=limit)
    assert out.sequences[0, 1:].tolist() == text[:limit]


def test_plain_transformers_model_needs_no_heads() -> None:
    torch.manual_seed(0)
    model = GPT2LMHeadModel(
        GPT2Config(
            vocab_size=19,
            n_positions=64,
            n_embd=16,
            n_layer=2,
            n_head=2,
            initializer_range=0.5,
            bos_token_id=None,
            eos_token_id=None,
        )
    ).eval()
    reference = model.generate(
        torch.tensor([[1, 2, 3]]), do_sample=False, max_new_tokens=20, eos_token_id=None, pad_token_id=0
    )[0]
    guesses = ScriptedDrafter(
        lambda state: DraftTree.from_paths(
            [[a, b] for a in range(19) for b in (0, 1, 2)] if state.max_depth > 1 else []
        )
    )
    out = generate(model, [1, 2, 3], guesses, max_new_tokens=20, eos_token_id=[])
    assert out.sequences[0].tolist() == reference.tolist()
    assert out.num_calls == 10  # the first token of every draft is right: two tokens a call, the last alone


def test_batch_writes_what_each_prompt_alone_would_write(model: BlockwiseLM) -> None:
    """Left or right padding, ragged acceptance, and counts that do not depend on batching."""
    prompts = [[3, 1, 4, 1, 5], [9], [2, 6, 5]]
    lm = trigram()
    separate = [
        generate(model, prompt, TreeDrafter(model, lm, num_nodes=12, k=4), max_new_tokens=NEW) for prompt in prompts
    ]
    for left in (True, False):
        pads = [[0] * (5 - len(prompt)) for prompt in prompts]
        ids = [pad + prompt if left else prompt + pad for pad, prompt in zip(pads, prompts, strict=True)]
        mask = [[1] * len(prompt) for prompt in prompts]
        mask = [[0] * len(pad) + ones if left else ones + [0] * len(pad) for pad, ones in zip(pads, mask, strict=True)]
        out = generate(
            model, ids, TreeDrafter(model, lm, num_nodes=12, k=4), max_new_tokens=NEW, attention_mask=mask, trace=True
        )
        assert out.sequences[:, :5].tolist() == ids
        assert out.sequences[:, 5:].tolist() == [single.sequences[0, -NEW:].tolist() for single in separate]
        assert out.num_calls == sum(single.num_calls for single in separate)
        assert out.num_passes == max(single.num_calls for single in separate)
        assert out.verified_tokens == sum(single.verified_tokens for single in separate)
        assert out.trace is not None
        for row, single in enumerate(separate):
            assert out.blocks(row) == [
                [int(out.sequences[row, 5])],
                *(step.committed for step in out.trace if step.row == row),
            ]
            assert single.num_calls == len(out.blocks(row)) - 1


def test_streamer_hears_the_prompt_and_every_token_once(model: BlockwiseLM) -> None:
    class Recorder:
        def __init__(self) -> None:
            self.heard: list[list[int]] = []

        def put(self, tokens: torch.Tensor) -> None:
            self.heard.append(tokens.flatten().tolist())

        def end(self) -> None:
            self.heard.append([-1])

    recorder, text = Recorder(), greedy(model, [7, 8])
    generate(
        model,
        [7, 8],
        ScriptedDrafter(lambda state: DraftTree.from_paths([text[len(state.tokens) - 2 :][:5]])),
        max_new_tokens=NEW,
        streamer=recorder,
    )
    assert recorder.heard[0] == [7, 8]
    assert recorder.heard[-1] == [-1]
    assert [token for block in recorder.heard[1:-1] for token in block] == text
    assert len(recorder.heard) < NEW
    with pytest.raises(ValueError, match="expected a single prompt with a streamer, got 2"):
        generate(model, [[7], [8]], NoDrafter(), streamer=recorder)


@pytest.mark.parametrize(
    ("trees", "message"),
    [
        (
            [DraftTree.from_paths([[3, 23]])],
            r"expected drafted tokens below 23 \(the model's vocabulary\), got 23 from Rogue",
        ),
        ([], "expected one tree for each of 1 states, got 0 from Rogue"),
    ],
)
def test_drafter_that_breaks_its_promise_is_named(model: BlockwiseLM, trees: list[DraftTree], message: str) -> None:
    class Rogue(NoDrafter):
        def propose(self, states: Sequence[State]) -> list[DraftTree]:
            return trees

    with pytest.raises(ValueError, match=message):
        generate(model, [3], Rogue(), max_new_tokens=8)


def test_mask_of_another_shape_and_prompts_without_tokens_are_refused(model: BlockwiseLM) -> None:
    with pytest.raises(ValueError, match=r"attention_mask of the prompts' shape \(1, 2\), got \(1, 3\)"):
        generate(model, [[1, 2]], NoDrafter(), attention_mask=[[1, 1, 1]])
    with pytest.raises(ValueError, match="at least one token in every prompt, got none in row 1"):
        generate(model, [[1, 2], [1, 2]], NoDrafter(), attention_mask=[[1, 1], [0, 0]])


def test_padding_is_found_without_a_mask_as_generate_finds_it() -> None:
    from tests.helpers.tiny_families import tiny

    gpt2 = tiny("gpt2")
    prompts = torch.tensor([[0, 0, 4, 9], [5, 6, 7, 8]])
    reference = gpt2.generate(prompts, do_sample=False, max_new_tokens=12)
    assert generate(gpt2, prompts, NoDrafter(), max_new_tokens=12).sequences.tolist() == reference.tolist()


def test_trace_accounts_for_every_token(model: BlockwiseLM) -> None:
    out = generate(model, [7], VanillaDrafter(model), max_new_tokens=NEW, trace=True)
    assert out.trace is not None
    tokens = [token for step in out.trace for token in step.committed]
    assert tokens == out.sequences[0, 2:].tolist()
    assert sum(len(step.tree) for step in out.trace) == out.verified_tokens
    for step in out.trace:
        assert step.committed[:-1] == step.tree.tokens[step.accepted[: len(step.committed) - 1]].tolist()
        assert step.tree.lattice is None or step.tree.lattice.tokens[:, 0].tolist() == step.tree.tokens.tolist()
    assert out.trace[0].tree.lattice is not None
    with pytest.raises(ValueError, match="pass trace=True"):
        generate(model, [7], NoDrafter(), max_new_tokens=3).blocks()


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        ([], "one prompt .* got shape"),
        ([[[1], [2]]], r"prompts \[rows, n\] or one prompt \[n\]"),
        ([[1, 2], [3]], "prompts of equal length"),
        ([1, 23], "token ids from 0 to 22, got .* 23"),
        ([-1], "token ids from 0 to 22"),
        ([0.5], "token ids from 0 to 22"),
    ],
)
def test_unusable_prompt_is_refused(model: BlockwiseLM, prompt: list[object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        generate(model, prompt, NoDrafter(), max_new_tokens=4)


@pytest.mark.parametrize("text", ["the city", ["the", "city"], [["the"]]])
def test_texts_in_place_of_token_ids_are_refused_in_one_line(model: BlockwiseLM, text: object) -> None:
    with pytest.raises(ValueError, match=r"expected prompts as token ids, got text; encode it, or use load\("):
        generate(model, text, NoDrafter(), max_new_tokens=2)


def test_limit_below_one_is_refused(model: BlockwiseLM) -> None:
    with pytest.raises(ValueError, match=r"max_new_tokens as a whole number from 1 to .*, got 0"):
        generate(model, [1], NoDrafter(), max_new_tokens=0)
