"""Files of tensors: whole or not there, also after a process was killed, and open to whom other files are open."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from latticebpd.models.transformers import checkpoints
from latticebpd.models.transformers.checkpoints import save_tensors

TENSORS = {"a": torch.arange(6.0)}


def test_tensors_of_a_killed_process_are_deleted_by_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def half(tensors: Any, path: Path, metadata: Any) -> None:
        """As safetensors writes, up to where the process is killed."""
        path.with_name(".tmpAbCdEf").write_bytes(bytes(1000))
        os.kill(os.getpid(), signal.SIGKILL)

    file = tmp_path / "heads.safetensors"
    save_tensors(file, {"a": torch.zeros(2)})
    child = os.fork()
    if child == 0:
        monkeypatch.setattr(checkpoints, "save_file", half)
        try:
            save_tensors(file, TENSORS)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    assert load_file(file)["a"].tolist() == [0, 0]
    save_tensors(file, TENSORS, {"format": "pt"})
    assert load_file(file)["a"].tolist() == TENSORS["a"].tolist()
    assert list(tmp_path.iterdir()) == [file]


@pytest.mark.parametrize("mask", [0o022, 0o077, 0o002])
def test_tensors_are_open_to_whom_other_files_are_open(tmp_path: Path, mask: int) -> None:
    before = os.umask(mask)
    try:
        (tmp_path / "other").touch()
        save_tensors(tmp_path / "heads.safetensors", TENSORS)
    finally:
        os.umask(before)
    assert (tmp_path / "heads.safetensors").stat().st_mode == (tmp_path / "other").stat().st_mode
