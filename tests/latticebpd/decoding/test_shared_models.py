"""Models that several decodes share, on few processors, with quantized layers, or with another model's drafter."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaForCausalLM, StoppingCriteriaList

from latticebpd import Drafter, NoDrafter, drafter_named, generate, load
from latticebpd.drafters.block.block_checkpoints import save_block_drafter
from latticebpd.drafters.block.block_family import BlockLattices
from latticebpd.loading import Loaded
from latticebpd.models.engine.engine_families import unsupported_reason
from tests.helpers.block_drafters import tiny_drafter, tiny_target
from tests.helpers.blockwise_models import tiny_model
from tests.helpers.commands import Run
from tests.helpers.engine_models import stock
from tests.helpers.tiny_families import tiny
from tests.helpers.tokenizers import letters

PROMPTS = ("The history of the city", "A river")
SYSTEMS = ("greedy", "16-best", "16-tree", "8-copies")


@pytest.fixture(scope="module")
def loaded() -> Loaded:
    return load()


def text_of(loaded: Loaded, prompt: str, system: str, **options: Any) -> list[int]:
    tokens: list[int] = (
        loaded.generate(prompt, loaded.drafter(system), max_new_tokens=24, **options).sequences[0].tolist()
    )
    return tokens


def test_decodes_of_an_event_loop_share_a_model(loaded: Loaded) -> None:
    single = {prompt: text_of(loaded, prompt, "greedy") for prompt in PROMPTS}

    async def together() -> list[list[int]]:
        tasks = [asyncio.to_thread(text_of, loaded, prompt, system) for prompt in PROMPTS for system in SYSTEMS]
        return await asyncio.gather(*tasks)

    assert asyncio.run(together()) == [single[prompt] for prompt in PROMPTS for _ in SYSTEMS]


def test_a_cancelled_decode_ends_by_its_stop_rule_and_leaves_the_others_alone(loaded: Loaded) -> None:
    """Cancelling a task ends its waiting, not its thread; a stop rule ends that."""
    single = text_of(loaded, PROMPTS[0], "greedy")
    begun, ended, results = threading.Event(), threading.Event(), list[list[int]]()

    def stopped(tokens: torch.Tensor, scores: Any, **kwargs: Any) -> torch.Tensor:
        begun.set()
        ended.wait(30)
        return torch.ones(len(tokens), dtype=torch.bool)

    def decode() -> None:
        results.append(text_of(loaded, PROMPTS[0], "16-tree", stopping_criteria=StoppingCriteriaList([stopped])))

    async def cancelled() -> list[int]:
        task = asyncio.create_task(asyncio.to_thread(decode))
        await asyncio.to_thread(begun.wait, 30)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        other = await asyncio.to_thread(text_of, loaded, PROMPTS[0], "16-tree")
        ended.set()
        return other

    assert asyncio.run(cancelled()) == single  # which waits for the thread
    (part,) = results
    assert part == single[: len(part)]
    assert len(part) < len(single)


DECODE = """
import os, sys, torch
from latticebpd import load
if len(sys.argv) > 1:
    torch.set_num_threads(int(sys.argv[1]))
loaded = load()
tokens = loaded.generate("The history of the city", loaded.drafter("16-tree"), max_new_tokens=24).sequences[0].tolist()
print(torch.get_num_threads(), len(os.sched_getaffinity(0)), *tokens)
"""


@pytest.mark.long
@pytest.mark.parametrize("threads", [None, 8])
def test_a_decode_on_one_processor_is_right(loaded: Loaded, threads: int | None) -> None:
    """By default it has one thread, and more than there are processors change no bit."""
    one = min(os.sched_getaffinity(0))
    environment = {
        name: value for name, value in os.environ.items() if name not in ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
    }
    done = subprocess.run(
        [sys.executable, "-c", DECODE, *([] if threads is None else [str(threads)])], check=True, text=True,
        stdout=subprocess.PIPE, env=environment, preexec_fn=lambda: os.sched_setaffinity(0, {one}), timeout=300,
    )  # fmt: skip
    used, processors, *tokens = map(int, done.stdout.split())
    assert (used, processors) == (threads or 1, 1)
    assert tokens == text_of(loaded, PROMPTS[0], "greedy")


class Int8Weights(torch.nn.Linear):
    """As bitsandbytes' ``Linear8bitLt``: int8 weights, a scale for each output, products in float32."""

    def __init__(self, layer: torch.nn.Linear) -> None:
        super().__init__(layer.in_features, layer.out_features, bias=False)
        weight = layer.weight.detach()
        self.scale = weight.abs().amax(dim=1, keepdim=True) / 127
        self.weight = torch.nn.Parameter((weight / self.scale).round().to(torch.int8), requires_grad=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.linear(x, self.weight.float() * self.scale)


@pytest.mark.parametrize("parts", ["up_proj", "up_proj and lm_head"])
def test_quantized_layers_are_run_by_pytorch(parts: str) -> None:
    model = stock()
    for layer in model.model.layers:
        layer.mlp.up_proj = Int8Weights(layer.mlp.up_proj)
    if "lm_head" in parts:
        model.lm_head = Int8Weights(model.lm_head)
    assert unsupported_reason(model) is not None
    prompt = torch.tensor([[3, 4, 5, 3, 4]])
    expected = model.generate(prompt, attention_mask=torch.ones_like(prompt), do_sample=False, max_new_tokens=30)
    for drafter in drafters():
        assert torch.equal(generate(model, prompt, drafter, max_new_tokens=30).sequences, expected)


def drafters() -> Iterator[Drafter]:
    yield NoDrafter()
    yield drafter_named("8-copies", None, None)


@pytest.mark.filterwarnings("ignore")
def test_layers_whose_scale_depends_on_the_whole_pass_are_refused_by_name() -> None:
    """PyTorch's dynamic quantization rounds all columns of a pass by one scale: their logits depend on each other."""
    model: LlamaForCausalLM = torch.ao.quantization.quantize_dynamic(stock(), {torch.nn.Linear}, dtype=torch.qint8)
    assert "torch.ao.nn.quantized.dynamic.modules.linear.Linear is not a module" in str(unsupported_reason(model))
    with pytest.raises(ValueError, match="whose logits depend on what follows or on how a text is cut into passes"):
        generate(model, [3, 4, 5], NoDrafter(), max_new_tokens=4)


def test_a_drafter_of_another_target_of_the_same_shape_leaves_the_text_as_it_is() -> None:
    """Nothing tells them apart; drafts are checked, whoever made them."""
    target, other = tiny_target(seed=0), tiny_target(seed=5)
    drafter = drafter_named("8-tree:0-gram", BlockLattices(tiny_drafter(other), target, 4), None)
    prompt = [3, 4, 5, 6, 7]
    expected = generate(target, prompt, NoDrafter(), max_new_tokens=40).sequences
    assert torch.equal(generate(target, prompt, drafter, max_new_tokens=40).sequences, expected)


@pytest.mark.parametrize("kind", ["block", "heads"])
def test_a_drafter_of_another_shape_of_target_is_one_line(run: Run, tmp_path: Path, kind: str) -> None:
    tiny("llama", seed=3).save_pretrained(tmp_path / "target")
    letters().save_pretrained(tmp_path / "target")
    if kind == "block":
        save_block_drafter(tiny_drafter(tiny_target()), tmp_path / "drafter")
    else:
        tiny_model(vocab_size=40).save_pretrained(tmp_path / "drafter")
        letters().save_pretrained(tmp_path / "drafter")
    line = ("generate", "abc", "--model", tmp_path / "target", "--drafter-model", tmp_path / "drafter")
    status, _, err = run(*line, "--max-new-tokens", 4)
    assert status == 2
    assert len(err.strip().splitlines()) == 1, err
    assert "expected" in err
