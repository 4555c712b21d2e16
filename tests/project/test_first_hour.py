"""The first hour of a newcomer: ``first_hour.txt`` in an environment that holds the package and nothing of this one."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.helpers.own_models import own_gguf, own_llama

ROOT = Path(__file__).parents[2]
SCRIPT = Path(__file__).with_name("first_hour.txt")
TEXT = "The history of the city and of the river is the history of the people who built the bridge. "
ERROR = "latticebpd: error: "


def blocks(script: str) -> Iterator[tuple[str, str]]:
    """Every command and the beginning of what it prints."""
    for block in re.split(r"\n(?:[ \t]*\n)+", script):
        lines = [line for line in block.splitlines() if not line.startswith("#")]
        if not lines:
            continue
        assert lines[0].startswith("$ "), lines[0]
        count = next((n for n, line in enumerate(lines[1:], 1) if not line.startswith(">")), len(lines))
        command = [lines[0][2:], *(line[2:] for line in lines[1:count])]
        yield "\n".join(command), "\n".join(lines[count:])


def begins(printed: str, expected: str) -> bool:
    """Whether the output begins as expected, where ``...`` is any text."""
    pattern = ".*?".join(map(re.escape, expected.split("...")))
    return re.match(pattern, printed, re.DOTALL) is not None


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, str]]:
    """A folder, and the variables of an environment in which the package has just been installed from a clone."""
    home = tmp_path_factory.mktemp("newcomer")
    clone, work, python = home / "clone", home / "work", home / "venv/bin/python"
    names = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in filter(None, names.split("\0")):
        if (ROOT / name).is_file():
            (clone / name).parent.mkdir(parents=True, exist_ok=True)
            (clone / name).write_bytes((ROOT / name).read_bytes())
    subprocess.run([sys.executable, "-m", "venv", home / "venv"], check=True)
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "LATTICEBPD"))}
    variables = inherited | {
        "HOME": str(home), "PATH": f"{home}/venv/bin:{os.environ['PATH']}", "VIRTUAL_ENV": str(home / "venv"),
        "COLUMNS": "120", "OMP_NUM_THREADS": "1",
    }  # fmt: skip
    install = [python, "-m", "pip", "install", "-q", ".[gguf]"]
    done = subprocess.run(install, cwd=clone, env=variables, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    work.mkdir()
    own_llama(work / "model", TEXT)
    own_gguf(work / "model.gguf")
    for name, repeats in (("text", 40), ("held-out", 20)):
        (work / f"{name}.txt").write_text(TEXT * repeats)
    return work, variables


@pytest.mark.nightly
def test_the_first_hour_goes_as_the_script_says(environment: tuple[Path, dict[str, str]]) -> None:
    work, variables = environment
    differences = []
    for command, expected in blocks(SCRIPT.read_text(encoding="utf-8")):
        shell = ["bash", "-o", "pipefail", "-c", command]
        done = subprocess.run(
            shell, cwd=work, env=variables, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, timeout=600, check=False,
        )  # fmt: skip
        status = 2 if expected.startswith(ERROR) else 0
        if done.returncode != status or not begins(done.stdout, expected):
            differences.append(f"$ {command}\nstatus {done.returncode}\n{done.stdout[-3000:]}\n-- expected\n{expected}")
    assert not differences, "\n\n".join(differences)


def test_the_script_is_read_as_commands_and_beginnings() -> None:
    script = "# About.\n\n$ cat <<'END'\n> a\n>\n> b\n> END\na\n...c\n\n$ latticebpd x\nlatticebpd: error: ...\n"
    assert list(blocks(script)) == [("cat <<'END'\na\n\nb\nEND", "a\n...c"), ("latticebpd x", "latticebpd: error: ...")]
    assert begins("a\nb\nc\nd", "a\n...c")
    assert not begins("b\na\nc", "a\n...c")
    assert not begins("a\nb", "a\n...c")
    every = list(blocks(SCRIPT.read_text(encoding="utf-8")))
    assert sum(command.startswith("latticebpd") for command, _ in every) > 20
