"""``latticebpd train plot``: the curves of a run."""

from __future__ import annotations

from pathlib import Path

import typer

from latticebpd.console import err


def plot(directory: Path = typer.Argument(..., help="Directory of any training run, finished or not.")) -> None:
    """Draw a run's losses, accuracies and block efficiency (training.png), and write its log as a table (training.csv).

    Example: [bold]latticebpd train plot with-heads[/bold]
    """
    from lm_training.training.training_plots import CSV, PNG, write_plots

    write_plots(directory)
    err.print(f"{directory / PNG}, {directory / CSV}")
