"""``latticebpd lattices | rescore``: collect and rescore lattice files."""

from __future__ import annotations

import hashlib
import json as json_module
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from latticebpd.checks import expect
from latticebpd.cli.input_data import read_texts, readable, require_inputs
from latticebpd.cli.json_option import with_json
from latticebpd.cli.model_options import BIGRAM, CHAT, DRAFTER_MODEL, IGNORE_BEAMS, PART, SYSTEM_PROMPT, WEIGHTS
from latticebpd.console import err, next_command, print_json, progress, quiet_transformers, writable

if TYPE_CHECKING:
    from latticebpd.scoring.scorer import Scorer

TOGETHER = 256
"""Lattices that are rescored in one batch."""


@with_json
def lattices(
    output: Path = typer.Option(..., "--output", "-o", callback=writable, help="File (.npz) or directory of lattices."),
    prompts: Path | None = typer.Option(
        None,
        callback=readable,
        help="Text, JSONL, `messages`, Spec-Bench questions, ids (.npy), sequences (.npz); or the bundled ones.",
    ),
    model: Path | None = typer.Option(None, help="A model with heads: directory or name; the bundled one by default."),
    drafter_model: Path | None = DRAFTER_MODEL,
    bigram: bool = BIGRAM,
    k: int = typer.Option(16, "-k", "--k", min=1, help="Arcs per slot."),
    teacher_force: bool = typer.Option(False, "--teacher-force", help="Take what follows prompts from the data."),
    max_prompt_tokens: int = typer.Option(64, min=1, help="A text's first tokens, its prompt (encoder–decoders: all)."),
    max_new_tokens: int = typer.Option(128, min=2, help="Tokens after each prompt."),
    context: int = typer.Option(8, min=1, help="Tokens kept before each lattice, for language models."),
    prompt_context: bool = typer.Option(True, help="Whether --context includes the prompt; else only the answer."),
    ignore_beams: bool = IGNORE_BEAMS,
    weights: str | None = WEIGHTS,
    limit: int | None = typer.Option(None, min=1, help="Number of prompts; all by default."),
    shard_size: int = typer.Option(64, min=1, help="Texts per shard of a directory; a stopped run loses one shard."),
    part: str | None = PART,
    batch_size: int = typer.Option(8, min=1, help="Prompts decoded together."),
    field: str = typer.Option("text", help="JSONL field that holds the text."),
    chat: bool | None = CHAT,
    system_prompt: str | None = SYSTEM_PROMPT,
) -> dict[str, Any]:
    """Decode prompts greedily and write the lattices of heads, or of a block drafter, at every position.

    Into a directory they are written in shards: the same command resumes a stopped run. Every command that reads
    lattice files reads such directories too.

    Example: [bold]latticebpd lattices --prompts held-out.jsonl -o lattices[/bold]
    """
    single = output.suffix == ".npz"
    if not single and output.exists() and not output.is_dir():
        raise ValueError(f"{output}: expected a name that ends in .npz, or a directory, found a file")
    require_inputs([] if prompts is None else [prompts], model, drafter_model)
    quiet_transformers()
    from latticebpd.drafters import bundled
    from latticebpd.lattices.shards import parse_part, share_size
    from latticebpd.loading import load
    from latticebpd.measuring.collect import CollectOptions, NoLatticeError, as_source, collect, collect_shards

    mine = parse_part(part)
    wanted = "a directory to fill part by part"
    expect(not single or mine[1] <= 1, wanted, "the name of a single file", "leave .npz out", of=output)
    source = prompts or bundled.PROMPTS
    loaded = load(
        model, drafter=drafter_model, chat=chat, system_prompt=system_prompt, ignore_beams=ignore_beams, bigram=bigram,
        weights=weights,
    )  # fmt: skip
    drafts = as_source(loaded.lattice_source(), k)  # refuses a k that cannot be before a directory is claimed for it
    format_, slots = loaded.prompts, drafts.num_slots
    following = max_new_tokens + slots  # the last lattices look a little beyond the limit
    target = loaded.target
    data = read_texts(source, format_, max_prompt_tokens, following, field, limit, target.is_encoder_decoder)
    ends = None if set(format_.eos_ids or target.eos_ids) == set(target.eos_ids) else tuple(format_.eos_ids or ())
    options = CollectOptions(k, max_new_tokens, context, teacher_force, prompt_context, ends)
    with progress() as bar:
        task = bar.add_task("texts", total=share_size(len(data), shard_size, mine))
        try:
            if single:
                lattice_set, _ = collect(drafts, data, options, batch_size, lambda: bar.advance(task))
                if not len(lattice_set):
                    raise NoLatticeError
                lattice_set.save(output)
            else:
                digest = hashlib.sha256(data.tokens.tobytes()).hexdigest()[:16]  # tells one data set from another
                about = {"data": source.name, "data_tokens": f"sha256:{digest}"}
                about |= {} if weights is None else {"weights": weights}
                done = partial(bar.advance, task)
                collect_shards(drafts, data, output, options, shard_size, about, batch_size, done, mine)
        except NoLatticeError as error:
            raise ValueError(f"{source}: {error}") from error
    amount = f"{len(lattice_set)} lattices" if single else f"lattices of {len(data)} text{'s' * (len(data) != 1)}"
    err.print(f"{output}: {amount} of {slots} slots x {k}")
    if model is not None and drafter_model is None and loaded.lm is not None:
        next_command("calibrate {} --lm {} --write", output, loaded.lm)
    else:
        next_command("compare {}", output)
    counts = {"lattices": len(lattice_set)} if single else {"texts": len(data)}
    return {"output": str(output), **counts, "slots": slots, "k": k}


def rescore(
    files: list[Path] = typer.Argument(..., help="Lattice files (.npz), or directories of them."),
    lm: Path | None = typer.Option(None, help="n-gram model, FST or ARPA, or a neural rescorer's directory."),
    p: int = typer.Option(16, "-p", "--p", min=1, help="Drafts per lattice."),
    alpha: float | None = typer.Option(None, min=0.0, help="Weight of --lm; by default the stored one, else 1."),
    json: bool = typer.Option(False, "--json", help="Print one JSON array of these objects."),
) -> None:
    """Print the p best drafts of every lattice, one JSON object a line.

    Example: [bold]latticebpd rescore lattices.npz --lm lm.fst -p 4[/bold]
    """
    from latticebpd.scoring.rescoring import as_scorer

    records = _rescored(files, as_scorer(lm, alpha, f"{p}-best"), p)
    if json:
        print_json([*records])
        return
    for record in records:
        print(json_module.dumps(record))


def _rescored(files: Iterable[Path], scorer: Scorer, p: int) -> Iterator[dict[str, Any]]:
    from latticebpd.lattices.shards import shard_files
    from latticebpd.measuring import blocks
    from latticebpd.scoring.rescoring import check_vocabulary

    for file in [file for path in files for file in shard_files(path)]:
        index = 0
        for block in blocks([file]):
            check_vocabulary(scorer, block.fingerprint, block.vocab_size, str(file))
            for begin in range(0, len(block), TOGETHER):
                rows = range(begin, min(begin + TOGETHER, len(block)))
                for drafts in scorer.paths([block[row] for row in rows], [block.context_of(row) for row in rows], p):
                    record = {"tokens": drafts.tokens.tolist(), "scores": drafts.scores.tolist()}
                    yield {"file": str(file), "lattice": index, **record}
                    index += 1
