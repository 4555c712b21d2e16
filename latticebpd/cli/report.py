"""``latticebpd report``: everything that lattices tell, on one page."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from latticebpd.checks import extra_module
from latticebpd.cli.decode_options import FIELD, MEASURE, REFERENCES, RULE, decode_again
from latticebpd.cli.json_option import with_json
from latticebpd.cli.lm_option import named_models, named_paths
from latticebpd.cli.model_options import IGNORE_BEAMS
from latticebpd.cli.oracle import BY
from latticebpd.console import err, load_tokenizer, progress, quiet_transformers, writable_folder

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from latticebpd.report import Measurements


@with_json
def report(
    lattices: list[str] = typer.Argument(..., help="Data sets: lattice files or directories; NAME=PATH names one."),
    output: Path = typer.Option(..., "--output", "-o", callback=writable_folder, help="Directory of report.html."),
    lm: list[str] = typer.Option([], help="FST, ARPA or a neural rescorer's directory, or NAME=PATH; repeatable."),
    model: Path | None = typer.Option(None, help="The lattices' model, for words and decodes of texts."),
    tokenizer: Path | None = typer.Option(None, help="tokenizer.json, for words; the model's by default."),
    alpha: float | None = typer.Option(None, min=0.0, help="Weight of --lm; by default stored, else tuned here."),
    tuning_examples: int = typer.Option(100, min=0, help="Texts to hold out for tuning, at most a quarter of all."),
    budget: int = typer.Option(64, min=1, help="Verified tokens per call that the system named best may need."),
    step: int | None = typer.Option(None, min=0, help="Lattice to draw, by number; else one that rescoring changes."),
    decode_texts: int = typer.Option(4, min=0, help="Texts to decode with --model."),
    ignore_beams: bool = IGNORE_BEAMS,
    rule: list[str] = RULE,
    measure: list[str] = MEASURE,
    references: Path | None = REFERENCES,
    field: str = FIELD,
    by: str | None = BY,
    seed: int = typer.Option(0, help="Seed of intervals and tuning."),
    title: str = typer.Option("Block drafts and what rescoring makes of them", help="Title of the page."),
) -> dict[str, Any]:
    """Write a report: block efficiency, headroom, trade-offs, repetition and entropies, with plots.

    One HTML file that needs no network, in light and dark; every table also as CSV, every plot as PNG. The same input
    gives the same bytes.

    Example: [bold]latticebpd report lattices --lm lm.fst --model model -o report[/bold]
    """
    extra_module("matplotlib", "plots", "a report's plots")
    from latticebpd.models.catalogue import resolved
    from latticebpd.report import DataSet, Options, make_report
    from latticebpd.report import measure as measure_all

    wanted, remedy = "data sets of different names", "; name them as NAME=PATH"
    named = named_paths(lattices, lambda name: bool(name) and "/" not in name, wanted, remedy)
    datasets = [DataSet(name, (Path(path),)) for name, path in named.items()]
    models = named_models(lm)
    options = Options(alpha, tuning_examples, seed, budget, step, by=by)
    with progress() as bar:
        task = bar.add_task("lattices", total=None)
        measurements = measure_all(
            datasets, models, options, watch=lambda doing, done: bar.update(task, advance=done, description=doing)
        )
    of_model: tuple[Any, ...] = ()
    if model is not None:
        asked = {"rules": rule, "measures": measure, "references": references, "field": field, "limit": decode_texts}
        of_model = _with_model(model, Path(datasets[0].paths[0]), measurements, asked, ignore_beams)
    words = tokenizer
    if words is None and model is not None and (own := Path(resolved(model)) / "tokenizer.json").exists():
        words = own
    with progress() as bar:
        bar.add_task("drawing", total=None)
        files = make_report(measurements, title, _word(words), *of_model).write(output)
    err.print(f"{files[0]}: written, with {len(files) - 1} tables and pictures")
    return {"report": str(files[0]), "files": [str(file) for file in files[1:]]}


def _word(tokenizer: Path | None) -> Callable[[int], str]:
    if tokenizer is None:
        return str
    loaded = load_tokenizer(tokenizer)
    return lambda token: loaded.decode([token], skip_special_tokens=False) or str(token)


def _with_model(
    directory: Path, lattices: Path, measurements: Measurements, asked: Mapping[str, Any], ignore_beams: bool
) -> tuple[Any, ...]:
    """What ``make_report`` takes of the model itself where the files hold texts: decodes of some and their quality."""
    quiet_transformers()
    from latticebpd.lattices.shards import lattice_directory, text_weights
    from latticebpd.loading import load

    measured = measurements.sets[0]
    signature, models = measured.comparison.signature, measured.models or None
    loaded = load(directory, ignore_beams=ignore_beams, weights=text_weights(lattices))
    if not (lattice_directory(lattices).is_ours and asked["limit"]):
        return ()
    systems = ["vanilla", "16-best:0-gram", "64-tree:0-gram", *(["16-best", "64-tree"] if models else [])]
    systems += [*(name for name in ("64-calibrated",) if name in measured.efficiency), "oracle"]
    alpha = measurements.options.alpha
    return decode_again(
        loaded, signature.k, [lattices], measured.fitted, systems, models, alpha, signature.given_text, **asked
    )
