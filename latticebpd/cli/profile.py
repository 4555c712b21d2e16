"""``latticebpd profile``: what a call costs by its size."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import typer

from latticebpd.cli.model_options import MODEL, WEIGHTS
from latticebpd.console import err, positive_numbers, print_json, progress, quiet_transformers, writable_file

MOST = 4096
"""Tokens, or texts, of the largest pass."""


def profile(
    model: Path | None = MODEL,
    output: Path | None = typer.Option(None, "--output", "-o", callback=writable_file, help="File of costs to write."),
    columns: str = typer.Option("1,2,3,5,9,13,17,25,33,49,65", help="Tokens of a pass, separated by commas."),
    rows: str = typer.Option("1", help="Texts of a pass, separated by commas."),
    context: int = typer.Option(200, min=1, help="Tokens before those of the pass."),
    rounds: int = typer.Option(5, min=1, help="Passes of every size."),
    threads: int | None = typer.Option(None, min=1, max=1024, help="Processor threads; by default PyTorch's number."),
    weights: str | None = WEIGHTS,
    lm: Path | None = typer.Option(None, help="Language model of the drafts; by default the one next to the model."),
    system: str | None = typer.Option(None, "--system", "-s", help="System to measure; by default that of --costs."),
    json: bool = typer.Option(False, "--json", help="Print the costs as JSON."),
) -> None:
    """Measure, on this machine, the cost of a verification pass by its number of tokens, and the cost of drafting.

    `latticebpd generate --costs FILE` cuts each draft tree to the size with the most expected tokens a second, and
    drafts nothing for a while if that does not pay off.

    Example: [bold]latticebpd profile --model smollm2-135m -o costs.json[/bold]
    """
    quiet_transformers()
    import torch

    from latticebpd.cli.tables import print_table
    from latticebpd.decoding.pass_costs import profile as profiled
    from latticebpd.loading import load

    widths = sorted(set(positive_numbers("--columns", columns, MOST)))
    batches = sorted(set(positive_numbers("--rows", rows, MOST)))
    loaded = load(model, lm, weights=weights)
    drafter = loaded.drafter(system or loaded.default_system(by_cost=True))
    if threads is not None:
        torch.set_num_threads(threads)
    with progress() as bar:
        task = bar.add_task("passes", total=(rounds + 1) * len(widths) * len(batches))
        costs = profiled(loaded.target, widths, batches, context, rounds, drafter, lambda: bar.advance(task))
    if output is not None:
        costs.save(output)
        err.print(f"{output}: written")
    if json:
        print_json(asdict(costs))
        return
    sizes = {f"{width}": [row[column] for row in costs.seconds] for column, width in enumerate(costs.columns)}
    if costs.drafting:
        sizes["drafts"] = [*costs.drafting]
    if costs.accepted:
        sizes["accepted"] = [costs.accepted] * len(costs.rows)
    lines = ([name, *(f"{each * 1e3:.1f}" for each in seconds)] for name, seconds in sizes.items())
    headings = ("tokens", *(f"{batch} text{'s' * (batch > 1)}" for batch in costs.rows))
    print_table(f"milliseconds of a pass, the shortest of {rounds}", headings, lines)
    err.print(" | ".join(f"{name} {value}" for name, value in costs.about.items()), style="dim")
