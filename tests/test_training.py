"""Corpora, and training that resumes exactly."""

from __future__ import annotations

import gzip
import json
import lzma
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from lm_training.blockwise import (
    ModelShape,
    Trainer,
    TrainingOptions,
    batch_at,
    block_loss,
    learning_rate_factor,
    new_model,
    train_blockwise,
)
from lm_training.corpus import END_OF_TEXT, corpus_ids, encode_documents, is_held_out, load_tokens, read_documents, train_tokenizer
from lm_training.muon import orthogonalise

SHAPE = ModelShape(
    vocab_size=31,
    hidden_size=16,
    num_layers=1,
    attention_heads=2,
    intermediate_size=24,
    num_heads=4,
    head_intermediate_size=8,
    max_positions=64,
)
OPTIONS = TrainingOptions(steps=6, batch_size=2, sequence_length=16, warmup_steps=2, validation_every=3, checkpoint_every=2)


def corpus(n: int = 900) -> np.ndarray:
    return (np.arange(n) * 7 % 29 + 1).astype(np.uint16)


def test_documents_are_read_from_every_kind_of_file(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one")
    record = json.dumps({"id": "x", "source": "s", "text": "two"}) + "\n\n"
    with lzma.open(tmp_path / "b.jsonl.xz", "wt") as file:
        file.write(record)
    with gzip.open(tmp_path / "c.jsonl.gz", "wt") as file:
        file.write(record.replace("two", "three"))
    found = list(read_documents(sorted(tmp_path.iterdir())))
    assert [document.text for document in found] == ["one", "two", "three"]
    assert (found[1].id, found[1].source) == ("x", "s")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.jsonl", b'{"text": "x"}\n{oops\n', r"a\.jsonl:2: expected a JSON object"),
        ("a.jsonl", b'{"body": "x"}\n', r"a\.jsonl:1: expected a string under 'text'"),
        ("a.txt", b"\xff\xfe", "cannot be read as UTF-8"),
        ("a.txt.xz", b"not xz", "cannot be read"),
        ("a.txt.gz", b"not gz", "cannot be read"),
    ],
)
def test_unreadable_document_is_named(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=message):
        list(read_documents([tmp_path / name]))


def test_tokenizer_round_trips_text_and_ends_documents(tmp_path: Path) -> None:
    texts = ["the cat sat on the mat", "the dog — naïve — ran\n\tindented"] * 5
    tokenizer = train_tokenizer(texts, vocab_size=300)
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    ids = corpus_ids([tmp_path / "a.jsonl"], tokenizer)
    end = tokenizer.token_to_id(END_OF_TEXT)
    assert ids.dtype == np.uint16
    documents = [part.tolist() for part in np.split(ids, np.flatnonzero(ids == end) + 1)][:-1]
    assert [tokenizer.decode(document[:-1]) for document in documents] == texts
    np.save(tmp_path / "a.npy", ids)
    np.testing.assert_array_equal(load_tokens([tmp_path / "a.npy"]), ids)


def test_text_without_tokenizer_and_mixed_inputs_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="name one with --tokenizer"):
        corpus_ids([tmp_path / "a.txt"], None)
    with pytest.raises(ValueError, match="got both"):
        corpus_ids([tmp_path / "a.txt", tmp_path / "b.npy"], None)
    np.save(tmp_path / "c.npy", np.zeros((2, 2)))
    with pytest.raises(ValueError, match=r"one-dimensional integer array, got shape \(2, 2\)"):
        load_tokens([tmp_path / "c.npy"])


def test_encoding_nothing_gives_no_tokens() -> None:
    assert len(encode_documents([], train_tokenizer(["abc"], vocab_size=300))) == 0


def test_held_out_part_is_fixed_and_about_its_share() -> None:
    chosen = [is_held_out(f"doc-{i}", per_mille=50) for i in range(4000)]
    assert chosen == [is_held_out(f"doc-{i}", per_mille=50) for i in range(4000)]
    assert 0.03 < np.mean(chosen) < 0.07


def test_head_targets_are_the_tokens_that_many_places_ahead() -> None:
    tokens = corpus()
    batch = batch_at(np.arange(900), 3, num_heads=4, options=replace(OPTIONS, head_positions=1.0))
    np.testing.assert_array_equal(batch.targets, batch.inputs.flatten() + 1)
    for head in range(3):
        np.testing.assert_array_equal(batch.head_targets[head], batch.inputs.flatten()[batch.head_positions[head]] + head + 2)
    again = batch_at(tokens, 3, 4, OPTIONS)
    torch.testing.assert_close(again.inputs, batch_at(tokens, 3, 4, OPTIONS).inputs)


def test_every_window_comes_once_per_epoch() -> None:
    options = replace(OPTIONS, batch_size=5)
    windows = 900 // (16 + 4)
    first = [int(batch_at(np.arange(900), step, 4, options).inputs[row, 0]) for step in range(windows // 5) for row in range(5)]
    assert sorted(first) == [20 * i for i in range(windows)]


def test_sampled_head_losses_average_to_the_full_ones() -> None:
    """Over one epoch of steps, the positions dealt to each head are a fair sample of all positions."""
    model = new_model(SHAPE, 0).eval()
    torch.nn.init.normal_(model.heads.down)
    one_batch = replace(OPTIONS, batch_size=900 // 20)  # every window in every step, so only the positions vary
    with torch.no_grad():
        _, full = block_loss(model, batch_at(corpus(), 0, 4, replace(one_batch, head_positions=1.0)))
        sampled = torch.stack(
            [block_loss(model, batch_at(corpus(), step, 4, replace(one_batch, head_positions=0.3)))[1] for step in range(60)]
        )
    standard_error = sampled.std(0) / len(sampled) ** 0.5
    # With all positions dealt out, each head still sees a third of them: `full` has a sampling error of its own.
    assert ((sampled.mean(0) - full).abs() < 5 * standard_error + 0.05 * full).all()


def test_learning_rate_is_a_trapezoid() -> None:
    options = replace(OPTIONS, steps=100, warmup_steps=10, decay_fraction=0.2)
    factors = [learning_rate_factor(step, options) for step in range(100)]
    assert factors[0] == pytest.approx(0.1)
    assert factors[10:80] == [1.0] * 70
    assert factors[90] == pytest.approx(0.5)
    assert min(factors) > 0


def test_orthogonalised_matrices_have_singular_values_near_one() -> None:
    for shape in ((3, 8, 20), (2, 20, 8)):
        values = torch.linalg.svdvals(orthogonalise(torch.randn(shape, generator=torch.Generator().manual_seed(0))))
        assert values.min() > 0.3
        assert values.max() < 1.3


def test_training_lowers_the_loss(tmp_path: Path) -> None:
    train_blockwise(corpus(), corpus(200), tmp_path, SHAPE, replace(OPTIONS, steps=60, learning_rate=1e-2), 0, progress=False)
    losses = [json.loads(line)["loss"] for line in (tmp_path / "training-log.jsonl").read_text().splitlines()]
    assert np.mean(losses[-5:]) < 0.6 * losses[0]


def test_interrupted_training_ends_with_the_same_weights(tmp_path: Path) -> None:
    whole = train_blockwise(corpus(), corpus(200), tmp_path / "whole", SHAPE, OPTIONS, 0, progress=False)

    torch.manual_seed(OPTIONS.seed)
    trainer = Trainer(new_model(SHAPE, 0), corpus(), corpus(200), tmp_path / "cut", OPTIONS)
    original, calls = trainer._train_step, []

    def killed_in_the_fourth_step(loss: object) -> tuple[float, list[float]]:
        calls.append(1)
        if len(calls) == 4:
            raise KeyboardInterrupt
        return original(loss)

    trainer._train_step = killed_in_the_fourth_step  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        trainer.run(progress=False)
    resumed = train_blockwise(corpus(), corpus(200), tmp_path / "cut", SHAPE, OPTIONS, 0, progress=False)
    for (name, expected), (_, got) in zip(whole.named_parameters(), resumed.named_parameters(), strict=True):
        assert torch.equal(expected, got), name


def test_checkpoint_of_another_shape_is_refused(tmp_path: Path) -> None:
    train_blockwise(corpus(), corpus(200), tmp_path, SHAPE, OPTIONS, 0, progress=False)
    with pytest.raises(ValueError, match="checkpoint is of another model"):
        train_blockwise(corpus(), corpus(200), tmp_path, replace(SHAPE, hidden_size=32), OPTIONS, 0, progress=False)


def test_corpus_of_another_vocabulary_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"token ids below 31 .* got 77"):
        train_blockwise(np.full(900, 77, np.uint16), corpus(200), tmp_path, SHAPE, OPTIONS, 0, progress=False)


def test_corpus_shorter_than_a_window_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"at least 20 tokens .* got 10"):
        train_blockwise(corpus(10), corpus(200), tmp_path, SHAPE, OPTIONS, 0, progress=False)
