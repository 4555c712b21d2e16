"""What the commands share: consoles, progress bars, JSON."""

from __future__ import annotations

import json
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

out = Console(highlight=False)
err = Console(stderr=True, highlight=False)


def progress() -> Progress:
    """A progress bar on standard error that vanishes when done; silent where standard error is no terminal."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    return Progress(*columns, console=err, transient=True, disable=not err.is_terminal)


def print_json(record: Any) -> None:
    """One JSON value on standard output and nothing else."""
    print(json.dumps(record, ensure_ascii=False))


def quiet_transformers() -> None:
    """Keep ``transformers``' own progress bars and advice off the terminal."""
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
