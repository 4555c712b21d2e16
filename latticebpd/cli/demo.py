"""``latticebpd demo``: drafting systems side by side, on the bundled model or on a real one."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import typer
from rich.text import Text

from latticebpd.cli.accepted_blocks import BlockWriter
from latticebpd.cli.model_options import WEIGHTS
from latticebpd.cli.tables import table_of
from latticebpd.console import err, out, print_json, progress, quiet_transformers

if TYPE_CHECKING:
    from latticebpd.decoding.front_door import Loaded
    from latticebpd.report.demo_table import Demo, Settings


def demo(
    model: str | None = typer.Option(
        None,
        help=(
            "A model to ask questions: directory, .gguf file, name of `latticebpd models` or of a hub; by default the"
            " bundled toy."
        ),
    ),
    prompts: int | None = typer.Option(
        None, min=1, help="Prompts; 8 of the 12 bundled ones by default, with --model 6 questions."
    ),
    max_new_tokens: int | None = typer.Option(
        None, min=2, help="Tokens to decode per prompt; 64 by default, with --model 48."
    ),
    k: int | None = typer.Option(
        None, "-k", "--k", min=1, help="Arcs per slot: best tokens of each head; 16 by default, with --model 64."
    ),
    p: int | None = typer.Option(
        None, "-p", "--p", min=1, help="Drafts of the p-best systems; 16 by default, with --model none such."
    ),
    nodes: int | None = typer.Option(None, min=1, help="Nodes of the draft tree; 64 by default, with --model 16."),
    threads: int | None = typer.Option(
        None, min=1, max=1024, help="Threads for the model; 1 by default, with --model as many as PyTorch takes."
    ),
    weights: str | None = WEIGHTS,
    json: bool = typer.Option(False, "--json", help="Print one JSON object and nothing else."),
) -> None:
    """Compare drafting systems on one model: tokens per call, tokens per second, and whether the texts are those of
    greedy decoding.

    First one text appears as it is decoded, with the blocks marked that the model accepted; then the table. The bundled
    model continues passages of held-out documents and takes half a minute; a model of your own answers a question of
    each of six tasks.

    Example: [bold]latticebpd demo --prompts 4[/bold]
    Example: [bold]latticebpd demo --model smollm2-135m[/bold]
    """
    with err.status("loading the model") if err.is_terminal else err.capture():
        quiet_transformers()
        import torch

        from latticebpd.decoding.front_door import load
        from latticebpd.report.demo_table import REAL, TOY, prompts_of, run_demo, system_names

        chosen = {"max_new_tokens": max_new_tokens, "k": k, "p": p, "num_nodes": nodes, "threads": threads}
        settings = replace(
            TOY if model is None else REAL, **{name: value for name, value in chosen.items() if value is not None}
        )
        if settings.threads is not None:
            torch.set_num_threads(settings.threads)
        loaded = load(model, weights=weights)
    available = len(prompts_of(loaded))
    count = min(prompts or (8 if model is None else available), available)
    if not json:
        _show(loaded, settings)
    with progress() as bar:
        task = bar.add_task(
            "decoding", total=count * (len(system_names(loaded, settings)) + 1 + (loaded.source is not None))
        )
        result = run_demo(
            loaded, settings, count, lambda name: bar.update(task, advance=1, description=f"decoding: {name}")
        )
    if json:
        print_json(result.as_json())
    else:
        _print(result)
    if not result.exact:
        problem = "a system's text differs from greedy decoding's; please report this with the signature above"
        err.print(f"latticebpd: error: {problem}")
        raise typer.Exit(1)


def _show(loaded: Loaded, settings: Settings) -> None:
    """One decode, block by block."""
    from latticebpd.report.demo_table import about, prompts_of, show, shown_prompt

    prompt = prompts_of(loaded)[shown_prompt(loaded)]
    out.print(about(loaded), soft_wrap=True)
    out.print()
    out.print(Text(prompt.title, style="bold"), soft_wrap=True)
    if loaded.in_chat:
        out.print(Text(prompt.text, style="dim"), end="\n\n", soft_wrap=True)
    tokenizer: Any = loaded.tokenizer
    writer = BlockWriter(out, tokenizer.decode, "" if loaded.in_chat else prompt.text)
    name, result = show(loaded, prompt, settings, writer)
    cost = f"{result.num_tokens} tokens in {result.num_calls} calls"
    out.print(f"Each ┃ begins what one call of the model committed ({name}: {cost}).\n", soft_wrap=True)


def _print(result: Demo) -> None:
    signature = result.signature
    title = f"{signature['prompts']} prompts, up to {signature['max_new_tokens']} tokens each"
    headings = ("tokens\nper call", "verified\nper call", "tokens/s", "speed-up", "calls", "tokens")
    table = table_of(title, "system", *headings, no_wrap=True)
    table.add_row("generate()", "1.000", "0.0", _rate(result.generate_tokens_per_second), "1.00×", "", "")
    for system in result.systems:
        speed_up = system.tokens_per_second / result.generate_tokens_per_second
        table.add_row(
            system.name, f"{system.block_efficiency:.3f}", f"{system.verified_tokens_per_call:.1f}",
            _rate(system.tokens_per_second), f"{speed_up:.2f}×", f"{system.calls}", f"{system.tokens}",
        )  # fmt: skip
    out.print(table)
    same = "Every system's text equals that of greedy decoding with the same weights, token for token"
    count = "all" if result.generate_texts == signature["prompts"] else result.generate_texts
    same += f"; {count} of {signature['prompts']} are those of transformers' generate() with float32 weights."
    out.print(same if result.exact else "A system's text DIFFERS from that of greedy decoding.", soft_wrap=True)
    out.print(" | ".join(f"{name} {value}" for name, value in signature.items()), style="dim")


def _rate(value: float) -> str:
    return f"{value:.{0 if value >= 100 else 1}f}"
