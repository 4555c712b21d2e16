"""The demo: every system's text is that of `generate()`, on the bundled model and on any other; what is shown is
bearable."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

from latticebpd import Loaded, load
from latticebpd.cli.accepted_blocks import BlockWriter
from latticebpd.drafters.bundled import LM, MODEL
from latticebpd.drafters.pretrained import load_stock, load_tokenizer
from latticebpd.report.demo_table import (
    REAL,
    TOY,
    Demo,
    prompts_of,
    run_demo,
    show,
    shown_prompt,
    system_names,
)
from tests.helpers.commands import Run
from tests.helpers.tokenizers import TEMPLATE


@pytest.fixture(scope="module")
def loaded() -> Loaded:
    return load()


@pytest.fixture(scope="module")
def demo(loaded: Loaded) -> Demo:
    return run_demo(loaded, replace(TOY, max_new_tokens=40), num_prompts=3)


@pytest.fixture(scope="module")
def without_heads(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A chat model without heads."""
    directory = tmp_path_factory.mktemp("chat") / "stock"
    load_stock(MODEL).save_pretrained(directory)
    tokenizer: Any = load_tokenizer(MODEL)
    tokenizer.add_special_tokens({"bos_token": "<|endoftext|>", "eos_token": "<|endoftext|>"})
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(directory)
    return directory


def test_every_system_writes_what_generate_writes(demo: Demo) -> None:
    assert demo.exact
    names = [system.name for system in demo.systems]
    best = ["4-gram", "16-best 0-gram", "16-best 4-gram"]
    assert names == [
        "greedy",
        "vanilla BPD",
        *best,
        "64-node tree",
        "16-node tree",
        "copies + tree",
        "calibrated tree",
        "oracle",
    ]
    for system in demo.systems:
        assert system.block_efficiency == system.tokens / system.calls
        assert system.tokens == demo.systems[0].tokens
    verified = {system.name: system.verified_tokens_per_call for system in demo.systems}
    assert verified["greedy"] == 0
    assert verified["vanilla BPD"] <= 8
    assert verified["64-node tree"] <= 64


@pytest.mark.slow
def test_every_prompt_is_decoded_losslessly_and_in_order_of_quality(loaded: Loaded) -> None:
    """The demo's promises on all prompts at full length, one system against the next."""
    result = run_demo(loaded, replace(TOY, max_new_tokens=128))
    assert result.exact
    efficiency = {system.name: system.block_efficiency for system in result.systems}
    order = ["greedy", "vanilla BPD", "16-best 0-gram", "16-best 4-gram", "64-node tree", "oracle"]
    assert sorted(order, key=lambda name: efficiency[name]) == order
    assert efficiency["copies + tree"] > efficiency["16-best 0-gram"]  # at less than a third of its verified tokens


def test_better_drafting_takes_fewer_calls(demo: Demo) -> None:
    calls = {system.name: system.calls for system in demo.systems}
    assert calls["64-node tree"] < calls["16-best 4-gram"] < calls["vanilla BPD"] < calls["greedy"]


def test_json_has_the_promised_shape(demo: Demo) -> None:
    record = json.loads(json.dumps(demo.as_json()))
    assert set(record) == {"signature", "generate_tokens_per_second", "texts_equal", "texts_of_generate", "systems"}
    assert record["texts_of_generate"] == record["signature"]["prompts"] == 3
    keys = {"name", "block_efficiency", "verified_tokens_per_call", "tokens_per_second", "calls", "tokens"}
    assert all(set(system) == keys for system in record["systems"])


def test_a_text_that_differs_is_told(loaded: Loaded, monkeypatch: pytest.MonkeyPatch, run: Run) -> None:
    stock = type(loaded.model.base)  # type: ignore[union-attr]
    written = stock.generate

    def other(self: Any, *arguments: Any, **settings: Any) -> torch.Tensor:
        ids = written(self, *arguments, **settings)
        ids[0, -1] += 1
        return ids  # type: ignore[no-any-return]

    monkeypatch.setattr(stock, "generate", other)
    status, out, err = run("demo", "--prompts", 1, "--max-new-tokens", 4)
    assert status == 1
    assert "A system's text DIFFERS" in out
    assert "a system's text differs from greedy decoding's" in err


def test_the_text_shown_repeats_itself_least(loaded: Loaded) -> None:
    """By the share of its runs of three tokens that occur once only."""

    def variety(number: int) -> float:
        _, found = show(loaded, prompts_of(loaded)[number], TOY, None)
        new = found.sequences[0, found.prompt_length :].tolist()
        runs = list(zip(new, new[1:], new[2:], strict=False))
        return len(set(runs)) / len(runs)

    assert max(range(len(prompts_of(loaded))), key=variety) == shown_prompt(loaded)


def test_the_demo_shows_the_model_a_marked_text_and_the_table(run: Run, loaded: Loaded) -> None:
    status, out, err = run("demo", "--prompts", 1, "--max-new-tokens", 8)
    assert status == 0, err
    first, _, _, *rest = out.splitlines()
    assert first.startswith("The bundled model is a toy: 6M parameters")
    assert rest[0].startswith(prompts_of(loaded)[shown_prompt(loaded)].text[:40])
    assert out.count("┃") >= 3
    assert "Every system's text equals that of greedy decoding with the same weights" in out


@pytest.mark.parametrize("with_lm", [True, False])
def test_a_model_with_heads_answers_a_question_of_each_task(tmp_path: Path, with_lm: bool) -> None:
    load().model.save_pretrained(tmp_path)
    for name in ("tokenizer.json", *(["lm.fst"] if with_lm else [])):
        (tmp_path / name).symlink_to((LM.parent if name == "lm.fst" else MODEL) / name)
    loaded = load(tmp_path)
    assert [prompt.title for prompt in prompts_of(loaded)] == [
        "instruction", "summary", "question", "translation", "arithmetic", "continuation",
    ]  # fmt: skip
    settings = replace(REAL, max_new_tokens=8, p=4)
    result = run_demo(loaded, settings, num_prompts=2)
    assert result.exact
    names = [system.name for system in result.systems]
    best = ["4-gram", "4-best 0-gram", "4-best 4-gram"] if with_lm else ["4-best 0-gram"]
    calibrated = ["calibrated tree"] if with_lm else []
    assert names == ["greedy", "vanilla BPD", *best, "16-node tree", "copies", "copies + tree", *calibrated, "oracle"]
    assert ("4-gram" in result.signature["lm"]) == with_lm
    assert "4-best 0-gram" not in system_names(loaded, REAL)


def test_a_model_without_heads_shows_copies(run: Run, without_heads: Path) -> None:
    status, out, err = run("demo", "--model", without_heads, "--prompts", 2, "--max-new-tokens", 6, "--json")
    assert status == 0, err
    record = json.loads(out)
    assert [system["name"] for system in record["systems"]] == ["greedy", "copies"]
    assert record["texts_equal"]
    assert "heads" not in record["signature"]
    status, out, err = run("demo", "--model", without_heads, "--prompts", 1, "--max-new-tokens", 6)
    assert status == 0, err
    assert "5M parameters, no heads, so that all drafts are copies." in out
    assert "(copies: " in out


def test_questions_go_through_the_chat_template(without_heads: Path) -> None:
    loaded = load(without_heads)
    prompt = prompts_of(loaded)[0]
    assert loaded.in_chat
    assert loaded.tokenizer.decode(prompt.ids).endswith(f"{prompt.text}</s>\n<s>assistant\n")


def test_a_character_waits_for_its_last_byte() -> None:
    tokens = list("a€b".encode())
    console = Console(file=io.StringIO(), color_system=None)
    writer = BlockWriter(console, lambda so_far: bytes(so_far).decode(errors="replace"), "before ")
    for block in ([0], tokens[:2], tokens[2:3], tokens[3:5]):
        writer.put(torch.tensor([block]))
    writer.end()
    assert console.file.getvalue() == "before ┃a┃┃€b\n"  # type: ignore[attr-defined]
