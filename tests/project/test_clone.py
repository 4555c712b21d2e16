"""The README's Python and the benchmarks' stages in a clone, whose source tree comes before the installed package on
the import path."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """The files that git knows, as they are now, so that nothing built lies among them."""
    names = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in filter(None, names.split("\0")):
        if (ROOT / name).is_file() and name.split("/")[0] not in ("docs", "tests"):
            (tmp_path / "clone" / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, tmp_path / "clone" / name)
    return tmp_path / "clone"


def run_in(clone: Path, *arguments: str, site: Path | None = None) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": "" if site is None else str(site), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, *arguments]
    return subprocess.run(command, cwd=clone, env=environment, capture_output=True, text=True, check=False)


def check_python_and_command(clone: Path, site: Path) -> None:
    code = re.findall(r"```python\n(.*?)```", (clone / "README.md").read_text(encoding="utf-8"), flags=re.DOTALL)[0]
    where = "import latticebpd.loading as module; print(module.__file__)"
    done = run_in(clone, "-c", f"{code}\n{where}", site=site)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("The history of the city")
    assert done.stdout.splitlines()[-1].startswith(str(clone))
    done = run_in(clone, "-m", "latticebpd", "lm", "info", "latticebpd/assets/lm.fst", site=site)
    assert done.returncode == 0, done.stderr
    assert "4" in done.stdout
    stage = "from benchmarks.common import latticebpd; latticebpd('lm info latticebpd/assets/lm.fst')"
    done = run_in(clone, "-c", stage, site=site)
    assert done.returncode == 0, done.stderr
    assert "order" in done.stderr  # a stage's output; the tables alone are a benchmark's
    done = run_in(clone, "-m", "benchmarks.study.kim", "--tables", "8", site=site)
    assert done.returncode == 0, done.stderr
    assert "| LAMBADA |" in done.stdout


@pytest.mark.long
def test_a_clone_runs_with_the_compiled_parts_of_the_installed_package(clone: Path, tmp_path: Path) -> None:
    site = tmp_path / "site"
    for package in ("fst", "latticebpd", "lm_training"):
        shutil.copytree(ROOT / package, site / package)
    for sources in ("fst/_core", "latticebpd/cpu/_engine"):
        shutil.rmtree(site / sources)
        assert list((site / sources).parent.glob("*.so"))
    check_python_and_command(clone, site)


@pytest.mark.slow
def test_a_clone_runs_after_it_was_installed(clone: Path, tmp_path: Path) -> None:
    options = ["--no-deps", "--no-build-isolation", "--target", str(tmp_path / "site"), "."]
    done = run_in(clone, "-m", "pip", "install", "-q", *options)
    assert done.returncode == 0, done.stderr
    shutil.rmtree(clone / "build", ignore_errors=True)
    check_python_and_command(clone, tmp_path / "site")


def test_a_clone_without_compiled_parts_anywhere_says_what_to_do(clone: Path) -> None:
    done = run_in(clone, "-c", "import latticebpd")
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("ImportError: expected fst's compiled part, found none; ")
    assert "pip install ." in done.stderr.splitlines()[-1]
