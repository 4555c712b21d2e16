"""``latticebpd tune``: the weight of a language model."""

from __future__ import annotations

from dataclasses import asdict
from functools import partial
from pathlib import Path

import typer

from fst.files import require_writable
from latticebpd.cli.lm_option import alphas_of
from latticebpd.cli.tables import print_table
from latticebpd.console import err, print_json, progress, quiet_transformers
from latticebpd.scoring.weights import POSITION


def tune(
    files: list[Path] = typer.Argument(..., help="Lattice files (.npz), or directories of them, of held-out text."),
    lm: Path = typer.Option(..., help="n-gram model (FST or ARPA), or the directory of a neural rescorer."),
    system: list[str] = typer.Option(
        ["16-best", "64-tree"], "--system", "-s", help="System to tune for: P-best or N-tree; repeatable."
    ),
    grid: str = typer.Option("paper", help="Weights to try first, separated by commas; `paper`: the paper's ten."),
    examples: int = typer.Option(100, min=1, help="Texts (lattices, if texts are not known) to tune on, at random."),
    seed: int = typer.Option(0, help="Seed of the draw."),
    write: bool = typer.Option(False, "--write", help="Store the weights with the model, as its default."),
    json: bool = typer.Option(False, "--json", help="Print the record as JSON."),
) -> None:
    """Find the weights of a language model with which decodes take the fewest calls, one for each drafting system.

    Draws texts from the files and replays their decodes; where files do not number their texts, tokens per call are by
    position. A best weight at the edge of the grid widens the grid. With --write, the tuning is stored next to the
    model with the examples that it used; `compare` and `report` leave these out. A neural rescorer reads as much
    context as the files hold (`latticebpd lattices --context 256`).

    Example: [bold]latticebpd tune held-out --lm rescorer --system 16-best --system 64-tree --write[/bold]
    """
    quiet_transformers()
    from latticebpd.drafters.system_names import BEST, TREE, SystemName
    from latticebpd.measuring.tuning import tune as tuned
    from latticebpd.scoring.rescoring import as_scorer
    from latticebpd.scoring.weights import alpha_path, store_tunings

    if write:
        require_writable(lm if lm.is_dir() else alpha_path(lm), "file", "folder")
    alphas = alphas_of("--grid", grid)
    parsed = [SystemName.parse(name) for name in system]
    if not all(each.kind in (BEST, TREE) and each.model is None for each in parsed):
        raise ValueError(f"expected --system P-best or N-tree, which a weight can be for, got {', '.join(system)}")
    scorer = as_scorer(lm)
    tunings = []
    with progress() as bar:
        for name in dict.fromkeys(map(str, parsed)):
            tell = partial(bar.advance, bar.add_task(name, total=None))
            tunings.append(tuned(files, scorer, name, alphas, examples, seed, tell)[0])
    if write:
        store_tunings(lm, tunings)
        err.print(f"{lm}: {', '.join(f'alpha {each.alpha:g} for {each.system}' for each in tunings)} stored")
    for each in tunings:
        if each.by == POSITION:
            err.print(f"{each.system}: tuned by position, since the files do not tell their texts", style="yellow")
        if each.at_edge:
            edge = f"alpha {each.alpha:g} is the last that was tried; a better one may lie beyond"
            err.print(f"{each.system}: {edge}", style="yellow")
    if json:
        print_json([asdict(each) for each in tunings])
        return
    for each in tunings:
        counted = f"{len(each.examples)} {each.unit}{'s' if len(each.examples) > 1 else ''}"
        headings = ("alpha", f"tokens/call, by {each.by}")
        rows = ([f"{alpha:g}", f"{value:.4f}"] for alpha, value in zip(each.alphas, each.block_efficiency, strict=True))
        print_table(f"{each.system} on {counted}", headings, rows, bold=each.alphas.index(each.alpha))
