"""``latticebpd tune``: the weight of a language model."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import typer
from rich import box
from rich.table import Table

from latticebpd.cli.console import err, out, print_json, progress, quiet_transformers


def tune(
    files: list[Path] = typer.Argument(..., help="Lattice files (.npz), or directories of them, of held-out text."),
    lm: Path = typer.Option(..., help="n-gram model (FST or ARPA), or the directory of a neural rescorer."),
    system: str = typer.Option("64-tree", help="What the weight is for: P-best or N-tree."),
    grid: str | None = typer.Option(None, help="Weights to try, separated by commas; the paper's ten by default."),
    examples: int = typer.Option(100, min=1, help="Texts to tune on, drawn at random; lattices, where files do not tell texts."),
    seed: int = typer.Option(0, help="Seed of the draw."),
    write: bool = typer.Option(False, "--write", help="Store the weight with the model: from then on it is the default."),
    json: bool = typer.Option(False, "--json", help="Print the record as JSON."),
) -> None:
    """Find the weight of a language model under which most drafted tokens are accepted.

    By position, on examples drawn from the files; with --write, the record beside the model names them, and `compare` leaves
    them out. A neural rescorer reads as much context as the files hold (`latticebpd lattices --context 256`).

    Example: [bold]latticebpd tune held-out.npz --lm rescorer --system 64-tree --write[/bold]
    """
    quiet_transformers()
    from latticebpd.analysis.sweep import ALPHAS
    from latticebpd.analysis.tuning import tune as tuned
    from latticebpd.scoring.rescoring import as_rescorer

    alphas = ALPHAS if grid is None else _weights(grid)
    with progress() as bar:
        task = bar.add_task("lattices", total=None)
        found, swept = tuned(files, as_rescorer(lm), system, alphas, examples, seed, lambda done: bar.advance(task, done))
    if write:
        found.store(lm)
        err.print(f"{lm}: alpha {found.alpha:g} stored")
    if json:
        print_json(asdict(found))
        return
    units = f"{len(found.examples)} {found.unit}{'s' if len(found.examples) > 1 else ''}, {int(swept.counts[0].sum())} lattices"
    table = Table(title=f"{system} on {units}", box=box.SIMPLE_HEAD)
    for heading in ("alpha", "tokens/call, by position"):
        table.add_column(heading, justify="right")
    for alpha, efficiency in zip(found.alphas, found.block_efficiency, strict=True):
        table.add_row(f"{alpha:g}", f"{efficiency:.4f}", style="bold" if alpha == found.alpha else None)
    out.print(table)


def _weights(text: str) -> list[float]:
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise ValueError(f"expected --grid as weights separated by commas, such as 0.5,1,2, got {text!r}") from None
