"""``latticebpd train``: tokenizers and models."""

from __future__ import annotations

from pathlib import Path

import typer

from latticebpd.cli.console import err, load_tokenizer

app = typer.Typer(help="Train tokenizers and blockwise models.", no_args_is_help=True)


@app.command()
def tokenizer(
    inputs: list[Path] = typer.Argument(..., help="Text (.txt) or JSONL files, plain, .gz or .xz."),
    output: Path = typer.Option(..., "--output", "-o", help="tokenizer.json to write."),
    vocab_size: int = typer.Option(8192, min=257, help="Tokens, the end-of-text token included."),
    field: str = typer.Option("text", help="JSONL field that holds the text."),
) -> None:
    """Train a byte-level BPE tokenizer.

    Example: [bold]latticebpd train tokenizer corpus.jsonl -o tokenizer.json[/bold]
    """
    from fst.files import replacing
    from lm_training.corpus import read_documents, train_tokenizer

    trained = train_tokenizer((document.text for document in read_documents(inputs, field)), vocab_size, progress=err.is_terminal)
    with replacing(output) as temporary:
        trained.save(str(temporary))
    err.print(f"{output}: {trained.get_vocab_size()} tokens")


@app.command()
def encode(
    inputs: list[Path] = typer.Argument(..., help="Text (.txt) or JSONL files, plain, .gz or .xz."),
    tokenizer: Path = typer.Option(..., help="tokenizer.json."),
    output: Path = typer.Option(..., "--output", "-o", help="Corpus to write (.npy)."),
    field: str = typer.Option("text", help="JSONL field that holds the text."),
) -> None:
    """Turn documents into a corpus of token ids, each document ending with the end-of-text token.

    Example: [bold]latticebpd train encode corpus.jsonl --tokenizer tokenizer.json -o corpus.npy[/bold]
    """
    from lm_training.corpus import encode_corpus, read_documents

    count = encode_corpus(read_documents(inputs, field), load_tokenizer(tokenizer), output)
    err.print(f"{output}: {count} tokens")


@app.command()
def blockwise(
    corpus: list[Path] = typer.Argument(..., help="Token ids (.npy), as written by `latticebpd train encode`."),
    validation: Path = typer.Option(..., help="Token ids of documents that are not in the corpus (.npy)."),
    tokenizer: Path = typer.Option(..., help="tokenizer.json the corpus was encoded with."),
    output: Path = typer.Option(..., "--output", "-o", help="Directory of the model; an interrupted run in it goes on."),
    steps: int = typer.Option(6000, min=1, help="Updates in all."),
    batch_size: int = typer.Option(8, min=1, help="Sequences per update."),
    sequence_length: int = typer.Option(256, min=16, help="Tokens per sequence."),
    learning_rate: float = typer.Option(2e-3, min=0.0, help="AdamW's peak rate: embedding, norms, heads."),
    muon_learning_rate: float = typer.Option(5e-3, min=0.0, help="Muon's peak rate: the transformer's matrices."),
    hidden_size: int = typer.Option(256, min=8, help="Width of the transformer."),
    num_layers: int = typer.Option(4, min=1, help="Layers of the transformer."),
    num_heads: int = typer.Option(9, min=2, help="Predictions per position, the base model's own included."),
    seed: int = typer.Option(0, help="Seed of everything random."),
    compile: bool = typer.Option(False, "--compile", help="Use torch.compile; faster, needs a C++ compiler at run time."),
) -> None:
    """Train a small transformer and its block heads from scratch.

    The run can be killed at any time; the same command goes on from its last checkpoint.

    Example: [bold]latticebpd train blockwise corpus.npy --validation held-out.npy --tokenizer tokenizer.json -o model[/bold]
    """
    import shutil

    from fst.fingerprint import vocabulary_fingerprint
    from lm_training.blockwise import ModelShape, TrainingOptions, train_blockwise
    from lm_training.corpus import end_of_text_id, load_tokens

    bpe = load_tokenizer(tokenizer)
    tokens, held_out = load_tokens(corpus), load_tokens([validation])
    shape = ModelShape(
        vocab_size=bpe.get_vocab_size(),
        hidden_size=hidden_size,
        num_layers=num_layers,
        attention_heads=max(1, hidden_size // 64),
        intermediate_size=(hidden_size * 11 // 4) // 8 * 8,
        num_heads=num_heads,
    )
    options = TrainingOptions(
        steps=steps,
        batch_size=batch_size,
        sequence_length=sequence_length,
        learning_rate=learning_rate,
        muon_learning_rate=muon_learning_rate,
        seed=seed,
        compile=compile,
    )
    output.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(tokenizer, output / "tokenizer.json")
    train_blockwise(
        tokens,
        held_out,
        output,
        shape,
        options,
        eos_id=end_of_text_id(bpe),
        tokenizer_fingerprint=vocabulary_fingerprint(bpe.get_vocab()),
        progress=err.is_terminal,
    )
    err.print(f"{output}: trained for {steps} steps")
