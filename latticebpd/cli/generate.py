"""``latticebpd generate``: continue a text."""

from __future__ import annotations

from pathlib import Path

import typer

from latticebpd.cli.console import err, load_tokenizer, print_json, quiet_transformers


def generate(
    prompt: str = typer.Argument(..., help="Text to continue; - reads standard input."),
    model: Path | None = typer.Option(None, help="Directory of a blockwise model; the bundled one by default."),
    lm: Path | None = typer.Option(None, help="n-gram model, FST or ARPA; the bundled one with the bundled model."),
    nodes: int = typer.Option(64, min=0, help="Nodes of the draft tree; 0 decodes greedily, one token a call."),
    alpha: float | None = typer.Option(None, min=0.0, help="Weight of the n-gram model; the bundled model has a tuned one, else 1."),
    k: int = typer.Option(16, "-k", "--k", min=1, help="Arcs per slot."),
    max_new_tokens: int = typer.Option(128, min=1, help="Length limit."),
    json: bool = typer.Option(False, "--json", help="Print the text and its cost as one JSON object."),
) -> None:
    """Continue a text; the output is the base model's greedy text, whatever the drafts.

    Example: [bold]latticebpd generate "The history of the city"[/bold]
    """
    quiet_transformers()
    import sys

    import fst
    from latticebpd import bundle
    from latticebpd.decoding import generate as decode
    from latticebpd.drafters import NoDrafter, TreeDrafter
    from latticebpd.models import BlockwiseLM

    directory = model or bundle.MODEL
    blockwise = BlockwiseLM.from_pretrained(directory)
    tokenizer = load_tokenizer(directory / "tokenizer.json")
    ngram = None
    if lm is not None or model is None:
        ngram = fst.NgramModel.load(lm or bundle.LM)
    weight = alpha if alpha is not None else bundle.settings()["alpha"] if model is None and lm is None else 1.0
    ids = tokenizer.encode(sys.stdin.read() if prompt == "-" else prompt).ids
    drafter = TreeDrafter(blockwise, ngram, num_nodes=nodes, alpha=weight, k=k) if nodes else NoDrafter()
    out = decode(blockwise, ids, drafter, max_new_tokens=max_new_tokens)
    text = tokenizer.decode(out.sequences[0, len(ids) :].tolist())
    if json:
        print_json({
            "text": text,
            "tokens": out.num_tokens,
            "calls": out.num_calls,
            "block_efficiency": out.block_efficiency if out.num_calls else None,
            "verified_tokens": out.verified_tokens,
        })  # fmt: skip
        return
    print(text)
    err.print(f"{out.num_tokens} tokens in {out.num_calls} calls after the prefill", style="dim")
