"""``latticebpd train encode``: files of text or records into token ids."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from latticebpd.cli.console import err, load_tokenizer, progress, writable

if TYPE_CHECKING:
    from lm_training.data.templates import Template


def encode(
    inputs: list[Path] = typer.Argument(..., help="Text, JSONL (plain, .gz, .xz or .zst), Parquet, or directories that `datasets` saved."),
    tokenizer: Path = typer.Option(..., help="tokenizer.json."),
    output: Path = typer.Option(
        ..., "--output", "-o", callback=writable, help="A corpus (.npy), sequences (.npz), or a directory of sequences in shards."
    ),
    field: str = typer.Option("text", help="Field of JSONL objects and rows that holds a document."),
    text_lines: bool = typer.Option(False, "--text-lines", help="Every line of a text file is a document."),
    task: str | None = typer.Option(None, help="Prompts of a known task: squad, cnn, samsum, multinews, xsum, newsroom."),
    prompt_template: str | None = typer.Option(
        None, help="Prompts of your own, with fields in braces: 'question: {question}'; \\\\n is a new line."
    ),
    answer_field: str | None = typer.Option(None, help="Field that holds what is to be written after the prompt, such as answers.text.0."),
    prompts_only: bool = typer.Option(False, "--prompts-only", help="Leave answers out: prompts for `latticebpd distill`."),
    separator: str = typer.Option("", help="Text between prompt and answer, part of the prompt; \\\\n is a new line."),
    end_of_text: str = typer.Option("<|endoftext|>", help="Token that ends documents and answers."),
    max_tokens: int | None = typer.Option(None, min=2, help="Leave longer sequences out."),
    shard_records: int = typer.Option(4096, min=1, help="Records per shard."),
    workers: int = typer.Option(1, min=1, help="Processes that encode; the result is the same whatever their number."),
    strict: bool = typer.Option(False, "--strict", help="Stop at the first bad record; else they are counted and the first ones shown."),
) -> None:
    """Turn documents into token ids, or records into prompts and answers.

    A corpus holds documents end to end, each ending with the end-of-text token; training cuts it into windows. Prompts and
    answers stay apart: only answers are learnt. A bad line costs that line, and is reported with file and line number.

    Example: [bold]latticebpd train encode corpus.jsonl --tokenizer tokenizer.json -o corpus.npy[/bold]
    Example: [bold]latticebpd train encode squad.jsonl --task squad --tokenizer tokenizer.json -o squad.npz[/bold]
    Example: [bold]latticebpd train encode pairs.jsonl --prompt-template '{en}' --answer-field de --tokenizer t.json -o pairs.npz[/bold]
    """
    from lm_training.data.corpus import end_of_text_id
    from lm_training.data.encoding import Encoding, encode_files, write_encoded
    from lm_training.data.records import BadRecords

    template = _template(task, prompt_template, answer_field, prompts_only, separator)
    if template is not None and output.suffix == ".npy":
        raise ValueError(
            f"{output}: expected sequences (.npz) or a directory for prompts and answers, got a corpus; they would run together"
        )
    bpe = load_tokenizer(tokenizer)
    encoding = Encoding(end_of_text_id(bpe, end_of_text), template, field, text_lines, max_tokens, shard_records)
    bad = BadRecords(strict)
    with progress() as bar:
        bar_task = bar.add_task("records", total=None)
        shards = encode_files(inputs, bpe, encoding, workers, bad)
        done = write_encoded(shards, output, lambda shard: bar.advance(bar_task, shard.records))
    for line in bad.report():
        err.print(line, markup=False, soft_wrap=True)
    if done.too_long:
        err.print(f"{done.too_long} sequences of more than {max_tokens} tokens left out")
    err.print(f"{output}: {done.sequences} {'documents' if template is None else 'sequences'}, {done.tokens} tokens")


def _template(task: str | None, prompt: str | None, answer: str | None, prompts_only: bool, separator: str) -> Template | None:
    """What the options say; None for documents."""
    from lm_training.data.templates import TASKS, Template

    if task is not None and task not in TASKS:
        raise ValueError(f"expected --task {', '.join(TASKS)}, got {task!r}")
    if task is not None and prompt is not None:
        raise ValueError("expected either --task or --prompt-template, got both")
    if task is None and prompt is None:
        if answer is not None or prompts_only or separator:
            raise ValueError(
                "expected --task or --prompt-template together with --answer-field, --prompts-only and --separator, got neither"
            )
        return None
    known = TASKS[task] if task is not None else Template((prompt or "").replace("\\n", "\n"))
    answers = (answer,) if answer is not None else known.answers
    if prompts_only:
        answers = None
    elif answers is None:
        raise ValueError("expected --answer-field, or --prompts-only for prompts without answers, got neither")
    return Template(known.prompt, answers, separator.replace("\\n", "\n"))
