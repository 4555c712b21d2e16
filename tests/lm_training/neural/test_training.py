"""Corpora, and training that resumes exactly."""

from __future__ import annotations

import gzip
import json
import lzma
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from latticebpd.lattices.texts import Texts
from latticebpd.models.blockwise import BlockwiseLM
from lm_training.data.corpus import END_OF_TEXT, corpus_ids, encode_documents, is_held_out, load_tokens, read_documents, train_tokenizer
from lm_training.neural.blockwise import BlockwiseObjective, ModelShape, TrainingOptions, new_model, train_blockwise
from lm_training.neural.muon import orthogonalise
from lm_training.neural.selection import EveryHead, OneHeadPerBatch, OneHeadPerPosition, Selection
from lm_training.neural.training import Trainer, cosine, denormals_flushed, trapezoid

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


def objective(sequences: Texts, selection: Selection | None = None, batch_size: int = 3, base_weight: float = 0.0) -> BlockwiseObjective:
    torch.manual_seed(0)
    model = new_model(SHAPE, 0)
    torch.nn.init.normal_(model.heads.down, std=0.3)
    return BlockwiseObjective(
        model, sequences, sequences, batch_size, lambda model: [torch.optim.SGD(model.parameters())], selection or EveryHead(), base_weight
    )


def ragged() -> Texts:
    rng = np.random.default_rng(3)
    rows = [rng.integers(1, 31, length).astype(np.uint16) for length in (9, 5, 12, 7)]
    return Texts.of_rows(rows, [3, 4, 1, 7], np.uint16)


def test_labels_are_the_tokens_that_many_places_ahead_and_never_of_the_prompt() -> None:
    data = ragged()
    taught = objective(data)
    batch = taught.labelled(taught.data, [0, 1, 2, 3], EveryHead(), [0])
    width = batch.inputs.shape[1]
    for head, labels in enumerate(batch.labels, 1):
        found = {(int(p) // width, int(p) % width): int(token) for p, token in zip(labels.positions, labels.tokens, strict=True)}
        wanted = {
            (row, place): int(data[row][place + head])
            for row in range(4)
            for place in range(data.prompt_lengths[row] - 1, len(data[row]) - head)
        }
        assert found == wanted
        assert float(labels.weights.sum()) == pytest.approx(1.0)


@settings(max_examples=25, deadline=None)
@given(parts=st.integers(1, 5), seed=st.integers(0, 9), share=st.sampled_from([0.4, 1.0]))
def test_parts_of_a_step_average_to_the_step(parts: int, seed: int, share: float) -> None:
    whole = objective(ragged(), OneHeadPerPosition(share), batch_size=5, base_weight=0.7)
    with torch.no_grad():
        expected = whole(whole.batch(seed, 0, 1))
        means = [whole(whole.batch(seed, part, parts)) for part in range(parts)]
    for name, value in expected.items():
        torch.testing.assert_close(torch.stack([mean[name] for mean in means]).mean(0), value, atol=1e-5, rtol=1e-5)


def test_every_sequence_comes_once_per_epoch() -> None:
    rows = [np.array([i + 1, 1, 1, 1], np.uint16) for i in range(20)]
    whole = objective(Texts.of_rows(rows, [1] * 20, np.uint16), batch_size=5)
    seen = [int(first) for step in range(4) for first in whole.batch(step, 0, 1).inputs[:, 0]]
    assert sorted(seen) == list(range(1, 21))
    assert seen != list(range(1, 21))


@dataclass(frozen=True)
class GivenHead:
    """`OneHeadPerBatch` whose draw is given."""

    head: int

    def weights(self, labelled: np.ndarray, row: np.random.Generator, step: np.random.Generator) -> np.ndarray:
        return OneHeadPerBatch().weights(labelled, row, SimpleNamespace(integers=lambda heads: self.head))  # type: ignore[arg-type]


def loss_and_gradient(whole: BlockwiseObjective, selection: Selection, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    whole.zero_grad()
    loss = whole(whole.labelled(whole.data, [0, 1, 2, 3], selection, [seed]))["loss"]
    loss.backward()
    return loss.detach(), torch.cat([p.grad.flatten() for p in whole.parameters() if p.grad is not None])


def test_mean_over_the_head_drawn_is_the_full_loss_and_gradient() -> None:
    whole = objective(ragged())
    full_loss, full_gradient = loss_and_gradient(whole, EveryHead())
    results = [loss_and_gradient(whole, GivenHead(head)) for head in range(3)]
    torch.testing.assert_close(torch.stack([loss for loss, _ in results]).mean(0), full_loss)
    torch.testing.assert_close(torch.stack([gradient for _, gradient in results]).mean(0), full_gradient, atol=1e-6, rtol=1e-4)


@pytest.mark.parametrize("share", [0.3, 1.0])
def test_one_head_per_position_is_unbiased(share: float) -> None:
    labelled = np.random.default_rng(1).random((4, 50)) < 0.6
    selection = OneHeadPerPosition(share)
    draws = np.stack([selection.weights(labelled, np.random.default_rng(i), np.random.default_rng(0)) for i in range(4000)])
    assert ((draws > 0).sum(axis=1) <= 1).all()
    assert not draws[:, ~labelled].any()
    error = draws.std(axis=0) / len(draws) ** 0.5
    assert (np.abs(draws.mean(axis=0) - labelled) <= 5 * error).all()


def test_learning_rate_is_a_trapezoid() -> None:
    factors = [trapezoid(steps=100, warmup_steps=10, decay_fraction=0.2)(step) for step in range(100)]
    assert factors[0] == pytest.approx(0.1)
    assert factors[10:80] == [1.0] * 70
    assert factors[90] == pytest.approx(0.5)
    assert min(factors) > 0


def test_learning_rate_is_half_a_cosine_after_the_warm_up() -> None:
    factors = [cosine(steps=110, warmup_steps=10, floor=0.1)(step) for step in range(111)]
    assert factors[0] == pytest.approx(0.1)
    assert factors[10] == 1.0
    assert factors[60] == pytest.approx(0.55)
    assert factors[110] == pytest.approx(0.1)
    assert factors[10:] == sorted(factors[10:], reverse=True)


def test_orthogonalised_matrices_have_singular_values_near_one() -> None:
    for shape in ((3, 8, 20), (2, 20, 8)):
        values = torch.linalg.svdvals(orthogonalise(torch.randn(shape, generator=torch.Generator().manual_seed(0))))
        assert values.min() > 0.3
        assert values.max() < 1.3


def test_training_lowers_the_loss(tmp_path: Path) -> None:
    train_blockwise(corpus(), corpus(200), tmp_path, SHAPE, replace(OPTIONS, steps=60, learning_rate=1e-2), 0, progress=False)
    losses = [json.loads(line)["loss"] for line in (tmp_path / "training-log.jsonl").read_text().splitlines()]
    assert np.mean(losses[-5:]) < 0.6 * losses[0]


def test_denormal_numbers_are_zero_in_training_and_nowhere_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def product() -> float:
        return float((torch.tensor([5e-324], dtype=torch.float64) * 2.0)[0])

    seen: list[float] = []
    batch = BlockwiseObjective.batch

    def noting(self: BlockwiseObjective, step: int, part: int, parts: int) -> object:
        if seen:
            raise KeyboardInterrupt
        seen.append(product())
        return batch(self, step, part, parts)

    monkeypatch.setattr(BlockwiseObjective, "batch", noting)
    with pytest.raises(KeyboardInterrupt):
        train_blockwise(corpus(), corpus(200), tmp_path, SHAPE, OPTIONS, 0, progress=False)
    assert seen == [0.0]
    assert product() == 1e-323
    with denormals_flushed(), denormals_flushed():
        pass
    assert product() == 1e-323
    with denormals_flushed():
        with denormals_flushed():
            pass
        assert product() == 0.0  # as it was found


def test_interrupted_training_ends_with_the_same_weights_and_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = train_blockwise(corpus(), corpus(200), tmp_path / "whole", SHAPE, OPTIONS, 0, progress=False)

    original, calls = Trainer.update, []

    def killed_in_the_sixth_step(trainer: Trainer, module: object) -> dict[str, object]:
        calls.append(1)
        if len(calls) == 6:  # the last checkpoint was after the fourth
            raise KeyboardInterrupt
        return original(trainer, module)

    monkeypatch.setattr(Trainer, "update", killed_in_the_sixth_step)
    with pytest.raises(KeyboardInterrupt):
        train_blockwise(corpus(), corpus(200), tmp_path / "cut", SHAPE, OPTIONS, 0, progress=False)
    with open(tmp_path / "cut/training-log.jsonl", "a") as log:
        log.write('{"step": 5, "lo')
    resumed = train_blockwise(corpus(), corpus(200), tmp_path / "cut", SHAPE, OPTIONS, 0, progress=False)
    for (name, expected), (_, got) in zip(whole.named_parameters(), resumed.named_parameters(), strict=True):
        assert torch.equal(expected, got), name
    logs = [[json.loads(line) for line in (tmp_path / run / "training-log.jsonl").read_text().splitlines()] for run in ("whole", "cut")]
    for record in (*logs[0], *logs[1]):
        del record["tokens_per_second"]
    assert logs[0] == logs[1]


def test_finished_training_writes_its_model_even_if_it_was_killed_before(tmp_path: Path) -> None:
    train_blockwise(corpus(), corpus(200), tmp_path, SHAPE, OPTIONS, 0, progress=False)
    (tmp_path / "heads.json").unlink()
    train_blockwise(corpus(), corpus(200), tmp_path, SHAPE, OPTIONS, 0, progress=False)
    assert BlockwiseLM.from_pretrained(tmp_path).num_heads == SHAPE.num_heads


def test_damaged_checkpoint_is_a_value_error(tmp_path: Path) -> None:
    train_blockwise(corpus(), corpus(200), tmp_path, SHAPE, OPTIONS, 0, progress=False)
    path = tmp_path / "training-state.safetensors"
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(ValueError, match=r"training-state\.safetensors: expected a checkpoint"):
        train_blockwise(corpus(), corpus(200), tmp_path, SHAPE, OPTIONS, 0, progress=False)


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
