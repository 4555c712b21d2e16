"""Every field of a generation config is honoured as generate() honours it, changes no text, or is refused by name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from transformers import (
    EosTokenCriteria,
    ExponentialDecayLengthPenalty,
    ForcedBOSTokenLogitsProcessor,
    ForcedEOSTokenLogitsProcessor,
    GenerationConfig,
    GenerationMixin,
    LlamaConfig,
    LogitsProcessorList,
    MaxLengthCriteria,
    MaxTimeCriteria,
    MinLengthLogitsProcessor,
    MinNewTokensLengthLogitsProcessor,
    PreTrainedModel,
    StoppingCriteriaList,
    SuppressTokensAtBeginLogitsProcessor,
    TopKLogitsWarper,
)

from latticebpd import DraftTree, NoDrafter, Sampling, State, check_lossless, generate
from latticebpd.decoding import generation_config
from latticebpd.decoding.generation_config import HONOURED, REFUSED, WARPERS, WITHOUT_EFFECT
from tests.helpers.rule_models import RuleModel, follows_its_predecessor
from tests.helpers.tiny_families import tiny
from tests.helpers.tokenizers import letters

FIELDS = sorted(GenerationConfig().to_dict())
PROMPT = torch.tensor([[4, 9, 5, 9]])
NEW = 20


class Guesses(NoDrafter):
    """Drafts what a text is known to become, and wrong tokens beside it."""

    def __init__(self, texts: Sequence[Sequence[int]]) -> None:
        self.texts = texts

    def propose(self, states: Sequence[State]) -> list[DraftTree]:
        rests = [self.texts[state.row][len(state.tokens) - state.prompt_length :][:4] for state in states]
        return [DraftTree.from_paths([[*rest[:2], 7], [6], list(rest)]) for rest in rests]


def configured(family: str, settings: dict[str, Any], eos: int | None = None) -> Any:
    model = tiny(family, seed=3, eos=eos)
    for name, value in settings.items():
        setattr(model.generation_config, name, value)
    return model


def assert_as_generate(
    model: Any, prompts: torch.Tensor, mask: torch.Tensor | None = None, **arguments: Any
) -> list[list[int]]:
    """Our text, drafted for well and not at all, is that of the model's own ``generate()``."""
    mask = torch.ones_like(prompts) if mask is None else mask
    expected = model.generate(prompts, attention_mask=mask, do_sample=False, **arguments)
    start = 1 if model.config.is_encoder_decoder else prompts.shape[1]
    for drafter in (NoDrafter(), Guesses(expected[:, start:].tolist())):
        assert (
            generate(model, prompts, drafter, attention_mask=mask, **arguments).sequences.tolist() == expected.tolist()
        )
    return [row.tolist() for row in expected]


def test_every_field_has_one_place_in_the_table() -> None:
    assert not HONOURED & WITHOUT_EFFECT
    assert not (HONOURED | WITHOUT_EFFECT) & REFUSED.keys()


@pytest.mark.parametrize("name", FIELDS)
def test_every_field_of_this_version_is_in_the_table(name: str) -> None:
    known = HONOURED | WITHOUT_EFFECT | REFUSED.keys() | {"cache_implementation"}  # whose values transformers lists
    assert name in known, f"say in generation_config.py what becomes of {name}"


CASES: dict[str, dict[str, Any]] = {
    "max_length": {"max_length": 13},
    "max_new_tokens": {"max_new_tokens": 11, "max_length": 40},
    "max_time": {"max_time": 0.0},
    "eos_token_id": {"eos_token_id": [12, 6]},
    "repetition_penalty": {"repetition_penalty": 1.7},
    "encoder_repetition_penalty": {"encoder_repetition_penalty": 1.7},
    "no_repeat_ngram_size": {"no_repeat_ngram_size": 2},
    "encoder_no_repeat_ngram_size": {"encoder_no_repeat_ngram_size": 1},
    "bad_words_ids": {"bad_words_ids": [[12], [17, 19]]},
    "min_length": {"min_length": 12, "eos_token_id": [12, 6]},
    "min_new_tokens": {"min_new_tokens": 9, "min_length": 19, "eos_token_id": [12, 6]},
    "forced_bos_token_id": {"forced_bos_token_id": 20},
    "forced_eos_token_id": {"forced_eos_token_id": 2},
    "remove_invalid_values": {"remove_invalid_values": True},
    "exponential_decay_length_penalty": {"exponential_decay_length_penalty": (4, 1.6), "eos_token_id": [12, 6]},
    "suppress_tokens": {"suppress_tokens": [13, 12]},
    "begin_suppress_tokens": {"begin_suppress_tokens": [5, 13, 12, 21], "forced_bos_token_id": 17},
    "sequence_bias": {"sequence_bias": {(8,): -20.0, (12,): 3.0}},
    "bos_token_id": {"bos_token_id": 5, "decoder_start_token_id": None},
    "decoder_start_token_id": {"decoder_start_token_id": [6]},
    **{name: {name: value} for name, value in zip(WARPERS, (0.3, 0.2, 1, 0.1, 0.9, 0.1, 0.5, 0.5), strict=True)},
}


@pytest.mark.parametrize("family", ["gpt2", "marian"])
@pytest.mark.parametrize("name", sorted(HONOURED - {"stop_strings", "pad_token_id"}))
def test_field_is_heeded_as_generate_heeds_it(name: str, family: str) -> None:
    limit = {} if name in ("max_length", "max_new_tokens") else {"max_new_tokens": NEW}
    assert_as_generate(configured(family, CASES[name]), PROMPT, **limit)


@pytest.mark.parametrize("name", sorted(CASES.keys() - {"remove_invalid_values", *WARPERS}))
def test_cases_change_the_text_so_that_they_test_something(name: str) -> None:
    assert any(
        configured(family, CASES[name]).generate(PROMPT, do_sample=False, **limit).tolist()
        != configured(family, {}).generate(PROMPT, do_sample=False, max_new_tokens=NEW).tolist()
        for family in ("gpt2", "marian")
        for limit in ([{}] if name in ("max_length", "max_new_tokens") else [{"max_new_tokens": NEW}])
    )


def test_stop_strings_of_the_config_end_the_text_and_need_a_tokenizer() -> None:
    tokenizer = letters()
    text = configured("llama", {}).generate(PROMPT, do_sample=False, max_new_tokens=NEW)[0].tolist()
    model = configured("llama", {"stop_strings": [tokenizer.decode(text[10:12])]})
    ended = assert_as_generate(model, PROMPT, max_new_tokens=NEW, tokenizer=tokenizer)
    assert len(ended[0]) < len(text)
    with pytest.raises(ValueError, match="expected a tokenizer together with stop_strings"):
        generate(model, PROMPT, NoDrafter(), max_new_tokens=NEW)


@pytest.mark.parametrize(("settings", "fill"), [({"pad_token_id": 22}, 22), ({"pad_token_id": None}, 12)])
def test_rows_are_filled_with_the_configs_padding_or_the_first_end_of_text(settings: dict[str, Any], fill: int) -> None:
    model = configured("llama", {**settings, "eos_token_id": [12, 3]})  # ends the first row soon
    first, second = assert_as_generate(model, torch.tensor([[4, 9, 5, 9], [5, 6, 7, 8]]), max_new_tokens=NEW)
    assert first[-3:] == [fill] * 3
    assert second[-3:] != [fill] * 3


def test_every_row_may_have_its_own_decoder_start() -> None:
    sources = torch.tensor([[4, 9, 5], [4, 9, 5]])
    rows = assert_as_generate(configured("t5", {"decoder_start_token_id": [6, 3]}), sources, max_new_tokens=NEW)
    assert [row[0] for row in rows] == [6, 3]
    with pytest.raises(ValueError, match="one decoder_start_token_id, or one for each of 3 rows, got 2"):
        generate(configured("t5", {"decoder_start_token_id": [6, 3]}), [[4], [5], [6]], NoDrafter())


def test_a_max_length_that_the_prompt_fills_is_refused() -> None:
    with pytest.raises(ValueError, match="max_length of 4 columns, got 4; pass max_new_tokens"):
        generate(configured("gpt2", {"max_length": 4}), PROMPT, NoDrafter())


HARMLESS: dict[str, Any] = {
    "num_assistant_tokens": 5, "num_assistant_tokens_schedule": "heuristic", "assistant_confidence_threshold": 0.9,
    "prompt_lookup_num_tokens": 3, "max_matching_ngram_size": 2, "assistant_early_exit": 1, "assistant_lookbehind": 3,
    "target_lookbehind": 3, "speculation_type": "dflash", "cache_config": {"nbits": 4}, "max_cache_len": 8,
    "use_cache": False,
    "compile_config": None, "prefill_chunk_size": 2, "continuous_batching_config": None, "early_stopping": "never",
    "length_penalty": 3.0,
    "transformers_version": "4.0.0",
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(WITHOUT_EFFECT))
def test_field_without_effect_changes_nothing(name: str) -> None:
    expected = generate(configured("llama", {}), PROMPT, NoDrafter(), max_new_tokens=NEW).sequences.tolist()
    model = configured("llama", {name: HARMLESS.get(name, True)})
    assert generate(model, PROMPT, NoDrafter(), max_new_tokens=NEW).sequences.tolist() == expected


ASKING: dict[str, Any] = {
    "constraints": [object()], "force_words_ids": [[3]], "dola_layers": "high", "watermarking_config": {"bias": 1.0},
    "token_healing": True,
    "is_assistant": True, "cache_implementation": "quantized",
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_what_only_generate_can_do_is_refused_by_name(name: str) -> None:
    for value in (getattr(GenerationConfig(), name, None), *REFUSED[name]):
        model = configured("llama", {name: value})
        assert generate(model, PROMPT, NoDrafter(), max_new_tokens=2).num_tokens == 2
    model = configured("llama", {name: ASKING.get(name, 4)})
    for decode in (
        lambda: generate(model, PROMPT, NoDrafter(), max_new_tokens=2),
        lambda: check_lossless(model, PROMPT),
    ):
        with pytest.raises(ValueError, match=f"without {name}, got") as refused:
            decode()
        assert "\n" not in str(refused.value)


def test_a_field_that_nobody_here_has_thought_about_is_refused_unless_it_is_as_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    empty = GenerationConfig()
    empty.telepathy = None  # as a later version may have
    monkeypatch.setattr(generation_config, "_empty", lambda: empty)
    generate(configured("llama", {"telepathy": None, "a_models_own": 3}), PROMPT, NoDrafter(), max_new_tokens=2)
    with pytest.raises(ValueError, match="got telepathy = 3; set it to None"):
        generate(configured("llama", {"telepathy": 3}), PROMPT, NoDrafter(), max_new_tokens=2)


RAGGED = torch.tensor([[0, 0, 0, 4], [0, 0, 4, 9], [5, 6, 7, 8]])
MASK = torch.tensor([[0, 0, 0, 1], [0, 0, 1, 1], [1, 1, 1, 1]])
COUNTING: dict[str, tuple[dict[str, Any], Any]] = {
    "min_length": ({"min_length": 11}, lambda: MinLengthLogitsProcessor(11, 20)),
    "min_new_tokens": ({"min_new_tokens": 6}, lambda: MinNewTokensLengthLogitsProcessor(4, 6, 20)),
    "forced_eos_token_id": ({"forced_eos_token_id": 2}, lambda: ForcedEOSTokenLogitsProcessor(14, 2)),
    "forced_bos_token_id": ({"forced_bos_token_id": 17}, lambda: ForcedBOSTokenLogitsProcessor(17)),
    "exponential_decay_length_penalty": (
        {"exponential_decay_length_penalty": (3, 1.5)}, lambda: ExponentialDecayLengthPenalty((3, 1.5), 12, 4),
    ),
    "begin_suppress_tokens": (
        {"begin_suppress_tokens": list(range(5, 17))},
        lambda: SuppressTokensAtBeginLogitsProcessor(list(range(5, 17)), 4),
    ),
}  # fmt: skip


@pytest.mark.parametrize("given", [False, True], ids=["config", "given"])
@pytest.mark.parametrize(
    ("name", "eos"), [(name, 12 if name.startswith(("forced_eos", "exp")) else 20) for name in COUNTING]
)
def test_what_counts_columns_counts_in_a_ragged_batch_as_in_generate(name: str, eos: int, given: bool) -> None:
    settings, processor = COUNTING[name]
    model = configured("llama", {} if given else settings, eos=eos)
    arguments = {"logits_processor": LogitsProcessorList([processor()])} if given else {}
    assert_as_generate(model, RAGGED, MASK, max_new_tokens=10, **arguments)


@pytest.mark.parametrize("name", ["encoder_repetition_penalty", "encoder_no_repeat_ngram_size"])
def test_what_looks_at_a_rows_prompt_looks_at_its_own(name: str) -> None:
    model = configured("llama", CASES[name])
    together = generate(model, RAGGED, NoDrafter(), attention_mask=MASK, max_new_tokens=NEW).sequences
    for row, kept in enumerate(MASK.bool()):
        single = generate(model, RAGGED[row][kept], NoDrafter(), max_new_tokens=NEW).sequences
        assert together[row, 4:].tolist() == single[0, -NEW:].tolist()


@pytest.mark.parametrize("ends", [[], [21], [9, 21]])
def test_without_a_mask_the_padding_token_is_padding_unless_it_ends_texts(ends: list[int]) -> None:
    model: Any = configured("llama", {"pad_token_id": 9, "eos_token_id": ends or None})
    plain, padded = torch.tensor([[5, 4, 6]]), torch.tensor([[9, 9, 5, 4, 6]])
    single, texts = (model.generate(ids, do_sample=False, max_new_tokens=NEW)[0].tolist() for ids in (plain, padded))
    assert (texts[2:] == single) == (9 not in ends)
    assert generate(model, padded, NoDrafter(), max_new_tokens=NEW).sequences.tolist() == [texts]


@pytest.mark.parametrize(
    "criterion",
    [EosTokenCriteria(8), EosTokenCriteria([5, 21]), MaxLengthCriteria(9), MaxLengthCriteria(18), MaxTimeCriteria(0.0)],
)
def test_given_criterion_takes_the_place_of_the_configs(criterion: Any) -> None:
    text = configured("llama", {}).generate(PROMPT, do_sample=False, max_new_tokens=12)[0].tolist()
    model = configured("llama", {"eos_token_id": text[7], "max_time": 100.0})
    assert_as_generate(model, PROMPT, max_new_tokens=12, stopping_criteria=StoppingCriteriaList([criterion]))
    assert_as_generate(
        configured("llama", {}), RAGGED, MASK, max_new_tokens=12, stopping_criteria=StoppingCriteriaList([criterion])
    )


def test_model_without_generate_of_its_own_is_decoded_all_the_same() -> None:
    class Bare(PreTrainedModel):
        """A language model that is no ``GenerationMixin``."""

        config_class, texts_read = LlamaConfig, 0
        forward, get_output_embeddings = RuleModel.forward, RuleModel.get_output_embeddings

        def __init__(self) -> None:
            super().__init__(RuleModel(follows_its_predecessor, eos=9).config)
            self.rule, self.unused = follows_its_predecessor, torch.nn.Linear(1, 1)

    assert not isinstance(Bare(), GenerationMixin)
    assert generate(Bare(), [3], NoDrafter()).sequences.tolist() == [[3, 4, 5, 6, 7, 8, 9]]


def test_sampling_without_settings_has_the_filters_of_an_empty_config() -> None:
    (warper,) = Sampling().warpers
    assert isinstance(warper, TopKLogitsWarper)
    assert warper.top_k == 50
    assert not Sampling(top_k=0).warpers
    with pytest.raises(ValueError, match="got top_a"):
        Sampling(top_a=1.0)


@pytest.mark.parametrize("value", ["x", [1, "x"], 1.5, 2**64, -2, True, {"a": 1}, [[1]], [None]])
@pytest.mark.parametrize("name", ["eos_token_id", "pad_token_id"])
def test_special_tokens_that_are_none_are_refused_by_name(name: str, value: Any) -> None:
    model = tiny("llama", seed=3)
    setattr(model.generation_config, name, value)
    with pytest.raises(ValueError, match=f"^the generation config: expected {name} as a whole number from -1 to"):
        generate(model, PROMPT, NoDrafter(), max_new_tokens=4)


@pytest.mark.parametrize("value", [np.int64(7), (7,), {7}, torch.tensor([7]), torch.tensor(7), [np.int32(7)]])
def test_an_end_of_text_may_be_any_kind_of_integers(value: Any) -> None:
    model = tiny("llama", seed=3)
    expected = generate(model, PROMPT, NoDrafter(), max_new_tokens=NEW, eos_token_id=7).sequences
    assert torch.equal(generate(model, PROMPT, NoDrafter(), max_new_tokens=NEW, eos_token_id=value).sequences, expected)
