"""``model.generate(custom_generate=...)`` writes what ``model.generate()`` writes, or refuses by name what it cannot
do."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from transformers import (
    DynamicCache,
    GPT2Config,
    GPT2LMHeadModel,
    LogitsProcessor,
    LogitsProcessorList,
    MaxLengthCriteria,
    NoRepeatNGramLogitsProcessor,
    PretrainedConfig,
    StoppingCriteria,
    StoppingCriteriaList,
    StopStringCriteria,
    TextIteratorStreamer,
    TextStreamer,
    pipeline,
)

from latticebpd import (
    BlockwiseLM,
    Exact,
    MinimumBlock,
    NoDrafter,
    PromptNgramDrafter,
    ReferenceDrafter,
    Sampling,
    TopK,
    TreeDrafter,
    custom_generate,
)
from latticebpd.drafters.block.block_family import BlockLattices
from latticebpd.drafters.bundled import LM, MODEL
from latticebpd.drafters.lattice_drafter import LatticeDrafter
from latticebpd.drafters.strategies import GreedyChain
from latticebpd.models.engine.engine_copy import engine_copy
from latticebpd.models.load_target import load_tokenizer
from latticebpd.models.transformers.transformers_model import TransformersModel
from tests.helpers.block_drafters import ENGINE_SHAPE, SHAPE, tiny_drafter, tiny_target
from tests.helpers.blockwise_models import tiny_model
from tests.helpers.model_families import tiny_of
from tests.helpers.tiny_families import FAMILIES, tiny
from tests.helpers.tokenizers import letters

PROMPT = torch.tensor([[4, 9, 5, 9]])
RAGGED = {
    "inputs": torch.tensor([[0, 0, 0, 4], [0, 0, 4, 9], [5, 6, 7, 8]]),
    "attention_mask": torch.tensor([[0, 0, 0, 1], [0, 0, 1, 1], [1, 1, 1, 1]]),
}
NEW = 16


@pytest.fixture(scope="module")
def bundle() -> BlockwiseLM:
    return BlockwiseLM.from_pretrained(MODEL)


def assert_same_text(model: Any, prompts: dict[str, Any], **arguments: Any) -> torch.Tensor:
    """Drafted for badly, well and not at all, the text is that of ``generate()``; returns it."""
    expected: torch.Tensor = model.generate(**prompts, **arguments)
    start = 1 if model.config.is_encoder_decoder else prompts["inputs"].shape[1]
    for drafter in (NoDrafter(), PromptNgramDrafter(), ReferenceDrafter(expected[:, start:].tolist(), 4)):
        decoding = custom_generate(drafter)
        assert model.generate(**prompts, **arguments, custom_generate=decoding).tolist() == expected.tolist()
    assert decoding.last is not None
    assert decoding.last.block_efficiency > 1.5  # drafts were accepted
    return expected


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("prompts", [{"inputs": PROMPT}, RAGGED], ids=["one", "ragged"])
def test_text_is_that_of_generate(family: str, prompts: dict[str, Any]) -> None:
    assert_same_text(tiny(family, seed=3), prompts, max_new_tokens=NEW, do_sample=False)


@pytest.mark.parametrize("family", ["llama", "marian"])
@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"max_length": 11},
        {"max_length": 11.5},
        {"min_new_tokens": 9, "eos_token_id": [12, 6]},
        {"eos_token_id": [12, 6], "pad_token_id": 22},
        {"repetition_penalty": 1.7, "bad_words_ids": [[12], [17, 19]]},
        {"max_time": 0.0},
        {"logits_processor": LogitsProcessorList([NoRepeatNGramLogitsProcessor(2)])},
        {"stopping_criteria": StoppingCriteriaList([MaxLengthCriteria(9)])},
        {"forced_eos_token_id": 2, "begin_suppress_tokens": list(range(5, 17))},
    ],
    ids=lambda arguments: "-".join(arguments) or "defaults",
)
def test_settings_of_generate_hold(family: str, arguments: dict[str, Any]) -> None:
    limit = {} if "max_length" in arguments or not arguments else {"max_new_tokens": NEW}
    model = tiny(family, seed=3)
    expected = model.generate(**RAGGED, **limit, **arguments, do_sample=False)
    decoding = custom_generate(ReferenceDrafter(expected[:, 1 if family == "marian" else 4 :].tolist(), 4))
    assert (
        model.generate(**RAGGED, **limit, **arguments, do_sample=False, custom_generate=decoding).tolist()
        == expected.tolist()
    )


@pytest.mark.parametrize("family", ["llama", "t5"])
@pytest.mark.parametrize("seed", range(4))
def test_sampled_text_of_one_prompt_is_that_of_generate_under_the_same_seed(family: str, seed: int) -> None:
    model = tiny(family, seed=3)
    arguments = {"do_sample": True, "temperature": 0.9, "top_k": 9, "top_p": 0.95, "max_new_tokens": NEW}
    torch.manual_seed(seed)
    expected = model.generate(PROMPT, **arguments)
    drafts = ReferenceDrafter([7, *expected[0, 1 if family == "t5" else 4 :].tolist()[1:]], 4)
    for rule in (None, Sampling(), MinimumBlock(1, Sampling())):
        torch.manual_seed(seed)
        decoding = custom_generate(drafts, rule)
        assert model.generate(PROMPT, **arguments, custom_generate=decoding).tolist() == expected.tolist()


def test_several_texts_of_a_prompt_are_drawn_each_for_itself() -> None:
    decoding = custom_generate(PromptNgramDrafter())
    for family in ("llama", "bart"):
        output = tiny(family).generate(
            PROMPT, do_sample=True, num_return_sequences=5, max_new_tokens=NEW, custom_generate=decoding
        )
        assert len(output) == 5
        assert len({tuple(row) for row in output.tolist()}) > 1


@pytest.mark.parametrize("family", ["llama", "bart"])
def test_output_object_is_the_one_that_generate_returns(family: str) -> None:
    model = tiny(family)
    arguments: dict[str, Any] = {"max_new_tokens": 5, "do_sample": False, "return_dict_in_generate": True}
    expected, output = (
        model.generate(PROMPT, **arguments),
        model.generate(PROMPT, **arguments, custom_generate=custom_generate(NoDrafter())),
    )
    assert type(output) is type(expected)
    assert output.sequences.tolist() == expected.sequences.tolist()


def test_decoder_may_begin_with_several_tokens() -> None:
    model = tiny("marian", seed=3)
    begun = torch.tensor([[1, 8, 5]])
    expected = model.generate(PROMPT, decoder_input_ids=begun, max_new_tokens=9, do_sample=False)
    output = model.generate(
        PROMPT,
        decoder_input_ids=begun,
        max_new_tokens=9,
        do_sample=False,
        custom_generate=custom_generate(PromptNgramDrafter()),
    )
    assert output.tolist() == expected.tolist()


def test_streamers_are_given_the_prompt_once_and_every_token(
    bundle: BlockwiseLM, capsys: pytest.CaptureFixture[str]
) -> None:
    tokenizer: Any = load_tokenizer(MODEL)
    model: Any = bundle.base
    inputs = tokenizer("The history of the city", return_tensors="pt")
    drafter = TreeDrafter(bundle, LM, num_nodes=16)
    arguments: dict[str, Any] = {
        **inputs,
        "max_new_tokens": 24,
        "do_sample": False,
        "custom_generate": custom_generate(drafter),
    }
    text = tokenizer.decode(model.generate(**arguments)[0])
    model.generate(**arguments, streamer=TextStreamer(tokenizer))
    assert capsys.readouterr().out.strip() == text.strip()
    iterated = TextIteratorStreamer(tokenizer, timeout=10)
    model.generate(**arguments, streamer=iterated)
    assert "".join(iterated).strip() == text.strip()


def test_stop_string_criterion_ends_the_text_where_generate_ends_it() -> None:
    model, tokenizer = tiny("llama", seed=3), letters()
    text = model.generate(PROMPT, do_sample=False, max_new_tokens=NEW)[0].tolist()
    stop = StoppingCriteriaList([StopStringCriteria(tokenizer, tokenizer.decode(text[9:11]))])
    assert_shorter = assert_same_text(
        model, {"inputs": PROMPT}, do_sample=False, max_new_tokens=NEW, stopping_criteria=stop
    )
    assert assert_shorter.shape[1] < len(text)


def by_row(ids: torch.Tensor, scores: Any, **kwargs: Any) -> torch.Tensor:
    """Ends every text at its ninth column."""
    return torch.full((len(ids),), ids.shape[1] >= 9)


def test_criterion_of_ones_own_sees_the_columns_that_generate_shows_it() -> None:
    stop = StoppingCriteriaList([by_row])  # type: ignore[list-item]
    output = assert_same_text(
        tiny("llama", seed=3), RAGGED, do_sample=False, max_new_tokens=NEW, stopping_criteria=stop
    )
    assert output.shape[1] == 9


class OfABatch:
    """As evaluation harnesses have them: it remembers rows, and ends all at once."""

    def __init__(self, rows: int) -> None:
        self.done = [False] * rows

    def __call__(self, ids: torch.Tensor, scores: Any, **kwargs: Any) -> bool:
        for row, _ in enumerate(self.done):
            self.done[row] |= ids[row, -1].item() in (9, 12)
        return all(self.done)


def test_criterion_that_remembers_a_batch_is_taken_for_one_prompt_and_refused_for_several() -> None:
    model = tiny("llama", seed=3)
    expected = model.generate(PROMPT, do_sample=False, max_new_tokens=NEW, stopping_criteria=[OfABatch(1)])
    decoding = custom_generate(PromptNgramDrafter())
    output = model.generate(
        PROMPT, do_sample=False, max_new_tokens=NEW, stopping_criteria=[OfABatch(1)], custom_generate=decoding
    )
    assert output.tolist() == expected.tolist()
    for rows in (1, 3):
        with pytest.raises(ValueError, match=r"OfABatch; decode prompts one by one"):
            model.generate(**RAGGED, max_new_tokens=NEW, stopping_criteria=[OfABatch(rows)], custom_generate=decoding)


class MultiTokenEOSCriteria(StoppingCriteria):
    """As lm-evaluation-harness has it, with the end of a text in place of a string: one answer for a batch."""

    def __init__(self, end: int, tokenizer: Any, rows: int) -> None:
        self.end, self.tokenizer, self.done = end, tokenizer, [False] * rows

    def __call__(self, ids: torch.Tensor, scores: Any, **kwargs: Any) -> bool:  # type: ignore[override]
        assert len(ids) == len(self.done)
        self.done = [done or ids[row, -1].item() == self.end for row, done in enumerate(self.done)]
        return all(self.done)


def test_rows_end_one_by_one_where_the_harness_cuts_their_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    model, tokenizer = tiny("llama", seed=3), letters()
    settings: dict[str, Any] = {"max_new_tokens": NEW, "do_sample": False, "pad_token_id": 0, "eos_token_id": None}
    plain = model.generate(**RAGGED, **settings)[:, 4:].tolist()
    end = next(token for token in plain[0] if all(token in row[2:] for row in plain))
    monkeypatch.setattr(type(tokenizer), "__deepcopy__", lambda *_: pytest.fail("a copied tokenizer"), raising=False)
    texts = []
    for drafter in (None, NoDrafter(), ReferenceDrafter(plain, 4)):
        decoding = {} if drafter is None else {"custom_generate": custom_generate(drafter)}
        criteria = StoppingCriteriaList([MultiTokenEOSCriteria(end, tokenizer, 3)])
        rows = model.generate(**RAGGED, **settings, stopping_criteria=criteria, **decoding)[:, 4:].tolist()
        texts.append([row[: row.index(end)] for row in rows])
        if drafter is not None:
            assert all(not any(row[row.index(end) + 1 :]) for row in rows)  # padding
    assert texts[1:] == texts[:1] * 2
    assert len({len(row) for row in texts[0]}) > 1


class ByColumn(LogitsProcessor):
    """Forbids even tokens after an even number of columns, padding included, else odd ones."""

    def __call__(self, input_ids: Any, scores: Any) -> Any:
        scores[:, input_ids.shape[1] % 2 :: 2] = -torch.inf
        return scores


class Remembering(LogitsProcessor):
    """Forbids row r the best token of every (2 + r)-th call."""

    def __init__(self, rows: int) -> None:
        self.calls = [0] * rows

    def __call__(self, input_ids: Any, scores: Any) -> Any:
        for row, line in enumerate(scores):
            self.calls[row] += 1
            if self.calls[row] % (2 + row) == 0:
                line[line.argmax()] = -torch.inf
        return scores


class EndsByRow:
    """Ends row r after its own 5 + r calls."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, ids: torch.Tensor, scores: Any, **kwargs: Any) -> torch.Tensor:
        self.calls += 1
        return self.calls >= torch.arange(len(ids)) + 5


@pytest.mark.parametrize("family", ["llama", "marian"])
@pytest.mark.parametrize("prompts", [{"inputs": PROMPT}, RAGGED], ids=["one", "ragged"])
@pytest.mark.parametrize(
    "own",
    [
        lambda rows: {"logits_processor": [ByColumn()]},
        lambda rows: {"logits_processor": [Remembering(rows)]},
        lambda rows: {"stopping_criteria": [EndsByRow()], "eos_token_id": 21, "pad_token_id": 0},
        lambda rows: {"prefix_allowed_tokens_fn": lambda row, ids: [5 + row, 9, 11 + row]},
        lambda rows: {"encoder_repetition_penalty": 50.0},
    ],
    ids=["columns", "remembering", "criterion", "prefix", "encoder"],
)
def test_processors_and_criteria_may_remember_and_tell_columns_and_rows(
    own: Callable[[int], dict[str, Any]], prompts: dict[str, Any], family: str
) -> None:
    model, rows = tiny(family, seed=3), len(prompts["inputs"])
    arguments: dict[str, Any] = {"do_sample": False, "max_new_tokens": NEW}
    expected = model.generate(**prompts, **arguments, **own(rows))  # type: ignore[operator]
    assert expected.tolist() != model.generate(**prompts, **arguments).tolist()  # type: ignore[operator]
    drafts = expected[:, 1 if family == "marian" else 4 :].tolist()
    for drafter in (NoDrafter(), ReferenceDrafter(drafts, 4)):
        output = model.generate(**prompts, **arguments, **own(rows), custom_generate=custom_generate(drafter))  # type: ignore[operator]
        assert output.tolist() == expected.tolist()


def test_processor_that_cannot_be_copied_is_refused_in_a_batch() -> None:
    class Locked(ByColumn):
        def __init__(self) -> None:
            self.lock = threading.Lock()

    arguments: dict[str, Any] = {"logits_processor": [Locked()], "custom_generate": custom_generate(NoDrafter())}
    model: Any = tiny("llama", seed=3)
    assert model.generate(PROMPT, max_new_tokens=3, **arguments).shape == (1, 7)
    with pytest.raises(ValueError, match=r"copied for every row, got Locked .*; decode prompts one by one"):
        model.generate(**RAGGED, max_new_tokens=3, **arguments)


@pytest.mark.parametrize("kind", ["mamba", "falcon_mamba"])
def test_recurrent_layers_are_no_obstacle_but_their_filled_cache_is(kind: str) -> None:
    model: Any = tiny_of(kind)
    assert_same_text(model, {"inputs": PROMPT}, max_new_tokens=NEW, do_sample=False)
    filled = DynamicCache(config=model.config)
    name = "cache" if TransformersModel.of(model).takes("cache") else "cache_params"
    model(PROMPT, **{name: filled}, use_cache=True)
    with pytest.raises(ValueError, match=f"without {name}, got a cache that holds tokens"):
        model.generate(PROMPT, **{name: filled}, max_new_tokens=3, custom_generate=custom_generate(NoDrafter()))


def cache(model: Any) -> dict[str, DynamicCache]:
    filled = {TransformersModel.of(model).cache_argument: DynamicCache()}
    model(PROMPT[:, :2], **filled)
    return filled


REFUSED: dict[str, Callable[[Any], tuple[dict[str, Any], str]]] = {
    "beams": lambda model: ({"num_beams": 2}, "without num_beams, got 2"),
    "guidance": lambda model: ({"guidance_scale": 1.5}, "without guidance_scale"),
    "scores": lambda model: ({"return_dict_in_generate": True, "output_scores": True}, "without output_scores"),
    "assistant": lambda model: ({"assistant_model": tiny("llama", seed=5)}, "without assistant_model"),
    "prompt lookup": lambda model: (
        {"prompt_lookup_num_tokens": 3},
        "without prompt_lookup_num_tokens, got 3; it names",
    ),
    "several processes": lambda model: ({"synced_gpus": True}, "without synced_gpus"),
    "a cache": lambda model: (cache(model), f"without {TransformersModel.of(model).cache_argument}"),
    "embeddings": lambda model: ({"inputs_embeds": model.get_input_embeddings()(PROMPT)}, "without inputs_embeds"),
    "positions": lambda model: ({"position_ids": torch.tensor([[3, 4, 5, 6]])}, "without position_ids"),
    "a rule's own settings": lambda model: (
        {"do_sample": True, "custom_generate": custom_generate(NoDrafter(), Sampling(0.5))},
        "temp",
    ),
    "greedy sampling": lambda model: (
        {"custom_generate": custom_generate(NoDrafter(), Sampling())},
        "do_sample=True with the rule Samp",
    ),
    "sampled greed": lambda model: (
        {"do_sample": True, "custom_generate": custom_generate(NoDrafter(), Exact())},
        "do_sample=False with",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_it_cannot_do_is_refused_by_name(name: str) -> None:
    model = tiny("llama", seed=3)
    arguments, message = REFUSED[name](model)
    with pytest.raises(ValueError, match=message) as refused:
        model.generate(PROMPT, **{"custom_generate": custom_generate(NoDrafter()), "max_new_tokens": 4, **arguments})
    assert "\n" not in str(refused.value)


def test_what_the_models_own_configuration_says_of_drafting_stands_back() -> None:
    model = tiny("llama", seed=3)
    model.generation_config.prompt_lookup_num_tokens = 3
    assert_same_text(model, {"inputs": PROMPT}, max_new_tokens=NEW, do_sample=False)


def test_drafters_of_another_model_are_refused() -> None:
    """Of another hidden size, or a larger vocabulary; PyTorch's and the engine's."""
    other, target = tiny_target(hidden_size=32), tiny_target(hidden_size=16)
    heads = tiny_model(vocab_size=SHAPE["vocab_size"])
    block = LatticeDrafter(BlockLattices(tiny_drafter(other), other), GreedyChain())
    for drafter, model in ((block, target), (TreeDrafter(heads, None), other)):
        with pytest.raises(ValueError, match=r"expected hidden states of \d+ numbers \(of the drafter's model\), got"):
            model.generate(PROMPT, max_new_tokens=4, custom_generate=custom_generate(drafter))
    small = TreeDrafter(tiny_model(vocab_size=9), None)
    with pytest.raises(ValueError, match=r"expected tokens below 9 \(of the drafter's model\)"):
        target.generate(PROMPT, max_new_tokens=9, custom_generate=custom_generate(small))
    engine = engine_copy(tiny_target(**ENGINE_SHAPE))
    for sizes in ({"hidden_size": 16}, {"num_hidden_layers": 2}, {"vocab_size": 40}):
        decoding = custom_generate(NoDrafter(), target=engine)
        with pytest.raises(ValueError, match=r"\(target is the engine's copy of it\), got"):
            tiny_target(**{"hidden_size": 32, **sizes}).generate(PROMPT, max_new_tokens=4, custom_generate=decoding)


def test_batch_with_a_streamer_is_refused() -> None:
    with pytest.raises(ValueError, match=r"single prompt with a streamer|batch size 1"):
        tiny("llama").generate(**RAGGED, streamer=TextStreamer(letters()), custom_generate=custom_generate(NoDrafter()))
    with pytest.raises(ValueError, match="expected a drafter"):
        custom_generate(NoDrafter)  # type: ignore[arg-type]


def test_lenient_rule_accepts_what_exact_would_not() -> None:
    model, calls = tiny("llama", seed=3), []
    for rule in (Exact(), TopK(23)):
        decoding = custom_generate(ReferenceDrafter([[7] * NEW], 4), rule, trace=True)
        model.generate(PROMPT, do_sample=False, max_new_tokens=NEW, custom_generate=decoding)
        assert decoding.last is not None
        assert sum(map(len, decoding.last.blocks())) == NEW
        calls.append(decoding.last.num_calls)
    assert calls[1] < calls[0]


def test_copied_arguments_of_generate_still_tell_their_owner_what_came_of_them() -> None:
    decoding = custom_generate(NoDrafter())
    tiny("llama").generate(PROMPT, max_new_tokens=3, do_sample=False, **copy.deepcopy({"custom_generate": decoding}))
    assert decoding.last is not None
    assert decoding.last.num_tokens == 3


def test_called_directly_it_decodes_as_well() -> None:
    model = tiny("llama", seed=3)
    model.generation_config.max_length = 9
    config = model._prepare_generation_config(None)[0]
    criteria = StoppingCriteriaList([MaxLengthCriteria(9)])
    output = custom_generate(NoDrafter())(model, PROMPT, LogitsProcessorList(), criteria, config)
    assert output.tolist() == model.generate(PROMPT, do_sample=False).tolist()  # type: ignore[union-attr]


def test_text_generation_pipeline_writes_the_same(bundle: BlockwiseLM) -> None:
    tokenizer: Any = load_tokenizer(MODEL)
    tokenizer.padding_side, tokenizer.pad_token = "left", tokenizer.eos_token or "<|endoftext|>"
    pipe: Any = pipeline("text-generation", model=bundle.base, tokenizer=tokenizer)
    decoding = custom_generate(TreeDrafter(bundle, LM, num_nodes=16))
    texts = ["The history of the city", "In the beginning", "def main("]
    for several in ({}, {"batch_size": 3}):
        arguments: dict[str, Any] = {"max_new_tokens": 16, "do_sample": False, **several}
        assert pipe(texts, **arguments, custom_generate=decoding) == pipe(texts, **arguments)
    assert decoding.last is not None
    assert decoding.last.block_efficiency > 1.5
    assert len(decoding.last.prefilled) == 3


def test_pipelines_end_texts_at_stop_strings(bundle: BlockwiseLM) -> None:
    """As criteria: transformers 4.57 and later give a callable no tokenizer."""
    tokenizer: Any = load_tokenizer(MODEL)
    tokenizer.padding_side, tokenizer.pad_token = "left", tokenizer.eos_token or "<|endoftext|>"
    pipe: Any = pipeline("text-generation", model=bundle.base, tokenizer=tokenizer)
    decoding = custom_generate(TreeDrafter(bundle, LM, num_nodes=16))
    texts = ["The history of the city", "In the beginning", "def main("]
    for stops, several in ((" the", {}), (["name", "e "], {"batch_size": 3}), ("no such text", {})):
        arguments: dict[str, Any] = {"max_new_tokens": 16, "do_sample": False, **several}
        criteria = StoppingCriteriaList([StopStringCriteria(tokenizer, stops)])
        expected = pipe(texts, **arguments, stop_sequence=stops)
        assert pipe(texts, **arguments, stopping_criteria=criteria, custom_generate=decoding) == expected


def test_translation_is_that_of_generate_for_models_whose_config_asks_for_much() -> None:
    """As Marian's and BART's checkpoints do: forced tokens, no repeated n-grams, a length."""
    model = tiny("bart", seed=4, eos=12)
    settings = {"forced_bos_token_id": 17, "no_repeat_ngram_size": 3, "max_length": 20, "min_length": 6}
    for name, value in settings.items():
        setattr(model.generation_config, name, value)
    expected = model.generate(**RAGGED)
    assert model.generate(**RAGGED, custom_generate=custom_generate(PromptNgramDrafter())).tolist() == expected.tolist()


def test_model_of_any_class_that_generates_will_do() -> None:
    class Own(GPT2LMHeadModel):
        """A subclass, as people have them."""

    config: PretrainedConfig = GPT2Config(
        vocab_size=23, n_positions=64, n_embd=16, n_layer=1, n_head=2, initializer_range=0.5
    )
    config.bos_token_id = config.eos_token_id = None
    torch.manual_seed(0)
    assert_same_text(Own(config).eval(), {"inputs": PROMPT}, max_new_tokens=NEW, do_sample=False)
