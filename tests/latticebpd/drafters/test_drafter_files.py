"""A calibration belongs to one drafter: lattices name it, and another one's calibration is refused."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from latticebpd import load
from latticebpd.drafters import bundled
from latticebpd.drafters.drafter_files import DrafterFiles
from latticebpd.lattices.lattice_set import LatticeSet
from latticebpd.measuring import compare
from latticebpd.scoring.calibration import Calibration, calibration_path
from tests.helpers.commands import Run


@pytest.fixture
def assistant(tmp_path: Path) -> Path:
    """The bundled model without its heads."""
    ignored = shutil.ignore_patterns("latticebpd")
    return Path(shutil.copytree(bundled.MODEL, tmp_path / "assistant", ignore=ignored))


def stored(folder: Path, drafter: str | None) -> Path:
    """The bundled n-gram model, whose calibration says that it is of this drafter."""
    lm = folder / "lm.fst"
    shutil.copyfile(bundled.LM, lm)
    replace(Calibration.load(calibration_path(bundled.LM)), drafter=drafter).save(calibration_path(lm))
    return lm


def test_an_assistant_does_not_take_the_heads_calibration(run: Run, assistant: Path) -> None:
    loaded = load(lm=bundled.LM, drafter=assistant)
    assert loaded.default_system() == "16-calibrated"
    with pytest.raises(ValueError, match=r"expected a calibration of this drafter, assistant sha256:\w+, got heads"):
        loaded.drafter()
    assert loaded.drafter("16-tree") is not None
    status, out, err = run("generate", "The", "--model", "bundled", "--lm", bundled.LM, "--drafter-model", assistant)
    assert (status, out, len(err.splitlines())) == (2, "", 1), err
    assert "calibrate a copy of the n-gram model for it, or draft N-tree" in err


def test_heads_refuse_other_heads_calibration_and_take_their_own(tmp_path: Path) -> None:
    files = DrafterFiles.of("heads", bundled.MODEL, beside_target=True)
    assert [each.path.name for each in files.files] == ["heads.safetensors"]
    for name in (files.name, "heads", None):
        assert load(lm=stored(tmp_path, name)).drafter("4-calibrated") is not None
    for other in ("heads sha256:0123456789abcdef", "block"):
        with pytest.raises(ValueError, match=f"expected a calibration of this drafter, {files.name}, got {other}"):
            load(lm=stored(tmp_path, other)).drafter("4-calibrated")


def test_an_older_calibration_of_more_slots_than_the_drafter_has_is_refused(tmp_path: Path, assistant: Path) -> None:
    loaded = load(lm=stored(tmp_path, None), drafter=assistant)
    with pytest.raises(ValueError, match="expected a calibration of this drafter, of 6 slots, got one of 8"):
        loaded.drafter("16-calibrated")


@pytest.mark.parametrize("weights", ["float32", "torch"])
def test_lattices_and_their_calibration_name_the_drafter(run: Run, tmp_path: Path, weights: str) -> None:
    lattices, lm = tmp_path / "lattices.npz", tmp_path / "lm.fst"
    shutil.copyfile(bundled.LM, lm)
    collecting = ("--limit", 2, "--max-new-tokens", 12, "--context", 64, "--weights", weights)
    assert run("lattices", "-o", lattices, *collecting)[0] == 0
    status, out, err = run("calibrate", lattices, "--lm", lm, "--write", "--json")
    assert status == 0, err
    name = DrafterFiles.of("heads", bundled.MODEL, beside_target=True).name
    assert json.loads(out)["drafter"] == Calibration.load(calibration_path(lm)).drafter == name


def test_stored_lattices_of_another_drafter_are_refused() -> None:
    tokens = np.zeros((1, 1, 1), np.int32)
    lattices = LatticeSet(tokens, np.zeros((1, 1, 1), np.float32), tokens[:, 0], tokens[:, 0], drafter="block sha256:1")
    with pytest.raises(ValueError, match="expected a calibration of this drafter, block sha256:1, got heads"):
        compare([lattices], ["4-calibrated"], bundled.LM)
    assert compare([replace(lattices, drafter=None)], ["4-calibrated"], bundled.LM).num_lattices == 1
