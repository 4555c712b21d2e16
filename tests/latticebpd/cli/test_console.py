"""Progress in log files: a line now and then, whether or not anything has moved."""

from __future__ import annotations

import json
import re
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.table import Table
from rich.text import Text

from latticebpd import console
from latticebpd.cli.accepted_blocks import BlockWriter
from lm_training.cli.training_run import token_progress
from tests.helpers.commands import Run


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch) -> tuple[list[str], threading.Event]:
    """What is written into the log; the event waits for a line that has not been seen yet."""
    written: list[str] = []
    heard = threading.Event()

    def write(line: str, **_: Any) -> None:
        written.append(line)
        heard.set()

    assert not console.err.is_terminal
    monkeypatch.setattr(console, "LINE_EVERY", 0.01)
    monkeypatch.setattr(console.err, "print", write)
    return written, heard


def test_lines_come_while_nothing_moves_and_stop_with_the_work(lines: tuple[list[str], threading.Event]) -> None:
    written, heard = lines
    with console.progress() as bar:
        bar.add_task("loading [a]", total=None)
        assert heard.wait(30)
    assert all(re.fullmatch(r"loading \[a\]: 0, 0:00:\d\d", line) for line in written)
    assert not any(thread.name == "log lines" for thread in threading.enumerate())


def test_a_line_tells_counts_rate_and_time(lines: tuple[list[str], threading.Event]) -> None:
    written, heard = lines
    with token_progress("prompts", 2000) as report:
        report(1200, 900)
        heard.clear()
        assert heard.wait(30)
    assert re.fullmatch(
        r"prompts \(900 tokens, [\d,]+ a second\): 1,200 of 2,000, 0:00:\d\d(, about .* left)?", written[-1]
    )


def test_bytes_are_written_as_bytes_and_finished_work_is_not_written_at_all(
    lines: tuple[list[str], threading.Event],
) -> None:
    written, heard = lines
    with console.progress_bytes() as bar:
        done, going_on = bar.add_task("done", total=5), bar.add_task("reading", total=None)
        bar.update(done, completed=5)
        bar.update(going_on, completed=2_500_000, total=5_000_000)
        for _ in range(2):  # the first line may have been on its way
            heard.clear()
            assert heard.wait(30)
    assert written[-1].startswith("reading: 2.5 MB of 5.0 MB, 0:00:")
    assert not any(line.startswith("done: 5 bytes of") for line in written)


FOREIGN = "a\x1b[2J\x1b]0;x\x07\x9bm\x7f\u202e[/b][red]:smile:"
CONTROL = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e]")


@pytest.mark.parametrize("terminal", [console.out, console.err])
def test_control_characters_and_markup_of_foreign_text_are_shown_not_obeyed(terminal: Any) -> None:
    table = Table("column")
    table.add_row(FOREIGN)
    with terminal.capture() as captured:
        terminal.print(f"{FOREIGN}: written", table, Text(FOREIGN), soft_wrap=True)
        writer = BlockWriter(terminal, lambda tokens: FOREIGN, FOREIGN)
        writer.put(torch.zeros(1))
        writer.put(torch.zeros(1))
        writer.end()
    shown = captured.get()
    assert not CONTROL.search(shown)
    assert shown.count("a\\x1b[2J\\x1b]0;x") == shown.count("\\x9bm\\x7f\\u202e[/b][red]:smile:") == 5


def test_errors_show_control_characters(run: Run) -> None:
    for words in (("lm", "info", FOREIGN), (FOREIGN,), ("--debug", "lm", "info", FOREIGN)):
        status, _, error = run(*words)
        assert status == 2
        assert not CONTROL.search(error)
        assert "a\\x1b[2J" in error


def test_json_holds_control_characters_as_escapes(capsys: pytest.CaptureFixture[str]) -> None:
    console.print_json({"text": FOREIGN + "é"})
    printed = capsys.readouterr().out
    assert not CONTROL.search(printed)
    assert json.loads(printed) == {"text": FOREIGN + "é"}
    assert "é" in printed


@pytest.mark.parametrize("is_terminal", [False, True])
def test_generated_text_is_exact_in_files_and_visible_on_terminals(
    run: Run, monkeypatch: pytest.MonkeyPatch, is_terminal: bool
) -> None:
    monkeypatch.setattr("transformers.PreTrainedTokenizerFast.decode", lambda *arguments, **options: FOREIGN)
    monkeypatch.setattr("sys.stdout.isatty", lambda: is_terminal)
    status, printed, _ = run("generate", "x", "--max-new-tokens", 2)
    assert status == 0
    assert (FOREIGN in printed, bool(CONTROL.search(printed))) == (not is_terminal, not is_terminal)


def test_training_writes_lines(monkeypatch: pytest.MonkeyPatch, run: Run, tmp_path: Path) -> None:
    from latticebpd.drafters.bundled import TOKENIZER
    from lm_training.training.training_loop import Trainer

    np.save(tmp_path / "ids.npy", np.arange(1, 900, dtype=np.uint16) % 50)
    monkeypatch.setattr(console, "LINE_EVERY", 0.01)
    update = Trainer.update

    def slow(self: Trainer[Any], *arguments: Any) -> dict[str, Any]:
        threading.Event().wait(0.05)
        return update(self, *arguments)

    monkeypatch.setattr(Trainer, "update", slow)
    data = tmp_path / "ids.npy"
    line = ["train", "blockwise", data, "--validation", data, "--tokenizer", TOKENIZER, "-o", tmp_path / "model"]
    sizes = [
        "--hidden-size",
        64,
        "--num-layers",
        1,
        "--num-heads",
        2,
        "--steps",
        3,
        "--sequence-length",
        16,
        "--batch-size",
        2,
    ]
    status, _, err = run(*line, *sizes)
    assert status == 0, err
    assert re.search(r"^training \(loss \d+\.\d{3}, [\d,]+ tokens/s\): \d of 3, 0:00:", err, re.MULTILINE)
