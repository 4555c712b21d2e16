"""``latticebpd ddg``: which tokens decode in parallel, and which had to wait for which."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from latticebpd.checks import expect, extra_module
from latticebpd.cli.jacobi_inputs import FILE, LM, InitialName, initial_values, read_texts, settings_line
from latticebpd.cli.model_options import IGNORE_BEAMS, MODEL
from latticebpd.cli.tables import print_table
from latticebpd.console import err, out, print_json, progress, quiet_transformers, writable_file

if TYPE_CHECKING:
    from latticebpd.jacobi.analysis import ClassStatistics, CorpusStatistics, Sentence

PICTURES = (".png", ".svg", ".pdf")


def ddg(
    file: Path | None = FILE,
    model: Path | None = MODEL,
    output: list[Path] = typer.Option(
        [], "--output", "-o", callback=writable_file, help="Page (.html) or pictures (.png, .svg, .pdf); repeatable."
    ),
    classes_csv: Path | None = typer.Option(None, callback=writable_file, help="Write statistics by class of token."),
    widths_csv: Path | None = typer.Option(None, callback=writable_file, help="Write the statistics by iteration."),
    block_size: int | None = typer.Option(None, min=1, help="Decode in blocks; by default the whole text at once."),
    initial: InitialName = typer.Option(InitialName.padding, help="Initial tokens of a block."),
    lm: Path | None = LM,
    alpha: float | None = typer.Option(None, min=0.0, help="Weight of --lm; by default the stored one, else 1."),
    k: int = typer.Option(16, "-k", "--k", min=1, help="Arcs per slot of the heads' lattices."),
    seed: int = typer.Option(0, help="Seed of --initial random."),
    source: str = typer.Option("en", help="Field of the texts in a .jsonl file."),
    limit: int = typer.Option(20, min=1, help="Maximum number of texts."),
    max_new_tokens: int = typer.Option(128, min=1, help="Length limit."),
    ignore_beams: bool = IGNORE_BEAMS,
    threads: int = typer.Option(1, min=1, max=1024, help="Threads for the model."),
    json: bool = typer.Option(False, "--json", help="Print everything as one JSON object and nothing else."),
) -> None:
    """Draw decoding dependency graphs: every token after each Jacobi iteration, and the tokens that it depended on.

    Example: [bold]latticebpd ddg --limit 2 -o graphs.html[/bold]
    Example: [bold]latticebpd ddg test.jsonl --model translator --limit 10 -o graphs.html -o graph.png[/bold]
    """
    if wrong := [path for path in output if path.suffix.lower() not in (".html", *PICTURES)]:
        raise ValueError(f"{wrong[0]}: expected a name that ends in .html, {', '.join(PICTURES)}")
    if pictures := [path for path in output if path.suffix.lower() in PICTURES]:
        extra_module("matplotlib", "plots", f"the picture {pictures[0]}")
    wanted, remedy = "--initial padding, random, source, heads or ngram", "`latticebpd jacobi` takes earlier outputs"
    expect(initial is not InitialName.previous, wanted, "previous", remedy)
    texts, _ = read_texts(file, source, None, None, limit)
    quiet_transformers()
    import torch

    from fst.files import write_text
    from latticebpd.jacobi.analysis import analyse, corpus_statistics, write_csv
    from latticebpd.loading import load
    from latticebpd.models.transformers.transformers_model import TransformersModel
    from latticebpd.models.weight_kinds import TORCH

    torch.set_num_threads(threads)
    loaded = load(model, ignore_beams=ignore_beams, weights=TORCH)  # texts of the graphs are read without a cache
    served = TransformersModel.of(loaded.target)
    tokenizer: Any = loaded.tokenizer
    first = initial_values(initial, loaded, lm, alpha, k, seed)
    sentences: list[Sentence] = []
    with progress() as bar:
        task = bar.add_task("measuring", total=len(texts))

        def on_progress(share: float) -> None:
            bar.update(task, completed=len(sentences) + share)

        for text in texts:
            sentences.append(analyse(served, tokenizer, text, first, block_size, max_new_tokens, on_progress))
            on_progress(0)
    statistics = corpus_statistics(sentences)
    block = "whole text" if block_size is None else f"blocks of {block_size}"
    about = {"model": loaded.name, "decoded": block, "initial": initial.value}
    settings = settings_line(served, **about, texts=len(texts), max_new_tokens=max_new_tokens)
    for path in output:
        from latticebpd.report.dependency_plots import graphs_page, picture

        if path.suffix.lower() == ".html":
            write_text(path, graphs_page(sentences, statistics, settings))
            continue
        from latticebpd.report.plots import save

        for number, sentence in enumerate(sentences, 1):
            save(picture(sentence), path if len(sentences) == 1 else path.with_stem(f"{path.stem}-{number}"))
    if classes_csv is not None:
        write_csv(statistics.classes, classes_csv)
    if widths_csv is not None:
        write_csv(statistics.iterations, widths_csv)
    if json:
        records = [sentence.record() for sentence in sentences]
        print_json({"settings": settings, "statistics": statistics.record(), "texts": records})
        return
    _print(statistics)
    out.print(settings, style="dim")
    if not output:
        err.print("name a page or a picture with -o to see the graphs", style="dim")


def _print(statistics: CorpusStatistics) -> None:
    def share(count: int, each: ClassStatistics) -> str:
        return f"{count / each.followers:.1%}" if each.followers else ""

    rows = (
        [
            each.name, f"{each.tokens}", share(each.in_parallel, each), f"{each.mean_pass:.1f}",
            f"{each.mean_waits:.2f}", share(each.waited_for_previous, each),
        ]
        for each in statistics.classes
    )  # fmt: skip
    counts = f"{statistics.texts} texts, {statistics.tokens} tokens, {statistics.passes} iterations"
    title = f"{counts}: {statistics.mean_width:.3f} tokens per iteration"
    headings = ("class", "tokens", "in parallel", "iteration", "waits", "for the last")
    caption = "in parallel: right for good no later than the token before; for the last: waited for the token before"
    print_table(title, headings, rows, caption=caption)
