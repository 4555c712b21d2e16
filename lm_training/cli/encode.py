"""``latticebpd train encode``: text or records into token ids."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from latticebpd.checks import expect
from latticebpd.cli.input_data import readable
from latticebpd.cli.json_option import with_json
from latticebpd.console import err, next_command, progress, writable
from lm_training.cli.options import END_OF_TEXT

if TYPE_CHECKING:
    from lm_training.data.templates import Template


@with_json
def encode(
    inputs: list[Path] = typer.Argument(
        ..., callback=readable, help="Text, JSONL (also .gz, .xz, .zst), Parquet, or saved `datasets`."
    ),
    tokenizer: str = typer.Option(..., help="tokenizer.json, or a model: directory, .gguf file or name."),
    output: Path = typer.Option(
        ..., "--output", "-o", callback=writable, help="A corpus (.npy), sequences (.npz), or a directory of shards."
    ),
    field: str = typer.Option("text", help="Field of JSONL objects and rows that holds a document."),
    text_lines: bool = typer.Option(False, "--text-lines", help="Every line of a text file is a document."),
    task: str | None = typer.Option(None, help="Prompts of a task: squad, cnn, samsum, multinews, xsum, newsroom."),
    prompt_template: str | None = typer.Option(None, help="Prompts with fields: 'ask: {question}'; \\\\n: new line."),
    answer_field: str | None = typer.Option(None, help="Field of the answer, such as answers.text.0."),
    chat: bool = typer.Option(False, "--chat", help="Use the tokenizer's chat template, for messages or prompts."),
    system_prompt: str | None = typer.Option(None, help="System prompt of a chat; by default the template's own."),
    prompts_only: bool = typer.Option(False, "--prompts-only", help="Prompts without answers, for `distill`."),
    end_of_text: str | None = END_OF_TEXT,
    max_tokens: int | None = typer.Option(None, min=2, help="Skip longer sequences."),
    shard_records: int = typer.Option(4096, min=1, help="Records per shard."),
    workers: int = typer.Option(1, min=1, help="Processes that encode; they do not change the result."),
    strict: bool = typer.Option(False, "--strict", help="Stop at the first bad record; else bad ones are reported."),
) -> dict[str, Any]:
    """Turn documents into token ids, or records into prompts and answers.

    A corpus is a sequence of documents, each ending with the end-of-text token; training cuts it into windows. Of
    prompts and answers, only answers have a loss. Bad lines are skipped and reported with file and line number.

    Example: [bold]latticebpd train encode corpus.jsonl --tokenizer model -o corpus.npy[/bold]
    Example: [bold]latticebpd train encode squad.jsonl --task squad --tokenizer tokenizer.json -o squad.npz[/bold]
    Example: [bold]latticebpd train encode chats.jsonl --chat --tokenizer model/tokenizer.json -o chats.npz[/bold]
    Example: [bold]latticebpd train encode pairs.jsonl --prompt-template '{en}' --answer-field de --tokenizer t.json -o
        pairs.npz[/bold]
    """
    from lm_training.data.encoding import Encoding, encode_files, write_encoded
    from lm_training.data.records import BadRecords
    from lm_training.data.text_tokenizer import end_of_text_id, named_tokenizer

    expect(system_prompt is None or chat, "--chat with --system-prompt", "none", "a system prompt begins a chat")
    messages = chat and task is None and prompt_template is None
    asked = _template(task, prompt_template, answer_field, prompts_only and not messages)
    wanted, documents = "sequences (.npz) or a directory for prompts and answers", not chat and asked is None
    expect(documents or output.suffix != ".npy", wanted, "a corpus", "they would run together", of=output)
    bpe, own_end = named_tokenizer(tokenizer)
    home = Path(tokenizer).parent if Path(tokenizer).suffix == ".json" else tokenizer
    conversation = None
    if chat:
        from latticebpd.models import load_target
        from latticebpd.models.chat import ChatTemplate
        from lm_training.data.templates import Conversation

        template = ChatTemplate(load_target.load_tokenizer(home), None, system_prompt)
        conversation = Conversation(template, asked, prompts_only)
    if end_of_text is None and conversation is not None and conversation.chat.turn_ends:
        end_id = conversation.chat.turn_ends[0]
    else:
        end_id = end_of_text_id(bpe, end_of_text or own_end, tokenizer)
    encoding = Encoding(end_id, conversation or asked, field, text_lines, max_tokens, shard_records)
    bad = BadRecords(strict)
    with progress() as bar:
        bar_task = bar.add_task("records", total=None)
        shards = encode_files(inputs, bpe, encoding, workers, bad)
        done = write_encoded(shards, output, lambda shard: bar.advance(bar_task, shard.counts.records))
    for line in bad.report():
        err.print(line)
    if done.too_long:
        err.print(f"{done.too_long} sequences of more than {max_tokens} tokens left out")
    err.print(f"{output}: {done.sequences} {'sequences' if encoding.template else 'documents'}, {done.tokens} tokens")
    model = "MODEL" if home != tokenizer and not (Path(home) / "config.json").exists() else home
    if prompts_only or documents:
        next_command("distill {} --model {} -o written", output, model)
    else:
        next_command("train heads {} --validation HELD-OUT --model {} -o heads", output, model)
    kind = "sequences" if encoding.template else "documents"
    return {"output": str(output), kind: done.sequences, "tokens": done.tokens, "too_long": done.too_long}


def _template(task: str | None, prompt: str | None, answer: str | None, prompts_only: bool) -> Template | None:
    """The template of the options; None for documents."""
    from lm_training.data.templates import TASKS, Template

    expect(task is None or task in TASKS, f"--task {', '.join(TASKS)}", repr(task))
    expect(task is None or prompt is None, "either --task or --prompt-template", "both")
    if task is None and prompt is None:
        wanted = "--task or --prompt-template together with --answer-field and --prompts-only"
        expect(answer is None and not prompts_only, wanted, "neither")
        return None
    known = TASKS[task] if task is not None else Template((prompt or "").replace("\\n", "\n"))
    answers = (answer,) if answer is not None else known.answers
    wanted = "--answer-field, or --prompts-only for prompts without answers"
    expect(prompts_only or answers is not None, wanted, "neither")
    return Template(known.prompt, None if prompts_only else answers)
