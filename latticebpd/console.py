"""What the commands share: consoles, progress, JSON."""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
import threading
import warnings
from collections.abc import Callable, Iterable
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from rich import progress as bars
from rich.console import Console, ConsoleDimensions, ConsoleOptions, RenderableType
from rich.filesize import decimal
from rich.segment import Segment
from rich.text import Text

from fst.files import require_writable
from fst.printable import plain_words, printable
from latticebpd.checks import extra_module

if TYPE_CHECKING:
    from tokenizers import Tokenizer


class ForeignText(Console):
    """A console that shows control characters and markup in names, prompts and tokens, and obeys neither. In a
    terminal it breaks lines between words; into a file or a pipe it breaks none, unless ``COLUMNS`` says where."""

    def __init__(self, stderr: bool = False) -> None:
        super().__init__(stderr=stderr, highlight=False, markup=False, emoji=False)

    @property  # type: ignore[misc]  # nothing sets it
    def size(self) -> ConsoleDimensions:
        """Columns and lines."""
        own, columns = super().size, os.environ.get("COLUMNS", "")
        width = int(columns) if columns.isdecimal() else own.width if self.is_terminal else UNLIMITED
        return ConsoleDimensions(max(width, 1), own.height)

    def render_str(self, text: str, **options: Any) -> Text:
        return super().render_str(printable(text), **options)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(printable(segment.text), segment.style)


UNLIMITED = 1_000_000
"""Columns of a file."""
out, err = ForeignText(), ForeignText(stderr=True)
LINE_EVERY = 60.0
"""Seconds between two lines of progress in a log file."""


def load_tokenizer(path: Path) -> Tokenizer:
    """A ``tokenizers`` tokenizer from its file; ValueError where there is none."""
    from tokenizers import Tokenizer

    if not path.is_file():
        raise ValueError(f"{path}: expected a tokenizer.json, found no such file")
    try:
        return Tokenizer.from_file(str(path))
    except Exception as error:  # tokenizers raises bare Exception
        expected = "expected a tokenizer.json as the tokenizers library writes it"
        raise ValueError(f"{path}: {expected}: {plain_words(error)}") from error


def progress_bytes() -> bars.Progress:
    """The same, counting bytes."""
    return _progress(lambda count: decimal(int(count)), bars.DownloadColumn(), bars.TransferSpeedColumn())


def progress() -> bars.Progress:
    """How far long work has come, on standard error: a bar that vanishes when done; in a log file, a line a minute."""
    return _progress("{:,.0f}".format, bars.MofNCompleteColumn(), bars.TimeElapsedColumn())


def _progress(written: Callable[[float], str], *columns: bars.ProgressColumn) -> bars.Progress:
    if not err.is_terminal:
        return LogLines(written)
    shown = (bars.TextColumn("{task.description}", markup=False), bars.BarColumn(), *columns)
    return bars.Progress(*shown, bars.TimeRemainingColumn(), console=err, transient=True)


class LogLines(bars.Progress):
    """A line for every unfinished task each `LINE_EVERY` seconds, whether or not anything has moved."""

    def __init__(self, written: Callable[[float], str]) -> None:
        super().__init__(console=err, disable=True, speed_estimate_period=600)
        self._written = written
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, name="log lines", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._done.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._done.wait(LINE_EVERY):
            for task in self.tasks:
                if not task.finished:
                    err.print(self._line(task))

    def _line(self, task: bars.Task) -> str:
        total = "" if task.total is None else f" of {self._written(task.total)}"
        left = "" if task.time_remaining is None else f", about {timedelta(seconds=int(task.time_remaining))} left"
        elapsed = timedelta(seconds=int(task.elapsed or 0))
        return f"{task.description}: {self._written(task.completed)}{total}, {elapsed}{left}"


def print_json(record: Any) -> None:
    """One JSON value on standard output and nothing else."""
    text = json.dumps(record, ensure_ascii=False)  # which escapes only the control characters below 32
    print(re.sub(r"[\x7f-\x9f\u202a-\u202e\u2066-\u2069]", lambda match: f"\\u{ord(match[0]):04x}", text))


def next_command(words: str, *files: object) -> None:
    """The last line of a command whose result another command reads: that one.

    words: of the command, ``{}`` in place of each of the files; what it needs besides is in capitals.
    """
    line = words.format(*(shlex.quote(str(file)) for file in files))
    err.print(f"next: latticebpd {line}", soft_wrap=True)


def _refusal(*kinds: Literal["file", "folder"]) -> Callable[[Any], Any]:
    """The callback of an option that names what is to be written: where that cannot be, it is refused before any work
    is done."""

    def writable(value: Any) -> Any:
        for path in value if isinstance(value, list) else [value]:
            if path is not None:
                require_writable(path, *kinds)
        return value

    return writable


writable_file, writable_folder, writable = _refusal("file"), _refusal("folder"), _refusal("file", "folder")


def writable_plot(path: Path | None) -> Path | None:
    """The callback of an option that names a plot to be written: it is also refused where nothing can draw it."""
    if writable_file(path) is not None:
        extra_module("matplotlib", "plots", f"the plot {path}")
    return path


def positive_numbers(option: str, text: str, most: int | None = None) -> list[int]:
    """The numbers of an option such as ``1,1,2,4``, none above ``most``; ValueError where it holds anything else."""
    try:
        numbers = [int(part) for part in text.split(",")]
    except ValueError:
        numbers = []
    if not numbers or min(numbers) < 1 or max(numbers) > (2**31 - 1 if most is None else most):
        allowed = ">= 1" if most is None else f"from 1 to {most}"
        wanted = f"{option} as numbers {allowed} separated by commas, such as 1,2,4"
        raise ValueError(f"expected {wanted}, got {text[:60]!r}")
    return numbers


def quiet_transformers() -> None:
    """Keep ``transformers``' own progress bars and advice off the terminal, also if it is imported later."""
    warnings.filterwarnings("ignore", "IProgress not found")  # widgets of Jupyter, for such bars
    if "transformers" not in sys.modules:
        os.environ |= {"TRANSFORMERS_VERBOSITY": "error", "HF_HUB_DISABLE_PROGRESS_BARS": "1"}
        return
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
