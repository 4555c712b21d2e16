"""``latticebpd oracle``: how much the lattices hold, counted in parts or at once."""

from __future__ import annotations

from dataclasses import asdict
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from latticebpd.cli import tables
from latticebpd.cli.model_options import BIGRAM, DRAFTER_MODEL, IGNORE_BEAMS
from latticebpd.console import (
    err,
    positive_numbers,
    print_json,
    progress,
    quiet_transformers,
    writable_file,
    writable_plot,
)
from latticebpd.lattices.json_files import write_json

if TYPE_CHECKING:
    from latticebpd.loading import Loaded
    from latticebpd.measuring import OracleTally
    from latticebpd.measuring.mergeable_counts import MergeableCounts
    from latticebpd.scoring.weights import Tuning


BY: Any = typer.Option(None, help="Count decodes' calls (decode) or positions (position, where texts are not known).")
EXCLUDE: Any = typer.Option(None, help="Leave out this tuning's examples too (.json), as those of stored weights.")
TALLY: Any = typer.Option(None, callback=writable_file, help="Write the counts (.json), for `latticebpd merge`.")
SHARD: Any = typer.Option("0/1", help="Count only part i of n, as i/n; `latticebpd merge` adds the parts up.")


def oracle(
    files: list[Path] = typer.Argument(..., help="Lattice files (.npz), or directories of them."),
    k: str = typer.Option("1,2,4,8,16", "-k", "--k", help="Arcs per slot to try, separated by commas."),
    heads: str | None = typer.Option(None, help="Numbers of heads to try, head 1 included: 3,6,9; all by default."),
    json: bool = typer.Option(False, "--json", help="Print one JSON object."),
    plot: Path | None = typer.Option(None, callback=writable_plot, help="Plot to write (.png, .svg or .pdf)."),
    shard: str = SHARD,
    tally: Path | None = TALLY,
    by: str | None = BY,
    exclude: Path | None = EXCLUDE,
    model: Path | None = typer.Option(
        None, help="The lattices' model: decode texts (in directories) again, by their weights."
    ),
    limit: int = typer.Option(8, min=1, help="Texts to decode with --model."),
    drafter_model: Path | None = DRAFTER_MODEL,
    bigram: bool = BIGRAM,
    ignore_beams: bool = IGNORE_BEAMS,
) -> None:
    """Oracle top-k block efficiency: what perfect rescoring of the lattices would reach.

    k = 1 is vanilla blockwise decoding. Counts the calls of decodes of each text, or with --by position all positions
    of the greedy text. "At best" is the fewest calls possible. With --model the first texts are decoded by the model
    itself, with an oracle that knows them.

    Example: [bold]latticebpd oracle lattices.npz --k 1,4,16 --heads 3,6,9 --plot oracle.png[/bold]
    """
    from latticebpd.measuring import Shard, blocks
    from latticebpd.measuring import tally as count
    from latticebpd.measuring.examples import exclude_examples
    from latticebpd.measuring.lattice_files import num_lattices, with_progress

    widths = positive_numbers("--k", k)
    numbers = positive_numbers("--heads", heads) if heads else []
    part, tunings = Shard.parse(shard), excluded(exclude)
    with progress() as bar:
        task = bar.add_task("lattices", total=num_lattices(files))
        read = exclude_examples(with_progress(blocks(files), lambda done: bar.advance(task, done)), tunings)
        counted = count(read, widths, numbers, by, part)
    decoded = None
    if model is not None:
        quiet_transformers()
        from latticebpd.lattices.shards import text_weights
        from latticebpd.loading import load

        made_by = text_weights(files[0])
        loaded = load(model, drafter=drafter_model, ignore_beams=ignore_beams, bigram=bigram, weights=made_by)
        decoded = _decode(files, loaded, widths, limit, tunings, counted.signature.given_text)
    show_oracle(counted, json, plot, tally, decoded)


def excluded(path: Path | None) -> list[Tuning]:
    """The tunings of ``--exclude``."""
    from latticebpd.scoring.weights import Tuning

    return [] if path is None else list(Tuning.load(path))


def _decode(
    files: list[Path], loaded: Loaded, ks: list[int], limit: int, tunings: list[Tuning], given_text: bool
) -> list[dict[str, Any]]:
    from latticebpd.drafters.lattice_drafter import OracleDrafter
    from latticebpd.lattices.shards import text_ends
    from latticebpd.measuring.examples import remaining_texts
    from latticebpd.measuring.model_decodes import decode

    texts = [text for _, text in islice(remaining_texts(files, tunings), limit)]
    with progress() as bar:
        task = bar.add_task("decoding", total=len(texts) * len(ks))
        drafters = {f"k={k}": partial(OracleDrafter, loaded.lattice_source(k)) for k in ks}  # k = 1 is vanilla
        ends = text_ends(files[0])
        decoded = decode(loaded.target, texts, drafters, lambda: bar.advance(task), given_text, eos_ids=ends)
    if decoded.differing.any():
        tables.warn_differing(int(decoded.differing.max()))
    return [
        {"k": int(row.pop("system").removeprefix("k=")), **row, "accept_counts": decoded.counts[i].tolist()}
        for i, row in enumerate(tables.decoded_rows(decoded))
    ]


def write_tally(counted: MergeableCounts, path: Path | None) -> None:
    if path is not None:
        write_json(path, counted.to_json())


def show_oracle(
    counted: OracleTally, json: bool, plot: Path | None, tally: Path | None, decoded: list[dict[str, Any]] | None = None
) -> None:
    rows = _rows(counted)
    write_tally(counted, tally)
    if plot is not None:
        from latticebpd.report.plots import oracle_curves, save

        save(oracle_curves(counted), plot)
        err.print(f"{plot}: written")
    if json:
        lost = [
            {"head": head, "misranked": misranked, "not_in_lattice": absent, "text_ended": ended}
            for head, (misranked, absent, ended) in enumerate(counted.lost.tolist(), 2)
        ]
        record = {
            "signature": asdict(counted.signature), "by": counted.signature.by, "lattices": counted.num_lattices,
            "rows": rows, "vanilla_drafts_end": lost,
        }  # fmt: skip
        print_json(record if decoded is None else {**record, "decoded": decoded})
    else:
        _print_tables(counted, rows)
        if decoded:
            tables.print_decoded(decoded, "k", ("block_efficiency", "calls", "tokens"))
        err.print(str(counted.signature), style="dim")


def _rows(counted: OracleTally) -> list[dict[str, Any]]:
    """One row for every width and number of heads; None stands for what the files do not tell."""
    efficiency, best = counted.block_efficiency, counted.best_block_efficiency
    return [
        {
            "k": k,
            "heads": heads,
            "by": counted.signature.by,
            "block_efficiency": float(efficiency[i, j]),
            "best_block_efficiency": tables.number_or_none(best[i, j]),
            "accept_counts": counted.counts[i, j].tolist(),
        }
        for i, k in enumerate(counted.ks)
        for j, heads in enumerate(counted.heads)
    ]


def _print_tables(counted: OracleTally, rows: list[dict[str, Any]]) -> None:
    steps, by = counted.signature.steps, counted.signature.counted
    names = [[f"{row['k']}", f"{row['heads']}"] for row in rows]
    numbers = ((row["block_efficiency"], row["best_block_efficiency"]) for row in rows)
    lines = ([*name, *(tables.number(each, ".3f") for each in pair)] for name, pair in zip(names, numbers, strict=True))
    title = f"oracle block efficiency {by}, {counted.num_lattices} lattices"
    tables.print_table(title, ("k", "heads", "tokens/call", "at best"), lines, names=2)
    lengths = [f"{length}" for length in range(counted.counts.shape[2])]
    shares = counted.accepted_share.reshape(len(rows), -1).tolist()
    lines = ([*name, *map("{:.1f}".format, each)] for name, each in zip(names, shares, strict=True))
    tables.print_table(f"{steps} by accepted drafted tokens, %", ("k", "heads", *lengths), lines, names=2)
    if counted.lost.any():
        columns = ("head", "in the lattice, misranked", "not in the lattice", "end of text")
        lines = ([f"{head}", *map("{:.1f}".format, each)] for head, each in enumerate(counted.lost_share.tolist(), 2))
        tables.print_table(f"where vanilla drafts end, % of {steps}", columns, lines)
