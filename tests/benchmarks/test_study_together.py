"""All systems in one table: tuning, the table from the CSV files, and a whole run with tiny models."""

from __future__ import annotations

import csv
import importlib
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from benchmarks import common
from latticebpd.jacobi.jacobi_comparison import SystemRun
from tests.helpers.sentences import sentence_files

FOLDER = Path(__file__).parents[2] / "benchmarks" / "study"


@pytest.fixture
def together() -> ModuleType:
    pytest.importorskip("sacrebleu")
    return importlib.import_module("benchmarks.study.together")


def test_weights_are_the_best_and_what_costs_time_is_as_small_as_does_no_harm(together: ModuleType) -> None:
    assert together.best("alpha", {0.5: 1.9, 1.0: 1.899}, {}) == 0.5
    assert together.best("slots", {1: 1.5, 3: 1.896, 5: 1.9, 9: 1.9}, {}) == 3
    bars = {(3, 1.0): 2.0, (3, 3.0): 2.2, (5, 5.0): 2.5}
    assert together.best("bar", bars, {(3, 1.0): 0.0, (3, 3.0): 0.2, (5, 5.0): -0.1}) == (3, 3.0)
    assert together.best("bar", bars, dict.fromkeys(bars, -1.0)) == (3, 1.0)  # the strictest


def test_lines_are_ratios_of_sums_and_a_system_without_a_clock_has_counts(together: ModuleType, tmp_path: Path) -> None:
    greedy = SystemRun("greedy", [[1] * 4, [1] * 8], [0.04, 0.08], [4, 8])
    tree, oracle = (
        SystemRun("tree", greedy.tokens, [0.02, 0.04], [2, 6]),
        SystemRun("oracle", greedy.tokens, [], [2, 2]),
    )
    common.write_csv(
        tmp_path / "counts.csv", together.counted({each.name: each for each in (greedy, tree, oracle)}), digits=1
    )
    of = {"oracle": together.KIM, "greedy": together.STOCK, "tree": together.HEADS}
    quality = [{"of": group, "system": name} for name, group in of.items()]
    lines = together.lines_of(common.read_csv(tmp_path / "counts.csv"), quality)
    assert [line["system"] for line in lines] == ["greedy", "oracle", "tree"]  # by whose method it is
    first, hindsight, ours = lines
    assert (first["passes"], first["tokens a pass"], first["over greedy"], first["tokens a second"]) == (6, 1, 1, 100)
    assert (ours["passes"], ours["tokens a pass"], ours["over greedy"], ours["tokens a second"]) == (4, 1.5, 2, 200)
    assert (ours["tokens a pass low"], ours["tokens a pass high"]) == (8 / 6, 2)
    assert hindsight["tokens a pass"] == 3
    assert hindsight["over greedy"] != hindsight["over greedy"]  # not a number


def test_the_committed_counts_make_table_and_figure(
    together: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in (together.COUNTS, together.QUALITY):
        shutil.copy(FOLDER / "results" / name, tmp_path)
    together.draw(tmp_path)
    printed = capsys.readouterr().out.splitlines()[1:]
    systems = common.read_csv(tmp_path / together.QUALITY)
    assert len(printed) == len(systems) + 2
    assert (tmp_path / "together.png").stat().st_size > 10_000
    gain = {
        line["system"]: line["tokens a pass"]
        for line in together.lines_of(common.read_csv(tmp_path / together.COUNTS), systems)
    }
    assert gain[together.ORACLE] > gain["16-best, 4-gram"] > gain["1-best, 4-gram"]  # a path each of the same lattices
    page = (FOLDER / "together.md").read_text()
    assert all(line in page for line in printed)


def test_what_the_pages_say_of_gad_and_of_trees_is_in_the_rows(together: ModuleType) -> None:
    counts = common.read_csv(FOLDER / "results" / together.COUNTS)
    lines = together.lines_of(counts, common.read_csv(FOLDER / "results" / together.QUALITY))
    by = {line["system"]: line for line in lines}
    names = ("GAD, paper", "GAD, all changes", "16-node tree, all changes", "16-node tree, 4-gram, all changes")
    guide = (FOLDER.parents[1] / "docs" / "gad.md").read_text()
    for name in names:
        value, low, high = (f"{by[name][f'tokens a pass{end}']:.2f}" for end in common.ENDS)
        assert f"| {value} ({low} to {high}) | {by[name]['over greedy']:.2f} |\n" in guide
    assert f"beam search with 5 beams is {by['beam 5']['over greedy']:.2f} times as fast" in guide
    page = " ".join((FOLDER / "together.md").read_text().split())
    for one, other in (
        ("16-node tree, calibrated", "16-best, 4-gram"),
        ("16-node tree, all changes", "GAD, all changes"),
        ("16-node tree, 4-gram, all changes", "16-node tree, all changes"),
    ):
        columns = [[np.array([float(row[name]) for row in counts if row["what"] == what])
                    for what in ("tokens", "passes")] for name in (one, other)]  # fmt: skip
        gain, low, high = (f"{100 * each:.1f}" for each in common.pooled(*columns[0], tuple(columns[1])))
        assert f"{gain} % ({low} to {high})" in page


@pytest.mark.slow
def test_one_command_goes_from_sentences_to_the_table_and_goes_on(together: ModuleType, tmp_path: Path) -> None:
    files, environment = (
        sentence_files(tmp_path, train=24, validation=6, test=4),
        os.environ | {"PYTHONPATH": str(FOLDER.parents[1])},
    )
    (tmp_path / "results").mkdir()
    small = [
        "--shape",
        "small",
        "--vocab-size",
        "270",
        "--updates",
        "8",
        "--batch-tokens",
        "96",
        "--block-size",
        "5",
        "--width",
        "16",
    ]
    few = [
        "--k",
        "2",
        "3",
        "--head-updates",
        "2",
        "--tuned",
        "2",
        "--calibrated",
        "4",
        "--results",
        str(tmp_path / "results"),
    ]
    work = tmp_path / "work"

    def run(*arguments: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "benchmarks.study.together", *arguments],
            capture_output=True,
            text=True,
            env=environment,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    command = [*files, *small, *few, "--work", str(work)]
    printed = run(*command)
    before = {
        path: path.stat().st_mtime_ns for path in work.rglob("*") if path.is_file() and path.name != "decodes.csv"
    }
    again = run(*command)
    assert printed.endswith(again)  # behind what the stages said
    assert all(path.stat().st_mtime_ns == modified for path, modified in before.items())  # nothing was made again
    assert run("--results", str(tmp_path / "results")) == again  # from the CSV files alone

    with (tmp_path / "results" / together.QUALITY).open() as file:
        quality = {row["system"]: row for row in csv.DictReader(file)}
    lines = {
        line["system"]: line
        for line in together.lines_of(common.read_csv(tmp_path / "results" / together.COUNTS), quality.values())
    }
    assert {
        "GAD, paper",
        "GAD++, all changes",
        "16-node tree, 4-gram, all changes",
        "oracle",
        "16-best, 4-gram",
        "HGJ",
    } < lines.keys()
    for name, line in lines.items():
        assert f"| {name} | {line['setting']} |" in printed
        assert line["tokens a pass low"] <= line["tokens a pass"] <= line["tokens a pass high"]
        if int(line["exact"]):
            assert line["BLEU"] == quality["greedy"]["BLEU"]
            assert line["tokens a pass"] >= 1
    assert (
        lines["greedy"]["tokens a pass"]
        == lines["greedy, this loop"]["tokens a pass"]
        == lines["greedy"]["over greedy"]
        == 1
    )
    assert lines["oracle"]["tokens a pass"] >= lines["vanilla"]["tokens a pass"]
    assert (tmp_path / "results" / "together.png").stat().st_size > 10_000
