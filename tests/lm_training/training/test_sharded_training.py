"""Weights dealt out over two processes (gloo): what is learnt, written and taken up again is what one process has."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from latticebpd import VanillaDrafter, generate
from latticebpd.drafters.heads.blockwise import BlockwiseLM
from latticebpd.lattices.texts import Texts
from latticebpd.models.transformers.checkpoints import load_base
from lm_training.families.heads import train_blockwise
from lm_training.families.shapes import BlockwiseShape
from lm_training.training.training_options import BlockwiseTraining
from tests.helpers.blockwise_models import tiny_model
from tests.helpers.tiny_families import tiny

HEADS, STATE = "latticebpd/heads.safetensors", "training-state.json"


def data() -> Texts:
    rng = np.random.default_rng(0)
    lengths = rng.integers(1, 6, 24)
    return Texts.of_rows([rng.integers(2, 22, length + 9) for length in lengths], lengths.tolist(), np.uint16)


def launch(directory: Path, output: str, processes: int, *more: str) -> list[subprocess.Popen[bytes]]:
    """`latticebpd train heads` in so many processes, as ``torchrun`` starts them."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [
        sys.executable, "-m", "latticebpd", "train", "heads", str(directory / "data.npz"), "--validation",
        str(directory / "data.npz"),
        "--model", str(directory / "model"), "-o", str(directory / output), "--num-heads", "4", "--steps", "8",
        "--batch-size", "4",
        "--warmup-steps", "2", "--serving-prompts", "2", "--validation-every", "4", "--checkpoint-every", "2",
        "--device", "cpu",
        "--learning-rate", "0.01", *more,
    ]  # fmt: skip
    shared = os.environ | {
        "OMP_NUM_THREADS": "1",
        "WORLD_SIZE": str(processes),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }
    return [
        subprocess.Popen(
            command, env=shared | {"RANK": str(rank), "LOCAL_RANK": str(rank)}, cwd=Path(__file__).parents[3],
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
        )
        for rank in range(processes)
    ]  # fmt: skip


def finish(started: list[subprocess.Popen[bytes]]) -> None:
    for process in started:
        _, errors = process.communicate(timeout=300)
        assert process.returncode == 0, errors.decode()


def log(directory: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (directory / "training-log.jsonl").open()]


@pytest.fixture
def work(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    base = tiny_model().base if getattr(request, "param", "llama") == "llama" else tiny("marian", seed=3, eos=1)
    base.config.dropout = 0.0  # drawn apart in every process
    base.save_pretrained(tmp_path / "model")
    data().save(tmp_path / "data.npz")
    return tmp_path


@pytest.mark.slow
@pytest.mark.parametrize("work", ["llama", "marian"], indirect=True)
@pytest.mark.parametrize("more", [(), ("--fine-tune", "--accumulate", "2")], ids=["frozen", "fine-tuned"])
def test_two_processes_with_dealt_out_weights_learn_what_one_learns(work: Path, more: tuple[str, ...]) -> None:
    finish(launch(work, "one", 1, *more))
    finish(launch(work, "two", 2, "--fsdp", *more))
    one, two = log(work / "one"), log(work / "two")
    np.testing.assert_allclose([record["loss"] for record in two], [record["loss"] for record in one], rtol=1e-4)
    for left, right in zip(one, two, strict=True):
        assert left.get("validation", {}).keys() == right.get("validation", {}).keys()
    for file in (HEADS, "model.safetensors"):
        expected, weights = load_file(work / "one" / file), load_file(work / "two" / file)
        assert expected.keys() == weights.keys()
        for name, weight in expected.items():
            if not name.endswith(
                "k_proj.bias"
            ):  # has no gradient but rounding errors, which AdamW makes as large as any
                torch.testing.assert_close(weights[name], weight, atol=2e-4, rtol=2e-3)
    model = BlockwiseLM.from_pretrained(work / "two")
    prompt = torch.tensor([[3, 4, 5]])
    expected_text = load_base(work / "two").generate(prompt, do_sample=False, max_new_tokens=9)
    assert torch.equal(generate(model, prompt, VanillaDrafter(model), max_new_tokens=9).sequences, expected_text)
    if not more:  # frozen
        assert (work / "two/model.safetensors").read_bytes() == (work / "one/model.safetensors").read_bytes()


@pytest.mark.slow
def test_killed_run_goes_on_exactly_and_in_one_process_as_well(work: Path) -> None:
    """kill -9 of both processes in mid-run; the checkpoint then serves two processes, and one."""
    longer = ("--steps", "24", "--fine-tune", "--serving-prompts", "0")
    finish(launch(work, "whole", 2, "--fsdp", *longer))
    for output, processes in (("cut", 2), ("alone", 1)):
        started, state = launch(work, output, 2, "--fsdp", *longer), work / output / STATE
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline and (not state.exists() or json.loads(state.read_text())["step"] < 4):
            time.sleep(0.01)
        for process in started:
            process.send_signal(signal.SIGKILL)
            process.wait()
        assert 4 <= json.loads(state.read_text())["step"] < 24
        finish(launch(work, output, processes, "--fsdp", *longer))
    assert (work / "whole" / HEADS).read_bytes() == (work / "cut" / HEADS).read_bytes()
    for name, weight in load_file(work / "whole" / HEADS).items():
        torch.testing.assert_close(load_file(work / "alone" / HEADS)[name], weight, atol=1e-3, rtol=1e-2)
    assert [record["step"] for record in log(work / "alone")] == list(range(1, 25))


def test_models_from_scratch_are_refused(tmp_path: Path) -> None:
    tokens = np.ones(900, np.uint16)
    with pytest.raises(ValueError, match="Muon updates matrices as wholes; leave fsdp out"):
        train_blockwise(tokens, tokens, tmp_path, BlockwiseShape(vocab_size=9), BlockwiseTraining(fsdp=True), 0)
