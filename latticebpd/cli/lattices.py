"""``latticebpd lattices | rescore``: lattice files, made and rescored."""

from __future__ import annotations

import json as json_module
from pathlib import Path

import typer

from latticebpd.cli.console import err, load_tokenizer, progress, quiet_transformers
from latticebpd.lattice import LatticeSet


def lattices(
    output: Path = typer.Option(..., "--output", "-o", help="Lattice file to write (.npz)."),
    prompts: Path | None = typer.Option(None, help="JSONL with a text field, or a text file; the bundled prompts by default."),
    model: Path | None = typer.Option(None, help="Directory of a blockwise model; the bundled one by default."),
    k: int = typer.Option(16, "-k", "--k", min=1, help="Arcs per slot."),
    max_prompt_tokens: int = typer.Option(64, min=1, help="Tokens of each text that serve as its prompt."),
    max_new_tokens: int = typer.Option(128, min=2, help="Greedy tokens per prompt."),
    limit: int | None = typer.Option(None, min=1, help="How many prompts; all by default."),
) -> None:
    """Decode prompts greedily and write the heads' lattices at every position.

    Example: [bold]latticebpd lattices --prompts held-out.jsonl -o lattices.npz[/bold]
    """
    quiet_transformers()
    from itertools import islice

    from latticebpd import bundle
    from latticebpd.models import BlockwiseLM
    from latticebpd.replay import collect_lattices
    from lm_training.corpus import read_documents

    directory = model or bundle.MODEL
    blockwise = BlockwiseLM.from_pretrained(directory)
    tokenizer = load_tokenizer(directory / "tokenizer.json")
    texts = [document.text for document in islice(read_documents([prompts or bundle.PROMPTS]), limit)]
    encoded = [ids for text in texts if (ids := tokenizer.encode(text).ids[:max_prompt_tokens])]
    with progress() as bar:
        task = bar.add_task("decoding", total=len(encoded))
        found = collect_lattices(blockwise, encoded, k=k, max_new_tokens=max_new_tokens, on_prompt=lambda: bar.advance(task))
    found.save(output)
    err.print(f"{output}: {len(found)} lattices of {found.tokens.shape[1]} slots x {k}")


def rescore(
    files: list[Path] = typer.Argument(..., help="Lattice files (.npz)."),
    lm: Path | None = typer.Option(None, help="n-gram model, FST or ARPA; without one, the lattices' own order."),
    p: int = typer.Option(16, "-p", "--p", min=1, help="Drafts per lattice."),
    alpha: float = typer.Option(1.0, min=0.0, help="Weight of the language model."),
) -> None:
    """Print the p best drafts of every lattice, one JSON object a line.

    Example: [bold]latticebpd rescore lattices.npz --lm lm.fst -p 4[/bold]
    """
    import fst
    from latticebpd.rescoring import check_vocabulary

    model = fst.NgramModel.load(lm) if lm else None
    for file in files:
        found = LatticeSet.load(file)
        check_vocabulary(model, found.fingerprint, owner=str(file))
        for index in range(len(found)):
            lattice = found[index]
            tokens, scores = fst.nbest_paths(lattice.tokens, lattice.log_probs, model, p=p, alpha=alpha, context=found.context_of(index))
            print(json_module.dumps({"file": str(file), "lattice": index, "tokens": tokens.tolist(), "scores": scores.tolist()}))
