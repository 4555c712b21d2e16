"""Corpora, and training that resumes exactly."""

from __future__ import annotations

import gzip
import json
import lzma
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from latticebpd.drafters.heads.blockwise import BlockwiseLM
from latticebpd.lattices.texts import Texts
from lm_training.data.corpus import (
    END_OF_TEXT,
    corpus_ids,
    encode_documents,
    is_held_out,
    load_tokens,
    read_documents,
    train_tokenizer,
)
from lm_training.families.heads import BlockwiseObjective, new_model, train_blockwise
from lm_training.families.shapes import BlockwiseShape
from lm_training.training.optimizers import orthogonalise
from lm_training.training.selection import OBJECTIVES, EveryHead, OneHeadPerBatch, OneHeadPerPosition, Selection
from lm_training.training.training_loop import Trainer, denormals_flushed
from lm_training.training.training_options import BlockwiseTraining, HeadTraining, LoopOptions, PlateauOptions

SHAPE = BlockwiseShape(
    vocab_size=31,
    hidden_size=16,
    num_layers=1,
    attention_heads=2,
    intermediate_size=24,
    num_heads=4,
    head_intermediate_size=8,
    max_positions=64,
)
OPTIONS = BlockwiseTraining(
    steps=6, batch_size=2, sequence_length=16, warmup_steps=2, validation_every=3, checkpoint_every=2
)


def corpus(n: int = 900) -> np.ndarray:
    return (np.arange(n) * 7 % 29 + 1).astype(np.uint16)


def test_documents_are_read_from_every_kind_of_file(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one")
    record = json.dumps({"id": "x", "source": "s", "text": "two"}) + "\n\n"
    with lzma.open(tmp_path / "b.jsonl.xz", "wt") as file:
        file.write(record)
    with gzip.open(tmp_path / "c.jsonl.gz", "wt") as file:
        file.write(record.replace("two", "three"))
    documents = list(read_documents(sorted(tmp_path.iterdir())))
    assert [document.text for document in documents] == ["one", "two", "three"]
    assert (documents[1].id, documents[1].source) == ("x", "s")


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
    end = tokenizer.token_to_id(END_OF_TEXT)
    ids = corpus_ids([tmp_path / "a.jsonl"], (tokenizer, end))
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
    assert len(encode_documents([], train_tokenizer(["abc"], vocab_size=300), 0)) == 0


def test_held_out_part_is_fixed_and_about_its_share() -> None:
    chosen = [is_held_out(f"doc-{i}", per_mille=50) for i in range(4000)]
    assert chosen == [is_held_out(f"doc-{i}", per_mille=50) for i in range(4000)]
    assert 0.03 < np.mean(chosen) < 0.07


def objective(
    texts: Texts, name: str = "joint", batch_size: int = 3, taught: bool = True, **options: Any
) -> BlockwiseObjective:
    """Heads and, where it is taught, their base model, on `texts`."""
    torch.manual_seed(0)
    model = new_model(SHAPE, 0)
    torch.nn.init.normal_(model.heads.down, std=0.3)
    model.base.requires_grad_(taught)
    chosen = HeadTraining(objective=name, batch_size=batch_size, fine_tune=taught, **options)
    return BlockwiseObjective(model, texts, texts, chosen, lambda model: [torch.optim.SGD(model.parameters())])


def from_scratch(name: str, **options: Any) -> BlockwiseObjective:
    """The objective of `train blockwise`, on the texts of `ragged`."""
    torch.manual_seed(0)
    model = new_model(SHAPE, 0)
    torch.nn.init.normal_(model.heads.down, std=0.3)
    chosen = BlockwiseTraining(objective=name, batch_size=4, **options)
    return BlockwiseObjective(model, ragged(), ragged(), chosen, lambda model: [torch.optim.SGD(model.parameters())])


def ragged() -> Texts:
    rng = np.random.default_rng(3)
    rows = [rng.integers(1, 31, length).astype(np.uint16) for length in (9, 5, 12, 7)]
    return Texts.of_rows(rows, [3, 4, 1, 7], np.uint16)


EVERY = np.ones(4, dtype=bool)


def test_labels_are_the_tokens_that_many_places_ahead_and_never_of_the_prompt() -> None:
    data = ragged()
    batch = objective(data).data.batch([0, 1, 2, 3], EveryHead(), EVERY, [0])
    assert batch.inputs is not None
    width = batch.inputs.shape[1]
    for head, labels in enumerate(batch.labels, 1):
        targets = {
            (int(p) // width, int(p) % width): int(token)
            for p, token in zip(labels.positions, labels.tokens, strict=True)
        }
        wanted = {
            (row, position): int(data[row][position + head])
            for row in range(4)
            for position in range(data.prompt_lengths[row] - 1, len(data[row]) - head)
        }
        assert targets == wanted
        assert float(labels.weights.sum()) == pytest.approx(1.0)


def losses_by_hand(model: BlockwiseLM, data: Texts) -> list[float]:
    """Of predictions 1..h, the mean cross-entropy over all their labels, token by token."""
    losses: list[list[float]] = [[] for _ in range(model.num_heads)]
    with torch.no_grad():
        for text, prompt in data.items():
            hidden = model.base.model(torch.tensor([text])).last_hidden_state[0]
            every = torch.cat([model.base.lm_head(hidden)[:, None], model.head_logits(hidden)], dim=1).log_softmax(-1)
            for position in range(prompt - 1, len(text)):
                for head in range(1, model.num_heads + 1):
                    if position + head < len(text):
                        losses[head - 1].append(-float(every[position, head - 1, text[position + head]]))
    return [float(np.mean(each)) for each in losses]


@pytest.mark.parametrize("taught", [True, False])
@pytest.mark.parametrize("weights", [None, (0.5, 2.0, 0.0)])
def test_joint_loss_is_kims_sum_over_heads_the_base_model_among_them(
    taught: bool, weights: tuple[float, ...] | None
) -> None:
    """Kim 2024, appendix: the sum over h of lambda_h L_h, lambda_h = 1; a base model that is not taught has no loss."""
    full = objective(ragged(), "joint", 4, taught, head_weights=weights)
    lambdas = [float(taught), *(weights or (1.0, 1.0, 1.0))]
    expected = float(np.dot(lambdas, losses_by_hand(full.model, ragged())))
    assert float(full(full.batch(0, 0, 1))["loss"].detach()) == pytest.approx(expected, rel=1e-5)


def test_labels_of_the_model_are_its_probabilities_of_each_heads_token() -> None:
    """Head p at position t learns the base model's distribution after position t + p - 1, over the tokens it knows."""
    full, data = objective(ragged(), "joint", 4, taught=False, labels="model"), ragged()
    expected = 0.0
    with torch.no_grad():
        for head in range(2, full.model.num_heads + 1):
            losses = []
            for text, prompt in data.items():
                hidden = full.model.base.model(torch.tensor([text])).last_hidden_state[0]
                teacher = full.model.base.lm_head(hidden).softmax(-1)
                learnt = full.model.head_logits(hidden)[:, head - 2].log_softmax(-1)
                for position in range(prompt - 1, len(text) - head):
                    losses.append(-float(teacher[position + head - 1] @ learnt[position]))
            expected += float(np.mean(losses))
    assert float(full(full.batch(0, 0, 1))["loss"].detach()) == pytest.approx(expected, rel=1e-5)
    with pytest.raises(ValueError, match="expected a frozen base model with --labels model"):
        objective(ragged(), "joint", 4, taught=True, labels="model")


@pytest.mark.parametrize("taught", [True, False])
def test_batch_loss_is_sterns_one_of_the_k_sub_losses_drawn_evenly(taught: bool) -> None:
    """Stern 2018, section 6: each of the k cross-entropies, the base model's among them, with probability 1/k; their
    mean over k."""
    full = objective(ragged(), "batch", 4, taught)
    losses = losses_by_hand(full.model, ragged())[int(not taught) :]
    drawn = []
    with torch.no_grad():
        for step in range(400):
            batch = full.data.batch([0, 1, 2, 3], OneHeadPerBatch(), full.weights > 0, [step])
            loss = float(full(batch)["loss"])
            (which,) = [number for number, each in enumerate(losses) if loss == pytest.approx(each, rel=1e-5)]
            drawn.append(which)
    shares = np.bincount(drawn, minlength=len(losses)) / len(drawn)
    assert len(shares) == (4 if taught else 3)
    assert np.abs(shares - 1 / len(losses)).max() < 4 * (0.25 / len(drawn)) ** 0.5


def test_position_loss_is_the_base_models_and_the_weighted_mean_of_the_heads() -> None:
    full = objective(ragged(), "position", 4, head_weights=(2.0, 1.0, 1.0))
    base, *heads = losses_by_hand(full.model, ragged())
    with torch.no_grad():
        losses = full(full.data.batch([0, 1, 2, 3], EveryHead(), EVERY, [0]))  # every pair, of which it draws some
    assert float(losses["loss"]) == pytest.approx(base + float(np.average(heads, weights=[2, 1, 1])), rel=1e-5)


@pytest.mark.parametrize("weights", [None, (0.5, 2.0, 0.0)])
def test_a_model_from_scratch_learns_by_kims_c1_or_any_other_loss(weights: tuple[float, ...] | None) -> None:
    """Kim 2024, appendix C.1: the sum over h of lambda_h L_h, of the base model and the heads together, lambda_h = 1;
    Stern's sub-loss and ours have the same losses, and coefficients of their own."""
    joint = from_scratch("joint", head_weights=weights)
    losses, lambdas = losses_by_hand(joint.model, ragged()), [1.0, *(weights or (1.0, 1.0, 1.0))]
    assert float(joint(joint.batch(0, 0, 1))["loss"].detach()) == pytest.approx(np.dot(lambdas, losses), rel=1e-5)
    batch = from_scratch("batch", head_weights=weights)
    drawn = [float(batch(batch.batch(step, 0, 1))["loss"].detach()) for step in range(8)]
    each = [weight * loss for weight, loss in zip(lambdas, losses, strict=True) if weight]
    assert all(min(abs(loss / value - 1) for value in each) < 1e-5 for loss in drawn)
    assert len({round(loss, 4) for loss in drawn}) > 1
    position = from_scratch("position", head_weights=weights)
    assert position.coefficients.tolist() == [1.0, *(np.array(lambdas[1:]) / sum(lambdas[1:]))]
    assert position.options.selection == OneHeadPerPosition(0.25)


def test_objectives_from_scratch_end_with_different_models_and_are_not_mixed(tmp_path: Path) -> None:
    weights = {}
    for name in OBJECTIVES:
        options = replace(OPTIONS, objective=name)
        weights[name] = train_blockwise(corpus(), corpus(200), tmp_path / name, SHAPE, options, 0).heads.down
    assert not torch.equal(weights["joint"], weights["position"])
    assert not torch.equal(weights["joint"], weights["batch"])
    with pytest.raises(ValueError, match="holds a run with objective joint, asked for is position"):
        train_blockwise(corpus(), corpus(200), tmp_path / "joint", SHAPE, OPTIONS, 0)
    with pytest.raises(ValueError, match="expected 3 head weights"):
        train_blockwise(corpus(), corpus(200), tmp_path / "no", SHAPE, replace(OPTIONS, head_weights=(1.0,)), 0)


@settings(max_examples=25, deadline=None)
@given(parts=st.integers(1, 5), seed=st.integers(0, 9), name=st.sampled_from(sorted(OBJECTIVES)), taught=st.booleans())
def test_parts_of_a_step_average_to_the_step(parts: int, seed: int, name: str, taught: bool) -> None:
    full = objective(ragged(), name, 5, taught)
    with torch.no_grad():
        expected = full(full.batch(seed, 0, 1))
        means = [full(full.batch(seed, part, parts)) for part in range(parts)]
    for name, value in expected.items():
        torch.testing.assert_close(torch.stack([mean[name] for mean in means]).mean(0), value, atol=1e-5, rtol=1e-5)


def test_every_sequence_comes_once_per_epoch() -> None:
    rows = [np.array([i + 1, 1, 1, 1], np.uint16) for i in range(20)]
    full = objective(Texts.of_rows(rows, [1] * 20, np.uint16), batch_size=5)
    batches = [full.batch(step, 0, 1).inputs for step in range(4)]
    seen = [int(first) for inputs in batches if inputs is not None for first in inputs[:, 0]]
    assert sorted(seen) == list(range(1, 21))
    assert seen != list(range(1, 21))


def loss_and_gradient(
    whole: BlockwiseObjective, selection: Selection, seed: int = 0
) -> tuple[torch.Tensor, torch.Tensor]:
    whole.zero_grad()
    loss = whole(whole.data.batch([0, 1, 2, 3], selection, EVERY, [seed]))["loss"]
    loss.backward()
    grown = [torch.zeros_like(p) if p.grad is None else p.grad for p in whole.parameters()]
    return loss.detach(), torch.cat([gradient.flatten() for gradient in grown])


def test_mean_over_the_predictions_drawn_is_the_full_loss_and_gradient() -> None:
    full = objective(ragged(), "batch")
    full_loss, full_gradient = loss_and_gradient(full, EveryHead())
    seeds: dict[int, int] = {}
    for seed in range(100):
        seeds.setdefault(int(np.random.default_rng([seed, 0]).integers(4)), seed)
    results = [loss_and_gradient(full, OneHeadPerBatch(), seeds[head]) for head in range(4)]
    torch.testing.assert_close(torch.stack([loss for loss, _ in results]).mean(0), full_loss)
    torch.testing.assert_close(
        torch.stack([gradient for _, gradient in results]).mean(0), full_gradient, atol=1e-6, rtol=1e-4
    )


@pytest.mark.parametrize("share", [0.3, 1.0])
@pytest.mark.parametrize("importance", [[1, 1, 1, 1, 1], [1, 4, 2, 1, 0.5]])
def test_one_head_per_position_is_unbiased(share: float, importance: list[float]) -> None:
    labelled = np.random.default_rng(1).random((5, 50)) < 0.6
    selection = OneHeadPerPosition(share)
    weights = np.array(importance)
    draws = np.stack(
        [selection.weights(labelled, weights, np.random.default_rng(i), np.random.default_rng(0)) for i in range(4000)]
    )
    assert ((draws[:, 1:] > 0).sum(axis=1) <= 1).all()
    assert (draws[:, 0] == labelled[0]).all()
    assert not draws[:, ~labelled].any()
    error = draws.std(axis=0) / len(draws) ** 0.5
    assert (np.abs(draws.mean(axis=0) - labelled) <= 5 * error).all()
    # Where every head has a label, each is drawn as often as its weight says.
    full = selection.weights(np.ones((5, 40_000), bool), weights, np.random.default_rng(2), np.random.default_rng(0))
    drawn = np.count_nonzero(full[1:], axis=1) / 40_000
    assert drawn == pytest.approx(share * weights[1:] / weights[1:].sum(), abs=0.01)


def test_every_head_at_a_share_of_the_positions_is_unbiased() -> None:
    labelled, importance = np.random.default_rng(1).random((5, 50)) < 0.6, np.array([0, 1, 2, 1, 0.5])
    selection, step = EveryHead(0.4), np.random.default_rng(0)
    draws = np.stack([selection.weights(labelled, importance, np.random.default_rng(i), step) for i in range(4000)])
    wanted = labelled & (importance > 0)[:, None]
    assert set(np.unique(draws)) == {0.0, 2.5}
    scored = draws.any(axis=1)
    assert (draws == 2.5 * (scored[:, None] & wanted)).all()  # all heads at one position, or none
    assert (np.abs(draws.mean(axis=0) - wanted) <= 5 * draws.std(axis=0) / len(draws) ** 0.5).all()
    with pytest.raises(ValueError, match="expected a share of positions above 0, at most 1, got 0"):
        EveryHead(0.0)


def test_learning_rate_is_a_trapezoid() -> None:
    options = PlateauOptions(steps=100, warmup_steps=10, decay_fraction=0.2)
    factors = [options.rate_factor(step) for step in range(100)]
    assert factors[0] == pytest.approx(0.1)
    assert factors[10:80] == [1.0] * 70
    assert factors[90] == pytest.approx(0.5)
    assert min(factors) > 0


def test_learning_rate_is_half_a_cosine_after_the_warm_up() -> None:
    factors = [LoopOptions(steps=110, warmup_steps=10).rate_factor(step) for step in range(111)]
    assert factors[0] == pytest.approx(0.1)
    assert factors[10] == 1.0
    assert factors[60] == pytest.approx(0.5)
    assert factors[110] == pytest.approx(0.0)
    assert factors[10:] == sorted(factors[10:], reverse=True)


def test_orthogonalised_matrices_have_singular_values_near_one() -> None:
    for shape in ((3, 8, 20), (2, 20, 8)):
        values = torch.linalg.svdvals(orthogonalise(torch.randn(shape, generator=torch.Generator().manual_seed(0))))
        assert values.min() > 0.3
        assert values.max() < 1.3


def test_training_lowers_the_loss(tmp_path: Path) -> None:
    train_blockwise(corpus(), corpus(200), tmp_path, SHAPE, replace(OPTIONS, steps=60, learning_rate=1e-2), 0)
    losses = [json.loads(line)["loss"] for line in (tmp_path / "training-log.jsonl").read_text().splitlines()]
    assert np.mean(losses[-5:]) < 0.6 * losses[0]


def test_denormal_numbers_are_zero_in_training_and_nowhere_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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
        train_blockwise(corpus(), corpus(200), tmp_path, SHAPE, OPTIONS, 0)
    assert seen == [0.0]
    assert product() == 1e-323
    with denormals_flushed(), denormals_flushed():
        pass
    assert product() == 1e-323
    with denormals_flushed():
        with denormals_flushed():
            pass
        assert product() == 0.0  # as it was found


def test_interrupted_training_ends_with_the_same_weights_and_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = train_blockwise(corpus(), corpus(200), tmp_path / "whole", SHAPE, OPTIONS, 0)

    original, calls = Trainer.update, []

    def killed_in_the_sixth_step(trainer: Trainer, module: object, factor: float) -> dict[str, object]:
        calls.append(1)
        if len(calls) == 6:  # the last checkpoint was after the fourth
            raise KeyboardInterrupt
        return original(trainer, module, factor)

    monkeypatch.setattr(Trainer, "update", killed_in_the_sixth_step)
    with pytest.raises(KeyboardInterrupt):
        train_blockwise(corpus(), corpus(200), tmp_path / "cut", SHAPE, OPTIONS, 0)
    with open(tmp_path / "cut/training-log.jsonl", "a") as log:
        log.write('{"step": 5, "lo')
    resumed = train_blockwise(corpus(), corpus(200), tmp_path / "cut", SHAPE, OPTIONS, 0)
    for (name, expected), (_, got) in zip(full.named_parameters(), resumed.named_parameters(), strict=True):
        assert torch.equal(expected, got), name
    logs = [
        [json.loads(line) for line in (tmp_path / run / "training-log.jsonl").read_text().splitlines()]
        for run in ("whole", "cut")
    ]
    for record in (*logs[0], *logs[1]):
        del record["tokens_per_second"]
    assert logs[0] == logs[1]


def test_a_run_killed_before_its_first_checkpoint_or_between_its_two_files_leaves_no_trace(tmp_path: Path) -> None:
    train_blockwise(corpus(), corpus(200), tmp_path / "whole", SHAPE, OPTIONS, 0)
    (tmp_path / "cut").mkdir()
    (tmp_path / "cut/training-log.jsonl").write_text('{"step": 1, "loss": 9.0}\n{"step": 2, "loss": 9.0}\n')
    train_blockwise(corpus(), corpus(200), tmp_path / "cut", SHAPE, OPTIONS, 0)
    steps = [json.loads(line)["step"] for line in (tmp_path / "cut/training-log.jsonl").read_text().splitlines()]
    assert steps == list(range(1, OPTIONS.steps + 1))
    state = tmp_path / "cut/training-state.json"
    state.write_text(json.dumps(json.loads(state.read_text()) | {"step": 2}))
    train_blockwise(corpus(), corpus(200), tmp_path / "cut", SHAPE, OPTIONS, 0)
    assert json.loads(state.read_text())["step"] == OPTIONS.steps


def test_finished_training_writes_its_model_even_if_it_was_killed_before(tmp_path: Path) -> None:
    train_blockwise(corpus(), corpus(200), tmp_path, SHAPE, OPTIONS, 0)
    (tmp_path / "latticebpd/heads.json").unlink()
    train_blockwise(corpus(), corpus(200), tmp_path, SHAPE, OPTIONS, 0)
    assert BlockwiseLM.from_pretrained(tmp_path).num_heads == SHAPE.num_heads


def test_damaged_checkpoint_is_a_value_error(tmp_path: Path) -> None:
    train_blockwise(corpus(), corpus(200), tmp_path, SHAPE, OPTIONS, 0)
    path = tmp_path / "training-state.safetensors"
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(ValueError, match=r"training-state\.safetensors: expected a checkpoint"):
        train_blockwise(corpus(), corpus(200), tmp_path, SHAPE, OPTIONS, 0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"shape": replace(SHAPE, hidden_size=32)},
            "holds a run with shape {.*'hidden_size': 16.*}, asked for is {.*'hidden_size': 32.*}",
        ),
        ({"eos_id": 1}, "with end_of_text 0, asked for is 1"),
        ({"corpus": corpus(901)[1:]}, "with data sha256:"),
        ({"options": replace(OPTIONS, seed=1)}, "with seed 0, asked for is 1"),
        ({"options": replace(OPTIONS, learning_rate=1.0)}, r"with learning_rate 0\.002, asked for is 1\.0"),
        ({"options": replace(OPTIONS, weight_decay=0.5)}, "with weight_decay"),
        ({"options": replace(OPTIONS, batch_size=3)}, "with batch_size"),
        ({"options": replace(OPTIONS, head_positions=0.5)}, "with head_positions"),
        ({"options": replace(OPTIONS, precision="bfloat16")}, "with precision float32, asked for is bfloat16"),
        ({"options": replace(OPTIONS, warmup_steps=3)}, "with warmup_steps"),
        ({"options": replace(OPTIONS, steps=5)}, "expected at least 6 steps, which the run there has made, got 5"),
    ],
)
def test_run_of_other_making_is_refused_in_one_line_and_left_as_it_is(
    tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    def train(corpus: np.ndarray = corpus(), shape: Any = SHAPE, options: Any = OPTIONS, eos_id: int = 0) -> None:  # noqa: B008
        train_blockwise(corpus, corpus[:200], tmp_path, shape, options, eos_id)

    train()
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    with pytest.raises(ValueError, match=message) as error:
        train(**change)
    assert len(str(error.value).splitlines()) == 1
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_what_does_not_change_what_is_learnt_may_differ_when_a_run_goes_on(tmp_path: Path) -> None:
    free = {
        "validation_every": 1,
        "checkpoint_every": 5,
        "accumulate": 2,
        "validation_sequences": 3,
        "serving_prompts": 1,
    }
    assert {each.name for each in fields(HeadTraining) if each.metadata["free"]} == {*free, "steps", "compile", "fsdp"}
    train_blockwise(corpus(), corpus(200), tmp_path, SHAPE, OPTIONS, 0)
    longer = replace(OPTIONS, steps=8, **free)
    train_blockwise(corpus(), corpus(150), tmp_path, SHAPE, longer, 0)
    log = [json.loads(line) for line in (tmp_path / "training-log.jsonl").read_text().splitlines()]
    assert [record["step"] for record in log] == list(range(1, 9))
    assert json.loads((tmp_path / "training-state.json").read_text())["options"]["steps"] == 8


def test_checkpoint_of_another_model_is_refused_by_its_tensors(tmp_path: Path) -> None:
    """Where only they tell it."""
    train_blockwise(corpus(), corpus(200), tmp_path, SHAPE, OPTIONS, 0)
    path, other = tmp_path / "training-state.safetensors", replace(SHAPE, hidden_size=32)
    with safe_open(path, framework="pt") as file:
        record = json.loads(file.metadata()["training"])
    record["made_of"]["shape"] = asdict(other)
    save_file(load_file(path), path, metadata={"training": json.dumps(record)})
    with pytest.raises(ValueError, match="checkpoint is of another model"):
        train_blockwise(corpus(), corpus(200), tmp_path, other, OPTIONS, 0)


def test_full_disk_leaves_no_half_written_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(self: BlockwiseObjective, directory: Path) -> None:
        (directory / "model.safetensors").write_bytes(b"half")
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(BlockwiseObjective, "save", fails)
        with pytest.raises(OSError, match="No space left"):
            train_blockwise(corpus(), corpus(200), tmp_path, SHAPE, OPTIONS, 0)
    assert {path.name for path in tmp_path.iterdir()} == {
        "training-log.jsonl",
        "training-state.json",
        "training-state.safetensors",
    }
    train_blockwise(corpus(), corpus(200), tmp_path, SHAPE, OPTIONS, 0)
    assert BlockwiseLM.from_pretrained(tmp_path).num_heads == SHAPE.num_heads


def test_corpus_of_another_vocabulary_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"token ids below 31 .* got 77"):
        train_blockwise(np.full(900, 77, np.uint16), corpus(200), tmp_path, SHAPE, OPTIONS, 0)


def test_corpus_shorter_than_a_window_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"at least 20 tokens .* got 10"):
        train_blockwise(corpus(10), corpus(200), tmp_path, SHAPE, OPTIONS, 0)
