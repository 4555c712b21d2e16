"""``latticebpd merge``: what was counted in parts, added up."""

from __future__ import annotations

import json as json_module
from pathlib import Path
from typing import Any

import typer

from latticebpd.checks import expect
from latticebpd.cli.compare import show_comparison
from latticebpd.cli.oracle import show_oracle
from latticebpd.console import err, writable_file, writable_plot


def merge(
    tallies: list[Path] = typer.Argument(..., help="Counts that `--tally` of `oracle` or of `compare` wrote."),
    partial: list[int] = typer.Option([], min=0, help="Add up without part i of n, which is missing; repeatable."),
    json: bool = typer.Option(False, "--json", help="Print one JSON object."),
    plot: Path | None = typer.Option(None, callback=writable_plot, help="Plot of the oracle (.png, .svg or .pdf)."),
    tally: Path | None = typer.Option(None, callback=writable_file, help="Write the sum of the counts (.json)."),
) -> None:
    """Add up the counts of shards: the result is that of one run over everything.

    Example: [bold]latticebpd merge part-*.json --plot oracle.png[/bold]
    """
    from latticebpd.measuring import Comparison, OracleTally, Shard

    total: OracleTally | Comparison | None = None
    for path in tallies:
        try:
            record = json_module.loads(path.read_text(encoding="utf-8"))
            kind = Comparison if isinstance(record, dict) and record.get("kind") == Comparison.KIND else OracleTally
            part: Any = kind.from_json(record)
            if not part.parts:
                raise ValueError(f"expected counts that name their part; make it anew with `{kind.COMMAND} --tally`")
            total = part if total is None else total + part
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{path}: {error}") from error
    assert total is not None
    total.check_parts(partial)
    if partial:
        err.print(f"without {', '.join(str(Shard(index, min(total.parts).count)) for index in partial)}", style="dim")
    if isinstance(total, Comparison):
        expect(plot is None, "--plot with counts of the oracle", "those of a comparison")
        show_comparison(total, json, tally)
    else:
        show_oracle(total, json, plot, tally)
