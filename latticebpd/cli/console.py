"""What the commands share: consoles, progress bars, JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

from fst.files import require_writable

if TYPE_CHECKING:
    from tokenizers import Tokenizer

out = Console(highlight=False)
err = Console(stderr=True, highlight=False)


def load_tokenizer(path: Path) -> Tokenizer:
    """A ``tokenizers`` tokenizer from its file.

    Raises:
        ValueError: there is no such file, or it is no tokenizer.
    """
    from tokenizers import Tokenizer

    if not path.is_file():
        raise ValueError(f"{path}: expected a tokenizer.json, found no such file")
    try:
        return Tokenizer.from_file(str(path))
    except Exception as error:  # tokenizers raises bare Exception
        raise ValueError(f"{path}: expected a tokenizer.json as the tokenizers library writes it: {error}") from error


def progress_bytes() -> Progress:
    """A progress bar that counts bytes."""
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    return Progress(*columns, console=err, transient=True, disable=not err.is_terminal)


def progress() -> Progress:
    """A progress bar on standard error that vanishes when done; silent where standard error is no terminal."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    return Progress(*columns, console=err, transient=True, disable=not err.is_terminal)


def print_json(record: Any) -> None:
    """One JSON value on standard output and nothing else."""
    print(json.dumps(record, ensure_ascii=False))


PathValue = TypeVar("PathValue", Path, Path | None, list[Path])


def writable_file(value: PathValue) -> PathValue:
    """The callback of an option that names a file to write: where that cannot be, it is refused before any work is done."""
    for path in value if isinstance(value, list) else [value]:
        if path is not None:
            require_writable(path, "file")
    return value


def writable_folder(path: Path | None) -> Path | None:
    """The callback of an option that names a folder to fill."""
    if path is not None:
        require_writable(path, "folder")
    return path


def writable(path: Path) -> Path:
    """The callback of an option that names either."""
    require_writable(path, "file", "folder")
    return path


def positive_numbers(option: str, text: str) -> list[int]:
    """The numbers of an option such as ``1,1,2,4``; ValueError where it holds anything else."""
    try:
        numbers = [int(part) for part in text.split(",")]
    except ValueError:
        numbers = []
    if not numbers or min(numbers) < 1 or max(numbers) >= 2**31:
        raise ValueError(f"expected {option} as numbers >= 1 separated by commas, such as 1,2,4, got {text[:60]!r}")
    return numbers


def quiet_transformers() -> None:
    """Keep ``transformers``' own progress bars and advice off the terminal."""
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
