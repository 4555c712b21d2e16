"""Sequence-level distillation: what is written is the model's own text, once, whatever happens on the way."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import LlamaConfig, LlamaForCausalLM
from typer.testing import CliRunner

from latticebpd.cli import app
from latticebpd.models import BlockwiseLM
from lm_training.distill import DistillOptions, distill, load_distilled, prompt_starts
from lm_training.sequences import Sequences
from tests.conftest import tiny_model

OPTIONS = DistillOptions(prompts=10, prompt_tokens=5, max_new_tokens=7, shard_prompts=4)


def corpus(n: int = 400) -> np.ndarray:
    tokens = np.random.default_rng(0).integers(1, 23, n).astype(np.uint16)
    tokens[::37] = 0
    return tokens


def test_sequences_are_what_generate_writes_after_prompts_of_the_corpus(model: BlockwiseLM, tmp_path: Path) -> None:
    distill(model.base, corpus(), tmp_path, OPTIONS, batch_size=3)
    text = load_distilled(tmp_path)
    windows = {tuple(row) for row in corpus()[: 400 // 5 * 5].reshape(-1, 5).tolist()}
    assert len(text) == 10
    assert text.num_labels == 70
    prompts = [tuple(text[index][:5].tolist()) for index in range(10)]
    assert set(prompts) <= windows
    assert not any(0 in prompt for prompt in set(prompts) if model.base.config.eos_token_id is not None)
    for index, prompt in enumerate(prompts):
        expected = model.base.generate(torch.tensor([prompt]), do_sample=False, max_new_tokens=7)  # type: ignore[operator]
        assert text[index].tolist() == expected[0].tolist()


def test_text_ends_with_the_end_of_text_token_and_prompts_do_not_contain_it(tmp_path: Path) -> None:
    model = tiny_model(seed=0, eos_token_id=0)
    # A model that ends its text sooner or later.
    free = model.base.generate(torch.tensor([[4, 5, 6]]), do_sample=False, max_new_tokens=30, eos_token_id=None)  # type: ignore[operator]
    end = int(free[0, 8])
    model.base.generation_config.eos_token_id = end  # type: ignore[union-attr]
    tokens = np.tile(np.array([4, 5, 6], np.uint16), 40)
    distill(model.base, tokens, tmp_path, replace(OPTIONS, prompt_tokens=3, max_new_tokens=20))
    text = load_distilled(tmp_path)
    for index in range(len(text)):
        written = text[index][3:].tolist()
        assert written.count(end) == 1
        assert written[-1] == end
    starts = prompt_starts(corpus(), OPTIONS, [0])
    assert all(0 not in corpus()[start : start + 5] for start in starts)


def test_beams_are_those_of_generate(model: BlockwiseLM, tmp_path: Path) -> None:
    distill(model.base, corpus(), tmp_path, replace(OPTIONS, num_beams=3), batch_size=5)
    text = load_distilled(tmp_path)
    expected = model.base.generate(torch.tensor(text[0][None, :5].astype(np.int64)), do_sample=False, num_beams=3, max_new_tokens=7)  # type: ignore[operator]
    assert text[0].tolist() == expected[0].tolist()


def test_run_killed_in_a_shard_goes_on_with_that_shard(model: BlockwiseLM, tmp_path: Path) -> None:
    distill(model.base, corpus(), tmp_path / "whole", OPTIONS)
    batches = []

    def killed(prompts: int, tokens: int) -> None:
        batches.append(tokens)
        if len(batches) == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        distill(model.base, corpus(), tmp_path / "cut", OPTIONS, 2, on_batch=killed)
    assert sorted(path.name for path in (tmp_path / "cut").iterdir()) == ["distill.json", "shard-00000.npz"]
    with pytest.raises(ValueError, match=r"2 of 3 shards are missing, first shard-00001\.npz"):
        load_distilled(tmp_path / "cut")
    resumed: list[int] = []
    distill(model.base, corpus(), tmp_path / "cut", OPTIONS, 2, on_batch=lambda prompts, tokens: resumed.append(tokens))
    assert resumed[0] == 0  # the finished shard is not written again
    np.testing.assert_array_equal(load_distilled(tmp_path / "cut").tokens, load_distilled(tmp_path / "whole").tokens)


def test_parts_together_write_what_one_run_writes(model: BlockwiseLM, tmp_path: Path) -> None:
    distill(model.base, corpus(), tmp_path / "whole", OPTIONS)
    for index in range(2):
        distill(model.base, corpus(), tmp_path / "parts", OPTIONS, part=(index, 2))
    np.testing.assert_array_equal(load_distilled(tmp_path / "parts").tokens, load_distilled(tmp_path / "whole").tokens)
    assert sum(OPTIONS.prompts_of(index, 2) for index in range(2)) == 10


def test_directory_of_other_settings_or_another_model_is_refused(model: BlockwiseLM, tmp_path: Path) -> None:
    distill(model.base, corpus(), tmp_path, OPTIONS)
    with pytest.raises(ValueError, match=r"holds text made with options .* choose another directory"):
        distill(model.base, corpus(), tmp_path, replace(OPTIONS, seed=1))
    with pytest.raises(ValueError, match="holds text made with model sha256"):
        distill(tiny_model(seed=5).base, corpus(), tmp_path, OPTIONS)


def test_corpus_with_too_few_prompts_is_refused(model: BlockwiseLM, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="expected a corpus with 10 prompts of 5 tokens, got 4 from 24 tokens"):
        distill(model.base, corpus(24), tmp_path, OPTIONS)


def test_corpus_of_another_vocabulary_is_refused(model: BlockwiseLM, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"token ids below 23 .* got 77; was the corpus encoded with another tokenizer"):
        distill(model.base, np.full(400, 77, np.uint16), tmp_path, OPTIONS)


def test_text_longer_than_the_model_reads_is_refused(model: BlockwiseLM, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"at most 128 tokens .* got 5 \+ 124"):
        distill(model.base, corpus(), tmp_path, replace(OPTIONS, max_new_tokens=124))
    assert not any(tmp_path.iterdir())


def test_large_vocabularies_are_stored_whole(tmp_path: Path) -> None:
    """A corpus may hold small ids only; what the model writes need not."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=70000, hidden_size=4, num_hidden_layers=1, num_attention_heads=1, intermediate_size=4, eos_token_id=None,
        bos_token_id=None,
    )  # fmt: skip
    base = LlamaForCausalLM(config).eval()
    with torch.no_grad():
        base.lm_head.weight[:66000] = 0
    distill(base, corpus(), tmp_path, replace(OPTIONS, prompts=4, max_new_tokens=3))
    text = load_distilled(tmp_path)
    assert text.tokens.dtype == np.uint32
    assert text.tokens.max() >= 66000


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"options": {"prompts": 0}}', b'{"options": {"beams": 2}}'])
def test_damaged_settings_are_a_value_error(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "distill.json").write_bytes(content)
    with pytest.raises(ValueError, match="distill"):
        load_distilled(tmp_path)


def test_damaged_shard_is_a_value_error(model: BlockwiseLM, tmp_path: Path) -> None:
    distill(model.base, corpus(), tmp_path, OPTIONS)
    shard = tmp_path / "shard-00001.npz"
    whole = shard.read_bytes()
    for content in (b"", whole[: len(whole) // 2], whole.replace(b"starts", b"stairs")):
        shard.write_bytes(content)
        with pytest.raises(ValueError, match=r"shard-00001\.npz: expected sequences"):
            load_distilled(tmp_path)


@given(st.lists(st.lists(st.integers(0, 60000), min_size=1, max_size=6), max_size=8), st.data())
def test_sequences_round_trip_and_join(tmp_path_factory: pytest.TempPathFactory, rows: list[list[int]], data: st.DataObject) -> None:
    arrays = [np.array(row, np.uint16) for row in rows]
    prompts = [data.draw(st.integers(1, len(row))) for row in rows]
    whole = Sequences.of_rows(arrays, prompts, np.dtype(np.uint16))
    path = tmp_path_factory.mktemp("sequences") / "a.npz"
    whole.save(path)
    cut = data.draw(st.integers(0, len(rows)))
    joined = Sequences.joined([Sequences.of_rows(arrays[s], prompts[s], np.dtype(np.uint16)) for s in (slice(cut), slice(cut, None))])
    for again in (Sequences.load(path), joined):
        assert [row.tolist() for row in map(again.__getitem__, range(len(again)))] == rows
        assert again.prompt_lengths.tolist() == prompts
    assert whole.num_labels == sum(map(len, rows)) - sum(prompts)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"starts": np.array([0, 4, 3])}, "starts that rise from 0 to 3"),
        ({"starts": np.array([0, 2])}, "starts that rise from 0 to 3"),
        ({"prompt_lengths": np.array([1, 2])}, "from 1 to the sequence's length"),
        ({"prompt_lengths": np.array([0, 1])}, "from 1 to the sequence's length"),
        ({"tokens": np.array([1, -2, 3])}, "token ids >= 0, got -2"),
        ({"tokens": np.array([1.0, 2.0, 3.0])}, r"expected tokens \[n\] of integers"),
    ],
)
def test_impossible_sequences_are_refused(change: dict[str, np.ndarray], message: str) -> None:
    good = {"tokens": np.array([1, 2, 3]), "starts": np.array([0, 2, 3]), "prompt_lengths": np.array([1, 1])}
    Sequences(**good)
    with pytest.raises(ValueError, match=message):
        Sequences(**(good | change))


def test_corpus_of_sequences_has_every_label_with_its_history_and_ends_each_text_once() -> None:
    rows = [np.array(row, np.uint16) for row in ([1, 2, 3, 4, 5], [6, 7], [8, 9, 0])]
    text = Sequences.of_rows(rows, [3, 1, 1], np.dtype(np.uint16))
    assert text.corpus(end_of_text=0, history=2).tolist() == [2, 3, 4, 5, 0, 6, 7, 0, 8, 9, 0]
    assert text.corpus(end_of_text=0, history=0).tolist() == [4, 5, 0, 7, 0, 9, 0]
    assert text.corpus(0, 2).dtype == np.uint16


def test_windows_of_a_corpus_cover_it_without_overlap() -> None:
    windows = Sequences.of_corpus(np.arange(10), 3)
    assert [windows[index].tolist() for index in range(len(windows))] == [[0, 1, 2], [3, 4, 5], [6, 7, 8]]
    assert windows.num_labels == 6
    with pytest.raises(ValueError, match="at least 11 tokens"):
        Sequences.of_corpus(np.arange(10), 11)


def test_command_writes_and_goes_on(model: BlockwiseLM, tmp_path: Path) -> None:
    model.save_pretrained(tmp_path / "model")
    np.save(tmp_path / "corpus.npy", corpus())
    command = ["distill", str(tmp_path / "corpus.npy"), "--model", str(tmp_path / "model"), "-o", str(tmp_path / "out")]
    sizes = ["--prompts", "6", "--prompt-tokens", "5", "--max-new-tokens", "4", "--shard-prompts", "2"]
    for _ in range(2):
        result = CliRunner().invoke(app, command + sizes, catch_exceptions=False)
        assert result.exit_code == 0
        assert "6 sequences, 24 tokens" in " ".join(result.output.split())
    assert json.loads((tmp_path / "out/distill.json").read_text())["options"]["prompts"] == 6
    with pytest.raises(ValueError, match="end-of-text token to write --corpus, found none"):
        CliRunner().invoke(app, [*command, *sizes, "--corpus", str(tmp_path / "written.npy")], catch_exceptions=False)
    for bad in ("3", "2/2", "a/b"):
        with pytest.raises(ValueError, match="i/n"):
            CliRunner().invoke(app, [*command, *sizes, "--part", bad], catch_exceptions=False)


def test_command_writes_a_corpus_for_ngrams(tmp_path: Path) -> None:
    tiny_model(eos_token_id=0).save_pretrained(tmp_path / "model")
    np.save(tmp_path / "corpus.npy", corpus())
    command = ["distill", str(tmp_path / "corpus.npy"), "--model", str(tmp_path / "model"), "-o", str(tmp_path / "out"), "--prompts", "6"]
    result = CliRunner().invoke(app, [*command, "--prompt-tokens", "5", "--corpus", str(tmp_path / "w.npy")], catch_exceptions=False)
    assert result.exit_code == 0
    np.testing.assert_array_equal(np.load(tmp_path / "w.npy"), load_distilled(tmp_path / "out").corpus(0, 3))
