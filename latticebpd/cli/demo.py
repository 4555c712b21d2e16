"""``latticebpd demo``: drafting systems side by side, on the bundled model or on a real one."""

from __future__ import annotations

from dataclasses import asdict, replace
from functools import partial
from typing import TYPE_CHECKING

import typer
from rich.text import Text

from latticebpd.cli.accepted_blocks import BlockWriter
from latticebpd.cli.model_options import MODEL, WEIGHTS
from latticebpd.cli.side_by_side import PausedDecode, show_side_by_side
from latticebpd.cli.tables import print_table
from latticebpd.console import err, out, print_json, progress, quiet_transformers

if TYPE_CHECKING:
    from latticebpd.loading import Loaded
    from latticebpd.report.demo_table import Demo, Settings


def demo(
    model: str | None = MODEL,
    prompts: int | None = typer.Option(None, min=1, help="Prompts; by default 8 of 12, with --model 4 of 6 questions."),
    max_new_tokens: int | None = typer.Option(None, min=2, help="Tokens per prompt; by default 64."),
    k: int | None = typer.Option(
        None, "-k", "--k", min=1, help="Arcs per slot of all systems but the default; 16, or with --model 32."
    ),
    p: int | None = typer.Option(None, "-p", "--p", min=1, help="Drafts of p-best systems; 16, none with --model."),
    nodes: int | None = typer.Option(None, min=1, help="Nodes of the draft tree; 64 by default, with --model 16."),
    threads: int | None = typer.Option(None, min=1, max=1024, help="Threads; 1, or with --model PyTorch's number."),
    every: bool = typer.Option(
        False, "--all", help="With --model, every system, transformers' generate() and all questions."
    ),
    weights: str | None = WEIGHTS,
    json: bool = typer.Option(False, "--json", help="Print one JSON object and nothing else."),
) -> None:
    """Compare drafting systems on one model: tokens per call, tokens per second, and whether the texts are those of
    greedy decoding.

    First one text appears as the default system decodes it, with the accepted blocks marked, in a terminal next to
    greedy decoding; then the table, the default first. The bundled model continues the beginning of a help page, for at
    most 55 tokens, and for the table passages of held-out documents, in half a minute.
    Another model answers questions of several tasks; smollm2-135m takes half a minute on two cores.

    Example: [bold]latticebpd demo --prompts 4[/bold]
    Example: [bold]latticebpd demo --model smollm2-135m[/bold]
    """
    with err.status("loading the model") if err.is_terminal else err.capture():
        quiet_transformers()
        from latticebpd.loading import load
        from latticebpd.models.catalogue import BUNDLED
        from latticebpd.report.demo_table import REAL, TOY, prompts_of, run_demo, runs_generate, system_names

        loaded = load(model, weights=weights)
        default = TOY if loaded.name == BUNDLED else REAL
        options = {"max_new_tokens": max_new_tokens, "k": k, "p": p, "num_nodes": nodes, "threads": threads}
        chosen = {name: value for name, value in options.items() if value is not None}
        settings = replace(default, **chosen, every_system=every or default.every_system)
        if settings.threads is not None:
            import torch

            torch.set_num_threads(settings.threads)
        available = len(prompts_of(loaded))
        count = min(prompts or (available if every else settings.num_prompts), available)
        settings = replace(settings, num_prompts=count)
        runs = len(system_names(loaded, settings)) + runs_generate(loaded, settings)
    if not json:
        _show(loaded, settings)
    with progress() as bar:
        task = bar.add_task("decoding", total=count * runs)
        result = run_demo(loaded, settings, lambda name: bar.update(task, advance=1, description=f"decoding: {name}"))
    if json:
        print_json(asdict(result))
    else:
        _print(result)
    if not result.texts_equal:
        problem = "a system's text differs from greedy decoding's; please report this with the signature above"
        err.print(f"latticebpd: error: {problem}")
        raise typer.Exit(1)


def _show(loaded: Loaded, settings: Settings) -> None:
    """One decode by the default system, block by block; in a terminal next to greedy decoding."""
    from latticebpd.report.demo_table import DEFAULT, GREEDY, about, show, shown_decode

    prompt, settings = shown_decode(loaded, settings)
    out.print(about(loaded))
    out.print()
    out.print(Text(prompt.title, style="bold"))
    out.print(Text(f"{prompt.text}\n" if loaded.in_chat else "", style="dim"))
    text_of = partial(loaded.tokenizer.decode, skip_special_tokens=True)
    before = "" if loaded.in_chat else prompt.text
    if out.is_terminal:
        names = {DEFAULT: "drafts, several tokens a call", GREEDY: "no drafts, one token a call"}
        for name in names:  # warms up
            show(loaded, prompt, replace(settings, max_new_tokens=2), None, name)
        decodes = [
            PausedDecode(name, partial(show, loaded, prompt, settings, name=name), text_of, before, words)
            for name, words in names.items()
        ]
        results = show_side_by_side(out, decodes)
    else:
        names = {DEFAULT: ""}
        results = [show(loaded, prompt, settings, BlockWriter(out, text_of, before), DEFAULT)]
    decoded = zip(names, results, strict=True)
    costs = [f"{name}: {each.num_tokens} tokens in {each.num_calls} calls" for name, each in decoded]
    turns = "; the two take turns, each by its own clock" * (len(names) > 1)
    legend = "Each ┃ starts the tokens that one call of the model committed"
    out.print(f"\n{legend} ({'; '.join(costs)}{turns}).\n")


def _print(result: Demo) -> None:
    from latticebpd.report.demo_table import GENERATE, GREEDY

    signature, stock_rate = result.signature, result.generate_tokens_per_second
    count = signature["prompts"]
    title = f"{count} prompt{'s' * (count > 1)}, up to {signature['max_new_tokens']} tokens each"
    headings = ["system", "tokens\nper call", "verified\nper call", "tokens/s"]
    rates = {system.name: system.tokens_per_second for system in result.systems}
    compared = {GREEDY: rates[GREEDY]} | ({} if stock_rate is None else {GENERATE: stock_rate})
    headings += [f"speed-up\nover\n{name}" for name in compared]

    def speeds(rate: float) -> list[str]:
        return [f"{rate:.1f}", *(f"{rate / each:.2f}×" for each in compared.values())]

    rows: list[list[str]] = []
    for system in result.systems:
        counts = [f"{system.block_efficiency:.3f}", f"{system.verified_tokens_per_call:.1f}"]
        rows.append([system.name, *counts, *speeds(system.tokens_per_second)])
        if system.name == GREEDY and stock_rate is not None:
            rows.append([GENERATE, "1.000", "0.0", *speeds(stock_rate)])
    print_table(title, headings, rows, bold=0)
    lines = [f"default: what `latticebpd generate` runs: {result.default}.", "greedy: the same weights without drafts."]
    if stock_rate is not None:
        lines.append("generate(): transformers on PyTorch, with float32 weights.")
    same = "Every system's text equals that of greedy decoding with the same weights, token for token"
    if result.texts_of_generate is not None:
        equal = "all" if result.texts_of_generate == count else result.texts_of_generate
        same += f"; {equal} of {count} are those of transformers' generate() with float32 weights"
    lines.append(f"{same}." if result.texts_equal else "A system's text DIFFERS from that of greedy decoding.")
    if result.left_out:
        lines.append(f"Left out: {', '.join(result.left_out)}; --all decodes with them too.")
    if result.machine_busy:
        took = f"{result.seconds:.0f} s by the clock, {result.processor_seconds:.0f} s of them on a processor"
        lines.append(f"The machine was busy: {took}; tokens per second are too low.")
    for line in lines:
        out.print(line)
    out.print(" | ".join(f"{name} {value}" for name, value in signature.items()), style="dim")
