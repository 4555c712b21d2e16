"""What benchmarks that can be killed and go on have in common: stages, and a note of what their directory was begun with."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fst.files import replacing

NOTE = "settings.json"


def latticebpd(*arguments: object) -> None:
    """Run a command; what it prints goes to standard error, for a benchmark prints its tables alone."""
    subprocess.run([sys.executable, "-m", "latticebpd", *map(str, arguments)], check=True, stdout=2)


def slug(name: str) -> str:
    """A name as a part of a file's."""
    return name.replace(",", "").replace(" ", "-")


def stage(result: Path, make: Callable[[], object]) -> Path:
    """The result, made if it is not there."""
    if not result.exists():
        print(f"-- {result}", file=sys.stderr, flush=True)
        result.parent.mkdir(parents=True, exist_ok=True)
        make()
    return result


def claim(directory: Path, settings: dict[str, Any]) -> None:
    """Note what the results in a directory are made with; ValueError where they were begun with something else."""
    note = directory / NOTE
    if note.exists():
        found = json.loads(note.read_text(encoding="utf-8"))
        for name, value in settings.items():
            if found.get(name) != value:
                raise ValueError(
                    f"{directory}: holds results with {name} {found.get(name)}, asked for is {value}; choose another directory"
                )
        return
    directory.mkdir(parents=True, exist_ok=True)
    with replacing(note) as temporary:
        temporary.write_text(json.dumps(settings, indent=1) + "\n", encoding="utf-8")
