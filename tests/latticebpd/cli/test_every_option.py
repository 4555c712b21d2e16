"""Every option of every command, found by walking the program: numbers at their edges, outputs that cannot be
written."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from typer.models import ArgumentInfo, OptionInfo

from latticebpd.cli import COMMANDS, _LazyCommands
from tests.helpers.command_options import COMMAND_LIST, Parameter
from tests.helpers.commands import Run

BUNDLED = [(name,) for name in ("demo", "generate", "chat", "lattices", "profile", "serve", "jacobi", "ddg")]
"""Commands whose model, and perhaps texts, are the bundled ones by default."""


def missing_inputs(words: tuple[str, ...], given: list[Parameter], but: str, directory: Path) -> list[str]:
    """A command line whose required files do not exist; without the parameter ``but``."""
    line = [*words]
    if words in BUNDLED:
        line += ["--model", str(directory / "missing")]
    for each in given:
        if not each.required or each.name == but:
            continue
        value = (
            str(directory / ("out.fst" if each.is_output else "missing.npz"))
            if each.kind in (Path, list[Path], str, list[str])
            else "1"
        )
        line += [value] if isinstance(each.info, ArgumentInfo) else [each.flag, value]
    return line


@pytest.fixture(autouse=True, scope="module")
def commands_are_built_once() -> Iterator[None]:
    """Thousands of command lines: building a command takes longer than refusing one."""
    with pytest.MonkeyPatch.context() as patch:
        build = functools.cache(functools.partial(_LazyCommands.__getitem__, _LazyCommands(COMMANDS)))
        patch.setattr(_LazyCommands, "__getitem__", lambda self, name: build(name))
        yield


def test_the_walk_finds_the_program() -> None:
    flags_of = {" ".join(words): {each.flag for each in options} for words, options in COMMAND_LIST}
    assert {"demo", "lm train", "train heads", "generate", "models get"} <= set(flags_of)
    assert {"--order", "--prune-theta", "--output", "--work-dir"} <= flags_of["lm train"]


def test_help_breaks_lines_where_the_terminal_ends(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not where the source does; examples stand on lines of their own."""
    monkeypatch.setenv("COLUMNS", "400")
    status, out, _ = run("demo", "--help")
    assert status == 0
    lines = [line.strip() for line in out.splitlines()]
    (summary,) = [line for line in lines if line.startswith("Compare drafting systems")]
    assert summary.endswith("greedy decoding.")
    assert len([line for line in lines if line.startswith("Example: ")]) == 2


def test_the_page_of_quantities_lists_every_command_and_options_that_exist() -> None:
    page = Path(__file__).parents[3] / "docs" / "quantities.md"
    rows = [
        [cell.strip(" `") for cell in line.split("|")[1:-1]]
        for line in page.read_text(encoding="utf-8").splitlines()
        if line.startswith("| `")
    ]
    flags = {" ".join(words): {each.flag for each in options} for words, options in COMMAND_LIST}
    negated = {command: {f"--no-{flag[2:]}" for flag in flag_set} for command, flag_set in flags.items()}
    assert {command for command, *_ in rows} == set(flags)
    for command, options, prints, paper in rows:
        for option in options.replace("`", "").split():
            assert option in flags[command] | negated[command], (command, option)
        assert prints
        assert paper or prints.startswith("–")


def one_line(status: int, out: str, err: str) -> str:
    assert (status, out) == (2, ""), err
    (line,) = err.strip().splitlines()
    assert line.startswith("latticebpd: error: ")
    return line


@pytest.mark.parametrize(("words", "given"), COMMAND_LIST, ids=[" ".join(words) for words, _ in COMMAND_LIST])
def test_numbers_at_their_edges_end_with_one_line(
    run: Run, tmp_path: Path, words: tuple[str, ...], given: list[Parameter]
) -> None:
    for option in given:
        if not isinstance(option.info, OptionInfo) or option.kind not in (int, float):
            continue
        line = missing_inputs(words, given, option.name, tmp_path)
        lowest = option.info.min
        odd = (
            ["x", "", "nan", "1e400", str(2**63), str(-(10**30))]
            if option.kind is int
            else ["x", "", "nan", "inf", "-inf", "1e400"]
        )
        if lowest is not None:
            odd.append(str(lowest - 1))
        for value in odd:
            assert option.flag in one_line(*run(*line, f"{option.flag}={value}")), (option.flag, value)
        for value in dict.fromkeys(
            (0, -1, lowest, lowest or 1, 2**31, 2**63 - 1, 10**300 if option.kind is float else 2**62)
        ):
            if value is not None:
                one_line(*run(*line, f"{option.flag}={value}"))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("words", "given"),
    [(words, given) for words, given in COMMAND_LIST if any(each.is_output for each in given)],
    ids=[" ".join(words) for words, given in COMMAND_LIST if any(each.is_output for each in given)],
)
def test_outputs_that_cannot_be_written_are_refused_before_inputs_are_read(
    run: Run, tmp_path: Path, words: tuple[str, ...], given: list[Parameter]
) -> None:
    (tmp_path / "file").write_text("x")
    for option in given:
        if not option.is_output:
            continue
        for value in ("/proc/nothing/lm.fst", tmp_path / "file" / "lm.fst", "/dev/null"):
            position = [value] if isinstance(option.info, ArgumentInfo) else [option.flag, value]
            line = one_line(*run(*missing_inputs(words, given, option.name, tmp_path), *position))
            assert f"{value}: expected" in line
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_every_option_that_names_an_output_is_checked() -> None:
    for words, options in COMMAND_LIST:
        for each in options:
            if each.name in {
                "output",
                "corpus_output",
                "plot",
                "tally",
                "binary",
                "work_dir",
                "trace",
            } or each.name.endswith("_csv"):
                assert each.is_output, (words, each.name)


def test_tuned_weights_that_cannot_be_stored_are_not_tuned(run: Run, tmp_path: Path) -> None:
    line = one_line(*run("tune", tmp_path / "missing.npz", "--lm", "/proc/version", "--write"))
    assert "/proc/version.alpha.json: expected a folder that can be written to" in line


def test_missing_folders_above_an_output_are_made(run: Run, tmp_path: Path) -> None:
    np.save(tmp_path / "ids.npy", np.array([1, 2, 3, 0] * 9))
    lm = tmp_path / "a" / "b" / "lm.fst"
    assert run("lm", "train", tmp_path / "ids.npy", "-o", lm)[0] == 0
    assert run("lm", "fst2arpa", lm, tmp_path / "c" / "d" / "lm.arpa.gz")[0] == 0
    assert (
        run(
            "lm",
            "interpolate",
            lm,
            tmp_path / "c" / "d" / "lm.arpa.gz",
            "--weight",
            0.5,
            "-o",
            tmp_path / "e" / "f.fst",
        )[0]
        == 0
    )
    assert sorted(path.name for path in tmp_path.rglob("*")) == [
        "a",
        "b",
        "c",
        "d",
        "e",
        "f.fst",
        "ids.npy",
        "lm.arpa.gz",
        "lm.fst",
    ]
