"""JSON files of settings and records: damage is a ``ValueError`` that names the file; writes are atomic."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from fst.files import replacing

T = TypeVar("T")

DAMAGE = (ValueError, KeyError, TypeError, AttributeError, RecursionError, OSError)
"""What reading, parsing and checking raise; invalid JSON and UTF-8 are ValueErrors."""


def read_json(path: str | os.PathLike[str], parse: Callable[[Any], T], problem: str, remedy: str) -> T:
    """What ``parse`` makes of a file's record.

    problem, remedy: begin and end the message of the ValueError for a missing or damaged file, the cause between them.
    """
    try:
        return parse(json.loads(Path(path).read_text(encoding="utf-8")))
    except DAMAGE as error:
        raise ValueError(f"{os.fspath(path)}: {problem} {error}; {remedy}") from error


def write_json(path: str | os.PathLike[str], record: Any, indent: int | None = None) -> None:
    with replacing(path) as temporary:
        temporary.write_text(json.dumps(record, indent=indent) + "\n", encoding="utf-8")
