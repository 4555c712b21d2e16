"""GAD by the paper's recipe, from sentences to the table, in one resumable command, with tiny models."""

from __future__ import annotations

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

from benchmarks.common import read_csv
from benchmarks.decodes import Decoded
from latticebpd import Exact, NoDrafter, TopBeta
from latticebpd.decoding.decode_rows import until_end
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
    return [*files, "--work", str(tmp_path / "work"), "--results", str(tmp_path), *small]


def begun_with(directory: Path) -> dict[str, Any]:
    with safe_open(directory / STATE_WEIGHTS, framework="pt") as file:
        record: dict[str, Any] = json.loads(file.metadata()["training"])["made_of"]
    return record


def test_every_run_changes_what_its_name_says_and_the_last_one_all(recipe: ModuleType) -> None:
    def options(name: str) -> Iterator[str]:
        return iter(recipe.RUNS[name].values())

    paper = set(options("paper")) - {""}
    assert paper == {
        "--no-anchored", "--bidirectional-text", "--windows 1", "--slot-decay 1.0", "--reveal 0.5 0.3",
        "--label-smoothing 0.1", "--learning-rate 5e-4 --muon-learning-rate 0",
    }  # fmt: skip
    changed = {name: {*recipe.RUNS[name].items()} - {*recipe.PAPER.items()} for name in recipe.RUNS}
    assert [len(each) for each in changed.values()] == [0, 1, 1, 1, 2, 1, 1, 1, 2, 1, 7]
    theirs = {"paper", *recipe.OTHERS, "all changes"}
    assert changed["all changes"] == set.union(*(each for name, each in changed.items() if name not in theirs))


def test_texts_end_with_the_first_end_of_text() -> None:
    assert until_end([4, 5, 0, 7, 0], frozenset([0])) == [4, 5, 0]
    assert until_end([4, 5], frozenset([0])) == [4, 5]


def test_exact_systems_must_write_greedy_texts_and_lenient_ones_need_not(recipe: ModuleType) -> None:
    decoded = {recipe.GREEDY: Decoded([[4, 0], [5, 0]]), "GAD": Decoded([[4, 0], [6, 0]])}
    recipe.check_exact({recipe.GREEDY: {}, "GAD": (NoDrafter, TopBeta(3, 1.0))}, decoded)
    with pytest.raises(ValueError, match=r"GAD: expected generate\(\)'s texts, got 1 others"):
        recipe.check_exact({recipe.GREEDY: {}, "GAD": (NoDrafter, Exact())}, decoded)


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
    before = {path: path.stat().st_mtime_ns for path in work.rglob("*") if path.is_file()}
    printed = run("paper", "all changes")
    assert all(path.stat().st_mtime_ns == written for path, written in before.items())  # nothing was made again

    paper, ours = (begun_with(work / recipe.folder(name)) for name in ("paper", "all changes"))
    layout = ("anchored", "bidirectional", "windows", "slot_decay", "reveal", "dropout", "smallest_block")
    assert [paper[name] for name in layout] == [False, True, 1, 1.0, [0.5, 0.3], 0.1, None]
    assert [ours[name] for name in layout] == [True, False, 8, 0.75, [0.5, 0.3], 0.0, None]
    assert paper["verifier"] == ours["verifier"]
    assert paper["data"] == ours["data"]
    assert json.loads((work / recipe.folder("paper") / DRAFTER_CONFIG).read_text())["bidirectional"]

    rows = read_csv(tmp_path / recipe.TABLE)
    assert len(rows) == 2 * 5 * 5  # runs, systems, sentences
    for row in rows:
        if row["system"].isdigit():
            assert 1 <= int(row["tokens"]) / int(row["calls"]) <= int(row["system"]) + 1
        assert bool(row["ms"]) == (int(row["text"]) < 2 and row["system"] != recipe.LOOSE)
    lengths = {(row["run"], row["text"], row["system"]): row["tokens"] for row in rows if row["system"] != recipe.LOOSE}
    for (run_, text, system), tokens in lengths.items():
        if system != recipe.BEAM:  # exact
            assert tokens == lengths[run_, text, recipe.GREEDY]
    assert [line[0] for line in recipe.table(rows)] == [recipe.GREEDY, recipe.BEAM, "paper", "all changes"]
    for line in recipe.table(rows):
        assert f"| {' | '.join(line[:2])} " in printed
