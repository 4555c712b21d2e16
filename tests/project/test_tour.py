"""The notebook runs from its first cell to its last, and the outputs stored in it are what it shows."""

from __future__ import annotations

import json
import runpy
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
TOUR = ROOT / "docs" / "tour.ipynb"


@pytest.fixture(scope="module")
def notebook() -> Any:
    return json.loads(TOUR.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def run() -> Any:
    return runpy.run_path(str(ROOT / "docs" / "notebook.py"))["run"]


def kinds(cell: Any) -> list[set[str]]:
    return [set(output.get("data", {"stdout"})) for output in cell["outputs"]]


def test_tour_runs_and_shows_what_is_stored(notebook: Any, run: Any) -> None:
    """After a change: ``python docs/notebook.py docs/tour.ipynb``."""
    cells = [cell for cell in run(notebook)["cells"] if cell["cell_type"] == "code"]
    stored = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert [kinds(cell) for cell in cells] == [kinds(cell) for cell in stored]
    assert [cell["execution_count"] for cell in stored] == list(range(1, len(stored) + 1))
    printed = ["".join(output["text"]) for cell in cells for output in cell["outputs"] if "text" in output]
    assert printed[0] == "True True\n"  # the texts are those of generate()
    assert len(printed[1].splitlines()) == 6  # systems of the comparison
    shown = {kind for cell in cells for each in kinds(cell) for kind in each}
    assert shown >= {"image/svg+xml", "text/html", "image/png"}


def test_stored_outputs_are_small_and_name_no_machine(notebook: Any) -> None:
    text = TOUR.read_text(encoding="utf-8")
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
