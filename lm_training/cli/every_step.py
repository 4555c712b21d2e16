"""``latticebpd train all``: from a model and texts to all that drafts for it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer

from latticebpd.cli.input_data import readable, require_inputs
from latticebpd.cli.json_option import with_json
from latticebpd.cli.model_options import WEIGHTS
from latticebpd.console import err, next_command, writable_folder
from lm_training.cli.options import DEVICE

PROMPT_TOKENS = 64
"""Tokens of a prompt that is cut from text."""
MOST_HELD_OUT, HELD_OUT_SHARE = 256, 32
"""At most so many prompts, and one of so many, are held out."""


@with_json
def every_step(
    data: list[Path] = typer.Argument(
        ..., callback=readable, help="Text (.txt, JSONL) to cut prompts from, or prompts (.npz) of `train encode`."
    ),
    model: str = typer.Option(..., help="The model to draft for: a directory, a .gguf file or a Hub id."),
    output: Path = typer.Option(
        ..., "--output", "-o", callback=writable_folder, help="Directory of the result, new or to resume."
    ),
    prompts: int = typer.Option(16384, min=4, help="At most so many prompts."),
    max_new_tokens: int = typer.Option(96, min=1, help="Maximum number of tokens that the model writes after each."),
    steps: int = typer.Option(2000, min=1, help="Updates of the heads; their transitions get a third as many."),
    shortlist: str | None = typer.Option(
        None, help="Restrict the heads to so many most frequent tokens; or to those of a model's heads."
    ),
    weights: str | None = WEIGHTS,
    device: str = DEVICE,
) -> dict[str, Any]:
    """Make heads, n-gram model and calibration for a model: a directory that `--model` takes everywhere.

    The model continues prompts, some of which are held out; heads, transitions and the n-gram model learn from what it
    writes, and calibrated trees are fitted to what it writes after the held-out ones. Each step is a command of its
    own, which is shown. What they make lies in OUTPUT.work, and can be deleted at the end. The same command resumes a
    stopped run.

    Example: [bold]latticebpd train all text.txt --model model -o with-heads[/bold]
    """
    from latticebpd.cli import app

    require_inputs(data, model)
    work = output.with_name(f"{output.name}.work")
    asked, held_out = work / "prompts.npz", work / "prompts-held-out.npz"
    if not (asked.exists() and held_out.exists()):
        _split(data, model, prompts, asked, held_out)
    written, written_held_out, heads = work / "written", work / "written-held-out", work / "heads"
    writing = ("--max-new-tokens", max_new_tokens, "--device", device, *(("--weights", weights) if weights else ()))
    learning = ("train", "heads", written, "--validation", written_held_out, "--device", device)
    known = () if shortlist is None else ("--shortlist", shortlist)
    tied = ("--warm-start", "--freeze-heads", "--transitions", 256, "--steps", max(1, steps // 3))
    lm, lattices = output / "lm.fst", work / "lattices"
    drawn = ("--teacher-force", "--context", 1024, "--max-new-tokens", max(2, max_new_tokens))
    commands: list[tuple[object, ...]] = [
        ("distill", asked, "--model", model, "-o", written, *writing),
        ("distill", held_out, "--model", model, "-o", written_held_out, *writing),
        (*learning, "--model", model, "-o", heads, "--steps", steps, *known),
        (*learning, "--model", heads, "-o", output, *tied),
        ("lm", "train", written, "--tokenizer", output, "-o", lm),
        ("lattices", "--prompts", written_held_out, "--model", output, "-o", lattices, *drawn),
        ("calibrate", lattices, "--lm", lm, "--write"),
    ]
    for number, command in enumerate(commands, 1):
        words = [str(word) for word in command]
        err.print(f"step {number} of {len(commands)}: latticebpd {' '.join(words)}", style="bold", soft_wrap=True)
        app(words, standalone_mode=False)
    next_command("generate TEXT --model {}", output)
    return {"output": str(output), "lm": str(lm), "work": str(work)}


def _split(data: list[Path], model: str, count: int, asked: Path, held_out: Path) -> None:
    """Write prompts to learn from, and held-out ones, in random order; ValueError for fewer than four."""
    import numpy as np

    from latticebpd.checks import expect
    from latticebpd.lattices.texts import Texts
    from lm_training.data.corpus import corpus_ids
    from lm_training.data.distill import corpus_prompts
    from lm_training.data.sequences import holds_sequences, load_texts
    from lm_training.data.text_tokenizer import text_tokenizer

    if all(map(holds_sequences, data)):
        prompts = Texts.joined([load_texts(path, 0) for path in data]).prompts()
        order = np.random.default_rng(0).permutation(len(prompts)).tolist()
        prompts = prompts.chosen(order[:count])
    else:
        encoder = text_tokenizer(model)
        prompts = corpus_prompts(corpus_ids(data, encoder), None, PROMPT_TOKENS, [encoder[1]])
        prompts = prompts.chosen(range(min(count, len(prompts))))
    wanted = f"at least 4 prompts, of {PROMPT_TOKENS} tokens each where they are cut from text"
    expect(len(prompts) >= 4, wanted, len(prompts), "give more text", of=data[0])
    kept = min(MOST_HELD_OUT, max(2, len(prompts) // HELD_OUT_SHARE))
    prompts.chosen(range(kept)).save(held_out)
    prompts.chosen(range(kept, len(prompts))).save(asked)
