"""Work in stages, each finished or not begun: what a job leaves in its directory when it is killed is what it need not do again.

A stage writes into a directory of its own, which gets its name when the stage is done.  The job's description lies
beside the stages: only the same job goes on where another stopped.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

JOB = "job.json"
UNFINISHED = ".unfinished"


class WorkDirectory:
    """The directory of one job."""

    def __init__(self, path: str | os.PathLike[str], job: Mapping[str, Any]) -> None:
        """Begin the job, or go on with it.

        Raises:
            ValueError: the directory belongs to another job, or is none of ours.
        """
        self.path = Path(path)
        self.path.mkdir(parents=True, exist_ok=True)
        described = json.loads(json.dumps(job))
        description = self.path / JOB
        if description.exists():
            try:
                found = json.loads(description.read_text())
            except ValueError:
                found = {}  # killed while it was being written: nothing was done yet
            different = sorted(key for key in {*found, *described} if found.get(key) != described.get(key))
            if found and different:
                raise ValueError(
                    f"{self.path}: expected the intermediate files of this job, found those of one with another {', '.join(different)}; "
                    "delete the directory or name another"
                )
        elif any(self.path.iterdir()):
            raise ValueError(f"{self.path}: expected a directory for intermediate files, empty or of an earlier run, found other files")
        description.write_text(json.dumps(described, indent=1))
        for left in self.path.glob(f"*{UNFINISHED}"):
            shutil.rmtree(left)

    def stage(self, name: str, make: Callable[[Path], object]) -> Path:
        """The directory of a finished stage, which ``make`` fills unless an earlier run has."""
        finished = self.path / name
        if not finished.exists():
            unfinished = self.path / f"{name}{UNFINISHED}"
            unfinished.mkdir()
            make(unfinished)
            unfinished.replace(finished)
        return finished

    @property
    def stages(self) -> list[str]:
        """The names of the finished stages."""
        return sorted(path.name for path in self.path.iterdir() if path.is_dir() and path.suffix != UNFINISHED)

    def remove(self) -> None:
        shutil.rmtree(self.path)


@contextmanager
def working(path: str | os.PathLike[str], job: Mapping[str, Any]) -> Iterator[WorkDirectory]:
    """A job's directory, which goes when the job is done, and stays when it fails with something done."""
    work = WorkDirectory(path, job)
    try:
        yield work
    except BaseException:
        for left in work.path.glob(f"*{UNFINISHED}"):
            shutil.rmtree(left, ignore_errors=True)
        if not work.stages:
            work.remove()
        raise
    work.remove()


def save_array(path: Path, array: np.ndarray) -> None:
    """Write a ``.npy`` file; unlike numpy's own function, say what went wrong and where if the disk is full."""
    array = np.ascontiguousarray(array)
    try:
        with open(path, "wb") as file:
            np.lib.format.write_array_header_1_0(file, np.lib.format.header_data_from_array_1_0(array))
            file.write(array.data)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error


def file_facts(paths: Sequence[Path]) -> list[list[Any]]:
    """What tells a file from a later one of the same name: path, size and time of change."""
    facts = [(path.resolve(), path.stat()) for path in paths]
    return [[str(path), stat.st_size, stat.st_mtime_ns] for path, stat in facts]
