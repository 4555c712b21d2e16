"""Heads for a given base model: what is learnt, what stays untouched, and how the work may be cut up."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import (
    AutoModelForCausalLM,
    GPT2Config,
    GPTNeoXConfig,
    OPTConfig,
    PretrainedConfig,
    Qwen2Config,
)
from typer.testing import CliRunner

from latticebpd import VanillaDrafter, generate
from latticebpd.cli import app
from latticebpd.drafters.heads.blockwise import BlockwiseLM, new_heads
from latticebpd.drafters.heads.head_networks import HEAD_KINDS
from latticebpd.lattices.texts import Texts
from lm_training.data.corpus import train_tokenizer
from lm_training.data.distill import DistillOptions, corpus_prompts, distill
from lm_training.data.sequences import load_distilled
from lm_training.families.heads import train_heads
from lm_training.training.training_loop import Process
from lm_training.training.training_options import HeadTraining
from tests.helpers.blockwise_models import tiny_model
from tests.helpers.commands import Run
from tests.helpers.full_disk import room_for
from tests.helpers.periodic import periodic

QUICK = HeadTraining(
    steps=6,
    batch_size=4,
    warmup_steps=2,
    validation_every=3,
    checkpoint_every=2,
    validation_sequences=4,
    serving_prompts=0,
)


@pytest.fixture(scope="module")
def distilled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Text of `tiny_model()`."""
    directory = tmp_path_factory.mktemp("distilled")
    corpus = np.random.default_rng(0).integers(0, 23, 600).astype(np.uint16)
    distill(tiny_model().base, corpus_prompts(corpus, 40, 5, end_ids=[]), directory, DistillOptions(max_new_tokens=16))
    return directory


def untrained(kind: str = "feed-forward", seed: int = 0) -> BlockwiseLM:
    base = tiny_model().base
    torch.manual_seed(seed)
    return BlockwiseLM(base, new_heads(base, kind, num_heads=5))


@pytest.mark.parametrize("kind", HEAD_KINDS)
def test_heads_of_a_periodic_model_reach_the_full_block(tmp_path: Path, kind: str) -> None:
    base, data = periodic()
    torch.manual_seed(0)
    model = BlockwiseLM(base, new_heads(base, kind, num_heads=9, intermediate_size=16))
    options = replace(
        QUICK, steps=120, learning_rate=2e-2, validation_every=120, checkpoint_every=120, serving_prompts=2
    )
    train_heads(model, data, data, tmp_path, options)
    out = generate(model, [0], VanillaDrafter(model), max_new_tokens=1 + 9 * 4)
    assert out.sequences[0].tolist() == [position % 3 for position in range(38)]
    assert out.accept_counts.tolist() == [0] * 9 + [4]
    record = json.loads((tmp_path / "training-log.jsonl").read_text().splitlines()[-1])["validation"]
    assert record["head_accuracy"]["top-1"] == [1.0] * 8
    # 63 tokens after the prefill's in seven full blocks.
    assert record["serving_block_efficiency"] == 9.0


@pytest.mark.parametrize("kind", HEAD_KINDS)
def test_frozen_base_is_the_same_to_the_byte_and_its_text_too(distilled: Path, tmp_path: Path, kind: str) -> None:
    model = untrained(kind)
    model.save_pretrained(tmp_path / "before")
    data = load_distilled(distilled)
    train_heads(model, data, data, tmp_path / "after", replace(QUICK, learning_rate=1e-2))
    assert (tmp_path / "before/model.safetensors").read_bytes() == (tmp_path / "after/model.safetensors").read_bytes()
    before, after = (load_file(tmp_path / run / "latticebpd/heads.safetensors") for run in ("before", "after"))
    assert all(not torch.equal(before[name], after[name]) for name in before)
    again = BlockwiseLM.from_pretrained(tmp_path / "after")
    prompt = torch.tensor([[3, 1, 4]])
    expected = tiny_model().base.generate(prompt, do_sample=False, max_new_tokens=20)
    assert torch.equal(generate(again, prompt, VanillaDrafter(again), max_new_tokens=20).sequences, expected)


@pytest.mark.long
@pytest.mark.parametrize("kind", ["conditioned", "stern"])
def test_transitions_learn_alone_or_with_their_heads(distilled: Path, tmp_path: Path, kind: str) -> None:
    """Their losses against those of every label, token by token."""
    data, model = load_distilled(distilled), untrained(kind)
    torch.nn.init.normal_(model.heads.down, std=0.3)
    model.heads.add_transitions(7)
    losses: list[list[float]] = [[], [], []]
    taught: list[list[float]] = [[], [], []]
    with torch.no_grad():
        for text, prompt in data.items():
            ids = torch.tensor(text)
            hidden = model.base.model(ids[None]).last_hidden_state[0]
            states = model.heads(model.head_inputs(hidden, ids.roll(-1)))
            for head in range(1, 4):
                for position in range(prompt - 1, len(text) - 2 - head):
                    read = model.with_tokens(states[position, head], ids[position + 1 + head])
                    after = model.projection(model.heads.transitions(read)[0]).log_softmax(-1)  # type: ignore[misc]
                    losses[head - 1].append(-float(after[text[position + 2 + head]]))
                    target = model.projection(hidden[position + 1 + head]).softmax(-1)
                    taught[head - 1].append(-float(target @ after))
    options = replace(QUICK, objective="joint", steps=1, batch_size=len(data), learning_rate=0.0)
    train_heads(model, data, data, tmp_path / "still", options)
    record = json.loads((tmp_path / "still/training-log.jsonl").read_text())
    wanted = [np.mean(each) for each in losses]
    np.testing.assert_allclose(record["transition_losses"], wanted, atol=1e-4)
    assert record["loss"] == pytest.approx(sum(record["head_losses"]) + sum(wanted), abs=1e-3)
    train_heads(model, data, data, tmp_path / "taught", replace(options, labels="model"))
    record = json.loads((tmp_path / "taught/training-log.jsonl").read_text())
    wanted_of = [np.mean(each) for each in taught]
    np.testing.assert_allclose(record["transition_losses"], wanted_of, atol=1e-4)
    before = {name: weight.clone() for name, weight in model.heads.state_dict().items()}
    options = replace(QUICK, learning_rate=3e-2, steps=60, validation_sequences=40, freeze_heads=True)
    train_heads(model, data, data, tmp_path / "alone", options)
    changed = {name for name, weight in model.heads.state_dict().items() if not torch.equal(weight, before[name])}
    assert changed == {"transitions.up", "transitions.down"}
    learnt = json.loads((tmp_path / "alone/training-log.jsonl").read_text().splitlines()[-1])
    assert "head_losses" not in learnt
    assert sum(learnt["validation"]["transition_losses"]) < 0.9 * sum(wanted)
    train_heads(model, data, data, tmp_path / "both", replace(options, steps=4, freeze_heads=False))
    assert all(not torch.equal(weight, before[name]) for name, weight in model.heads.state_dict().items())
    with pytest.raises(ValueError, match="expected transitions and a frozen base model with --freeze-heads, got none"):
        train_heads(untrained(kind), data, data, tmp_path / "none", options)
    new = untrained(kind)
    new.heads.add_transitions(7)
    with pytest.raises(ValueError, match="or --fine-tune; add --transitions"):
        train_heads(new, data, data, tmp_path / "none", replace(options, fine_tune=True))
    with pytest.raises(ValueError, match=r"expected 4 head weights >= 0, not all 0 \(heads 3 to 5\)"):
        train_heads(model, data, data, tmp_path / "none", replace(options, head_weights=(1.0, 0.0, 0.0, 0.0)))


def test_dropout_of_a_frozen_base_is_off(distilled: Path, tmp_path: Path) -> None:
    """Heads must learn from the hidden states that serve."""
    data = load_distilled(distilled)
    for run, dropout in (("without", 0.0), ("with", 0.9)):
        model = untrained()
        model.base.config.attention_dropout = dropout
        for layer in model.base.model.layers:
            layer.self_attn.attention_dropout = dropout
        train_heads(model, data, data, tmp_path / run, QUICK)
    without, with_dropout = (load_file(tmp_path / run / "latticebpd/heads.safetensors") for run in ("without", "with"))
    assert all(torch.equal(without[name], with_dropout[name]) for name in without)


FAMILIES = [
    GPT2Config(vocab_size=23, n_embd=16, n_layer=2, n_head=2, n_positions=64, bos_token_id=None, eos_token_id=None),
    GPTNeoXConfig(vocab_size=23, hidden_size=16, num_hidden_layers=2, num_attention_heads=2,
    intermediate_size=32, eos_token_id=None),
    OPTConfig(
        vocab_size=23, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, ffn_dim=32, word_embed_proj_dim=16,
        pad_token_id=None,
        bos_token_id=None, eos_token_id=None,
    ),
    Qwen2Config(vocab_size=23, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1,
    intermediate_size=32),
]  # fmt: skip


@pytest.mark.parametrize("config", FAMILIES, ids=lambda config: config.model_type)
def test_heads_attach_to_any_family(config: PretrainedConfig, distilled: Path, tmp_path: Path) -> None:
    """Its dropout, its position embeddings, tied or not: heads that have learnt nothing say what the base model
    says."""
    torch.manual_seed(0)
    base = AutoModelForCausalLM.from_config(config).eval()
    model, data = BlockwiseLM(base, new_heads(base, "feed-forward", num_heads=4)), load_distilled(distilled)
    train_heads(model, data, data, tmp_path / "learnt", replace(QUICK, learning_rate=0.0))
    again = BlockwiseLM.from_pretrained(tmp_path / "learnt")
    prompt = torch.tensor([[3, 1, 4, 1, 5]])
    with torch.inference_mode():
        hidden = again.base.base_model(prompt).last_hidden_state
        expected = base(prompt).logits[:, :, None].expand(-1, -1, 3, -1)
        torch.testing.assert_close(again.head_logits(hidden), expected, atol=1e-5, rtol=1e-5)
    repeating = periodic()[1]
    options = replace(QUICK, steps=60, learning_rate=3e-2, checkpoint_every=60, validation_every=60)
    train_heads(model, repeating, repeating, tmp_path / "taught", options)
    losses = [json.loads(line)["loss"] for line in (tmp_path / "taught/training-log.jsonl").open()]
    assert losses[-1] < 0.5 * losses[0]


def test_fine_tuning_teaches_the_base_too(distilled: Path, tmp_path: Path) -> None:
    model, data = untrained(), load_distilled(distilled)
    before = {name: parameter.clone() for name, parameter in model.base.named_parameters()}
    train_heads(model, data, data, tmp_path, replace(QUICK, fine_tune=True, base_learning_rate=1e-3))
    assert all(not torch.equal(before[name], parameter) for name, parameter in model.base.named_parameters())
    assert "base_loss" in json.loads((tmp_path / "training-log.jsonl").read_text().splitlines()[0])


@pytest.mark.parametrize("objective", ["joint", "batch", "position"])
def test_accumulated_parts_learn_what_one_batch_learns(distilled: Path, tmp_path: Path, objective: str) -> None:
    data = load_distilled(distilled)
    losses = []
    for accumulate in (1, 3):
        options = replace(QUICK, objective=objective, accumulate=accumulate)
        train_heads(untrained(), data, data, tmp_path / str(accumulate), options)
        losses.append([json.loads(line)["loss"] for line in (tmp_path / str(accumulate) / "training-log.jsonl").open()])
    np.testing.assert_allclose(losses[0], losses[1], rtol=2e-5)


def test_mixed_precision_learns_much_the_same(distilled: Path, tmp_path: Path) -> None:
    data = load_distilled(distilled)
    model = train_heads(untrained(), data, data, tmp_path, replace(QUICK, precision="bfloat16"))
    reference = train_heads(untrained(), data, data, tmp_path / "reference", QUICK)
    assert all(parameter.dtype == torch.float32 for parameter in model.parameters())
    final = [
        json.loads((tmp_path / run / "training-log.jsonl").read_text().splitlines()[-1])["loss"]
        for run in ("", "reference")
    ]
    assert final[0] == pytest.approx(final[1], rel=0.02)
    assert not torch.equal(model.heads.up, reference.heads.up)


def test_base_model_in_half_precision_stays_the_same_to_the_byte_while_its_heads_learn(
    distilled: Path, tmp_path: Path
) -> None:
    base = torch.nn.Module.to(tiny_model().base, torch.bfloat16)
    base.save_pretrained(distilled / "model")
    assert (
        CliRunner()
        .invoke(app, command(distilled, tmp_path, "--base-dtype", "bfloat16"), catch_exceptions=False)
        .exit_code
        == 0
    )
    assert (tmp_path / "model.safetensors").read_bytes() == (distilled / "model/model.safetensors").read_bytes()
    assert all(
        tensor.dtype == torch.float32 for tensor in load_file(tmp_path / "latticebpd/heads.safetensors").values()
    )
    losses = [json.loads(line)["loss"] for line in (tmp_path / "training-log.jsonl").open()]
    tiny_model().base.save_pretrained(distilled / "model")
    CliRunner().invoke(app, command(distilled, tmp_path / "reference"), catch_exceptions=False)
    reference = [json.loads(line)["loss"] for line in (tmp_path / "reference/training-log.jsonl").open()]
    assert losses == pytest.approx(reference, rel=0.05)
    assert losses != reference
    model = BlockwiseLM.from_pretrained(tmp_path, torch.bfloat16)
    assert generate(model, [3, 1], VanillaDrafter(model), max_new_tokens=5).num_tokens == 5


def test_text_of_another_vocabulary_is_refused(tmp_path: Path) -> None:
    data = Texts.of_corpus(np.full(40, 77), 8)
    with pytest.raises(ValueError, match=r"training token ids below 23 .* got 77"):
        train_heads(untrained(), data, data, tmp_path, QUICK)


def test_sequences_longer_than_the_model_reads_are_refused(tmp_path: Path) -> None:
    data = Texts.of_corpus(np.full(400, 7), 129)
    with pytest.raises(ValueError, match=r"training sequences of at most 128 tokens .* got one of 129"):
        train_heads(untrained(), data, data, tmp_path, QUICK)


def test_more_parts_than_sequences_are_refused(distilled: Path, tmp_path: Path) -> None:
    data = load_distilled(distilled)
    with pytest.raises(ValueError, match="a batch of at least 5 sequences, one for each part, got 4"):
        train_heads(untrained(), data, data, tmp_path, replace(QUICK, accumulate=5))


@pytest.mark.parametrize("weights", [(1.0,), (1.0, -1.0, 1.0, 1.0), (0.0, 0.0, 0.0, 0.0)])
def test_impossible_head_weights_are_refused(distilled: Path, tmp_path: Path, weights: tuple[float, ...]) -> None:
    data = load_distilled(distilled)
    with pytest.raises(ValueError, match=r"expected 4 head weights >= 0, not all 0 \(heads 2 to 5\)"):
        train_heads(untrained(), data, data, tmp_path, replace(QUICK, head_weights=weights))


def test_head_weight_of_zero_leaves_a_head_alone(distilled: Path, tmp_path: Path) -> None:
    data, model = load_distilled(distilled), untrained()
    options = replace(QUICK, head_weights=(1.0, 0.0, 1.0, 1.0), weight_decay=0.0)
    train_heads(model, data, data, tmp_path, options)
    assert not model.heads.down[1].any()
    assert all(model.heads.down[index].any() for index in (0, 2, 3))


def command(distilled: Path, output: Path, *more: str) -> list[str]:
    return [
        "train", "heads", str(distilled), "--validation", str(distilled), "--model", str(distilled / "model"), "-o",
        str(output),
        "--num-heads", "4", "--steps", "6", "--batch-size", "4", "--warmup-steps", "2", "--serving-prompts", "1",
        "--validation-every", "3", "--checkpoint-every", "2", "--learning-rate", "0.01", "--device", "cpu", *more,
    ]  # fmt: skip


@pytest.mark.long
@pytest.mark.parametrize(("kind", "more"), [("stern", []), ("conditioned", ["--layers", "1"])])
def test_command_attaches_heads_and_carries_on_from_them(
    distilled: Path, tmp_path: Path, kind: str, more: list[str]
) -> None:
    tiny_model().base.save_pretrained(distilled / "model")
    result = CliRunner().invoke(app, command(distilled, tmp_path / "a", "--kind", kind), catch_exceptions=False)
    assert result.exit_code == 0
    assert BlockwiseLM.from_pretrained(tmp_path / "a").heads.kind == kind
    warm = [*command(distilled, tmp_path / "b", "--warm-start", *more)]
    warm[warm.index("--model") + 1] = str(tmp_path / "a")
    assert CliRunner().invoke(app, warm, catch_exceptions=False).exit_code == 0
    first, second = (
        json.loads((tmp_path / run / "training-log.jsonl").open().readline())["loss"] for run in ("a", "b")
    )
    assert second < first
    assert BlockwiseLM.from_pretrained(tmp_path / "b").layers == ((1,) if more else ())


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--objective", "both"], "expected --objective position, batch, joint, got 'both'"),
        (["--base-dtype", "int8"], "expected --base-dtype float32, bfloat16, float16, got 'int8'"),
        (["--base-dtype", "float16", "--fine-tune"], "small updates would round to nothing"),
        (["--precision", "fp8"], "expected --precision float32, bfloat16, got 'fp8'"),
        (["--kind", "hydra"], "expected heads of a kind among"),
        (["--warm-start"], "found no heads; leave the option out"),
        (["--kind", "stern", "--layers", "1"], "expected feed-forward or conditioned heads to read layers, got stern"),
        (["--layers", "3"], r"expected layers from 1 to 2 \(the model's\), got 3"),
        (["--label-temperature", "0.5"], "expected --labels model with --label-temperature, got --labels text"),
        (["--head-weights", "1,x"], "expected --head-weights as numbers"),
        (["--head-weights", "1,1"], "expected 3 head weights"),
    ],
)
def test_command_refuses_what_it_does_not_know(distilled: Path, tmp_path: Path, more: list[str], message: str) -> None:
    tiny_model().base.save_pretrained(distilled / "model")
    with pytest.raises(ValueError, match=message):
        CliRunner().invoke(app, command(distilled, tmp_path, *more), catch_exceptions=False)


def run(arguments: list[str], *launcher: str) -> subprocess.Popen[bytes]:
    program = [sys.executable, *launcher, "-m", "latticebpd", *arguments]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        program, env=environment, cwd=Path(__file__).parents[3], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )


@pytest.mark.slow
def test_two_processes_learn_what_one_learns(distilled: Path, tmp_path: Path) -> None:
    """torchrun, gloo: the same loss curve and, up to rounding, the same weights."""
    tiny_model().base.save_pretrained(distilled / "model")
    launch = ("-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2")
    for directory, launcher, more in (("one", (), ()), ("two", launch, ()), ("cut", launch, ("--accumulate", "2"))):
        process = run(command(distilled, tmp_path / directory, *more), *launcher)
        _, errors = process.communicate(timeout=300)
        assert process.returncode == 0, errors.decode()
    curves = {
        d: [json.loads(line)["loss"] for line in (tmp_path / d / "training-log.jsonl").open()]
        for d in ("one", "two", "cut")
    }
    weights = {d: load_file(tmp_path / d / "latticebpd/heads.safetensors") for d in curves}
    for other in ("two", "cut"):
        np.testing.assert_allclose(curves[other], curves["one"], rtol=1e-5)
        for name, expected in weights["one"].items():
            torch.testing.assert_close(weights[other][name], expected, atol=1e-4, rtol=1e-3)


@pytest.mark.slow
def test_killed_run_goes_on_as_if_it_had_not_been(distilled: Path, tmp_path: Path) -> None:
    """kill -9 in mid-run, twice; then the weights are those of a run that was left alone."""
    tiny_model().base.save_pretrained(distilled / "model")
    longer = ("--steps", "60")
    assert run(command(distilled, tmp_path / "whole", *longer)).wait(300) == 0
    for _ in range(2):
        process = run(command(distilled, tmp_path / "cut", *longer))
        state = tmp_path / "cut/training-state.json"
        start = json.loads(state.read_text())["step"] if state.exists() else 0
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline and (not state.exists() or json.loads(state.read_text())["step"] < start + 6):
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert start < json.loads(state.read_text())["step"] < 60
    assert run(command(distilled, tmp_path / "cut", *longer)).wait(300) == 0
    assert (tmp_path / "whole/latticebpd/heads.safetensors").read_bytes() == (
        tmp_path / "cut/latticebpd/heads.safetensors"
    ).read_bytes()


def test_process_without_torchrun_is_alone() -> None:
    with Process.join("cpu") as process:
        assert (process.rank, process.world, process.device.type) == (0, 1, "cpu")


def files_below(folder: Path) -> dict[str, Path]:
    """The files of a folder and of those in it, by their path there."""
    return {str(path.relative_to(folder)): path for path in folder.rglob("*") if path.is_file()}


@pytest.mark.long
def test_a_full_disk_leaves_nothing_half_written(distilled: Path, tmp_path: Path, run: Run) -> None:
    """Files of up to so many bytes find room: the tokenizer does not, then the checkpoint, then the base model, then
    all do."""
    tokenizer = train_tokenizer(["the history of the city and of the river"] * 20, vocab_size=300)
    model = tiny_model(vocab_size=tokenizer.get_vocab_size(), eos_token_id=0).base
    model.save_pretrained(tmp_path / "model")
    tokenizer.save(str(tmp_path / "model/tokenizer.json"))
    full = (tmp_path / "model/tokenizer.json").read_bytes()

    def trained(name: str, *more: str) -> tuple[int, str]:
        arguments = command(distilled, tmp_path / name, *more)
        arguments[arguments.index("--model") + 1] = str(tmp_path / "model")
        status, _, errors = run(*arguments)
        return status, errors

    assert trained("without-end")[0] == 0
    sizes = {name: path.stat().st_size for name, path in files_below(tmp_path / "without-end").items()}
    limits = sorted({4096, *(size - 1 for size in sizes.values() if size > 4096)})
    assert len(limits) > 3
    for limit in limits:
        with room_for(limit):
            status, errors = trained(str(limit))
        assert status == 2, (limit, errors)
        assert len(errors.splitlines()) == 1
        assert "File too large" in errors
        left = files_below(tmp_path / str(limit)).keys()
        assert left <= sizes.keys()  # no temporary file
        # Nothing looks like a model with heads that is none.
        assert ("latticebpd/heads.json" in left) == (limit >= max(sizes.values()))
        assert "tokenizer.json" not in left or (tmp_path / str(limit) / "tokenizer.json").read_bytes() == full
        assert trained(str(limit))[0] == 0
        model = BlockwiseLM.from_pretrained(tmp_path / str(limit))
        for name, tensor in load_file(tmp_path / "without-end/latticebpd/heads.safetensors").items():
            torch.testing.assert_close(model.heads.state_dict()[name], tensor, rtol=0, atol=0)
