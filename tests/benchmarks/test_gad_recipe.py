"""GAD by the paper's recipe, from sentences to the table, in one resumable command, with tiny models."""

from __future__ import annotations

import csv
import importlib
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from safetensors import safe_open

from latticebpd.drafters.masks.mask_network import DRAFTER_CONFIG
from lm_training.training.training_loop import STATE_WEIGHTS
from tests.helpers.sentences import sentence_files

ROOT = Path(__file__).parents[2]


@pytest.fixture
def recipe() -> ModuleType:
    pytest.importorskip("sacrebleu")
    return importlib.import_module("benchmarks.gad_recipe")


@pytest.fixture
def command(tmp_path: Path) -> list[str]:
    files = sentence_files(tmp_path, train=24, validation=4, test=5)
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
        "--timed",
        "2",
    ]
    return [*files, "--work", str(tmp_path / "work"), *small]


def begun_with(directory: Path) -> dict[str, Any]:
    with safe_open(directory / STATE_WEIGHTS, framework="pt") as file:
        found: dict[str, Any] = json.loads(file.metadata()["training"])["made_of"]
    return found


def test_every_run_changes_what_its_name_says_and_the_last_one_all(recipe: ModuleType) -> None:
    def options(name: str) -> Iterator[str]:
        return iter(recipe.RUNS[name].values())

    paper = set(options("paper")) - {""}
    assert paper == {"--no-anchored", "--bidirectional-text", "--windows 1", "--slot-decay 1.0", "--reveal 0.5 0.3"}
    changed = {name: set(options(name)) - paper - {""} for name in recipe.RUNS}
    assert changed["all changes"] == set.union(*(each for name, each in changed.items() if name != "all changes"))
    assert [len(each) for each in changed.values()] == [0, 1, 1, 1, 2, 1, 5]


def test_a_directory_of_another_recipe_is_refused(
    recipe: ModuleType, command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[object, ...]] = []

    class StoppedError(Exception):
        pass

    def stop(*arguments: object) -> None:
        asked.append(arguments)
        raise StoppedError

    monkeypatch.setattr(recipe.common, "latticebpd", stop)
    monkeypatch.setattr("sys.argv", ["gad_recipe", *command])
    with pytest.raises(StoppedError):
        recipe.main()
    assert asked[0][:2] == ("train", "translation")
    monkeypatch.setattr("sys.argv", ["gad_recipe", *command, "--updates", "9"])
    with pytest.raises(ValueError, match="holds results with updates 8, asked for is 9; choose another directory"):
        recipe.main()
    monkeypatch.setattr("sys.argv", ["gad_recipe", *command, "--timed", "3"])
    with pytest.raises(
        ValueError, match="measured: holds results with timed 2, asked for is 3; choose another directory"
    ):
        recipe.main()


@pytest.mark.slow
def test_one_command_goes_from_sentences_to_the_table_and_goes_on(
    recipe: ModuleType, command: list[str], tmp_path: Path
) -> None:
    def run(*runs: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "benchmarks.gad_recipe", *command, "--runs", *runs],
            capture_output=True,
            text=True,
            cwd=ROOT,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    run("paper")
    work = tmp_path / "work"
    before = {path: path.stat().st_mtime_ns for path in work.rglob("*") if path.is_file() and path.name != "table.csv"}
    printed = run("paper", "all changes")
    assert all(
        path.stat().st_mtime_ns == written for path, written in before.items()
    )  # what was there was not made again

    paper, ours = (begun_with(work / recipe.folder(name)) for name in ("paper", "all changes"))
    layout = ("anchored", "bidirectional", "windows", "slot_decay", "reveal", "dropout", "smallest_block")
    assert [paper[name] for name in layout] == [False, True, 1, 1.0, [0.5, 0.3], 0.1, None]
    assert [ours[name] for name in layout] == [True, False, 8, 0.75, [0.5, 0.3], 0.0, None]
    assert paper["verifier"] == ours["verifier"]
    assert paper["data"] == ours["data"]
    assert json.loads((work / recipe.folder("paper") / DRAFTER_CONFIG).read_text())["bidirectional"]

    with (work / "table.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [(row["run"], row["k"]) for row in rows] == [
        ("greedy, generate()", ""), ("this loop", ""), ("paper", "3"), ("paper", "5"), ("beam 5, generate()", ""),
        ("all changes", "3"), ("all changes", "5"),
    ]  # fmt: skip
    greedy = rows[0]
    assert float(greedy["over greedy"]) == 1
    for row in rows:
        assert float(row["ms"]) > 0
        assert f"| {row['run']} | {row['k']} |" in printed
        if row["k"]:
            assert row["BLEU"] == greedy["BLEU"]  # exact
            assert 1 <= float(row["tok."]) <= int(row["k"]) + 1
            assert float(row["passes"]) * float(row["tok."]) == pytest.approx(
                float(greedy["passes"])
            )  # the first pass among them
