"""``latticebpd compare``: what drafting systems make of the same lattices."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from latticebpd.checks import expect
from latticebpd.cli.decode_options import FIELD, MEASURE, REFERENCES, RULE, decode_again
from latticebpd.cli.lm_option import alphas_of, named_models
from latticebpd.cli.model_options import BIGRAM, DRAFTER_MODEL, IGNORE_BEAMS
from latticebpd.cli.oracle import BY, EXCLUDE, SHARD, TALLY, excluded, write_tally
from latticebpd.cli.tables import decoded_rows, number, number_or_none, print_decoded, print_table
from latticebpd.console import err, print_json, progress, quiet_transformers

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from latticebpd.measuring import Comparison
    from latticebpd.measuring.examples import FittedRecord
    from latticebpd.measuring.tuning import AlphaSweep
    from latticebpd.scoring.rescoring import LanguageModel


def compare(
    files: list[Path] = typer.Argument(..., help="Lattice files (.npz), or directories of them."),
    system: list[str] = typer.Option(
        ["1-best", "16-best:0-gram", "16-best", "64-tree"], "--system", "-s", help="P-best or N-tree; see above."
    ),
    lm: list[str] = typer.Option([], help="FST, ARPA or a neural rescorer's directory, or NAME=PATH; repeatable."),
    alpha: float | None = typer.Option(None, min=0.0, help="Weight of --lm; by default the system's own, else 1."),
    alphas: str | None = typer.Option(None, help="Also show every system at these weights: 0.5,1,2, or `paper`."),
    by: str | None = BY,
    exclude: Path | None = EXCLUDE,
    prompt_context: bool = typer.Option(True, help="Language models see the prompt; else only the answer."),
    seed: int = typer.Option(0, help="Seed of the intervals."),
    json: bool = typer.Option(False, "--json", help="Print one JSON object."),
    model: Path | None = typer.Option(
        None, help="The lattices' model: decode texts (in directories) too, by their weights."
    ),
    drafter_model: Path | None = DRAFTER_MODEL,
    bigram: bool = BIGRAM,
    decode_texts: int = typer.Option(8, min=1, help="Texts to decode with --model."),
    ignore_beams: bool = IGNORE_BEAMS,
    rule: list[str] = RULE,
    measure: list[str] = MEASURE,
    references: Path | None = REFERENCES,
    field: str = FIELD,
    shard: str = SHARD,
    tally: Path | None = TALLY,
) -> None:
    """Compare drafting systems on the same lattices, call by call against vanilla.

    Counts the calls of each system's decode of each text, or with --by position all positions. The 95% interval of the
    gain over vanilla is a bootstrap over texts. At each call the system's drafts win against the vanilla draft of the
    same lattice, tie or lose. Repair and regress: the first draft loses or gains an immediate repetition. A system
    with :0-gram has no language model, with :NAME the one of that name; vanilla and the oracle are always included.

    Example: [bold]latticebpd compare lattices --lm lm.fst --system 16-best --system 64-tree[/bold]
    """
    from latticebpd.drafters.system_names import NO_MODEL, SystemName
    from latticebpd.measuring import Shard, blocks
    from latticebpd.measuring import compare as compared
    from latticebpd.measuring.examples import exclude_examples
    from latticebpd.measuring.lattice_files import num_lattices, with_progress, without_prompts
    from latticebpd.measuring.tuning import sweep_alpha
    from latticebpd.scoring.rescoring import check_vocabulary
    from latticebpd.scoring.weights import POSITION

    models, part = named_models(lm), Shard.parse(shard)
    weights = alphas_of("--alphas", alphas) if alphas else []
    if model is None and (measure or references is not None or drafter_model is not None or rule != ["exact"]):
        raise ValueError("expected --model with --rule, --measure, --references and --drafter-model, got none")
    wanted = "--alphas without --shard and --tally"
    expect(not weights or (part.count <= 1 and tally is None), wanted, "both", "counts of several weights do not merge")
    tunings = [*_tunings(files, models), *excluded(exclude)]

    def checked(positions: bool = False) -> Any:
        lattices = blocks(files) if prompt_context else without_prompts(blocks(files))
        for block in exclude_examples(lattices, tunings):
            for name, each in models.items():
                check_vocabulary(each, block.fingerprint, block.vocab_size, f"the lattices' model ({name})")
            yield replace(block, sequence=None) if positions else block

    with progress() as bar:
        rescored = [name for name in system if SystemName.parse(name).chosen(models) != NO_MODEL] if weights else []
        task = bar.add_task("lattices", total=num_lattices(files) * (1 + len(rescored)))
        read = with_progress(checked(), lambda done: bar.advance(task, done))
        comparison = compared(read, system, models or None, alpha, seed, by=by, shard=part)
        sweeps = []
        for name in rescored:
            bar.update(task, description=f"weights of {name}")
            parsed = SystemName.parse(name)
            read = with_progress(checked(by == POSITION), lambda done: bar.advance(task, done))
            sweeps.append(sweep_alpha(read, str(parsed), models[parsed.chosen(models)], weights))
    if not prompt_context:
        comparison = replace(comparison, signature=replace(comparison.signature, context="answer"))
    decoded: list[dict[str, Any]] = []
    if model is not None:
        quiet_transformers()
        signature = comparison.signature
        from latticebpd.lattices.shards import text_weights
        from latticebpd.loading import load

        made_by = text_weights(files[0])
        loaded = load(model, drafter=drafter_model, ignore_beams=ignore_beams, bigram=bigram, weights=made_by)
        again, quality = decode_again(
            loaded, signature.k, files, tunings, comparison.systems, models or None, alpha, signature.given_text,
            decode_texts, rule, measure, references, field, prompt_context,
        )  # fmt: skip
        decoded = decoded_rows(again, quality)
    show_comparison(comparison, json, tally, dict(zip(rescored, sweeps, strict=True)), decoded)


def show_comparison(
    comparison: Comparison,
    json: bool,
    tally: Path | None = None,
    sweeps: Mapping[str, AlphaSweep] | None = None,
    decoded: Sequence[dict[str, Any]] = (),
) -> None:
    rows, sweeps = comparison_rows(comparison), sweeps or {}
    write_tally(comparison, tally)
    if json:
        swept = [
            {"system": name, "alphas": list(sweep.alphas), "block_efficiency": sweep.block_efficiency.tolist(),
             "best": sweep.best, "by": sweep.by}
            for name, sweep in sweeps.items()
        ]  # fmt: skip
        signature = comparison.signature
        print_json({
            "signature": asdict(signature), "by": signature.by, "lattices": comparison.num_lattices,
            "seed": signature.seed, "systems": rows, "alpha_sweep": swept, "decoded": list(decoded),
        })  # fmt: skip
    else:
        _print_comparison(rows, comparison)
        if sweeps:
            _print_sweeps(sweeps)
        if decoded:
            measures = list(decoded[0])[list(decoded[0]).index("differing_texts") + 1 :]
            efficiencies = ("block_efficiency", "block_efficiency_with_prefill")
            print_decoded(decoded, "system", (*efficiencies, "calls", "tokens", "differing_texts", *measures))
        err.print(str(comparison.signature), style="dim")


def _tunings(files: list[Path], models: dict[str, LanguageModel]) -> list[FittedRecord]:
    """The tunings and calibrations whose examples these lattices hold."""
    from latticebpd.measuring.examples import lattices_fingerprint
    from latticebpd.scoring.rescoring import fitted_records

    stored = {name: records for name, model in models.items() if (records := fitted_records(model))}
    fingerprint = lattices_fingerprint(files) if stored else None
    used: list[FittedRecord] = []
    for name, tunings in stored.items():
        if own := [tuning for tuning in tunings if tuning.lattices == fingerprint]:
            examples = {number for tuning in own for number in tuning.examples}
            err.print(f"{len(examples)} {own[0].unit}s that {name}'s weights were fitted to are left out", style="dim")
            used += own
    return used


def _print_comparison(rows: list[dict[str, Any]], comparison: Comparison) -> None:
    steps = comparison.signature.steps
    title = f"{comparison.signature.counted}, {comparison.num_lattices} lattices"
    headings = ("system", "tokens/call", "with prefill", "gain (95%)", "headroom", "verified", steps)
    lines = (
        [
            row["system"], f"{row['block_efficiency']:.3f}", number(row["block_efficiency_with_prefill"], ".3f"),
            "–" if row["gain_low"] is None else f"{row['gain_low']:+.2f} to {row['gain_high']:+.2f}",
            number(row["headroom_recovered"], ".0%"), f"{row['verified_tokens']:.1f}", f"{row['steps']}",
        ]
        for row in rows
    )  # fmt: skip
    print_table(title, headings, lines)
    ends = ("win", "tie", "loss", "misranked", "cut", "not_in_lattice")
    repetition = ("repair", "regress", "consecutive_repeats", "longest_run")
    cut = "it is in the lattice, but no node was left to draft it."
    note = f"misranked: others are drafted in the right token's place; cut: {cut}"
    for title, columns, caption in (
        (f"against vanilla, and where drafts end, % of {steps}", ends, note),
        (f"repetition in first drafts, % of {steps} and of neighbours; tokens of the longest run", repetition, None),
    ):
        words = (name.replace("consecutive_repeats", "equal neighbours").replace("_", " ") for name in columns)
        shares = ([row["system"], *(f"{row[name]:.1f}" for name in columns)] for row in rows)
        print_table(title, ("system", *words), shares, caption=caption)


def _print_sweeps(sweeps: Mapping[str, AlphaSweep]) -> None:
    first, *_ = swept = list(sweeps.values())
    rows = (
        [f"{alpha:g}", *(f"{'* ' if each.best == alpha else ''}{each.block_efficiency[i]:.3f}" for each in swept)]
        for i, alpha in enumerate(first.alphas)
    )
    print_table(f"tokens/call by weight of the language model, by {first.by}", ("alpha", *sweeps), rows)


def comparison_rows(comparison: Comparison) -> list[dict[str, Any]]:
    """One row for every system; None stands for what the files do not tell."""
    from latticebpd.measuring.mergeable_counts import ratio
    from latticebpd.measuring.oracle_tally import CUT, END_OF_TEXT, MISRANKED, NOT_IN_LATTICE

    efficiency, interval, lost = comparison.block_efficiency, comparison.gain_interval(), comparison.lost_share
    steps = comparison.steps[:, None]
    columns = {
        "block_efficiency": efficiency,
        "block_efficiency_with_prefill": comparison.block_efficiency_with_prefill,
        "gain": efficiency - efficiency[0],
        "gain_low": interval[:, 0],
        "gain_high": interval[:, 1],
        "relative_gain": efficiency / efficiency[0] - 1,
        "headroom_recovered": comparison.headroom_recovered,
        "verified_tokens": comparison.verified_tokens,
        **dict(zip(("win", "tie", "loss"), comparison.outcome_share.T, strict=True)),
        **dict(
            zip(("repair", "regress"), ratio(100 * comparison.repetition_changes.sum(axis=1), steps).T, strict=True)
        ),
        **dict(zip(("win_repair", "win_regress"), comparison.repetition_shares(0).T, strict=True)),
        **dict(zip(("loss_repair", "loss_regress"), comparison.repetition_shares(2).T, strict=True)),
        "misranked": lost[:, MISRANKED],
        "cut": lost[:, CUT],
        "not_in_lattice": lost[:, NOT_IN_LATTICE],
        "text_ended": lost[:, END_OF_TEXT],
        "consecutive_repeats": comparison.consecutive_repeats,
        "longest_run": comparison.longest_run,
    }
    return [
        {"system": name, "by": comparison.signature.by, "steps": int(comparison.steps[i]),
         **{key: number_or_none(values[i]) for key, values in columns.items()}}
        for i, name in enumerate(comparison.systems)
    ]  # fmt: skip
