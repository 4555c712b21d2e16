"""What commands print, at 80 and 120 columns and into a pipe: no name and no number is cut, no word is broken."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.cells import cell_len
from rich.console import Console

from latticebpd.cli import COMMANDS, _LazyCommands, tables
from latticebpd.cli.side_by_side import PausedDecode, show_side_by_side
from latticebpd.lattices.lattice_set import LatticeSet
from latticebpd.loading import Loaded, load
from latticebpd.report.demo_table import TOY, Demo, about, run_demo
from tests.helpers.commands import Run


@pytest.fixture(params=[80, 120, None], ids=["80", "120", "pipe"])
def width(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int | None:
    """Columns; None in a pipe."""
    if request.param is None:
        monkeypatch.delenv("COLUMNS", raising=False)
    else:
        monkeypatch.setenv("COLUMNS", str(request.param))
    return request.param


def screen(printed: tuple[int, str, str], width: int | None) -> str:
    """What a command printed, which succeeded, shortened nothing and kept to the width."""
    status, out, err = printed
    assert status == 0, err
    assert "…" not in out + err
    if width is not None:
        assert max(map(cell_len, (out + err).splitlines())) <= width
    return out


@pytest.fixture(scope="module")
def commands() -> dict[str, Any]:
    """Every command and group of commands, by its words."""

    def below(words: str, command: Any) -> Iterator[tuple[str, Any]]:
        yield words, command
        for name, each in getattr(command, "commands", {}).items():
            yield from below(f"{words} {name}", each)

    program = _LazyCommands(COMMANDS)
    return {words: command for name in COMMANDS for words, command in below(name, program[name])}


def test_help_names_options_and_says_what_they_are(
    commands: dict[str, Any], width: int | None, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_LazyCommands, "__getitem__", lambda self, name: commands[name])
    assert len(commands) > 30
    for words, command in commands.items():
        out = screen(run(*words.split(), "--help"), width or 80)
        shown = re.findall(r"^│ (-.*?)(?=  |$)", out, re.MULTILINE)
        said = {*out.replace("│", " ").split()}
        assert max(map(len, shown)) <= 30, words  # of 80 columns, the descriptions have more than half
        options = [each for each in command.params if each.param_type_name == "option"]
        names = {name for each in options for name in (*each.opts, *each.secondary_opts)}
        assert names <= {name for row in shown for name in re.findall(r"--?[a-z][\w-]*", row)}, words
        for each in command.params:
            assert not {*each.help.split()} - said, (words, each.name)
        for each in getattr(command, "commands", {}).values():
            assert not {*each.help.split("\n\n")[0].split()} - said, (words, each.name)


def test_a_shell_takes_an_example_of_several_lines_as_one_command(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    lines = run("generate", "--help")[1].splitlines()
    begin = next(number for number, line in enumerate(lines) if line.startswith(" Example: "))
    assert [line.strip() for line in lines[begin : begin + 2]] == [
        'Example: latticebpd generate "The history of the city" \\',
        "--system 16-best --show-blocks",
    ]


NUMBERS = [[f"{column * 1000 + row:.3f}" for column in range(14)] for row in range(3)]
NAMES = ["vanilla", "64-calibrated:a-language-model", "copies+16-tree:0-gram, beta:5,3"]


def test_tables_keep_every_digit_and_name(width: int | None, capfd: pytest.CaptureFixture[str]) -> None:
    headings = ["system", *(f"tokens per call at depth-{number}" for number in range(14))]
    lines = [[name, *numbers] for name, numbers in zip(NAMES, NUMBERS, strict=True)]
    tables.print_table("a title", headings, lines, caption="a caption")
    out = screen((0, *capfd.readouterr()), width)
    for name, numbers in zip(NAMES, NUMBERS, strict=True):
        rows = [line.removeprefix(name).split() for line in out.splitlines() if line.startswith(f"{name} ")]
        assert [number for row in rows for number in row] == numbers
        assert len(rows) == {80: 4, 120: 2, None: 1}[width]
    assert re.findall(r"depth-\d+", out) == [f"depth-{number}" for number in range(14)]


def test_columns_that_follow_below_stand_next_to_all_names(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLUMNS", "30")
        tables.print_table(None, ("k", "heads", *map(str, range(9))), [["16", "9", *"012345678"]], names=2)
    rows = [line.split() for line in capfd.readouterr().out.splitlines() if line.startswith("16 ")]
    assert rows == [["16", "9", *"0123456"], ["16", "9", *"78"]]


def test_a_name_that_is_wider_than_the_terminal_loses_no_letter(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "30")
    tables.print_table(None, ("system", "tokens"), [["x" * 50 + "y", "12345"]])
    out = screen((0, *capfd.readouterr()), 30)
    assert out.count("x") == 50
    assert out.count("y") == 1 + len("s")  # that of the heading
    assert "12345" in out


@pytest.fixture(scope="module")
def lattices(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("lattices") / "a-data-set-with-a-long-name" / "lattices-of-held-out-text.npz"
    path.parent.mkdir()
    rng = np.random.default_rng(0)
    tokens = np.stack([rng.permutation(23)[:4] for _ in range(60 * 12)]).reshape(60, 12, 4).astype(np.int32)
    log_probs = -np.sort(rng.exponential(size=(60, 12, 4)).astype(np.float32), axis=2)
    LatticeSet(tokens, log_probs, tokens[:, :, rng.integers(2)].copy(), np.full((60, 2), -1, np.int32)).save(path)
    return path


def test_compare_shows_every_system_and_number(width: int | None, lattices: Path, run: Run) -> None:
    words = ["compare", lattices, "--system", "16-best:0-gram", "--system", "64-tree:0-gram"]
    out = screen(run(*words), width)
    whole = out.split()
    for row in json.loads(run(*words, "--json")[1])["systems"]:
        assert whole.count(row["system"]) >= 3
        for name in ("block_efficiency", "block_efficiency_with_prefill"):
            assert row[name] is None or f"{row[name]:.3f}" in whole
        for name in ("win", "tie", "loss", "misranked", "cut", "repair", "regress", "verified_tokens"):
            assert f"{row[name]:.1f}" in whole
        low, high = (row[f"gain_{end}"] for end in ("low", "high"))
        assert low is None or f"{low:+.2f} to {high:+.2f}" in out
    assert {"tokens/call", "headroom", "verified", "misranked", "neighbours"} <= {*whole}


def test_oracle_shows_every_share(width: int | None, lattices: Path, run: Run) -> None:
    words = ["oracle", lattices, "--k", "1,4", "--heads", "13"]
    whole = screen(run(*words), width).split()
    for row in json.loads(run(*words, "--json")[1])["rows"]:
        assert f"{row['block_efficiency']:.3f}" in whole
        total = sum(row["accept_counts"])
        assert {f"{100 * count / total:.1f}" for count in row["accept_counts"]} <= {*whole}


@pytest.fixture(scope="module")
def loaded() -> Loaded:
    return load()


@pytest.fixture(scope="module")
def demo(loaded: Loaded) -> Demo:
    return run_demo(loaded, replace(TOY, max_new_tokens=4, num_prompts=1))


def test_the_demo_shows_every_system_and_number(
    width: int | None, loaded: Loaded, demo: Demo, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("latticebpd.report.demo_table.run_demo", lambda *_: demo)
    out = screen(run("demo", "--max-new-tokens", 4), width)
    for system in demo.systems:
        (row,) = [line.split() for line in out.splitlines() if line.startswith(f"{system.name}  ")]
        assert f"{system.block_efficiency:.3f}" in row
    assert {*about(loaded).split()} <= {*out.split()}


@pytest.mark.parametrize("columns", [80, 120])
def test_side_by_side_words_are_whole(columns: int) -> None:
    words = ["public-domain", "and", "openly", "licensed", "English", "text,", "decoded", "block", "by", "block"]
    spoken = {number: f"{word} " for number, word in enumerate(words * 4, 1)}

    def decode(streamer: Any) -> Any:
        for token in (0, *spoken):
            streamer.put(np.array([[token]]))
        streamer.end()
        return streamer

    file = io.StringIO()
    console = Console(file=file, force_terminal=True, width=columns, height=50, color_system=None)

    def text_of(tokens: list[int]) -> str:
        return "".join(spoken[token] for token in tokens)

    names = ("greedy", "copies + 16-node tree")
    show_side_by_side(console, [PausedDecode(name, decode, text_of) for name in names])
    plain = re.sub(r"\x1b\[[\d;?]*[A-Za-z]", "", file.getvalue())
    assert max(map(cell_len, plain.splitlines())) <= columns
    assert {*plain.replace("┃", "").split()} >= {*words, "copies", "16-node", "tokens/s"}


def test_errors_are_one_line_in_a_pipe_and_break_between_words_in_a_terminal(
    width: int | None, run: Run, tmp_path: Path
) -> None:
    status, _, error = run("oracle", tmp_path / "missing.npz", "--heads", "no-number")
    assert status == 2
    assert max(map(cell_len, error.splitlines())) <= (width or 1000)
    wanted = "latticebpd: error: expected --heads as numbers >= 1 separated by commas, such as 1,2,4, got 'no-number'"
    assert error.split() == wanted.split()
    assert width is not None or error == f"{wanted}\n"
