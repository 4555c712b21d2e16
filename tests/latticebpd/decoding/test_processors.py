"""Logits processors see each node's own prefix, as generate() shows it to them; what cannot be honoured is refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import (
    LogitsProcessor,
    LogitsProcessorList,
    NoRepeatNGramLogitsProcessor,
    PrefixConstrainedLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    SuppressTokensLogitsProcessor,
    UnbatchedClassifierFreeGuidanceLogitsProcessor,
)

from latticebpd import DraftTree, Exact, NoDrafter, ReferenceDrafter, Sampling, State, custom_generate, generate
from latticebpd.models.engine.engine_copy import engine_copy
from tests.helpers.engine_models import stock
from tests.helpers.tiny_families import tiny

PROCESSORS: dict[str, list[Any]] = {
    "no repeated bigram": [NoRepeatNGramLogitsProcessor(2)],
    "repetition penalty": [RepetitionPenaltyLogitsProcessor(1.8)],
    "both, and a forbidden token": [
        NoRepeatNGramLogitsProcessor(2), RepetitionPenaltyLogitsProcessor(1.3), SuppressTokensLogitsProcessor([8, 12]),
    ],
}  # fmt: skip


class Bushy(NoDrafter):
    """Drafts the right text among others, so that nodes of one depth have different prefixes."""

    def __init__(self, text: list[int]) -> None:
        self.text = text

    def propose(self, states: Any) -> list[DraftTree]:
        def paths(state: State) -> list[list[int]]:
            rest = self.text[len(state.tokens) - state.prompt_length :][:5]
            return [[5, 5], [*rest[:1], 9, 9], [*rest[:2], rest[0] if rest else 3], rest]

        return [DraftTree.from_paths(paths(state)) for state in states]


@pytest.mark.parametrize("family", ["llama", "t5"])
@pytest.mark.parametrize("name", PROCESSORS)
def test_text_is_that_of_generate_under_the_same_processors(name: str, family: str) -> None:
    model = tiny(family)
    prompt = torch.tensor([[4, 9, 5, 9]])
    settings: dict[str, Any] = {"do_sample": False, "num_beams": 1, "max_new_tokens": 24}
    reference = model.generate(prompt, logits_processor=LogitsProcessorList(PROCESSORS[name]), **settings)
    assert reference.tolist() != model.generate(prompt, **settings).tolist()
    text = reference[0, -24:].tolist()
    for drafter in (NoDrafter(), ReferenceDrafter(text, 6), Bushy(text)):
        out = generate(
            model, prompt, drafter, max_new_tokens=24, logits_processor=LogitsProcessorList(PROCESSORS[name])
        )
        assert out.sequences.tolist() == reference.tolist()


def test_batch_is_processed_row_by_row_without_its_padding() -> None:
    model = tiny("llama")
    prompts, mask = torch.tensor([[0, 0, 4, 9], [5, 6, 7, 8]]), torch.tensor([[0, 0, 1, 1], [1, 1, 1, 1]])
    processors = LogitsProcessorList(PROCESSORS["both, and a forbidden token"])
    out = generate(model, prompts, NoDrafter(), max_new_tokens=16, attention_mask=mask, logits_processor=processors)
    for row, kept in enumerate(mask.bool()):
        single = generate(model, prompts[row][kept], NoDrafter(), max_new_tokens=16, logits_processor=processors)
        assert out.sequences[row, 4:].tolist() == single.sequences[0, -16:].tolist()


def test_processor_that_remembers_calls_is_refused() -> None:
    guidance = UnbatchedClassifierFreeGuidanceLogitsProcessor(1.5, tiny("llama"))
    with pytest.raises(ValueError, match="got UnbatchedClassifierFreeGuidanceLogitsProcessor; use generate"):
        generate(tiny("llama"), [3], NoDrafter(), logits_processor=LogitsProcessorList([guidance]))


def test_processor_that_tells_rows_apart_is_refused_in_a_batch_only() -> None:
    only_five = LogitsProcessorList([PrefixConstrainedLogitsProcessor(lambda row, ids: [5], 1)])
    assert generate(
        tiny("llama"), [3], NoDrafter(), max_new_tokens=3, logits_processor=only_five
    ).sequences.tolist() == [[3, 5, 5, 5]]
    with pytest.raises(ValueError, match="expected one prompt with PrefixConstrainedLogitsProcessor"):
        generate(tiny("llama"), [[3], [4]], NoDrafter(), logits_processor=only_five)


def test_processor_of_ones_own_is_shown_every_prefix_once_on_the_way() -> None:
    shown: list[list[int]] = []

    class Watching(LogitsProcessor):
        def __call__(self, input_ids: torch.LongTensor, scores: torch.FloatTensor) -> torch.FloatTensor:
            shown.extend(input_ids.tolist())
            return scores

    model = tiny("llama")
    text = generate(model, [4], NoDrafter(), max_new_tokens=9).sequences[0].tolist()
    generate(
        model, [4], ReferenceDrafter(text[1:], 3), max_new_tokens=9, logits_processor=LogitsProcessorList([Watching()])
    )
    assert shown == [text[:length] for length in range(1, 10)]


class InPlace(LogitsProcessor):
    """Forbids the token of two columns before, as processors are usually written."""

    def __call__(self, input_ids: torch.LongTensor, scores: torch.FloatTensor) -> torch.FloatTensor:
        for row, ids in enumerate(input_ids):
            scores[row, ids[-2:]] = -torch.inf
        return scores


@pytest.mark.parametrize("family", ["llama", "t5", "llama on the engine"])
@pytest.mark.parametrize("do_sample", [False, True])
def test_processor_may_write_in_place(family: str, do_sample: bool) -> None:
    model: Any = stock() if "engine" in family else tiny(family)
    target = engine_copy(model) if "engine" in family else None
    prompt, rule = torch.tensor([[4, 9, 5, 9]]), Sampling() if do_sample else Exact()
    processors = LogitsProcessorList([InPlace()])
    torch.manual_seed(0)
    reference = model.generate(prompt, do_sample=do_sample, max_new_tokens=24, logits_processor=processors)
    text = reference[0, -24:].tolist()
    for drafter in (NoDrafter(), ReferenceDrafter(text, 6), Bushy(text)):
        torch.manual_seed(0)
        out = generate(target or model, prompt, drafter, rule, max_new_tokens=24, logits_processor=processors)
        assert out.sequences.tolist() == reference.tolist()
        torch.manual_seed(0)
        own = model.generate(
            prompt,
            do_sample=do_sample,
            max_new_tokens=24,
            logits_processor=processors,
            custom_generate=custom_generate(drafter, target=target),
        )
        assert own.tolist() == reference.tolist()
