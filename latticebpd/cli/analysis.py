"""``latticebpd oracle | merge | compare``: how much the lattices hold, and what drafting systems make of it."""

from __future__ import annotations

import csv as csv_module
import json as json_module
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich import box
from rich.table import Table

from latticebpd.cli.console import err, out, positive_numbers, print_json, progress

if TYPE_CHECKING:
    from latticebpd.analysis import Comparison, OracleTally


def oracle(
    files: list[Path] = typer.Argument(..., help="Lattice files (.npz)."),
    k: str = typer.Option("1,2,4,8,16", "-k", "--k", help="Arcs per slot to try, separated by commas."),
    heads: str | None = typer.Option(None, help="Numbers of heads to try, head 1 included, such as 3,6,9; all by default."),
    json: bool = typer.Option(False, "--json", help="Print one JSON object."),
    csv: bool = typer.Option(False, "--csv", help="Print comma-separated values."),
    plot: Path | None = typer.Option(None, help="Picture to draw (.png, .svg or .pdf)."),
    shard: str = typer.Option("0/1", help="Count only part i of n, as i/n; `latticebpd merge` adds the parts up."),
    tally: Path | None = typer.Option(None, help="Write the counts themselves (.json), for `latticebpd merge`."),
) -> None:
    """Oracle top-k block efficiency: what perfect rescoring of the lattices would reach.

    k = 1 is vanilla blockwise decoding. "by position" is the mean over all positions of the greedy text; "by decoding" and
    "at best" (the fewest calls possible) go through each text, where the files number their texts.

    Example: [bold]latticebpd oracle lattices.npz --k 1,4,16 --heads 3,6,9 --plot oracle.png[/bold]
    """
    from latticebpd.analysis import Shard, blocks
    from latticebpd.analysis import tally as count

    widths = positive_numbers("--k", k)
    numbers = positive_numbers("--heads", heads) if heads else []
    with progress() as bar:
        task = bar.add_task("lattices", total=None)

        def counted() -> Any:
            for block in blocks(files, Shard.parse(shard)):
                yield block
                bar.advance(task, len(block))

        found = count(counted(), widths, numbers)
    _show(found, json, csv, plot, tally)


def merge(
    tallies: list[Path] = typer.Argument(..., help="Counts that `latticebpd oracle --tally` wrote."),
    json: bool = typer.Option(False, "--json", help="Print one JSON object."),
    csv: bool = typer.Option(False, "--csv", help="Print comma-separated values."),
    plot: Path | None = typer.Option(None, help="Picture to draw (.png, .svg or .pdf)."),
    tally: Path | None = typer.Option(None, help="Write the sum of the counts (.json)."),
) -> None:
    """Add up the counts of shards: the result is that of one run over everything.

    Example: [bold]latticebpd merge part-*.json --plot oracle.png[/bold]
    """
    from latticebpd.analysis import OracleTally

    total: OracleTally | None = None
    for path in tallies:
        try:
            part = OracleTally.from_json(json_module.loads(path.read_text(encoding="utf-8")))
            total = part if total is None else total + part
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{path}: {error}") from error
    assert total is not None
    _show(total, json, csv, plot, tally)


def compare(
    files: list[Path] = typer.Argument(..., help="Lattice files (.npz)."),
    system: list[str] = typer.Option(
        ["1-best", "16-best:0-gram", "16-best", "64-tree"],
        "--system",
        "-s",
        help="P-best or N-tree, with :0-gram behind for no language model; may be repeated. Vanilla and the oracle are always there.",
    ),
    lm: Path | None = typer.Option(None, help="n-gram model, FST or ARPA; without one every system is a 0-gram."),
    alpha: float = typer.Option(1.0, min=0.0, help="Weight of the language model."),
    seed: int = typer.Option(0, help="Seed of the intervals."),
    json: bool = typer.Option(False, "--json", help="Print one JSON object."),
    csv: bool = typer.Option(False, "--csv", help="Print comma-separated values."),
) -> None:
    """Compare drafting systems on the same lattices, position by position against vanilla.

    Tokens a call are by position, the 95% interval of their gain over vanilla comes from drawing texts anew; "decoding" goes
    through each text, where the files number their texts. Repair and regress: the first draft loses or gains an immediate
    repetition.

    Example: [bold]latticebpd compare lattices.npz --lm lm.fst --system 16-best --system 64-tree[/bold]
    """
    import fst
    from latticebpd.analysis import blocks
    from latticebpd.analysis import compare as compared
    from latticebpd.rescoring import check_vocabulary

    model = fst.NgramModel.load(lm) if lm else None
    with progress() as bar:
        task = bar.add_task("lattices", total=None)

        def checked() -> Any:
            for block in blocks(files):
                check_vocabulary(model, block.fingerprint, owner="the lattices' model")
                yield block
                bar.advance(task, len(block))

        found = compared(checked(), system, model, alpha, seed)
    rows = _comparison_rows(found)
    if json and csv:
        raise ValueError("expected one of --json and --csv, got both")
    if json:
        print_json({"lattices": found.num_lattices, "lm": str(lm) if lm else None, "alpha": alpha, "seed": seed, "systems": rows})
    elif csv:
        _print_csv(rows)
    else:
        _print_comparison(rows, f"{found.num_lattices} lattices, alpha {alpha:g}")


def _print_comparison(rows: list[dict[str, Any]], title: str) -> None:
    table = _table(title, "system", "tokens/call", "decoding", "gain (95%)", "headroom", "verified")
    for row in rows:
        table.add_row(
            row["system"],
            f"{row['block_efficiency']:.3f}",
            _number(row["decoded_block_efficiency"], ".3f"),
            f"{_number(row['gain_low'], '+.2f')}…{_number(row['gain_high'], '+.2f')}",
            _number(row["headroom_recovered"], ".0%"),
            f"{row['verified_tokens']:.1f}",
        )
    out.print(table)
    _print_percentages(
        rows,
        "against vanilla, and where drafts end, % of positions",
        {"win": "win", "tie": "tie", "loss": "loss", "lost_in_lattice": "misranked or cut", "lost_not_in_lattice": "not in lattice"},
    )
    _print_percentages(
        rows,
        "repetition in first drafts, % of positions and of neighbours",
        {"repair": "repair", "regress": "regress", "consecutive_repeats": "equal neighbours"},
    )


def _print_percentages(rows: list[dict[str, Any]], title: str, columns: dict[str, str]) -> None:
    table = _table(title, "system", *columns.values())
    for row in rows:
        table.add_row(row["system"], *(f"{row[name]:.1f}" for name in columns))
    out.print(table)


def _table(title: str, first: str, *columns: str) -> Table:
    table = Table(title=title, box=box.SIMPLE_HEAD)
    table.add_column(first)
    for name in columns:
        table.add_column(name, justify="right")
    return table


def _number(value: float | None, form: str) -> str:
    return "–" if value is None else format(value, form)


def _comparison_rows(found: Comparison) -> list[dict[str, Any]]:
    """One row for every system; None stands for what the files do not tell."""
    efficiency, n = found.block_efficiency, found.num_lattices
    columns = {
        "block_efficiency": efficiency,
        "gain": efficiency - efficiency[0],
        "gain_low": found.gain_interval()[:, 0],
        "gain_high": found.gain_interval()[:, 1],
        "decoded_block_efficiency": found.decoded_block_efficiency,
        "headroom_recovered": found.headroom_recovered,
        "verified_tokens": found.verified_tokens,
        **dict(zip(("win", "tie", "loss"), (100 * found.outcomes / n).T, strict=True)),
        **dict(zip(("repair", "regress"), (100 * found.mended / n).T, strict=True)),
        **dict(zip(("lost_in_lattice", "lost_not_in_lattice", "lost_at_end"), (100 * found.lost / n).T, strict=True)),
        "consecutive_repeats": 100 * found.repeats[:, 0] / found.repeats[:, 1].clip(min=1),
        "longest_run": found.repeats[:, 2] / n,
    }
    return [
        {"system": name, **{key: None if values[i] != values[i] else float(values[i]) for key, values in columns.items()}}
        for i, name in enumerate(found.systems)
    ]


def _print_csv(rows: list[dict[str, Any]]) -> None:
    """Columns whose values are lists are left out."""
    names = [name for name, value in rows[0].items() if not isinstance(value, list)]
    writer = csv_module.DictWriter(sys.stdout, names, extrasaction="ignore")
    writer.writeheader()
    writer.writerows(rows)


def _show(found: OracleTally, json: bool, csv: bool, plot: Path | None, tally: Path | None) -> None:
    from fst.files import replacing

    if json and csv:
        raise ValueError("expected one of --json and --csv, got both")
    rows = _rows(found)
    if tally is not None:
        with replacing(tally) as temporary:
            temporary.write_text(json_module.dumps(found.to_json()) + "\n", encoding="utf-8")
    if plot is not None:
        from latticebpd.analysis.plots import oracle_curves, save

        save(oracle_curves(found), plot)
        err.print(f"{plot}: written")
    if json:
        lost = [
            {"head": head, "misranked": misranked, "not_in_lattice": absent, "text_ended": ended}
            for head, (misranked, absent, ended) in enumerate(found.lost.tolist(), 2)
        ]
        print_json({"lattices": found.num_lattices, "rows": rows, "vanilla_drafts_end": lost})
    elif csv:
        _print_csv(rows)
    else:
        _print_tables(found, rows)


def _rows(found: OracleTally) -> list[dict[str, Any]]:
    """One row for every width and number of heads; None stands for what the files do not tell."""
    from math import isnan

    efficiency, decoded, best = found.block_efficiency, found.decoded_block_efficiency, found.best_block_efficiency
    return [
        {
            "k": k,
            "heads": heads,
            "block_efficiency": float(efficiency[i, j]),
            "decoded_block_efficiency": None if isnan(decoded[i, j]) else float(decoded[i, j]),
            "best_block_efficiency": None if isnan(best[i, j]) else float(best[i, j]),
            "accept_counts": found.counts[i, j].tolist(),
        }
        for i, k in enumerate(found.ks)
        for j, heads in enumerate(found.heads)
    ]


def _print_tables(found: OracleTally, rows: list[dict[str, Any]]) -> None:
    table = _table(f"oracle block efficiency, {found.num_lattices} lattices", "k", "heads", "by position", "by decoding", "at best")
    for row in rows:
        numbers = [row["block_efficiency"], row["decoded_block_efficiency"], row["best_block_efficiency"]]
        table.add_row(f"{row['k']}", f"{row['heads']}", *("–" if number is None else f"{number:.3f}" for number in numbers))
    out.print(table)
    if not found.lost.any():
        return
    columns = ("head", "in the lattice, misranked", "not in the lattice", "end of text")
    table = _table("where vanilla drafts end, % of positions", *columns)
    for head, causes in enumerate(found.lost.tolist(), 2):
        table.add_row(f"{head}", *(f"{100 * cause / found.num_lattices:.1f}" for cause in causes))
    out.print(table)
