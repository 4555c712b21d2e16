"""``latticebpd demo``: the whole path on the bundled model and text."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer
from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from latticebpd.cli.blocks import blocks_text
from latticebpd.cli.console import err, out, print_json, progress, quiet_transformers

if TYPE_CHECKING:
    from latticebpd.analysis.demo import Demo
    from latticebpd.models.bundle import Bundle


def demo(
    json: bool = typer.Option(False, "--json", help="Print one JSON object and nothing else."),
    prompts: int = typer.Option(8, min=1, help="How many of the 12 bundled prompts."),
    max_new_tokens: int = typer.Option(64, min=2, help="Tokens to decode per prompt."),
    k: int = typer.Option(16, "-k", "--k", min=1, help="Arcs per slot: the best tokens of each head."),
    p: int = typer.Option(16, "-p", "--p", min=1, help="Drafts of the p-best systems."),
    nodes: int = typer.Option(64, min=1, help="Nodes of the draft tree."),
    threads: int = typer.Option(1, min=1, max=1024, help="Threads for the model, which is so small that one is as fast as two."),
) -> None:
    """Decode the bundled prompts with every drafting system and compare them.

    Example: [bold]latticebpd demo --prompts 4[/bold]
    """
    with err.status("loading the bundled model") if err.is_terminal else err.capture():
        quiet_transformers()
        import torch

        torch.set_num_threads(threads)
        from latticebpd.analysis.demo import run_demo
        from latticebpd.models.bundle import load_bundle

        bundle = load_bundle()
    count = min(prompts, len(bundle.prompts))
    with progress() as bar:
        task = bar.add_task("decoding", total=count * 9)
        result = run_demo(
            bundle,
            num_prompts=count,
            max_new_tokens=max_new_tokens,
            k=k,
            p=p,
            num_nodes=nodes,
            on_run=lambda name: bar.update(task, advance=1, description=f"decoding: {name}"),
        )
    if json:
        print_json(result.as_json())
    else:
        _print(result, bundle, nodes)
    if not result.exact:
        err.print("latticebpd: error: a system's text differs from the base model's; please report this with the signature above")
        raise typer.Exit(1)


def _print(result: Demo, bundle: Bundle, nodes: int) -> None:
    signature = result.signature
    greedy = next(system for system in result.systems if system.name == "greedy")
    table = Table(box=SIMPLE_HEAD, title=f"{signature['prompts']} held-out prompts, {signature['max_new_tokens']} tokens each")
    table.add_column("system", no_wrap=True)
    for heading in ("block\nefficiency", "verified\nper call", "tokens/s", "vs.\ngreedy", "calls", "tokens"):
        table.add_column(heading, justify="right")
    for system in result.systems:
        table.add_row(
            system.name,
            f"{system.block_efficiency:.3f}",
            f"{system.verified_tokens_per_call:.1f}",
            f"{system.tokens_per_second:.0f}",
            f"{system.tokens_per_second / greedy.tokens_per_second:.2f}×",
            f"{system.calls}",
            f"{system.tokens}",
        )
    out.print(table)
    same = "Every system's text equals greedy decoding's, token for token." if result.exact else "A system's text DIFFERS from greedy's."
    out.print(same)
    out.print(f"Greedy by transformers' generate() in the same run: {result.generate_tokens_per_second:.0f} tokens/s.")
    out.print(" | ".join(f"{name} {value}" for name, value in signature.items()), style="dim")
    out.print()
    prompt = bundle.prompts[0]
    out.print(Text(f"{prompt.source}, {prompt.id}", style="bold"))
    out.print(blocks_text(prompt.text, result.example.blocks(), lambda ids: bundle.tokenizer.decode(ids, skip_special_tokens=False)))
    out.print(f"Each ┃ begins the tokens that one call of the model committed ({nodes}-node tree).", style="dim")
