"""A drafter that needs no hidden state drafts before the prompt is read: the first pass verifies already."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from latticebpd import DraftTree, State, generate
from latticebpd.drafters import NoDrafter, PromptNgramDrafter, ReferenceDrafter
from latticebpd.drafters.heads.blockwise import BlockwiseLM
from latticebpd.jacobi import gauss_seidel_jacobi
from latticebpd.models.engine.engine_copy import engine_copy
from latticebpd.models.transformers.transformers_model import TransformersModel
from latticebpd.verification.engine_verifier import PREFILL_CHUNK, EngineVerifier
from tests.helpers.block_drafters import ENGINE_SHAPE, tiny_target
from tests.helpers.tiny_families import FAMILIES, tiny

PROMPTS = torch.tensor([[3, 4, 5, 6, 7], [0, 0, 8, 9, 10], [11, 12, 13, 14, 15]])
NEW = 12


def own_texts(model: PreTrainedModel) -> list[list[int]]:
    """What ``generate()`` writes for each prompt alone."""
    texts = []
    for prompt in PROMPTS:
        ids: Any = prompt[prompt != 0][None]
        out = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=NEW, do_sample=False)  # type: ignore[operator]
        texts.append(out[0, 1 if model.config.is_encoder_decoder else ids.shape[1] :].tolist())
    return texts


def padded(model: PreTrainedModel) -> torch.Tensor:
    """Padding stands on the right of sources."""
    return (
        torch.stack([row.roll(-int((row == 0).sum())) for row in PROMPTS])
        if model.config.is_encoder_decoder
        else PROMPTS
    )


@contextmanager
def passes(model: PreTrainedModel) -> Iterator[list[int]]:
    """How often the decoder is called."""
    count = [0]

    def one_more(*_: Any) -> None:
        count[0] += 1

    hook = TransformersModel.of(model).decoder.register_forward_pre_hook(one_more)
    try:
        yield count
    finally:
        hook.remove()


class Late:
    """The same drafts, by a drafter that waits for the hidden state."""

    def __init__(self, drafter: Any) -> None:
        self.drafter = drafter
        self.states: list[State] = []

    def propose(self, states: Sequence[State]) -> list[DraftTree]:
        self.states += states
        trees: list[DraftTree] = self.drafter.propose(states)
        return trees

    def observe(self, rows: Sequence[int], tokens: Sequence[Sequence[int]]) -> None:
        self.drafter.observe(rows, tokens)


class Early(Late):
    needs_hidden = False


@pytest.mark.parametrize("use_cache", [True, False])
@pytest.mark.parametrize("family", [family for family in FAMILIES if family != "opt"])
def test_first_pass_reads_prompt_and_draft_together(family: str, use_cache: bool) -> None:
    model = tiny(family)
    model.generation_config.pad_token_id = 0
    ids, expected = padded(model), own_texts(tiny(family))
    mask = (ids != 0).long()
    late = generate(
        model, ids, Late(ReferenceDrafter(expected, 3)), max_new_tokens=NEW, attention_mask=mask, use_cache=use_cache
    )
    with passes(model) as count:
        early = generate(
            model,
            ids,
            ReferenceDrafter(expected, 3),
            max_new_tokens=NEW,
            attention_mask=mask,
            use_cache=use_cache,
            trace=True,
        )
    assert torch.equal(early.sequences, late.sequences)
    assert [row[early.prompt_length :] for row in early.sequences.tolist()] == expected
    # Twelve tokens by fours are three passes; after a prefill, eleven by fours are three more.
    assert (count[0], early.num_passes, early.num_calls, early.prefilled) == (3, 3, 9, (False,) * 3)
    assert (late.num_passes, late.num_calls, late.prefilled) == (3, 9, (True,) * 3)
    assert early.block_efficiency == early.block_efficiency_with_prefill == 4
    assert late.block_efficiency == 11 / 3
    assert late.block_efficiency_with_prefill == 3
    assert [early.blocks(row) for row in range(3)] == [[text[:4], text[4:8], text[8:]] for text in expected]


def test_hidden_state_is_unknown_before_the_prompt_is_read(model: BlockwiseLM) -> None:
    drafter = Early(ReferenceDrafter([[1] * 20], 2))
    generate(model, [5, 8, 2], drafter, max_new_tokens=6)
    first, *others = drafter.states
    assert (first.hidden, list(first.tokens[: first.prompt_length])) == (None, [5, 8, 2])
    assert others
    assert all(state.hidden is not None for state in others)


def test_row_without_an_early_draft_has_a_prefill_and_its_counts_do_not_depend_on_the_batch(model: BlockwiseLM) -> None:
    repeating, fresh = [3, 4, 5, 3, 4, 5, 3, 4], [6, 7, 8, 9, 10, 11, 12, 13]
    single = [
        generate(model, prompt, PromptNgramDrafter(), max_new_tokens=8, trace=True) for prompt in (repeating, fresh)
    ]
    together = generate(model, [repeating, fresh], PromptNgramDrafter(), max_new_tokens=8, trace=True)
    assert [out.prefilled for out in single] == [(False,), (True,)]
    assert together.prefilled == (False, True)
    assert together.num_calls == sum(out.num_calls for out in single)
    assert together.verified_tokens == sum(out.verified_tokens for out in single)
    assert [together.blocks(row) for row in range(2)] == [out.blocks() for out in single]


def test_passes_of_greedy_decoding_jacobi_and_early_drafts_are_counted_alike() -> None:
    model = tiny("marian")
    source, expected = PROMPTS[0], own_texts(tiny("marian"))[0]
    generate(model, source, NoDrafter(), max_new_tokens=1)  # what kind of model it is, is found out the first time
    with passes(model) as count:
        greedy = generate(model, source, NoDrafter(), max_new_tokens=NEW)
    assert (greedy.num_calls, greedy.prefilled, greedy.block_efficiency, greedy.block_efficiency_with_prefill) == (
        NEW - 1,
        (True,),
        1,
        1,
    )
    assert count[0] == NEW
    solved = gauss_seidel_jacobi(model, source, 1, max_new_tokens=NEW)
    assert solved.iteration_speedup == greedy.block_efficiency_with_prefill
    drafted = generate(model, source, ReferenceDrafter(expected, 2), max_new_tokens=NEW)
    assert drafted.block_efficiency_with_prefill == 3


def test_a_long_prompt_is_read_in_parts_before_the_first_drafts_on_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    target = engine_copy(tiny_target(**ENGINE_SHAPE, max_position_embeddings=512), weights="int8")
    prompt = [[3 + i % 20 for i in range(2 * PREFILL_CHUNK + 40)]]
    widths = list[int]()
    read = EngineVerifier._read

    def counted(self: EngineVerifier, rows: Any, counts: list[int], *args: Any, **options: Any) -> Any:
        widths.extend(counts)
        return read(self, rows, counts, *args, **options)

    monkeypatch.setattr(EngineVerifier, "_read", counted)
    drafted = generate(target, prompt, PromptNgramDrafter(), max_new_tokens=20)
    assert widths[:2] == [PREFILL_CHUNK] * 2
    assert 40 < widths[2] <= 40 + 32
    greedy = generate(target, prompt, NoDrafter(), max_new_tokens=20)
    assert drafted.tokens.tolist() == greedy.tokens.tolist()
