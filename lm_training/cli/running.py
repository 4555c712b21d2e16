"""What the commands that train have in common: what stands beside the model, and how a run ends."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fst.files import copy
from latticebpd.console import err
from lm_training.training.training_loop import LOG, STATE_WEIGHTS, Process
from lm_training.training.training_options import LoopOptions
from lm_training.training.training_plots import CSV, PNG, write_plots


def begins(output: Path, process: Process) -> bool:
    """Whether this process is to write what stands beside a model, into a directory without a run."""
    if process.rank or (output / STATE_WEIGHTS).exists():
        return False
    output.mkdir(parents=True, exist_ok=True)
    return True


def bring(files: Sequence[Path], output: Path, process: Process) -> None:
    """Copy files, those that there are, into the directory of a run that begins."""
    if begins(output, process):
        for file in files:
            if file.exists() and file.resolve() != (output / file.name).resolve():
                copy(file, output / file.name)


def finish(output: Path, options: LoopOptions, process: Process, about: str = "") -> None:
    """Draw the run and say that it is done."""
    if process.rank == 0:
        write_plots(output)
        err.print(f"{output}: {about}trained for {options.steps} steps; {LOG}, {CSV}, {PNG}")
