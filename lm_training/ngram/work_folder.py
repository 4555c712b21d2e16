"""A folder of intermediate files: a killed job continues after its last finished stage.

A stage writes into a folder of its own, which gets its name when the stage is done.  Next to the stages lies the job's
description: only the same job continues, and only `PARTS` next to a description that we wrote are ever deleted.
Clean-up renames the description, then deletes: a job killed in between is finished, and the next one deletes the rest.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from fst.files import PathLike, locked, write_text

JOB = "job.json"
FINISHED_JOB = "finished-job.json"
UNFINISHED = ".unfinished"
MADE_BY = "latticebpd lm train"
PARTS = ("corpus", "counts", "estimated", "spark", "model.fst")
"""What a job may leave next to its description."""


class WorkFolder:
    """The folder of one job; `work_folder` keeps other processes out."""

    def __init__(self, path: PathLike, job: Mapping[str, Any]) -> None:
        """Start the job, or continue it; ValueError where the folder is another job's, or no work folder."""
        self.path = Path(path)
        self.path.mkdir(parents=True, exist_ok=True)
        if _read_job(self.path / FINISHED_JOB) is not None:
            self._delete_parts()
        record = {"made_by": MADE_BY, "job": json.loads(json.dumps(job))}
        if all(path.match(f".{JOB}.*.tmp") for path in self.path.iterdir()):  # empty, or killed while writing JOB
            write_text(self.path / JOB, json.dumps(record, indent=1))
            return
        earlier = _read_job(self.path / JOB)
        if earlier is None:
            wanted = "a directory for intermediate files, empty or of an earlier run"
            raise ValueError(f"{self.path}: expected {wanted}, found other files; name another")
        different = sorted(key for key in {*earlier, *record["job"]} if earlier.get(key) != record["job"].get(key))
        if different:
            got = f"those of one with another {', '.join(different)}; delete the directory or name another"
            raise ValueError(f"{self.path}: expected the intermediate files of this job, found {got}")
        self.drop_unfinished()

    def stage(self, name: str, make: Callable[[Path], object]) -> Path:
        """The folder of a finished stage, filled by ``make`` unless an earlier run finished it."""
        assert name in PARTS
        finished = self.path / name
        if not finished.exists():
            unfinished = self.path / f"{name}{UNFINISHED}"
            unfinished.mkdir()
            make(unfinished)
            unfinished.replace(finished)
        return finished

    def remove(self) -> None:
        """Delete what the job wrote, and the folder unless it contains something else."""
        (self.path / JOB).replace(self.path / FINISHED_JOB)
        self._delete_parts()
        with suppress(OSError):  # not empty, or not ours to remove
            self.path.rmdir()

    def drop_unfinished(self) -> None:
        for name in PARTS:
            _delete(self.path / f"{name}{UNFINISHED}")

    def _delete_parts(self) -> None:
        self.drop_unfinished()
        for path in (*(self.path / name for name in PARTS), *self.path.glob(f".{JOB}.*.tmp"), self.path / FINISHED_JOB):
            _delete(path)


def _delete(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _read_job(path: Path) -> dict[str, Any] | None:
    """The job of a description that we wrote; None for any other file."""
    try:
        record = json.loads(path.read_text())
    except (OSError, ValueError, RecursionError):
        return None
    ours = isinstance(record, dict) and record.get("made_by") == MADE_BY and isinstance(record.get("job"), dict)
    return record["job"] if ours else None


@contextmanager
def work_folder(path: PathLike, job: Mapping[str, Any]) -> Iterator[WorkFolder]:
    """A job's folder, removed when the job is done, kept when it fails after a finished stage; ValueError where another
    process uses it, or it is not this job's."""
    Path(path).mkdir(parents=True, exist_ok=True)
    with locked(path):
        folder = WorkFolder(path, job)
        try:
            yield folder
        except BaseException:
            with suppress(OSError):
                folder.drop_unfinished()
                if not any((folder.path / name).is_dir() for name in PARTS):
                    folder.remove()
            raise
        folder.remove()


def file_facts(paths: Sequence[Path]) -> list[list[Any]]:
    """Path, size and modification time of each file, which identify its version."""
    facts = [(path.resolve(), path.stat()) for path in paths]
    return [[str(path), stat.st_size, stat.st_mtime_ns] for path, stat in facts]
