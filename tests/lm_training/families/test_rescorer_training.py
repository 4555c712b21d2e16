"""Training rescorers: what is learnt, how the work may be cut up, and that the result serves."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, PreTrainedModel

from fst.fingerprint import vocabulary_fingerprint
from latticebpd import NeuralRescorer, SausageLattice, rescore
from latticebpd.lattices.texts import Texts
from latticebpd.scoring.weights import RescorerSettings
from lm_training.data.corpus import train_tokenizer
from lm_training.families.rescorers import RescorerObjective, new_rescorer, train_rescorer
from lm_training.families.shapes import RESCORERS, RescorerShape
from lm_training.training.training_loop import Trainer
from lm_training.training.training_options import RescorerTraining
from tests.helpers.commands import Run
from tests.helpers.tiny_families import tiny

QUICK = RescorerTraining(
    steps=6, batch_size=4, warmup_steps=2, validation_every=3, checkpoint_every=2, validation_sequences=4
)
TINY = RescorerShape(1, 16, 32, 2, 32)


def model(seed: int = 0, vocab_size: int = 11) -> PreTrainedModel:
    torch.manual_seed(seed)
    return new_rescorer(TINY, vocab_size)


def random_sequences(count: int = 20, seed: int = 0) -> Texts:
    rng = np.random.default_rng(seed)
    rows = [rng.integers(0, 11, rng.integers(3, 12)).astype(np.uint16) for _ in range(count)]
    return Texts.of_rows(rows, [int(rng.integers(1, len(row))) for row in rows], np.uint16)


def periodic(period: int = 3) -> Texts:
    rows = [np.array([(start + position) % period for position in range(18)], np.uint16) for start in range(period)] * 4
    return Texts.of_rows(rows, [1] * len(rows), np.uint16)


def test_rescorer_of_periodic_text_mends_every_draft(tmp_path: Path) -> None:
    options = replace(
        QUICK, steps=100, learning_rate=5e-2, muon_learning_rate=5e-2, validation_every=100, checkpoint_every=100
    )
    train_rescorer(model(), periodic(), periodic(), tmp_path, options, "sha256:ab")
    record = json.loads((tmp_path / "training-log.jsonl").read_text().splitlines()[-1])["validation"]
    assert record["accuracy"] == 1.0
    assert record["perplexity"] < 1.2
    # By the heads every slot's best token is wrong.
    lattice = SausageLattice([[5, 1], [6, 2], [7, 0], [8, 1]], [[-0.1, -2.0]] * 4)
    assert rescore(lattice, tmp_path, p=1, context=[2, 0]).tokens.tolist() == [[1, 2, 0, 1]]
    assert RescorerSettings.stored(tmp_path) == RescorerSettings(1.0, "sha256:ab")


def test_loss_is_the_mean_over_the_tokens_behind_prompts() -> None:
    data, trained = random_sequences(8), model()
    objective = RescorerObjective(trained, data, data, replace(QUICK, batch_size=8))
    with torch.no_grad():
        loss = float(objective(objective.batch(0, 0, 1))["loss"])
        np.testing.assert_allclose(loss, mean_loss(trained, data, 8), rtol=1e-5)
        np.testing.assert_allclose(objective.validate()["loss"], mean_loss(trained, data, 4), atol=1e-4)


def test_only_labels_are_projected_and_the_model_is_left_as_it_was() -> None:
    data, trained = random_sequences(8), model()
    objective, rows = RescorerObjective(trained, data, data, replace(QUICK, batch_size=8)), []
    counting = trained.get_output_embeddings().register_forward_hook(
        lambda _, inputs, output: rows.append(output.shape[:-1].numel())
    )
    objective(objective.batch(0, 0, 1))
    counting.remove()
    assert rows == [int((data.lengths - data.prompt_lengths).sum())]
    assert trained(torch.zeros(2, 3, dtype=torch.long)).logits.shape[:2] == (2, 3)


def mean_loss(trained: PreTrainedModel, data: Texts, count: int) -> float:
    """Over the first sequences, token by token."""
    losses: list[float] = []
    for index in range(count):
        tokens = torch.from_numpy(data[index].astype(np.int64))
        log_probs = torch.log_softmax(trained(tokens[None]).logits[0], dim=-1)
        losses += [
            -float(log_probs[position - 1, tokens[position]])
            for position in range(int(data.prompt_lengths[index]), len(tokens))
        ]
    return float(np.mean(losses))


@pytest.mark.parametrize("parts", [2, 4])
def test_parts_of_a_step_add_up_to_its_loss_and_gradient(parts: int) -> None:
    data, trained = random_sequences(), model()
    objective = RescorerObjective(trained, data, data, QUICK)
    full = objective(objective.batch(3, 0, 1))["loss"]
    full.backward()
    expected = [parameter.grad.clone() for parameter in trained.parameters() if parameter.grad is not None]
    trained.zero_grad()
    losses = [objective(objective.batch(3, part, parts))["loss"] / parts for part in range(parts)]
    sum(losses).backward()
    torch.testing.assert_close(sum(losses), full)
    torch.testing.assert_close(
        [parameter.grad for parameter in trained.parameters() if parameter.grad is not None], expected
    )


class Part(RescorerTraining):
    """The first steps of a run of six."""

    def rate_factor(self, step: int) -> float:
        return RescorerTraining(steps=6, warmup_steps=self.warmup_steps).rate_factor(step)


def test_resumed_run_ends_with_the_same_weights(tmp_path: Path) -> None:
    data = random_sequences()
    train_rescorer(model(), data, data, tmp_path / "whole", QUICK)
    for steps in (2, 4, 6):  # as if killed behind a checkpoint; the schedule is that of the whole run
        objective = RescorerObjective(model(seed=0 if steps == 2 else steps), data, data, QUICK)
        Trainer(objective, tmp_path / "parts", Part(**asdict(QUICK) | {"steps": steps})).run()
    one, other = (load_file(tmp_path / run / "model.safetensors") for run in ("whole", "parts"))
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_finished_run_that_is_started_again_keeps_its_tuned_weight(tmp_path: Path) -> None:
    data = random_sequences()
    train_rescorer(model(), data, data, tmp_path, QUICK)
    RescorerSettings(0.3).save(tmp_path)
    train_rescorer(model(), data, data, tmp_path, QUICK)
    assert NeuralRescorer.from_pretrained(tmp_path).alpha == 0.3


@pytest.mark.slow
def test_two_processes_learn_what_one_learns(tmp_path: Path) -> None:
    tokenizer = train_tokenizer(["a b c d e f g"] * 4, vocab_size=260)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    np.save(tmp_path / "corpus.npy", np.random.default_rng(0).integers(0, 260, 400).astype(np.uint16))
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    options = "--preset tiny --steps 4 --batch-size 4 --sequence-length 20 --device cpu --warmup-steps 1"
    for name, launcher in (("one", [sys.executable]), ("two", torchrun)):
        command = (
            f"-m latticebpd train rescorer corpus.npy --validation corpus.npy --tokenizer tokenizer.json {options} -o"
            f" {name}"
        )
        environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3]), "OMP_NUM_THREADS": "1"}
        subprocess.run([*launcher, *command.split()], cwd=tmp_path, env=environment, check=True, capture_output=True)
    logs = [
        [json.loads(line) for line in (tmp_path / name / "training-log.jsonl").read_text().splitlines()]
        for name in ("one", "two")
    ]
    np.testing.assert_allclose([line["loss"] for line in logs[0]], [line["loss"] for line in logs[1]], rtol=1e-4)
    assert len(logs[1]) == 4


@pytest.mark.parametrize(("name", "millions"), [("32m", 23.6), ("61m", 41.4), ("94m", 82.7)])
def test_presets_have_the_papers_shapes(name: str, millions: float) -> None:
    """Table 6: layers, width, hidden width; twelve heads each; the count is over GPT-3's vocabulary, the embedding
    tied."""
    layers, width, hidden = {"32m": (2, 384, 1536), "61m": (12, 384, 1536), "94m": (6, 768, 3072)}[name]
    with torch.device("meta"):
        rescorer = new_rescorer(RESCORERS[name], 50257)
    config = rescorer.config
    assert (config.n_layer, config.n_embd, config.n_inner, config.n_head) == (layers, width, hidden, 12)
    assert (config.resid_pdrop, config.embd_pdrop, config.attn_pdrop) == (0.0, 0.0, 0.0)
    assert rescorer.get_output_embeddings().weight is rescorer.get_input_embeddings().weight
    assert round(rescorer.num_parameters() / 1e6, 1) == millions


@pytest.mark.parametrize(("name", "low", "high"), [("tiny", 0.4e6, 0.7e6), ("small", 1.8e6, 2.2e6)])
def test_small_presets_are_small(name: str, low: float, high: float) -> None:
    with torch.device("meta"):
        rescorer = new_rescorer(RESCORERS[name], 8192)
    assert low < rescorer.num_parameters() - rescorer.get_input_embeddings().weight.numel() < high


def test_muon_trains_the_matrices_and_adamw_the_rest() -> None:
    data = random_sequences()
    adamw, muon = RescorerObjective(model(), data, data, QUICK).optimizers()
    matrices = [parameter for group in muon.param_groups for parameter in group["params"]]
    assert len(matrices) == 4  # one layer's attention and feed-forward, two each
    others = [parameter for group in adamw.param_groups for parameter in group["params"]]
    trained = model()
    assert len(matrices) + len(others) == len(list(trained.parameters()))
    assert len(RescorerObjective(trained, data, data, replace(QUICK, muon_learning_rate=0.0)).optimizers()) == 1


def test_data_that_the_model_cannot_read_is_refused() -> None:
    data = random_sequences()
    with pytest.raises(ValueError, match=r"token ids below 5 \(the model's vocabulary\)"):
        RescorerObjective(model(vocab_size=5), data, data, QUICK)
    long = Texts.of_corpus(np.zeros(40, np.uint16), 40)
    with pytest.raises(ValueError, match="at most 32 tokens"):
        RescorerObjective(model(), long, data, QUICK)
    prompts = Texts.of_rows([np.zeros(3, np.uint16)], [3], np.uint16)
    with pytest.raises(ValueError, match="tokens after their prompts"):
        RescorerObjective(model(), prompts, data, QUICK)
    with pytest.raises(ValueError, match="decoder-only causal LM as rescorer, got an encoder-decoder"):
        RescorerObjective(tiny("t5"), data, data, QUICK)


def test_command_trains_a_rescorer_that_any_lattice_takes(run: Run, tmp_path: Path) -> None:
    tokenizer = train_tokenizer(["a b c d e f g"] * 4, vocab_size=260)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    corpus = np.random.default_rng(0).integers(0, 260, 400).astype(np.uint16)
    np.save(tmp_path / "corpus.npy", corpus)
    data = (
        tmp_path / "corpus.npy",
        "--validation",
        tmp_path / "corpus.npy",
        "--tokenizer",
        tmp_path / "tokenizer.json",
    )
    shared = (
        *data,
        "-o",
        tmp_path / "rescorer",
        "--steps",
        2,
        "--batch-size",
        4,
        "--sequence-length",
        20,
        "--device",
        "cpu",
    )
    status, _, err = run("train", "rescorer", *shared, "--preset", "tiny")
    assert (status, "parameters, trained for 2 steps" in err) == (0, True), err
    rescorer = NeuralRescorer.from_pretrained(tmp_path / "rescorer")
    assert rescorer.tokenizer_fingerprint == vocabulary_fingerprint(tokenizer.get_vocab())
    assert isinstance(AutoModelForCausalLM.from_pretrained(tmp_path / "rescorer"), PreTrainedModel)
    further = (
        *data,
        "-o",
        tmp_path / "further",
        "--steps",
        1,
        "--batch-size",
        4,
        "--sequence-length",
        20,
        "--device",
        "cpu",
    )
    assert run("train", "rescorer", *further, "--model", tmp_path / "rescorer")[0] == 0
    for options, message in (
        ((), "--preset for a new model or --model"),
        (("--preset", "huge"), "expected --preset tiny"),
    ):
        status, _, err = run("train", "rescorer", *shared, *options)
        assert (status, message in err) == (2, True), err
