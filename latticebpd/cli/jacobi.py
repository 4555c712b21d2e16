"""``latticebpd jacobi``: translate or continue a file by Jacobi decoding, and measure what it gains."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from fst.files import read_text
from latticebpd.checks import expect, extra_module
from latticebpd.cli.jacobi_inputs import FILE, LM, InitialName, initial_values, read_texts, settings_line
from latticebpd.cli.model_options import IGNORE_BEAMS, MODEL
from latticebpd.cli.tables import print_table
from latticebpd.console import err, out, print_json, progress, quiet_transformers, writable_file

if TYPE_CHECKING:
    from latticebpd.jacobi import Initial, Solution
    from latticebpd.jacobi.jacobi_comparison import SystemRun

BEAMS = 5
BEAM = f"beam {BEAMS}"


class Algorithm(StrEnum):
    """The paper's three."""

    jacobi = "jacobi"
    gauss_seidel = "gauss-seidel"
    hybrid = "hybrid"


def jacobi(
    file: Path | None = FILE,
    model: Path | None = MODEL,
    algorithm: Algorithm = typer.Option(Algorithm.hybrid, help="All text at once, blocks, or blocks and then tokens."),
    block_size: int = typer.Option(3, min=1, help="Tokens solved together (not with jacobi)."),
    max_length: int = typer.Option(256, min=0, help="Tokens decoded in blocks before single ones (hybrid)."),
    length: str = typer.Option("estimate", help="Target length (not hybrid): number, `estimate`, `known` (greedy's)."),
    initial: InitialName = typer.Option(InitialName.padding, help="Initial tokens of a block."),
    lm: Path | None = LM,
    alpha: float | None = typer.Option(None, min=0.0, help="Weight of --lm; by default the stored one, else 1."),
    k: int = typer.Option(16, "-k", "--k", min=1, help="Arcs per slot of the heads' lattices."),
    seed: int = typer.Option(0, help="Seed of --initial random."),
    previous: Path | None = typer.Option(None, help="Earlier outputs, one a line, for --initial previous."),
    source: str = typer.Option("en", help="Field of the texts in a .jsonl file."),
    target: str | None = typer.Option(None, help="Field of the references in a .jsonl file, for BLEU."),
    references: Path | None = typer.Option(None, help="References, one a line, for BLEU."),
    limit: int | None = typer.Option(None, min=1, help="Maximum number of texts."),
    batch_size: int = typer.Option(1, min=1, help="Texts decoded together."),
    max_new_tokens: int = typer.Option(128, min=1, help="Length limit."),
    ignore_beams: bool = IGNORE_BEAMS,
    baselines: bool = typer.Option(True, help="Also decode greedily and with beam search, and compare."),
    threads: int = typer.Option(1, min=1, max=1024, help="Threads for the model."),
    output: Path | None = typer.Option(None, "--output", "-o", callback=writable_file, help="File of decoded texts."),
    json: bool = typer.Option(False, "--json", help="Print one JSON object and nothing else."),
) -> None:
    """Translate or continue a file by Jacobi iteration: greedy decoding's text, in fewer passes.

    Prints the speedup over greedy and beam search, measured in the same run.

    Example: [bold]latticebpd jacobi --initial heads[/bold]
    Example: [bold]latticebpd jacobi test.jsonl --model translator --source en --target de -o test.de[/bold]
    """
    texts, right = read_texts(file, source, target, references, limit)
    earlier = _earlier(previous, initial, len(texts))
    bleu = extra_module("sacrebleu.metrics.bleu", "translation", "references").BLEU() if right else None
    quiet_transformers()
    import torch

    from fst.files import write_text
    from latticebpd.decoding.generation_config import GenerationSettings
    from latticebpd.decoding.session import Session
    from latticebpd.jacobi import PreviousOutput, gauss_seidel_jacobi, hybrid_jacobi
    from latticebpd.jacobi import jacobi as parallel_jacobi
    from latticebpd.jacobi.jacobi_comparison import GREEDY, Batch, compare, parallel, stock
    from latticebpd.loading import load
    from latticebpd.models.transformers.transformers_model import TransformersModel
    from latticebpd.models.weight_kinds import TORCH

    torch.set_num_threads(threads)
    loaded = load(model, ignore_beams=ignore_beams, weights=TORCH)  # to be compared with its generate()
    served = TransformersModel.of(loaded.target)
    tokenizer: Any = loaded.tokenizer
    inputs = [tokenizer(text)["input_ids"] for text in texts]
    for ids in (max(inputs, key=len), max(inputs, key=lambda ids: max(ids, default=-1))):
        Session.begin(served, [ids], max_new_tokens=max_new_tokens)  # generate() comes first and checks nothing
    first: Initial = initial_values(initial, loaded, lm, alpha, k, seed)
    earlier_ids = [tokenizer(text_target=text)["input_ids"] for text in earlier]
    number = _number(length, algorithm, baselines)

    def decode(batch: Batch) -> Solution:
        values = PreviousOutput(earlier_ids[batch.start : batch.start + len(batch.ids)]) if earlier_ids else first
        options: Any = {"attention_mask": batch.mask, "max_new_tokens": max_new_tokens}
        if algorithm is Algorithm.hybrid:
            return hybrid_jacobi(served, batch.ids, block_size, values, max_length, **options)
        target_length = batch.lengths if length == "known" else number
        if algorithm is Algorithm.gauss_seidel:
            return gauss_seidel_jacobi(served, batch.ids, block_size, values, target_length, **options)
        return parallel_jacobi(served, batch.ids, values, target_length, **options)

    block = "" if algorithm is Algorithm.jacobi else f", b={block_size}"
    name = f"{algorithm.value}{block}{'' if initial is InitialName.padding else f', {initial.value}'}"
    systems = {GREEDY: stock(served, max_new_tokens), BEAM: stock(served, max_new_tokens, BEAMS)} if baselines else {}
    systems[name] = parallel(served, decode)
    fill = GenerationSettings(served).fill_id
    with progress() as bar:
        task = bar.add_task("decoding", total=None)
        left = not served.is_encoder_decoder
        runs = compare(systems, inputs, fill, left, batch_size, on_batch=lambda: bar.advance(task))
    written = {
        each: [tokenizer.decode(row, skip_special_tokens=True).strip() for row in run.tokens]
        for each, run in runs.items()
    }
    if output is not None:
        write_text(output, "".join(" ".join(line.split()) + "\n" for line in written[name]))
    scores, signature = {}, None
    if bleu is not None:
        scores = {each: bleu.corpus_score(lines, [right]).score for each, lines in written.items()}
        signature = str(bleu.get_signature())
    target_length = "not needed" if algorithm is Algorithm.hybrid else length
    options = {"texts": len(inputs), "batch_size": batch_size, "max_new_tokens": max_new_tokens}
    settings = settings_line(served, model=loaded.name, **options, length=target_length)
    record = _record(runs, name, scores, signature, settings)
    if json:
        print_json({**record, "texts": written[name]})
    else:
        _print(record)
    if record["differing_texts"]:
        err.print(f"{record['differing_texts']} texts differ from greedy decoding's", style="yellow")


def _earlier(previous: Path | None, initial: InitialName, texts: int) -> list[str]:
    """The earlier outputs; lines may be empty."""
    if (previous is None) != (initial is not InitialName.previous):
        raise ValueError("expected --previous FILE together with --initial previous, got one without the other")
    if previous is None:
        return []
    lines = read_text(previous).splitlines()[:texts]
    expect(len(lines) == texts, f"{texts} earlier outputs, one a line", len(lines), of=previous)
    return lines


def _number(length: str, algorithm: Algorithm, baselines: bool) -> int | None:
    """The length option, if it is a number."""
    if algorithm is Algorithm.hybrid or length == "estimate":
        return None
    if length == "known":
        if not baselines:
            raise ValueError("expected --length known with baselines, which it is known from; leave --no-baselines out")
        return None
    if length.isdecimal() and int(length) >= 1:
        return int(length)
    raise ValueError(f"expected --length as a number >= 1, estimate or known, got {length!r}")


def _record(
    runs: dict[str, SystemRun], name: str, bleu: dict[str, float], signature: str | None, settings: str
) -> dict[str, Any]:
    from latticebpd.jacobi.jacobi_comparison import GREEDY

    mine, greedy, beam = runs[name], runs.get(GREEDY), runs.get(BEAM)
    rows = []
    for each, run in runs.items():
        row: dict[str, Any] = {
            "system": each,
            "tokens": sum(map(len, run.tokens)),
            "iterations": sum(run.passes),
            "seconds": sum(run.seconds),
            "flops": sum(run.flops),
            "bleu": bleu.get(each),
        }
        if greedy is not None and beam is not None:
            row |= {
                "iteration_speedup": run.iteration_speedup(greedy),
                "time_speedup": run.time_speedup(greedy),
                "time_speedup_over_beam": run.time_speedup(beam),
                "flops_per_speed": run.flops_per_speed(greedy),
            }
        rows.append(row)
    measures = {"time_speedup": "seconds", "iteration_speedup": "passes"} if greedy is not None else {}
    return {
        "settings": settings,
        "bleu_signature": signature,
        "systems": rows,
        "per_text": {key: mine.distribution(greedy, what) for key, what in measures.items() if greedy is not None},
        "differing_texts": mine.differing(greedy) if greedy is not None else None,
    }


def _print(record: dict[str, Any]) -> None:
    compared, signature = "time_speedup" in record["systems"][0], record["bleu_signature"]
    columns = {"system": "{system}", "passes": "{iterations}", "seconds": "{seconds:.1f}"}
    costs = {"system": "{system}", "FLOPs": "{flops:.3g}"}
    if compared:
        columns |= {"speedup\nin passes": "{iteration_speedup:.2f}×", "over\ngreedy": "{time_speedup:.2f}×"}
        columns |= {f"over\n{BEAM}": "{time_speedup_over_beam:.2f}×"}
        costs |= {"FLOPs / speedup over greedy": "{flops_per_speed:.3g}"}
    columns |= {"BLEU": "{bleu:.2f}"} if signature else {}
    for forms in (columns, costs):
        rows = ([form.format(**row) for form in forms.values()] for row in record["systems"])
        print_table(None, forms, rows)
    if compared:
        spread = {key.removesuffix("_speedup"): values for key, values in record["per_text"].items()}
        quantiles = [f"{100 * float(quantile):g} %" for quantile in spread["time"]]
        lines = ([name, *(f"{value:.2f}×" for value in values.values())] for name, values in spread.items())
        print_table("speedup over greedy, text by text", ["quantile", *quantiles], lines)
    if signature:
        out.print(f"BLEU: {signature}", style="dim")
    out.print(record["settings"], style="dim")
