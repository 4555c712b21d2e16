"""The notebook runs from its first cell to its last, and the outputs stored in it are what it shows."""

from __future__ import annotations

import json
import runpy
import warnings
from pathlib import Path
from typing import Any

import pytest

from latticebpd.models.catalogue import model_folder

ROOT = Path(__file__).parents[2]
TOUR = ROOT / "docs" / "tour.ipynb"
REAL = "smollm2-135m"


@pytest.fixture(scope="module")
def notebook() -> Any:
    return json.loads(TOUR.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def run() -> Any:
    return runpy.run_path(str(ROOT / "docs" / "notebook.py"))["run"]


def kinds(cell: Any) -> list[set[str]]:
    return [set(output.get("data", {"stdout"})) for output in cell["outputs"]]


@pytest.mark.parametrize("name", ["bundled", pytest.param(REAL, marks=pytest.mark.real_model)])
def test_tour_runs_and_shows_what_is_stored(
    name: str, notebook: Any, run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a change: ``python docs/notebook.py docs/tour.ipynb``."""
    if name == "bundled":
        monkeypatch.setenv("LATTICEBPD_CACHE", str(tmp_path))
    elif not model_folder(REAL).is_dir():
        pytest.skip(f"{REAL} is not in {model_folder(REAL).parent}: latticebpd models get {REAL}")
    cells = [cell for cell in run(notebook)["cells"] if cell["cell_type"] == "code"]
    stored = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert [kinds(cell) for cell in cells] == [kinds(cell) for cell in stored]
    assert [cell["execution_count"] for cell in stored] == list(range(1, len(stored) + 1))
    printed = ["".join(output["text"]) for cell in cells for output in cell["outputs"] if "text" in output]
    assert printed[:2] == [f"{name}\n", "True True\n"]  # the texts are those of generate()
    assert len(printed[2].splitlines()) == 6  # systems of the comparison
    shown = {kind for cell in cells for each in kinds(cell) for kind in each}
    assert shown >= {"image/svg+xml", "text/html", "image/png"}


def test_jupyter_without_widgets_warns_of_nothing(notebook: Any) -> None:
    first = next(cell for cell in notebook["cells"] if cell["cell_type"] == "code")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        exec("".join(first["source"]).partition("if ")[0], {})
        warnings.warn("IProgress not found. Please update jupyter and ipywidgets.", stacklevel=1)
    assert not caught


def test_stored_outputs_are_small_and_name_no_machine(notebook: Any) -> None:
    text = TOUR.read_text(encoding="utf-8")
    stored = [output for cell in notebook["cells"] for output in cell.get("outputs", [])]
    assert stored[0]["text"] == [f"{REAL}\n"]
    assert len(text) < 120_000
    assert not [word for word in ("/home", "/work", "/tmp", "/root", "Traceback") if word in text]
    assert notebook["nbformat"] == 4


def test_cells_that_fail_are_not_stored(run: Any) -> None:
    cell = {
        "cell_type": "code",
        "source": ["x = 1\n", "print(x)\n", "x + 1"],
        "outputs": [],
        "execution_count": None,
        "metadata": {},
    }
    printed, value = run({"cells": [cell]})["cells"][0]["outputs"]
    assert (printed["text"], value["data"]) == (["1\n"], {"text/plain": ["2"]})
    with pytest.raises(ZeroDivisionError):
        run({"cells": [{**cell, "source": ["1 / 0"]}]})
