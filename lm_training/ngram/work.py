"""Work in stages, each finished or not begun: what a job leaves in its directory when it is killed is what it need not do again.

A stage writes into a directory of its own, which gets its name when the stage is done.  The job's description lies
beside the stages: only the same job goes on where another stopped, and nothing is ever deleted but `PARTS` beside a
description that says that we made them.  Cleaning up is one renaming, of the description, and then deletion: a job that
is killed in between is finished, and the next one deletes what is left.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from fst.files import locked, replacing

JOB = "job.json"
FINISHED_JOB = "finished-job.json"
UNFINISHED = ".unfinished"
MADE_BY = "latticebpd lm train"
PARTS = ("corpus", "counts", "estimated", "duckdb", "spark", "model.fst")
"""What a job may leave beside its description."""


class WorkDirectory:
    """The directory of one job, which no other process uses meanwhile (`working` sees to that)."""

    def __init__(self, path: str | os.PathLike[str], job: Mapping[str, Any]) -> None:
        """Begin the job, or go on with it.

        Raises:
            ValueError: the directory belongs to another job, or is none of ours.
        """
        self.path = Path(path)
        self.path.mkdir(parents=True, exist_ok=True)
        if (self.path / FINISHED_JOB).exists() and _description(self.path / FINISHED_JOB):
            self._delete()
        record = {"made_by": MADE_BY, "job": json.loads(json.dumps(job))}
        if not (self.path / JOB).exists():
            if not all(path.match(f".{JOB}.*.tmp") for path in self.path.iterdir()):  # one killed while it described itself
                raise ValueError(f"{self.path}: expected a directory for intermediate files, empty or of an earlier run, found other files")
            with replacing(self.path / JOB) as temporary:
                temporary.write_text(json.dumps(record, indent=1))
            return
        earlier = _description(self.path / JOB)
        if earlier is None:
            raise ValueError(
                f"{self.path}: expected the intermediate files of an earlier run, found a {JOB} that is none of ours; name another"
            )
        different = sorted(key for key in {*earlier, *record["job"]} if earlier.get(key) != record["job"].get(key))
        if different:
            raise ValueError(
                f"{self.path}: expected the intermediate files of this job, found those of one with another {', '.join(different)}; "
                "delete the directory or name another"
            )
        self._drop_unfinished()

    def stage(self, name: str, make: Callable[[Path], object]) -> Path:
        """The directory of a finished stage, which ``make`` fills unless an earlier run has."""
        assert name in PARTS
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
        return sorted(name for name in PARTS if (self.path / name).is_dir())

    def remove(self) -> None:
        """Delete what the job made, the directory too unless something else is in it."""
        (self.path / JOB).replace(self.path / FINISHED_JOB)
        self._delete()
        with suppress(OSError):  # not empty, or not ours to remove
            self.path.rmdir()

    def _delete(self) -> None:
        self._drop_unfinished()
        for name in PARTS:
            _delete(self.path / name)
        for left in self.path.glob(f".{JOB}.*.tmp"):
            left.unlink()
        (self.path / FINISHED_JOB).unlink()

    def _drop_unfinished(self) -> None:
        for name in PARTS:
            _delete(self.path / f"{name}{UNFINISHED}")


def _delete(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _description(path: Path) -> dict[str, Any] | None:
    """The job that a description of ours describes; None for any other file."""
    try:
        record = json.loads(path.read_text())
    except (ValueError, RecursionError):
        return None
    ours = isinstance(record, dict) and record.get("made_by") == MADE_BY and isinstance(record.get("job"), dict)
    return record["job"] if ours else None


@contextmanager
def working(path: str | os.PathLike[str], job: Mapping[str, Any]) -> Iterator[WorkDirectory]:
    """A job's directory, which goes when the job is done, and stays when it fails with something done.

    Raises:
        ValueError: another process works there, or the directory is none of this job's.
    """
    Path(path).mkdir(parents=True, exist_ok=True)
    with locked(path):
        work = WorkDirectory(path, job)
        try:
            yield work
        except BaseException:
            with suppress(OSError):
                work._drop_unfinished()
                if not work.stages:
                    work.remove()
            raise
        work.remove()


def file_facts(paths: Sequence[Path]) -> list[list[Any]]:
    """What tells a file from a later one of the same name: path, size and time of change."""
    facts = [(path.resolve(), path.stat()) for path in paths]
    return [[str(path), stat.st_size, stat.st_mtime_ns] for path, stat in facts]
