"""Random arguments of ``generate()`` with `custom_generate`: a fixed number of sets, the same every time."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from transformers import LogitsProcessorList, MaxLengthCriteria, NoRepeatNGramLogitsProcessor, StoppingCriteriaList

from latticebpd import NoDrafter, PromptNgramDrafter, ReferenceDrafter, custom_generate
from tests.helpers.tiny_families import FAMILIES, tiny

SETS = 1200
ARGUMENTS: dict[str, list[Any]] = {
    "max_new_tokens": [1, 2, 7, 16, 0, -1, "5", 2.5],
    "max_length": [3, 5, 12, 0],
    "min_new_tokens": [0, 1, 9, 30],
    "min_length": [2, 12],
    "eos_token_id": [12, [12, 6], [], 99, -1],
    "pad_token_id": [0, 22, 12, 99],
    "repetition_penalty": [1.0, 1.7, 0.5, 0.0, -1.0],
    "encoder_repetition_penalty": [1.5],
    "no_repeat_ngram_size": [1, 2, 3],
    "bad_words_ids": [[[12], [17, 19]], [[]], [[5, 6, 7]]],
    "suppress_tokens": [[1, 2, 3], []],
    "begin_suppress_tokens": [list(range(5, 17))],
    "forced_eos_token_id": [2, 12],
    "forced_bos_token_id": [17],
    "exponential_decay_length_penalty": [(3, 1.5)],
    "renormalize_logits": [True],
    "remove_invalid_values": [True],
    "sequence_bias": [{(7,): 4.0, (8, 9): -3.0}],
    "guidance_scale": [1.5],
    "num_beams": [1, 2],
    "num_return_sequences": [1, 2],
    "return_dict_in_generate": [True],
    "output_scores": [True],
    "output_hidden_states": [True],
    "use_cache": [True, False],
    "max_time": [1e9],
    "stop_strings": ["a"],
    "watermarking_config": [{"bias": 2.0}],
    "logits_processor": [LogitsProcessorList([NoRepeatNGramLogitsProcessor(2)])],
    "stopping_criteria": [StoppingCriteriaList([MaxLengthCriteria(9)])],
    "prefix_allowed_tokens_fn": [lambda row, ids: [4, 5, 6, 7, 12]],
    "cache_implementation": ["static", "dynamic"],
    "nonsense": [1],
}
PROMPTS = [
    {"inputs": torch.tensor([[4, 9, 5, 9]])},
    {"inputs": torch.tensor([[7]])},
    {
        "inputs": torch.tensor([[0, 0, 0, 4], [0, 0, 4, 9], [5, 6, 7, 8]]),
        "attention_mask": torch.tensor([[0, 0, 0, 1], [0, 0, 1, 1], [1, 1, 1, 1]]),
    },
]


def sequences(model: Any, arguments: dict[str, Any]) -> Any:
    """The tokens that ``generate()`` returns, or the error that it raises."""
    try:
        output = model.generate(**arguments, do_sample=False)
    except Exception as error:  # transformers raises errors of many kinds
        return error
    return getattr(output, "sequences", output).tolist()


@pytest.mark.nightly
@pytest.mark.filterwarnings("ignore")
def test_random_arguments_give_the_text_of_generate_or_an_error_in_one_line() -> None:
    rng, models = random.Random(0), {family: tiny(family, seed=3) for family in FAMILIES}
    same = refused = 0
    for _ in range(SETS):
        family, names = rng.choice(list(models)), rng.sample(sorted(ARGUMENTS), rng.randint(0, 4))
        chosen = {name: rng.choice(ARGUMENTS[name]) for name in names}
        if rng.random() < 0.8:
            chosen.setdefault("max_new_tokens", 12)
        arguments = {**rng.choice(PROMPTS), **chosen}
        expected = sequences(models[family], arguments)
        drafters: list[Any] = [NoDrafter(), PromptNgramDrafter()]
        if isinstance(expected, list):
            start = 1 if models[family].config.is_encoder_decoder else arguments["inputs"].shape[1]
            drafters.append(ReferenceDrafter([row[start:] for row in expected], 4))
        decoding = custom_generate(rng.choice(drafters))
        got = sequences(models[family], {**arguments, "custom_generate": decoding})
        about = (family, chosen, type(decoding.drafter).__name__, expected, got)
        if not isinstance(expected, list):  # what is wrong with the arguments, transformers says
            continue
        if isinstance(got, list):
            assert got == expected, about
            same += 1
        else:
            assert isinstance(got, ValueError), about
            refused += 1
    assert min(same, refused) > SETS / 20
