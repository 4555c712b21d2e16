"""What takes an hour each, as tests: ``python -m pytest -m nightly``."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

DRAWN = " ".join(f"tests/fst/test_{name}.py" for name in ("word_lattices", "search", "posteriors", "calibrated"))
SEEDS = f"for seed in {{1..25}}; do '{sys.executable}' -m pytest -q -x {DRAWN} --hypothesis-seed $seed || exit 1; done"
RUNS = {
    "fuzzers of the readers": [sys.executable, "-m", "tests.fuzz", "--rounds", "100000"],
    "searches against all paths, drawn anew": ["bash", "-c", SEEDS],
    "sanitizers": ["bash", "tests/sanitize.sh"],
    "killed commands, small disks, all families": [sys.executable, "-m", "pytest", "-q", "-m", "slow"],
    "mutations": [sys.executable, "-m", "tests.mutate"],
}


@pytest.mark.nightly
@pytest.mark.parametrize("name", RUNS)
def test_long_runs_find_nothing(name: str) -> None:
    done = subprocess.run(RUNS[name], cwd=Path(__file__).parents[2], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{done.stdout[-2000:]}\n{done.stderr[-2000:]}"


def test_what_mutations_change_is_in_its_file_once() -> None:
    subprocess.run([sys.executable, "-c", "from tests.mutate import selected; assert selected([])"], check=True)
