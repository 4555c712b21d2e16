"""Where texts end: end-of-text ids, stop strings, criteria, length and the model's positions; tokens and counts
alike."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from transformers import MaxLengthCriteria, StoppingCriteriaList

from latticebpd import Drafter, DraftTree, Generated, NoDrafter, ReferenceDrafter, State, generate
from tests.helpers.tiny_families import POSITIONS, tiny
from tests.helpers.tokenizers import letters

PROMPT = [4, 9, 5]


def greedy(family: str = "llama", new: int = 30, prompt: Sequence[int] = PROMPT, **settings: object) -> list[int]:
    ids = torch.tensor([list(prompt)])
    out = tiny(family).generate(
        ids, attention_mask=torch.ones_like(ids), do_sample=False, num_beams=1, max_new_tokens=new, **settings
    )
    return [int(token) for token in out[0, len(prompt) :]]


def counted(out: Generated) -> int:
    return int(np.arange(len(out.accept_counts)) @ out.accept_counts)


def drafters(text: list[int]) -> list[Drafter]:
    return [NoDrafter(), ReferenceDrafter(text, 1), ReferenceDrafter(text, 5), ReferenceDrafter([*text, *[3] * 40], 64)]


@pytest.mark.parametrize("which", range(4))
def test_any_of_several_end_of_text_ids_ends_the_text(which: int) -> None:
    text = greedy()
    ids = sorted({text[6], text[11]})
    expected = greedy(eos_token_id=ids)
    assert len(expected) < len(text)
    out = generate(tiny("llama"), PROMPT, drafters(text)[which], max_new_tokens=30, eos_token_id=ids)
    assert out.sequences[0, 3:].tolist() == expected
    assert counted(out) == out.num_tokens - sum(out.prefilled) == len(expected) - sum(out.prefilled)


@pytest.mark.parametrize("which", range(4))
def test_stop_string_ends_the_text_where_generate_ends_it(which: int) -> None:
    tokenizer, text = letters(), greedy()
    stop = tokenizer.decode(text[6:8])  # of two tokens
    expected = greedy(stop_strings=[stop], tokenizer=tokenizer)
    assert len(expected) < len(text)
    out = generate(
        tiny("llama"), PROMPT, drafters(text)[which], max_new_tokens=30, stop_strings=stop, tokenizer=tokenizer
    )
    assert out.sequences[0, 3:].tolist() == expected
    assert counted(out) == len(expected) - sum(out.prefilled)


def test_stop_strings_need_a_tokenizer() -> None:
    with pytest.raises(ValueError, match="expected a tokenizer together with stop_strings"):
        generate(tiny("llama"), PROMPT, NoDrafter(), stop_strings="x")


@pytest.mark.parametrize("which", range(4))
def test_stopping_criterion_is_asked_after_every_token(which: int) -> None:
    text = greedy()
    out = generate(
        tiny("llama"),
        PROMPT,
        drafters(text)[which],
        max_new_tokens=30,
        stopping_criteria=StoppingCriteriaList([MaxLengthCriteria(11)]),
    )
    assert out.sequences[0].tolist() == [*PROMPT, *text[:8]]
    assert counted(out) == 8 - sum(out.prefilled)


@pytest.mark.parametrize("longest", [1, 2, 3])
def test_a_criterion_that_the_prompt_meets_leaves_one_token_and_asks_for_no_drafts(longest: int) -> None:
    class Strict(ReferenceDrafter):
        def propose(self, states: Sequence[State]) -> list[DraftTree]:
            assert all(state.max_depth > 0 for state in states)
            return super().propose(states)

    stop = StoppingCriteriaList([MaxLengthCriteria(longest)])
    prompt = torch.tensor([PROMPT])
    expected = tiny("llama").generate(prompt, do_sample=False, max_new_tokens=30, stopping_criteria=stop)
    assert expected.tolist() == [[*PROMPT, *greedy()[:1]]]
    out = generate(tiny("llama"), prompt, Strict(greedy(), 5), max_new_tokens=30, stopping_criteria=stop)
    assert out.sequences.tolist() == expected.tolist()


@pytest.mark.parametrize("limit", [1, 2, 3, 6])
def test_length_limit_inside_a_block_is_kept_exactly(limit: int) -> None:
    text = greedy()
    for drafter in drafters(text):
        out = generate(tiny("llama"), PROMPT, drafter, max_new_tokens=limit)
        assert out.sequences[0, 3:].tolist() == text[:limit]
        assert counted(out) == limit - sum(out.prefilled)


@pytest.mark.parametrize("family", ["llama", "gpt2", "opt"])
def test_no_token_stands_beyond_the_models_positions(family: str) -> None:
    prompt = [3 + i % 20 for i in range(POSITIONS - 6)]
    text = greedy(family, 6, prompt)
    for drafter in drafters(text):
        out = generate(tiny(family), prompt, drafter, max_new_tokens=50)
        assert out.sequences.shape[1] == POSITIONS
        assert out.sequences[0, len(prompt) :].tolist() == text


@pytest.mark.parametrize("family", ["marian", "bart"])
def test_trees_shrink_to_the_places_that_a_decoder_has_left(family: str) -> None:
    """These decoders embed the place in the cache, so a bushy tree near the end has no room."""
    model = tiny(family)
    reference = model.generate(torch.tensor([[4, 5, 6]]), do_sample=False, num_beams=1, max_new_tokens=POSITIONS - 1)

    class Bushy(NoDrafter):
        def propose(self, states: Sequence[State]) -> list[DraftTree]:
            return [DraftTree.from_paths([[a, b] for a in range(23) for b in range(3)]) for _ in states]

    out = generate(model, [4, 5, 6], Bushy(), max_new_tokens=POSITIONS + 40)
    assert out.sequences.shape[1] == POSITIONS
    assert out.sequences.tolist() == reference.tolist()


def test_prompt_that_fills_the_positions_is_refused() -> None:
    with pytest.raises(ValueError, match=f"expected prompts of fewer than {POSITIONS} tokens .* got {POSITIONS}"):
        generate(tiny("gpt2"), [3] * POSITIONS, NoDrafter(), max_new_tokens=4)


def test_rows_that_end_early_are_padded_and_cost_nothing_more() -> None:
    model = tiny("llama")
    first, second = greedy(), greedy(prompt=[7, 7, 7])
    stop = next(token for token in first[:12] if token not in second)
    cut = first[: first.index(stop) + 1]
    rows: list[list[int]] = []

    class Watching(NoDrafter):
        def propose(self, states: Sequence[State]) -> list[DraftTree]:
            rows.append([state.row for state in states])
            return super().propose(states)

    out = generate(model, [PROMPT, [7, 7, 7]], Watching(), max_new_tokens=30, eos_token_id=stop, pad_token_id=22)
    assert out.sequences[:, 3:].tolist() == [cut + [22] * (30 - len(cut)), second]
    assert rows == [[0, 1]] * len(cut) + [[1]] * (29 - len(cut))  # asked before the prompts are read, too
    assert out.num_passes == 29
    assert out.num_calls == 29 + len(cut) - 1
    assert out.num_tokens == 30 + len(cut)
