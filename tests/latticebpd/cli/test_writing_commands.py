"""Every command that writes: killed at any moment and run again, and on a disk that is full."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from safetensors import safe_open

from tests.helpers.forked_commands import Ended, run_forked
from tests.helpers.writing_commands import BEGUN, COMMANDS

KILLS = 6
"""How often a command is killed before it may end."""


@pytest.fixture
def writing(inputs: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A function: command, folder for its results, options of `run_forked` -> how it ended."""
    monkeypatch.chdir(inputs)

    def run(name: str, out: Path, **options: int | None) -> Ended:
        if not out.exists():
            begin(name, out)
        return run_forked(COMMANDS[name].format(out=out).split(), **options)

    return run


def begin(name: str, out: Path) -> None:
    """Make a folder for a command's results, with what lies next to them before it."""
    out.mkdir()
    if name in BEGUN:
        begun = Path(BEGUN[name])
        (shutil.copytree if begun.is_dir() else shutil.copyfile)(begun, out / begun.name)


def content(path: Path, folder: Path) -> Any:
    """What a file holds, without the times that the work took."""
    if path.suffix == ".png":
        return path.read_bytes()[:8]  # plots of tokens a second
    if path.name == "training-state.safetensors":
        with safe_open(path, framework="pt") as file:
            record = json.loads(file.metadata()["training"])
            return {name: file.get_tensor(name).numpy().tobytes() for name in file.keys()}, record | {"seconds": 0}  # noqa: SIM118
    data = path.read_bytes().replace(str(folder).encode(), b"folder")
    if path.name == "costs.json":  # seconds
        return re.sub(rb"[\d.]+(e-\d+)?", b"0", data)
    if path.name == "training-state.json":
        return json.loads(data) | {"seconds": 0}
    if path.name == "training-log.jsonl":
        return [json.loads(line) | {"tokens_per_second": 0} for line in data.splitlines()]
    return data


def files(folder: Path) -> dict[str, Any]:
    return {str(path.relative_to(folder)): content(path, folder) for path in folder.rglob("*") if path.is_file()}


QUICK = {"distill", "compare"}
WRITERS = [pytest.param(name, marks=[] if name in QUICK else pytest.mark.slow) for name in COMMANDS]


@pytest.mark.parametrize("name", WRITERS)
def test_a_command_that_was_killed_ends_with_the_files_of_one_that_was_not(
    writing: Any, tmp_path: Path, name: str
) -> None:
    full = writing(name, tmp_path / "whole")
    assert full.status == 0, full.errors
    assert full.writes > 1
    for kill in range(KILLS):  # at moments that are spread over the work
        killed = writing(name, tmp_path / "cut", killed_before=1 + kill * (full.writes - 2) // KILLS)
        assert killed.status in (-9, 0), killed.errors
        assert kill or killed.status == -9
    last = writing(name, tmp_path / "cut")
    assert last.status == 0, last.errors
    expected, got = files(tmp_path / "whole"), files(tmp_path / "cut")
    assert got.keys() == expected.keys()
    for file, content_ in expected.items():
        assert got[file] == content_, file


@pytest.mark.parametrize("name", WRITERS)
def test_an_ordinary_user_is_told_of_a_folder_that_is_read_only(writing: Any, tmp_path: Path, name: str) -> None:
    out = tmp_path / "out"
    begin(name, out)
    before = files(out)
    for path in (out, *out.rglob("*")):
        path.chmod(0o555 if path.is_dir() else 0o444)
    ended = writing(name, out, ordinary_user=True)
    assert ended.status == 2, ended
    *_, line = ended.errors.strip().splitlines()
    assert line.startswith("latticebpd: error: ")
    assert str(out) in line
    assert "Permission denied" in line
    assert "Traceback" not in ended.errors
    assert files(out) == before
    for path in (out, *out.rglob("*")):
        path.chmod(0o755)
    assert writing(name, out, ordinary_user=True).status == 0


def check_full(ended: Ended, error: str, out: Path, expected: dict[str, Any], begun: dict[str, Any]) -> None:
    """One line, and no file but finished ones and those that the next run goes on with."""
    assert ended.status == 2, ended
    *_, line = ended.errors.strip().splitlines()
    assert line.startswith("latticebpd: error: ")
    assert error in line
    assert "Traceback" not in ended.errors
    for file, got in files(out).items():
        resumed = file.startswith(
            ("run/training-", "run/lm.fst.work/", "run.work/", "lm.fst.work/", "chats/encoded.json")
        )
        assert resumed or got in (expected.get(file), begun.get(file)), file


@pytest.mark.parametrize("name", WRITERS)
def test_where_files_cannot_grow_nothing_is_half_written(writing: Any, tmp_path: Path, name: str) -> None:
    full = writing(name, tmp_path / "whole")
    assert full.status == 0, full.errors
    begin(name, tmp_path / "begun")
    expected, begun = files(tmp_path / "whole"), files(tmp_path / "begun")
    sizes = {path.stat().st_size for path in (tmp_path / "whole").rglob("*") if path.is_file()}
    for limit in sorted({0, *(size - 1 for size in sizes)})[:: max(1, len(sizes) // 3)]:
        out = tmp_path / str(limit)
        ended = writing(name, out, file_bytes=limit)
        if ended.status or not limit:
            check_full(ended, "File too large", out, expected, begun)
        else:  # all that is new fits
            assert files(out) == expected
        assert writing(name, out).status == 0
        assert files(out) == expected


@pytest.mark.parametrize("name", WRITERS)
def test_a_full_disk_is_one_line_and_leaves_nothing_half_written(writing: Any, tmp_path: Path, name: str) -> None:
    """A real one, of as many bytes as the results need and fewer; where such a disk may be made."""
    assert writing(name, tmp_path / "whole").status == 0
    begin(name, tmp_path / "begun")
    expected, begun = files(tmp_path / "whole"), files(tmp_path / "begun")
    pages = sum(-(-path.stat().st_size // 4096) for path in (tmp_path / "whole").rglob("*") if path.is_file())
    refused = 0
    for share in (0.4, 0.7, 0.95):
        disk = tmp_path / str(share)
        begin(name, disk)
        disk.rename(tmp_path / "on disk")
        disk.mkdir()
        mount = ["mount", "-t", "tmpfs", "-o", f"size={max(1, int(share * pages)) * 4096}", "none", disk]
        if subprocess.run(mount, check=False, capture_output=True).returncode:
            pytest.skip("mounting a small disk takes root's rights; the test above limits files instead")
        try:
            if subprocess.run(["cp", "-rT", tmp_path / "on disk", disk], check=False, capture_output=True).returncode:
                continue  # its inputs alone fill it
            ended = writing(name, disk)
            if ended.status:
                check_full(ended, "No space left on device", disk, expected, begun)
                refused += 1
        finally:
            subprocess.run(["umount", disk], check=True)
            shutil.rmtree(tmp_path / "on disk")
    assert refused or name in BEGUN or pages < 3
