"""The demo: every system's text is that of `generate()`, on the bundled model and on any other; what is shown is
bearable."""

from __future__ import annotations

import io
import json
import re
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console

from latticebpd import Loaded, load
from latticebpd.cli.accepted_blocks import BlockWriter
from latticebpd.cli.side_by_side import PausedDecode, show_side_by_side
from latticebpd.drafters.bundled import LM, MODEL
from latticebpd.drafters.heads.blockwise import BlockwiseLM
from latticebpd.drafters.lattice_drafter import OracleDrafter
from latticebpd.models.load_target import load_stock
from latticebpd.report import demo_table
from latticebpd.report.demo_table import (
    REAL,
    TOY,
    Demo,
    DemoPrompt,
    Settings,
    default_in_words,
    prompts_of,
    run_demo,
    show,
    shown_decode,
)
from latticebpd.scoring.calibration import calibration_path
from tests.helpers.chat_models import save_chat_model
from tests.helpers.commands import Run


@pytest.fixture(scope="module")
def loaded() -> Loaded:
    return load()


@pytest.fixture(scope="module")
def demo(loaded: Loaded) -> Demo:
    return run_demo(loaded, replace(TOY, max_new_tokens=40, num_prompts=3))


@pytest.fixture(scope="module")
def without_heads(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A chat model without heads."""
    return save_chat_model(tmp_path_factory.mktemp("chat") / "stock")


def test_every_system_writes_what_generate_writes(demo: Demo) -> None:
    assert demo.texts_equal
    names = [system.name for system in demo.systems]
    best = ["4-gram", "16-best 0-gram", "16-best 4-gram"]
    assert names == [
        "default",
        "greedy",
        "vanilla BPD",
        *best,
        "64-node tree",
        "16-node tree",
        "copies + tree",
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
    result = run_demo(loaded, replace(TOY, max_new_tokens=128, num_prompts=12))
    assert result.texts_equal
    efficiency = {system.name: system.block_efficiency for system in result.systems}
    order = ["greedy", "vanilla BPD", "16-best 0-gram", "16-best 4-gram", "64-node tree", "oracle"]
    assert sorted(order, key=lambda name: efficiency[name]) == order
    assert efficiency["copies + tree"] > efficiency["16-best 0-gram"]  # at less than a third of its verified tokens


def test_better_drafting_takes_fewer_calls(demo: Demo) -> None:
    calls = {system.name: system.calls for system in demo.systems}
    assert calls["64-node tree"] < calls["16-best 4-gram"] < calls["vanilla BPD"] < calls["greedy"]


def test_json_has_the_promised_shape(demo: Demo) -> None:
    record = json.loads(json.dumps(asdict(demo)))
    keys = {"signature", "default", "generate_tokens_per_second", "texts_equal", "texts_of_generate", "systems"}
    assert set(record) == keys | {"left_out", "seconds", "processor_seconds"}
    assert record["texts_of_generate"] == record["signature"]["prompts"] == 3
    keys = {"name", "block_efficiency", "verified_tokens_per_call", "tokens_per_second", "calls", "tokens"}
    assert all(set(system) == keys for system in record["systems"])


def test_a_text_that_differs_is_told(loaded: Loaded, monkeypatch: pytest.MonkeyPatch, run: Run) -> None:
    stock: Any = type(load_stock(loaded.path))
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


def test_the_text_shown_is_greedy_and_repeats_itself_least(loaded: Loaded) -> None:
    """By the share of its runs of three tokens that are distinct: most of all prompts."""

    def variety(prompt: DemoPrompt, settings: Settings) -> float:
        output = show(loaded, prompt, settings, None, "default")
        new = output.sequences[0, output.prompt_length :].tolist()
        runs = list(zip(new, new[1:], new[2:], strict=False))
        return len(set(runs)) / len(runs)

    prompt, settings = shown_decode(loaded, TOY)
    drafted = show(loaded, prompt, settings, None, "default")
    greedy = show(loaded, prompt, settings, None, "greedy")
    assert drafted.tokens.tolist() == greedy.tokens.tolist()
    tokens: Any = drafted.sequences[0].tolist()
    assert loaded.tokenizer.decode(tokens).startswith(
        f"{prompt.text} `Get-Object` cmdlet.\n\n```yaml\nType: System.String\n"
    )
    assert loaded.tokenizer.decode(tokens).endswith("\n```")
    assert variety(prompt, settings) > max(variety(each, settings) for each in prompts_of(loaded))


def test_the_text_shown_is_as_short_as_the_others_are_asked_to_be(loaded: Loaded) -> None:
    assert shown_decode(loaded, replace(TOY, max_new_tokens=8))[1].max_new_tokens == 8


def test_the_demo_shows_the_model_a_marked_text_and_the_table(run: Run, loaded: Loaded) -> None:
    status, out, err = run("demo", "--prompts", 1, "--max-new-tokens", 8)
    assert status == 0, err
    first, _, _, _, *rest = out.splitlines()
    assert first.startswith("The bundled model is a toy: 6M parameters")
    assert "\n".join(rest).startswith(shown_decode(loaded, TOY)[0].text)
    assert out.count("┃") >= 3
    assert "1 prompt, up to 8 tokens each" in out
    rows = [line.strip().split("  ")[0] for line in out.splitlines() if re.search(r"\d×", line)]
    assert rows[:3] == ["default", "greedy", "generate()"]
    assert re.search(r"default: what `latticebpd generate` runs: calibrated trees .*\(--system 16-calibrated\)\.", out)
    heads = [re.sub(r" +", " ", line).strip() for line in out[out.index("8 tokens each") :].splitlines()[1:4]]
    assert heads == [
        "speed-up speed-up",
        "tokens verified over over",
        "system per call per call tokens/s greedy generate()",
    ]
    assert "Every system's text equals that of greedy decoding with the same weights" in out


@pytest.mark.parametrize("with_lm", [True, False])
def test_a_model_with_heads_answers_a_question_of_each_task(tmp_path: Path, with_lm: bool) -> None:
    BlockwiseLM.from_pretrained(MODEL).save_pretrained(tmp_path)
    for name in ("tokenizer.json", *(["lm.fst"] if with_lm else [])):
        (tmp_path / name).symlink_to((LM.parent if name == "lm.fst" else MODEL) / name)
    loaded = load(tmp_path)
    assert [prompt.title for prompt in prompts_of(loaded)] == [
        "instruction", "summary", "question", "translation", "arithmetic", "continuation",
    ]  # fmt: skip
    settings = replace(REAL, max_new_tokens=8, p=4, num_prompts=2, every_system=True)
    result = run_demo(loaded, settings)
    assert result.texts_equal
    names = [system.name for system in result.systems]
    best = ["4-gram", "4-best 0-gram", "4-best 4-gram"] if with_lm else ["4-best 0-gram"]
    mixed = ["copies + tree"] if with_lm else []  # without a calibration it is the default
    first = ["default", "greedy", "vanilla BPD", *best, "16-node tree", *mixed]
    assert names == [*first, "16-node copies", "oracle"]
    assert ("4-gram" in result.signature["lm"]) == with_lm
    assert result.left_out == ()
    few = run_demo(loaded, replace(REAL, max_new_tokens=8, num_prompts=1))
    trees = [] if with_lm else ["16-node tree"]
    assert [system.name for system in few.systems] == ["default", "greedy", *trees, "16-node copies"]
    assert few.left_out == ("vanilla BPD", *(["4-gram", "16-node tree", "copies + tree"] if with_lm else []), "oracle")
    assert few.texts_of_generate == 1
    system = "--system 16-calibrated" if with_lm else "--system copies+16-tree"
    assert system in few.default
    assert "cut at every call" not in few.default


def test_of_quantized_weights_the_default_is_cut_and_generate_is_left_out(tmp_path: Path) -> None:
    for path in (*MODEL.iterdir(), LM, calibration_path(LM)):
        (tmp_path / path.name).symlink_to(path)
    loaded = load(tmp_path, weights="int8")
    settings = replace(REAL, max_new_tokens=8, num_prompts=1)
    result = run_demo(loaded, settings)
    assert [each.name for each in result.systems] == ["default", "greedy", "16-node calibrated tree", "16-node copies"]
    assert result.default == default_in_words(loaded)
    assert result.default.endswith("cut at every call to the drafts that pay off on this machine")
    assert (result.generate_tokens_per_second, result.texts_of_generate) == (None, None)
    assert result.left_out == ("vanilla BPD", "4-gram", "16-node tree", "copies + tree", "oracle", "generate()")


def test_the_oracle_knows_greedy_decodings_text_whatever_generate_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    BlockwiseLM.from_pretrained(MODEL).save_pretrained(tmp_path)
    (tmp_path / "tokenizer.json").symlink_to(MODEL / "tokenizer.json")
    loaded = load(tmp_path, weights="int8")
    known: list[list[int]] = []

    def oracle(source: Any, continuation: list[int]) -> OracleDrafter:
        known.append(continuation)
        return OracleDrafter(source, continuation)

    monkeypatch.setattr(demo_table, "OracleDrafter", oracle)
    monkeypatch.setattr(demo_table, "_reference", lambda *_: np.zeros((1, 200), np.int64))
    result = run_demo(loaded, replace(REAL, max_new_tokens=8, num_prompts=1, every_system=True))
    prompt = prompts_of(loaded)[0]
    greedy = loaded.generate(prompt.ids, loaded.drafter("greedy"), max_new_tokens=8)
    assert known[-1] == greedy.tokens[0, greedy.prompt_length :].tolist()
    assert (result.texts_of_generate, result.texts_equal) == (0, True)


def test_a_model_without_heads_shows_copies(run: Run, without_heads: Path) -> None:
    status, out, err = run("demo", "--model", without_heads, "--prompts", 2, "--max-new-tokens", 6, "--json")
    assert status == 0, err
    record = json.loads(out)
    assert [system["name"] for system in record["systems"]] == ["default", "greedy", "16-node copies"]
    assert record["texts_equal"]
    assert "heads" not in record["signature"]
    status, out, err = run("demo", "--model", without_heads, "--prompts", 1, "--max-new-tokens", 6)
    assert status == 0, err
    assert "5M parameters, no heads, so that drafts come from the text." in out
    assert "(default: " in out
    assert "runs: calibrated trees of copies of the text (--system 16-calibrated)." in " ".join(out.split())
    assert "Left out" not in out


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


@pytest.mark.parametrize(("share", "busy"), [(1.0, False), (0.9, False), (0.5, True)])
def test_a_busy_machine_is_told(
    demo: Demo, run: Run, monkeypatch: pytest.MonkeyPatch, share: float, busy: bool
) -> None:
    busy_demo = replace(demo, seconds=10.0, processor_seconds=10.0 * share)
    assert busy_demo.machine_busy == busy
    monkeypatch.setattr("latticebpd.report.demo_table.run_demo", lambda *_: busy_demo)
    status, out, _ = run("demo", "--max-new-tokens", 4)
    assert status == 0
    assert ("The machine was busy: 10 s by the clock, 5 s of them on a processor" in out) == busy


def test_waiting_counts_as_time_by_the_clock_alone(loaded: Loaded) -> None:
    result = run_demo(loaded, replace(TOY, max_new_tokens=4, num_prompts=1), lambda name: time.sleep(0.2))
    assert result.seconds - result.processor_seconds > 0.2 * len(result.systems)


def test_in_a_terminal_greedy_decoding_is_shown_next_to_the_drafted_text(
    loaded: Loaded, run: Run, monkeypatch: pytest.MonkeyPatch, demo: Demo
) -> None:
    file = io.StringIO()
    monkeypatch.setattr("latticebpd.cli.demo.out", Console(file=file, force_terminal=True, width=100, height=50))
    monkeypatch.setattr("latticebpd.report.demo_table.run_demo", lambda *_: demo)
    status, _, err = run("demo", "--max-new-tokens", 16)
    assert status == 0, err
    written = file.getvalue()
    assert "\x1b[32m" in written
    assert "\x1b[36m" in written
    plain = re.sub(r"\x1b\[[\d;?]*[A-Za-z]", "", written)
    prompt, settings = shown_decode(loaded, replace(TOY, max_new_tokens=16))
    result = show(loaded, prompt, settings, None, "default")
    counts = f"(default: 16 tokens in {result.num_calls} calls; greedy: 16 tokens in 15 calls; the two take turns"
    assert counts in " ".join(plain.split())
    lines = plain.splitlines()
    last = max(number for number, line in enumerate(lines) if line.startswith("default "))
    heading, about = lines[last : last + 2]
    assert re.fullmatch(r"default +[\d.]+ tokens/s +greedy +[\d.]+ tokens/s *", heading)
    assert re.fullmatch(r"drafts, several tokens a call +no drafts, one token a call *", about)
    text = plain[plain.rindex(heading) + len(heading) : plain.rindex("Each ┃")]
    assert text.count("┃") == 16 + 1 + result.num_calls
    assert max(map(len, lines)) <= 100  # nothing is left to the terminal, which breaks lines inside words


def test_the_decode_that_has_run_for_the_shortest_time_goes_on() -> None:
    order: list[str] = []

    def decode(name: str, seconds: float, blocks: int) -> PausedDecode:
        def run(streamer: Any) -> Any:
            streamer.put(np.array([[0]]))
            for block in range(blocks):
                time.sleep(seconds)
                order.append(name)
                streamer.put(np.array([block]))
            streamer.end()
            return name

        return PausedDecode(name, run, lambda tokens: " ".join(map(str, tokens)))

    decodes = [decode("slow", 0.3, 2), decode("fast", 0.05, 5)]
    console = Console(file=io.StringIO(), force_terminal=True, width=40)
    assert show_side_by_side(console, decodes) == ["slow", "fast"]  # type: ignore[comparison-overlap]
    assert order.index("fast") <= 1
    assert order[-1] == "slow"
    assert [each.tokens for each in decodes] == [2, 5]
    assert decodes[1].column().plain.endswith("┃0┃ 1┃ 2┃ 3┃ 4")
    assert decodes[0].seconds >= 0.6  # and none of what the other one took
    assert decodes[0].seconds + decodes[1].seconds < 10


def test_what_a_decode_raises_is_raised_where_it_is_watched() -> None:
    def failing(streamer: Any) -> Any:
        streamer.put(np.array([[0]]))
        raise ValueError("expected better")

    with pytest.raises(ValueError, match="expected better"):
        show_side_by_side(Console(file=io.StringIO()), [PausedDecode("one", failing, str)])
