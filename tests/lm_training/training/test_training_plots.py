"""A training run's log as a table and a drawing."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from lm_training.training.training_plots import draw, read_log, write_csv
from tests.helpers.commands import Run

HEADS = {
    "loss": 3.0,
    "base_loss": 1.0,
    "head_losses": [2.5, 3.5],
    "head_accuracy": {"top-1": [0.5, 0.25], "top-4": [0.75, 0.5]},
}


def write_log(directory: Path, records: list[dict[str, Any]], more: str = "") -> Path:
    directory.mkdir(exist_ok=True)
    (directory / "training-log.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records) + more)
    return directory


def heads_run(directory: Path) -> Path:
    records: list[dict[str, Any]] = [
        {"step": step, "loss": 4.0 / step, "head_losses": [1.0, 2.0]} for step in range(1, 5)
    ]
    records[1]["validation"] = HEADS | {"serving_block_efficiency": 1.5}
    records[3]["validation"] = HEADS | {"serving_block_efficiency": 2.5}
    return write_log(directory, records, '{"step": 5, "lo')


def test_log_is_read_flat_without_a_line_that_a_kill_cut_short(tmp_path: Path) -> None:
    log = read_log(heads_run(tmp_path))
    assert [record["step"] for record in log] == [1, 2, 3, 4]
    assert log[0] == {"step": 1, "loss": 4.0, "head_losses.2": 1.0, "head_losses.3": 2.0}
    assert log[1]["validation.head_accuracy.top-4.3"] == 0.5


def test_table_has_a_row_per_update_and_a_column_per_number(tmp_path: Path) -> None:
    log = read_log(heads_run(tmp_path))
    write_csv(log, tmp_path / "a.csv")
    with open(tmp_path / "a.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [{name: float(value) for name, value in row.items() if value} for row in rows] == log
    assert rows[0]["validation.loss"] == ""


def test_drawing_shows_the_numbers_of_the_log(tmp_path: Path) -> None:
    figure = draw(read_log(heads_run(tmp_path)))
    panels = {axis.get_title(loc="left"): axis for axis in figure.axes if axis.get_title(loc="left")}
    assert list(panels) == ["Loss", "Loss by head, held out", "Heads' best token, held out", "Serving block efficiency"]
    assert all(axis.get_xlabel() == "update" and axis.get_ylabel() for axis in panels.values())

    def lines(title: str) -> list[tuple[list[float], list[float]]]:
        return [(list(line.get_xdata()), list(line.get_ydata())) for line in panels[title].lines]

    assert ([1, 2, 3, 4], [4.0, 2.0, 4 / 3, 1.0]) in lines("Loss")
    assert lines("Heads' best token, held out") == [([2, 4], [0.5, 0.5]), ([2, 4], [0.25, 0.25])]
    assert lines("Serving block efficiency") == [([2, 4], [1.5, 2.5])]


def test_command_draws_runs_of_every_kind(tmp_path: Path, run: Run) -> None:
    other = [
        {"step": 1, "loss": 2.0, "validation": {"loss": 1.0, "perplexity": 2.7, "accuracy": 0.5}},
        {"step": 2, "loss": 1.0},
    ]
    for directory in (heads_run(tmp_path / "heads"), write_log(tmp_path / "other", other)):
        status, _, errors = run("train", "plot", directory)
        assert status == 0, errors
        assert (directory / "training.png").read_bytes().startswith(b"\x89PNG")
        assert (directory / "training.csv").exists()


@pytest.mark.parametrize("text", [None, "", "[]\n{\n", '{"loss": 1}\n'])
def test_directory_without_a_log_is_refused(tmp_path: Path, run: Run, text: str | None) -> None:
    if text is not None:
        (tmp_path / "training-log.jsonl").write_text(text)
    status, _, errors = run("train", "plot", tmp_path)
    assert status == 2
    assert "training-log.jsonl" in errors
