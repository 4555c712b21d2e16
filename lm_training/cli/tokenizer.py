"""``latticebpd train tokenizer``: byte-level BPE."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer

from latticebpd.cli.input_data import readable
from latticebpd.cli.json_option import with_json
from latticebpd.console import err, next_command, writable_file


@with_json
def tokenizer(
    inputs: list[Path] = typer.Argument(..., callback=readable, help="Text (.txt) or JSONL files, plain, .gz or .xz."),
    output: Path = typer.Option(..., "--output", "-o", callback=writable_file, help="tokenizer.json to write."),
    vocab_size: int = typer.Option(8192, min=257, max=1 << 24, help="Tokens, the end-of-text token included."),
    field: str = typer.Option("text", help="JSONL field that holds the text."),
) -> dict[str, Any]:
    """Train a byte-level BPE tokenizer.

    Example: [bold]latticebpd train tokenizer corpus.jsonl -o tokenizer.json[/bold]
    """
    from fst.files import write_text
    from lm_training.data.corpus import read_documents, train_tokenizer

    texts = (document.text for document in read_documents(inputs, field))
    trained = train_tokenizer(texts, vocab_size, progress=err.is_terminal)
    write_text(output, trained.to_str(pretty=True))
    err.print(f"{output}: {trained.get_vocab_size()} tokens")
    next_command("train encode {} --tokenizer {} -o corpus.npy", inputs[0], output)
    return {"output": str(output), "tokens": trained.get_vocab_size()}
