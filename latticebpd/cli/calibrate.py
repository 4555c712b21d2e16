"""``latticebpd calibrate``: the weights of calibrated trees."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import typer

from fst.files import require_writable
from latticebpd.checks import expect
from latticebpd.cli.input_data import require_inputs
from latticebpd.cli.tables import print_table
from latticebpd.console import err, next_command, print_json, progress, writable_plot


def calibrate(
    files: list[Path] = typer.Argument(
        ..., help="Lattices of the model's held-out text, made with --context 1024; of a model without heads its texts."
    ),
    lm: Path = typer.Option(..., help="n-gram model (FST or ARPA) of the trees."),
    examples: int = typer.Option(100, min=2, help="Texts (lattices, if texts are not known), drawn at random."),
    positions: int = typer.Option(6000, min=2, help="Positions of these texts, drawn at random."),
    seed: int = typer.Option(0, help="Seed of the draw."),
    write: bool = typer.Option(False, "--write", help="Store it next to the model: N-calibrated is then the default."),
    plot: Path | None = typer.Option(None, callback=writable_plot, help="Write a reliability plot, PNG, SVG or PDF."),
    json: bool = typer.Option(False, "--json", help="Print the record as JSON."),
) -> None:
    """Fit the probabilities of calibrated trees: of heads, n-gram model and the context, slot by slot.

    The weights maximise the probability of the base model's continuations. With --write they are stored as
    MODEL.calibration.json, which names the examples; `compare` and `report` leave these out. It also stores how many of
    the lattice's slots trees of each size need, since prompt lookup continues after them: `generate` computes no
    further heads.

    A model without heads has no lattices: its own texts are enough, as `latticebpd distill` writes them, best those
    that the n-gram model was not estimated from. What is calibrated are then trees of n-gram model and context alone.

    Example: [bold]latticebpd calibrate held-out --lm lm.fst --write[/bold]
    """
    from latticebpd.scoring.calibration import calibration_path

    path = calibration_path(lm)
    if write:
        require_writable(path, "file", "folder")
    require_inputs([lm, *files])
    from fst import NgramModel
    from latticebpd.lattices.shards import stored_texts
    from latticebpd.measuring.calibrate import calibrate as calibrated
    from latticebpd.measuring.calibrate import calibrate_texts
    from latticebpd.measuring.lattice_files import num_lattices
    from latticebpd.measuring.needed_slots import with_needed_slots

    expect(not lm.is_dir(), "an n-gram model", "a neural rescorer, which calibrated trees cannot ask", of=lm)
    model = NgramModel.load(lm)
    texts = stored_texts(files)
    with progress() as bar:
        if texts is None:
            task = bar.add_task("positions", total=num_lattices(files))
            calibration, reliability = calibrated(
                files, model, examples, positions, seed, on_lattice=lambda: bar.advance(task)
            )
            bar.update(task, completed=num_lattices(files))
            task = bar.add_task("slots that trees need", total=None)
            calibration = with_needed_slots(calibration, files, model, on_lattice=lambda: bar.advance(task))
        else:
            task = bar.add_task("texts", total=min(examples, len(texts)))
            calibration, reliability = calibrate_texts(
                texts, model, examples, positions, seed, on_text=lambda: bar.advance(task)
            )
    if write:
        calibration.save(path)
        copies = " and of prompt lookup after them" if calibration.further else ""
        slots = f"{len(calibration.weights) - calibration.further} slots{copies}"
        slots = "trees without heads" if calibration.without_lattices else slots
        needed = "" if calibration.slots is None else f"; trees need the first {calibration.slots}"
        err.print(f"{path}: calibration of {slots}, on {len(calibration.examples)} {calibration.unit}s, stored{needed}")
    if plot is not None:
        from latticebpd.report.plots import reliability_curve, save

        save(reliability_curve(reliability), plot)
        err.print(f"{plot}: written")
    if json:
        measured = {name: values.tolist() for name, values in vars(reliability).items()}
        print_json({**asdict(calibration), "reliability": measured})
        return
    title = f"nats a token on {len(calibration.examples)} {calibration.unit}s, each by weights of the other half"
    slots_shown = [f"{slot}" for slot in range(1, len(calibration.nats) + 1)]
    if calibration.further or calibration.without_lattices:
        slots_shown[-1] = "after them" if calibration.further else "all"
    print_table(title, ("slot", "nats"), zip(slots_shown, map("{:.3f}".format, calibration.nats), strict=True))
    bins = zip(reliability.predicted, reliability.observed, reliability.count, strict=True)
    rows = ([f"{predicted:.3f}", f"{observed:.3f}", f"{count}"] for predicted, observed, count in bins if count)
    print_table("drafted tokens by predicted probability", ("predicted", "right", "tokens"), rows)
    if not write:
        next_command("calibrate {} --lm {} --write", files[0], lm)
    elif (lm.parent / "config.json").exists():
        next_command("generate TEXT --model {}", lm.parent)
