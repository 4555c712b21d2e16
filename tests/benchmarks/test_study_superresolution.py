"""Super-resolution in small, from images to tables, in one resumable command, with tiny models."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from benchmarks.common import read_csv


@pytest.fixture
def superresolution(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    module = importlib.import_module("benchmarks.study.superresolution")
    monkeypatch.setattr(module, "digits", lambda: np.random.default_rng(0).integers(0, 17, (530, 8, 8)))
    return module


def test_small_images_are_rounded_means_of_four_pixels(superresolution: ModuleType) -> None:
    image = np.zeros((1, 8, 8), np.int64)
    image[0, :2, :2] = [[16, 16], [16, 15]]  # 15.75
    image[0, 6:, 6:] = [[1, 0], [0, 1]]  # 0.5
    expected = np.zeros((4, 4), np.int64)
    expected[0, 0], expected[3, 3] = 16, 1
    assert superresolution.small(image)[0].tolist() == expected.tolist()


def test_measures_of_known_errors(superresolution: ModuleType) -> None:
    about = {"base": "frozen", "k": "4", "rule": "exact"}
    row = about | {"tokens": "63", "calls": "21", "absolute": f"{64 * 2}", "squared": f"{64 * 4}"}
    measured = superresolution.measures([row] * 3)["frozen", "4", "exact"]
    assert measured["accepted"] == measured["accepted low"] == measured["accepted high"] == 3
    assert (measured["MAE"], measured["MAE low"]) == (2, 2)
    assert measured["PSNR"] == pytest.approx(10 * np.log10(256 / 4))


def test_a_row_that_is_no_image_is_refused(superresolution: ModuleType) -> None:
    with pytest.raises(ValueError, match="expected 1 images of 64 intensities, got others"):
        superresolution.whole(np.zeros((1, 8, 8), np.int64), [[0] * 63])


@pytest.mark.long
def test_one_command_goes_from_images_to_tables_and_goes_on(
    superresolution: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    results, work = tmp_path / "results", tmp_path / "work"
    results.mkdir()
    updates = ["--base-updates", "3", "--head-updates", "2", "--tuning-updates", "2", "--limit", "3", "--k", "2", "3"]

    def run(*arguments: str) -> str:
        monkeypatch.setattr(sys, "argv", ["superresolution", "--results", str(results), *arguments])
        superresolution.main()
        return capsys.readouterr().out

    printed = run("--work", str(work), *updates)
    rows = read_csv(results / superresolution.TABLE)
    assert len(rows) == 3 * 14
    measured = superresolution.measures(rows)
    assert [*measured][:2] == [("frozen", "1", "greedy"), ("none", "", "copied")]
    assert [*measured][2:] == [
        (base, k, rule) for base in superresolution.BASES for k in ("2", "3") for rule in superresolution.RULES
    ]
    for (base, k, rule), row in [*measured.items()][2:]:
        assert 1 <= row["accepted low"] <= row["accepted"] <= row["accepted high"] <= int(k)
        if (base, rule) == ("frozen", "exact"):
            assert row["MAE"] == measured["frozen", "1", "greedy"]["MAE"]  # greedy decoding's images

    before = {path: path.stat().st_mtime_ns for path in work.rglob("*") if path.is_file()}
    figure = (results / "superresolution.png").read_bytes()
    assert run("--work", str(work), *updates) == printed
    assert {
        path: path.stat().st_mtime_ns for path in work.rglob("*") if path.is_file()
    } == before  # nothing was made again
    assert run() == printed  # from the CSV files alone
    assert (results / "superresolution.png").read_bytes() == figure
    with pytest.raises(ValueError, match="holds results with base_updates 3, asked for is 4; choose another directory"):
        run("--work", str(work), *updates, "--base-updates", "4")
