"""Sequence-level distillation: what is written is the model's own text, once, whatever happens on the way."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel
from typer.testing import CliRunner

from latticebpd import NoDrafter, generate
from latticebpd.cli import app
from latticebpd.decoding.loop import RowBatch
from latticebpd.drafters import PromptNgramDrafter
from latticebpd.drafters.heads.blockwise import BlockwiseLM
from latticebpd.lattices.shards import share_size
from latticebpd.lattices.texts import Texts
from latticebpd.models.engine.engine_copy import engine_copy
from latticebpd.models.engine.engine_model import EngineModel, gguf_model
from latticebpd.models.transformers.transformers_model import TransformersModel
from lm_training.data import distill as distilling
from lm_training.data.distill import DistillOptions, corpus_prompts, distill, suits_loop
from lm_training.data.hidden_states import StateOptions, load_states
from lm_training.data.sequences import load_distilled, written_corpus
from tests.helpers.blockwise_models import tiny_model
from tests.helpers.engine_models import stock
from tests.helpers.gguf_files import FLOATS, written
from tests.helpers.tiny_families import tiny

OPTIONS = DistillOptions(max_new_tokens=7, shard_prompts=4)


def corpus(n: int = 400) -> np.ndarray:
    tokens = np.random.default_rng(0).integers(1, 23, n).astype(np.uint16)
    tokens[::37] = 0
    return tokens


def prompts(count: int = 10, length: int = 5, seed: int = 0) -> Texts:
    return corpus_prompts(corpus(), count, length, end_ids=[0], seed=seed)


def uneven(count: int = 11) -> Texts:
    """Prompts of 1 to 6 tokens, each followed by gold text that must not matter."""
    rng = np.random.default_rng(2)
    lengths = rng.integers(1, 7, count)
    rows = [rng.integers(2, 23, length + 3) for length in lengths]
    return Texts.of_rows(rows, lengths.tolist(), np.uint16)


def test_sequences_are_what_generate_writes_after_prompts_of_the_corpus(model: BlockwiseLM, tmp_path: Path) -> None:
    distill(model.base, prompts(), tmp_path, replace(OPTIONS, batch_size=3))
    text = load_distilled(tmp_path)
    windows = {tuple(row) for row in corpus()[: 400 // 5 * 5].reshape(-1, 5).tolist()}
    assert len(text) == 10
    assert text.num_labels == 70
    chosen = [tuple(text[index][:5].tolist()) for index in range(10)]
    assert set(chosen) <= windows
    assert not any(0 in prompt for prompt in chosen)
    for index, prompt in enumerate(chosen):
        expected = model.base.generate(torch.tensor([prompt]), do_sample=False, max_new_tokens=7)
        assert text[index].tolist() == expected[0].tolist()


def test_text_ends_with_the_end_of_text_token_and_prompts_do_not_contain_it(tmp_path: Path) -> None:
    model = tiny_model(seed=0, eos_token_id=0)
    # A model that ends its text sooner or later.
    free = model.base.generate(torch.tensor([[4, 5, 6]]), do_sample=False, max_new_tokens=30, eos_token_id=None)
    end = int(free[0, 8])
    model.base.generation_config.eos_token_id = end
    tokens = np.tile(np.array([4, 5, 6], np.uint16), 40)
    distill(model.base, corpus_prompts(tokens, 10, 3, end_ids=[end]), tmp_path, replace(OPTIONS, max_new_tokens=20))
    text = load_distilled(tmp_path)
    for index in range(len(text)):
        written = text[index][3:].tolist()
        assert written.count(end) == 1
        assert written[-1] == end


@pytest.mark.parametrize("family", ["gpt2", "llama", "bloom", "t5", "marian", "bart"])
@pytest.mark.parametrize("num_beams", [1, 3])
def test_given_prompts_of_any_length_are_answered_as_generate_answers_each_alone(
    family: str, num_beams: int, tmp_path: Path
) -> None:
    """Batches of prompts that differ in length, padded by `distill`, against one prompt at a time without padding."""
    base, inputs = tiny(family, seed=3, eos=7), uneven()
    distill(base, inputs, tmp_path, replace(OPTIONS, num_beams=num_beams, batch_size=3))
    text = load_distilled(tmp_path)
    assert text.prompt_lengths.tolist() == inputs.prompt_lengths.tolist()
    behind = 1 if base.config.is_encoder_decoder else None
    for index, length in enumerate(inputs.prompt_lengths.tolist()):
        prompt = inputs[index][:length].astype(np.int64)
        assert text[index][:length].tolist() == prompt.tolist()
        out = base.generate(
            torch.from_numpy(prompt)[None],
            attention_mask=torch.ones(1, length),
            do_sample=False,
            num_beams=num_beams,
            max_new_tokens=7,
        )
        assert text[index][length:].tolist() == out[0, behind or length :].tolist()


@pytest.mark.parametrize("family", ["llama", "bloom", "marian"])
def test_text_is_that_of_generate_whatever_its_config_asks_for(family: str, tmp_path: Path) -> None:
    """Penalties are honoured, beams and sampling are not asked for; our loop writes it, or for Bloom `generate()`."""
    base, inputs = tiny(family, seed=3, eos=7), uneven()
    config: Any = base.generation_config
    config.num_beams, config.repetition_penalty, config.no_repeat_ngram_size, config.do_sample = 4, 1.3, 2, True
    assert suits_loop(TransformersModel.of(base)) == (family != "bloom")
    for drafter in (None, PromptNgramDrafter()):
        distill(base, inputs, tmp_path / str(drafter is None), replace(OPTIONS, batch_size=3), drafter=drafter)
        text = load_distilled(tmp_path / str(drafter is None))
        for index, (tokens, length) in enumerate(text.items()):
            prompt = torch.tensor([tokens[:length]])
            expected = base.generate(
                prompt, attention_mask=torch.ones_like(prompt), do_sample=False, num_beams=1, max_new_tokens=7
            )  # type: ignore[operator]
            assert tokens[length:] == expected[0, 1 if base.config.is_encoder_decoder else length :].tolist(), index
    assert base.generation_config is config
    assert config.num_beams == 4


def frequent_end() -> LlamaForCausalLM:
    """A model whose texts end at many lengths: a token that it often writes ends them."""
    model = stock()
    model.generation_config.eos_token_id = 9
    return model


def ending(weights: str) -> EngineModel:
    """The same on the engine."""
    return engine_copy(frequent_end(), weights)


@pytest.mark.parametrize("weights", ["float32", "int8"])
@pytest.mark.parametrize("copies", [False, True])
def test_rows_of_the_engine_write_what_each_prompt_gets_alone(weights: str, copies: bool, tmp_path: Path) -> None:
    base, inputs = ending(weights), uneven(23)
    options = DistillOptions(max_new_tokens=40, shard_prompts=5, batch_size=4)
    distill(base, inputs, tmp_path, options, drafter=PromptNgramDrafter() if copies else None)
    texts = [tokens[length:] for tokens, length in load_distilled(tmp_path).items()]
    expected = []
    for number, length in enumerate(inputs.prompt_lengths.tolist()):
        out = generate(base, inputs[number][:length].tolist(), NoDrafter(), max_new_tokens=40, trace=True)
        expected.append([token for block in out.blocks() for token in block])
    assert texts == expected
    assert len({*map(len, expected)}) > 5
    assert json.loads((tmp_path / "distill.json").read_text()).get("weights") == {"int8": "int8"}.get(weights)


def test_rows_of_the_engine_honour_the_generation_config(tmp_path: Path) -> None:
    base, inputs = frequent_end(), uneven()
    config: Any = base.generation_config
    config.num_beams, config.repetition_penalty, config.no_repeat_ngram_size, config.do_sample = 4, 1.3, 2, True
    with pytest.raises(ValueError, match="expected a generation config without num_beams, got 4"):
        distill(engine_copy(base), inputs, tmp_path, OPTIONS)
    with pytest.raises(ValueError, match="expected one beam on the CPU engine, got 3; load with weights='torch'"):
        distill(engine_copy(base), inputs, tmp_path, replace(OPTIONS, num_beams=3))
    assert not any(tmp_path.iterdir())
    config.num_beams = 1
    distill(engine_copy(base), inputs, tmp_path, replace(OPTIONS, batch_size=3))
    for tokens, length in load_distilled(tmp_path).items():
        prompt = torch.tensor([tokens[:length]])
        expected = base.generate(
            prompt, attention_mask=torch.ones_like(prompt), do_sample=False, num_beams=1, max_new_tokens=7
        )  # type: ignore[operator]
        assert tokens == expected[0].tolist()


def test_prompts_of_the_next_shards_take_the_rows_of_ended_texts(tmp_path: Path, monkeypatch: Any) -> None:
    """Passes stay as wide as there are rows until no prompt is left; a killed run keeps complete shards."""
    widths: list[int] = []
    step = RowBatch.step

    def watched(batch: RowBatch) -> Any:
        widths.append(len(batch.rows))
        return step(batch)

    monkeypatch.setattr(RowBatch, "step", watched)
    options = DistillOptions(max_new_tokens=40, shard_prompts=5, batch_size=4)
    done: list[int] = []

    def killed(prompts: int, tokens: int) -> None:
        done.append(prompts)
        if sum(done) >= 12:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        distill(ending("int8"), uneven(23), tmp_path, options, on_batch=killed)
    assert set(widths) == {4}
    kept = {path.name: path.read_bytes() for path in tmp_path.glob("shard-*")}
    assert 1 <= len(kept) < 3
    widths.clear()
    distill(ending("int8"), uneven(23), tmp_path, options)
    narrow = widths.index(3)
    assert set(widths[:narrow]) == {4}
    assert widths[narrow:] == sorted(widths[narrow:], reverse=True)
    assert all((tmp_path / name).read_bytes() == content for name, content in kept.items())
    distill(ending("int8"), uneven(23), tmp_path / "whole", options)
    np.testing.assert_array_equal(load_distilled(tmp_path).tokens, load_distilled(tmp_path / "whole").tokens)


@pytest.mark.parametrize("copies", [False, True])
def test_states_that_rows_are_decoded_from_are_kept_without_another_pass(
    copies: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base, options, passes = ending("int8"), DistillOptions(20, shard_prompts=5, batch_size=4), []
    read = distilling.states_of
    monkeypatch.setattr(distilling, "states_of", lambda *inputs: passes.append(1) or read(*inputs))
    drafter = PromptNgramDrafter() if copies else None
    distill(base, uneven(), tmp_path, options, states=StateOptions(), drafter=drafter)
    assert len(passes) == (3 if copies else 0)
    text = load_distilled(tmp_path)
    states, expected = (
        load_states(tmp_path, text),
        read(base, text, StateOptions())["last"].half(),
    )
    assert states is not None
    assert torch.equal(torch.cat([states.of_text(index) for index in range(len(text))]), expected)


def test_texts_of_other_weights_are_other_texts(tmp_path: Path) -> None:
    distill(ending("int8"), uneven(), tmp_path, OPTIONS)
    with pytest.raises(ValueError, match="holds text made with weights int8, asked for is None"):
        distill(ending("float32"), uneven(), tmp_path, OPTIONS)


@pytest.mark.parametrize("family", ["llama", "marian"])
def test_hidden_states_are_kept_as_text_is_written_or_added_afterwards(family: str, tmp_path: Path) -> None:
    base = tiny(family, seed=3, eos=7)
    distill(base, uneven(), tmp_path / "at-once", OPTIONS, states=StateOptions([1]))
    distill(base, uneven(), tmp_path / "later", OPTIONS, part=(0, 2))
    for _ in range(2):
        distill(base, uneven(), tmp_path / "later", OPTIONS, states=StateOptions([1]))
    states_by_way = []
    for name in ("at-once", "later"):
        text = load_distilled(tmp_path / name)
        states = load_states(tmp_path / name, text)
        assert states is not None
        states_by_way.append(
            [states.of_text(index, layer) for index in range(len(text)) for layer in ("last", "layer-1")]
        )
        assert sum(map(len, states_by_way[-1])) == 2 * text.num_labels
    assert all(torch.equal(one, other) for one, other in zip(*states_by_way, strict=True))


def test_answers_of_an_encoder_decoder_end_with_end_of_text_once(tmp_path: Path) -> None:
    base = tiny("marian", seed=3)
    free = base.generate(torch.tensor([[4, 5, 6]]), do_sample=False, max_new_tokens=9)
    end = int(free[0, 4])
    base.generation_config.eos_token_id = end
    assert TransformersModel.of(base).eos_ids == [end]
    sources = Texts.of_rows([np.array([4, 5, 6]), np.array([7, 8])], [3, 2], np.uint16)
    distill(base, sources, tmp_path, OPTIONS)
    written = load_distilled(tmp_path)[0][3:].tolist()
    assert written == free[0, 1 : free[0].tolist().index(end) + 1].tolist()
    assert written.count(end) == 1


def test_beams_are_those_of_generate(model: BlockwiseLM, tmp_path: Path) -> None:
    distill(model.base, prompts(), tmp_path, replace(OPTIONS, num_beams=3, batch_size=5))
    text = load_distilled(tmp_path)
    expected = model.base.generate(
        torch.tensor(text[0][None, :5].astype(np.int64)), do_sample=False, num_beams=3, max_new_tokens=7
    )
    assert text[0].tolist() == expected[0].tolist()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpu_writes_the_text_of_a_cpu(tmp_path: Path) -> None:
    """By `generate()` with a static cache, in float32."""
    for device in ("cpu", "cuda"):
        distill(tiny_model().base.to(device), uneven(), tmp_path / device, OPTIONS)
    texts = [load_distilled(tmp_path / device) for device in ("cpu", "cuda")]
    assert texts[0].fingerprint() == texts[1].fingerprint()


def test_run_killed_in_a_shard_goes_on_with_that_shard(model: BlockwiseLM, tmp_path: Path) -> None:
    distill(model.base, prompts(), tmp_path / "whole", OPTIONS)
    batches = []

    def killed(prompts: int, tokens: int) -> None:
        batches.append(tokens)
        if len(batches) == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        distill(model.base, prompts(), tmp_path / "cut", replace(OPTIONS, batch_size=2), on_batch=killed)
    assert sorted(path.name for path in (tmp_path / "cut").iterdir()) == ["distill.json", "shard-00000.npz"]
    with pytest.raises(ValueError, match=r"2 of 3 shards are missing, first shard-00001\.npz"):
        load_distilled(tmp_path / "cut")
    resumed: list[int] = []
    distill(
        model.base,
        prompts(),
        tmp_path / "cut",
        replace(OPTIONS, batch_size=2),
        on_batch=lambda prompts, tokens: resumed.append(tokens),
    )
    assert resumed[0] == 0  # the finished shard is not written again
    np.testing.assert_array_equal(load_distilled(tmp_path / "cut").tokens, load_distilled(tmp_path / "whole").tokens)


def test_parts_together_write_what_one_run_writes(model: BlockwiseLM, tmp_path: Path) -> None:
    distill(model.base, prompts(), tmp_path / "whole", OPTIONS)
    for index in range(2):
        distill(model.base, prompts(), tmp_path / "parts", OPTIONS, part=(index, 2))
    np.testing.assert_array_equal(load_distilled(tmp_path / "parts").tokens, load_distilled(tmp_path / "whole").tokens)
    assert [share_size(10, OPTIONS.shard_prompts, (index, 2)) for index in range(2)] == [6, 4]


def test_directory_of_other_settings_or_another_model_is_refused(model: BlockwiseLM, tmp_path: Path) -> None:
    distill(model.base, prompts(), tmp_path, OPTIONS)
    with pytest.raises(ValueError, match=r"holds text made with options .* choose another directory"):
        distill(model.base, prompts(), tmp_path, replace(OPTIONS, num_beams=2))
    with pytest.raises(ValueError, match="holds text made with prompts_hash sha256"):
        distill(model.base, prompts(seed=1), tmp_path, OPTIONS)
    with pytest.raises(ValueError, match="holds text made with prompts 10, asked for is 9"):
        distill(model.base, prompts(9), tmp_path, OPTIONS)
    with pytest.raises(ValueError, match="holds text made with model sha256"):
        distill(tiny_model(seed=5).base, prompts(), tmp_path, OPTIONS)


def test_corpus_with_too_few_prompts_is_refused() -> None:
    with pytest.raises(ValueError, match="expected a corpus with 10 prompts of 5 tokens, got 3 from 24 tokens"):
        corpus_prompts(corpus(24), 10, 5, end_ids=[0])


def test_prompts_of_another_vocabulary_are_refused(model: BlockwiseLM, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"token ids below 23 .* got 77; was the text encoded with another tokenizer"):
        distill(model.base, corpus_prompts(np.full(400, 77, np.uint16), 10, 5, []), tmp_path, OPTIONS)
    with pytest.raises(ValueError, match="at least one prompt, got none"):
        distill(model.base, Texts.of_rows([], [], np.uint16), tmp_path, OPTIONS)


def test_text_longer_than_the_model_reads_is_refused(model: BlockwiseLM, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"at most 128 tokens .* got 5 \+ 124"):
        distill(model.base, prompts(), tmp_path, replace(OPTIONS, max_new_tokens=124))
    with pytest.raises(
        ValueError,
        match=r"sources of at most 96 tokens .* texts of at most 95, got a source of 5 and texts of up to 96",
    ):
        distill(tiny("marian"), prompts(), tmp_path, replace(OPTIONS, max_new_tokens=96))
    assert not any(tmp_path.iterdir())


def test_large_vocabularies_are_stored_whole(tmp_path: Path) -> None:
    """A corpus may hold small ids only; what the model writes need not."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=70000, hidden_size=4, num_hidden_layers=1, num_attention_heads=1, intermediate_size=4,
        eos_token_id=None,
        bos_token_id=None,
    )  # fmt: skip
    base = LlamaForCausalLM(config).eval()
    with torch.no_grad():
        base.lm_head.weight[:66000] = 0
    distill(base, prompts(4), tmp_path, replace(OPTIONS, max_new_tokens=3))
    text = load_distilled(tmp_path)
    assert text.tokens.dtype == np.uint32
    assert text.tokens.max() >= 66000


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b'{"options": {"num_beams": 0}}',
        b'{"options": {"beams": 2}}',
        b'{"options": {}, "prompts": "x"}',
    ],
)
def test_damaged_settings_are_a_value_error(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "distill.json").write_bytes(content)
    with pytest.raises(ValueError, match="distill"):
        load_distilled(tmp_path)


def test_damaged_shard_is_a_value_error(model: BlockwiseLM, tmp_path: Path) -> None:
    distill(model.base, prompts(), tmp_path, OPTIONS)
    shard = tmp_path / "shard-00001.npz"
    full = shard.read_bytes()
    for content in (b"", full[: len(full) // 2], full.replace(b"starts", b"stairs")):
        shard.write_bytes(content)
        with pytest.raises(ValueError, match=r"shard-00001\.npz: expected texts as"):
            load_distilled(tmp_path)


@given(st.lists(st.lists(st.integers(0, 60000), min_size=1, max_size=6), max_size=8), st.data())
def test_sequences_round_trip_and_join(
    tmp_path_factory: pytest.TempPathFactory, rows: list[list[int]], data: st.DataObject
) -> None:
    arrays = [np.array(row, np.uint16) for row in rows]
    lengths = [data.draw(st.integers(1, len(row))) for row in rows]
    full = Texts.of_rows(arrays, lengths, np.uint16)
    path = tmp_path_factory.mktemp("sequences") / "a.npz"
    full.save(path)
    cut = data.draw(st.integers(0, len(rows)))
    joined = Texts.joined([Texts.of_rows(arrays[s], lengths[s], np.uint16) for s in (slice(cut), slice(cut, None))])
    for again in (Texts.load(path), joined):
        assert [row.tolist() for row in map(again.__getitem__, range(len(again)))] == rows
        assert again.prompt_lengths.tolist() == lengths
    assert full.num_labels == sum(map(len, rows)) - sum(lengths)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"starts": np.array([0, 4, 3])}, "starts that rise from 0 to 3"),
        ({"starts": np.array([0, 2])}, "starts that rise from 0 to 3"),
        ({"prompt_lengths": np.array([1, 2])}, "from 1 to the text's length"),
        ({"prompt_lengths": np.array([0, 1])}, "from 1 to the text's length"),
        ({"tokens": np.array([1, -2, 3])}, "token ids >= 0, got -2"),
        ({"tokens": np.array([1.0, 2.0, 3.0])}, r"expected tokens \[n\] of integers"),
    ],
)
def test_impossible_sequences_are_refused(change: dict[str, np.ndarray], message: str) -> None:
    good = {"tokens": np.array([1, 2, 3]), "starts": np.array([0, 2, 3]), "prompt_lengths": np.array([1, 1])}
    Texts(**good)
    with pytest.raises(ValueError, match=message):
        Texts(**(good | change))


def test_corpus_of_sequences_has_every_label_with_its_history_and_ends_each_text_once() -> None:
    rows = [np.array(row, np.uint16) for row in ([1, 2, 3, 4, 5], [6, 7], [8, 9, 0])]
    text = Texts.of_rows(rows, [3, 1, 1], np.uint16)
    assert text.corpus(end_of_text=0, history=2).tolist() == [2, 3, 4, 5, 0, 6, 7, 0, 8, 9, 0]
    assert text.corpus(end_of_text=0, history=0).tolist() == [4, 5, 0, 7, 0, 9, 0]
    assert text.corpus(0, 2).dtype == np.uint16
    assert text.answers(start=22).corpus(end_of_text=0, history=2).tolist() == [22, 4, 5, 0, 22, 7, 0, 22, 9, 0]
    assert text.answers(start=0).corpus(end_of_text=0, history=2).tolist() == [
        4,
        5,
        0,
        7,
        0,
        9,
        0,
    ]  # one token between texts
    assert [text.prompts()[index].tolist() for index in range(3)] == [[1, 2, 3], [6], [8]]


def test_windows_of_a_corpus_cover_it_without_overlap() -> None:
    windows = Texts.of_corpus(np.arange(10), 3)
    assert [windows[index].tolist() for index in range(len(windows))] == [[0, 1, 2], [3, 4, 5], [6, 7, 8]]
    assert windows.num_labels == 6
    with pytest.raises(ValueError, match="at least 11 tokens"):
        Texts.of_corpus(np.arange(10), 11)


def test_command_writes_and_goes_on(model: BlockwiseLM, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model.save_pretrained(tmp_path / "model")
    np.save(tmp_path / "corpus.npy", corpus())
    command = ["distill", str(tmp_path / "corpus.npy"), "--model", str(tmp_path / "model"), "-o", str(tmp_path / "out")]
    sizes = ["--prompts", "6", "--prompt-tokens", "5", "--max-new-tokens", "4", "--shard-prompts", "2"]
    for _ in range(2):
        result = CliRunner().invoke(app, command + sizes, catch_exceptions=False)
        assert result.exit_code == 0
        assert "6 sequences, 24 tokens" in " ".join(result.output.split())
    assert json.loads((tmp_path / "out/distill.json").read_text())["prompts"] == 6
    for index in range(2):  # as torchrun would start them
        monkeypatch.setenv("RANK", str(index))
        monkeypatch.setenv("WORLD_SIZE", "2")
        parts = [*command[:-1], str(tmp_path / "parts"), *sizes, "--hidden"]
        result = CliRunner().invoke(app, parts, catch_exceptions=False)
        assert f"part {index}/2 is complete" in " ".join(result.output.split())
    np.testing.assert_array_equal(load_distilled(tmp_path / "parts").tokens, load_distilled(tmp_path / "out").tokens)
    assert len(list((tmp_path / "parts/hidden").glob("shard-*.safetensors"))) == 3
    monkeypatch.undo()
    for bad in ("3", "2/2", "a/b"):
        with pytest.raises(ValueError, match="i/n"):
            CliRunner().invoke(app, [*command, *sizes, "--part", bad], catch_exceptions=False)


def test_command_writes_by_the_weights_that_are_asked_for(tmp_path: Path) -> None:
    frequent_end().save_pretrained(tmp_path / "model")
    uneven().save(tmp_path / "asked.npz")
    sizes = ["--max-new-tokens", "20", "--shard-prompts", "4", "--batch-size", "3", "--hidden", "--model"]
    command = ["distill", str(tmp_path / "asked.npz"), *sizes, str(tmp_path / "model"), "-o"]
    for weights in ("int8", "float32", "torch"):
        arguments = [*command, str(tmp_path / weights), "--weights", weights]
        assert CliRunner().invoke(app, arguments, catch_exceptions=False).exit_code == 0
    distill(ending("int8"), uneven(), tmp_path / "expected", DistillOptions(20, shard_prompts=4))
    texts = {path.name: load_distilled(path) for path in tmp_path.iterdir() if (path / "distill.json").exists()}
    np.testing.assert_array_equal(texts["int8"].tokens, texts["expected"].tokens)
    np.testing.assert_array_equal(texts["float32"].tokens, texts["torch"].tokens)
    assert texts["int8"].tokens.tolist() != texts["torch"].tokens.tolist()
    # Hidden states that are made afterwards are those that were made with the text.
    texts["int8"].save(tmp_path / "again.npz")
    later = ["train", "hidden", str(tmp_path / "again.npz"), "--model", str(tmp_path / "model"), "--weights", "int8"]
    assert CliRunner().invoke(app, later, catch_exceptions=False).exit_code == 0
    states = [load_states(path, texts["int8"]) for path in (tmp_path / "int8", tmp_path / "again.npz")]
    for index in range(len(texts["int8"])):
        one, other = (each.of_text(index) for each in states if each is not None)
        assert torch.equal(one, other)
    for hidden in ("int8/hidden", "again.hidden"):
        assert json.loads((tmp_path / hidden / "hidden.json").read_text())["weights"] == "int8"
    beams = [*command, str(tmp_path / "beams"), "--weights", "int8", "--num-beams", "2"]
    with pytest.raises(ValueError, match="expected --weights torch for --num-beams 2, got int8"):
        CliRunner().invoke(app, beams, catch_exceptions=False)


@pytest.mark.parametrize("place", ["model.gguf", "folder"])
def test_a_gguf_file_is_distilled_without_a_model_on_pytorch(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Alone, or in the folder of its model; heads are then trained from its states."""
    model, name, folder = stock(3), tmp_path / place, tmp_path / "folder"
    model.generation_config.eos_token_id = 2
    model.save_pretrained(folder)
    file = folder / "model.gguf" if place == "folder" else name
    written(file, model, FLOATS, {"context_length": model.config.max_position_embeddings})
    uneven().save(tmp_path / "asked.npz")
    shape = ["--model", str(name), "--device", "cpu"]
    command = ["distill", str(tmp_path / "asked.npz"), *shape, "-o", str(tmp_path / "out"), "--max-new-tokens", "9"]
    with monkeypatch.context() as patch:
        patch.setattr(PreTrainedModel, "from_pretrained", None)  # nothing that is called
        assert CliRunner().invoke(app, [*command, "--hidden"], catch_exceptions=False).exit_code == 0
        target, text = gguf_model(name), load_distilled(tmp_path / "out")
        assert target is not None
        for tokens, length in text.items():
            assert tokens == generate(target, tokens[:length], NoDrafter(), max_new_tokens=9).tokens[0].tolist()
        text.save(tmp_path / "again.npz")
        later = ["train", "hidden", str(tmp_path / "again.npz"), *shape]
        assert CliRunner().invoke(app, later, catch_exceptions=False).exit_code == 0
    assert json.loads((tmp_path / "out/distill.json").read_text())["weights"] == "gguf"
    stored = [load_states(path, text) for path in (tmp_path / "out", tmp_path / "again.npz")]
    for index in range(len(text)):
        one, other = (each.of_text(index) for each in stored if each is not None)
        assert torch.equal(one, other)
    out = str(tmp_path / "out")
    heads = ["train", "heads", out, "--validation", out, *shape, "-o", str(tmp_path / "heads"), "--num-heads", "3"]
    result = CliRunner().invoke(app, [*heads, "--steps", "1", "--serving-prompts", "0"], catch_exceptions=False)
    assert (result.exit_code, "are read from their files" in " ".join(result.output.split())) == (0, True)


def test_command_writes_by_pytorch_what_only_generate_honours_unless_weights_are_asked_for(tmp_path: Path) -> None:
    model = frequent_end()
    model.generation_config.guidance_scale = 1.5
    model.generation_config.num_beams = 3  # which distill ignores
    model.save_pretrained(tmp_path / "model")
    inputs = uneven(3)
    inputs.save(tmp_path / "asked.npz")
    command = ["distill", str(tmp_path / "asked.npz"), "--model", str(tmp_path / "model"), "--max-new-tokens", "9"]
    with pytest.raises(ValueError, match=r"expected a generation config without guidance_scale, got 1\.5"):
        CliRunner().invoke(app, [*command, "-o", str(tmp_path / "no"), "--weights", "int8"], catch_exceptions=False)
    result = CliRunner().invoke(app, [*command, "-o", str(tmp_path / "out"), "--batch-size", "1"])
    assert result.exit_code == 0
    for tokens, length in load_distilled(tmp_path / "out").items():
        prompt = torch.tensor([tokens[:length]])
        expected = model.generate(
            prompt, attention_mask=torch.ones_like(prompt), do_sample=False, num_beams=1, max_new_tokens=9
        )  # type: ignore[operator]
        assert tokens == expected[0].tolist()


def test_command_lets_an_encoder_decoder_answer_sources(tmp_path: Path) -> None:
    base = tiny("marian", seed=3, eos=7)
    base.save_pretrained(tmp_path / "model")
    uneven().save(tmp_path / "pairs.npz")
    command = ["distill", str(tmp_path / "pairs.npz"), "--model", str(tmp_path / "model"), "-o", str(tmp_path / "out")]
    more = ["--num-beams", "2", "--max-new-tokens", "7"]
    assert CliRunner().invoke(app, command + more, catch_exceptions=False).exit_code == 0
    text = load_distilled(tmp_path / "out")
    distill(base, uneven(), tmp_path / "same", DistillOptions(max_new_tokens=7, num_beams=2))
    np.testing.assert_array_equal(text.tokens, load_distilled(tmp_path / "same").tokens)
    np.testing.assert_array_equal(written_corpus(tmp_path / "out", 7, 3), text.answers(1).corpus(7, 3))
    # What was distilled serves as sources again.
    again = [
        "distill",
        str(tmp_path / "out"),
        "--model",
        str(tmp_path / "model"),
        "-o",
        str(tmp_path / "again"),
        "--max-new-tokens",
        "2",
    ]
    assert CliRunner().invoke(app, again, catch_exceptions=False).exit_code == 0
    assert load_distilled(tmp_path / "again").prompt_lengths.tolist() == text.prompt_lengths.tolist()
    np.save(tmp_path / "corpus.npy", corpus())
    command[1] = str(tmp_path / "corpus.npy")
    with pytest.raises(ValueError, match=r"expected sources \(.npz\) for an encoder-decoder"):
        CliRunner().invoke(app, command, catch_exceptions=False)
    command.insert(1, str(tmp_path / "pairs.npz"))
    with pytest.raises(ValueError, match=r"either prompts .* got both"):
        CliRunner().invoke(app, command, catch_exceptions=False)
