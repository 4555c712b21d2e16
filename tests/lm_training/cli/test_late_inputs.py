"""What does not exist is refused before anything slow is imported."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

COMMANDS = {
    "distill, model": ("{tmp}/nowhere: expected ", "distill {file} --model {tmp}/nowhere -o {tmp}/out"),
    "distill, text": ("{tmp}/missing.txt: expected ", "distill {tmp}/missing.txt --model {tmp} -o {tmp}/out"),
    "lattices": ("{tmp}/missing.jsonl: expected ", "lattices --prompts {tmp}/missing.jsonl -o {tmp}/out"),
    "lattices, model": ("{tmp}/nowhere: expected ", "lattices --model {tmp}/nowhere -o {tmp}/out"),
    "calibrate": ("{tmp}/missing: expected ", "calibrate {tmp}/missing --lm {file}"),
    "train blockwise": (
        "{tmp}/missing: expected ",
        "train blockwise {tmp}/missing --validation {file} --tokenizer {file} -o {tmp}/out",
    ),
    "train rescorer": (
        "{tmp}/missing.json: expected ",
        "train rescorer {file} --validation {file} --tokenizer {tmp}/missing.json --preset tiny -o {tmp}/out",
    ),
    "train translation": (
        "{tmp}/missing: expected ",
        "train translation {file} --validation {tmp}/missing -o {tmp}/out",
    ),
    "train hidden": ("{tmp}/missing: expected ", "train hidden {tmp}/missing --model {tmp}"),
    **{
        f"train {kind}": (
            "{tmp}/missing: expected ",
            f"train {kind} {{file}} --validation {{tmp}}/missing --model {{tmp}} -o {{tmp}}/out",
        )
        for kind in ("heads", "block-drafter", "masks")
    },
}
"""By name: how the error begins, and a command. ``{file}`` exists."""
PROGRAM = """
import contextlib, io, json, sys
sys.modules.update(torch=None, transformers=None)  # from now on they cannot be imported
from latticebpd.cli import main
found = {}
for name, line in json.load(sys.stdin).items():
    errors, sys.argv = io.StringIO(), ["latticebpd", *line.split()]
    with contextlib.redirect_stderr(errors), contextlib.suppress(SystemExit):
        main()
    found[name] = errors.getvalue()
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("late")
    (folder / "file.npz").touch()
    return folder


@pytest.fixture(scope="module")
def errors(folder: Path) -> dict[str, str]:
    """What each command says where neither PyTorch nor ``transformers`` can be imported."""
    lines = {name: line.format(tmp=folder, file=folder / "file.npz") for name, (_, line) in COMMANDS.items()}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], input=json.dumps(lines), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


@pytest.mark.parametrize("name", COMMANDS)
def test_missing_inputs_are_named_before_anything_slow_is_imported(
    name: str, errors: dict[str, str], folder: Path
) -> None:
    begin, _ = COMMANDS[name]
    assert errors[name].startswith(f"latticebpd: error: {begin.format(tmp=folder)}")
    assert errors[name].count("\n") == 1
    assert not (folder / "out").exists()
