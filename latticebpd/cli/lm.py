"""``latticebpd lm``: n-gram models, estimated, converted, described, measured."""

from __future__ import annotations

import math
from pathlib import Path

import typer

from latticebpd.cli.console import err, load_tokenizer, out, positive_numbers, print_json, progress_bytes

app = typer.Typer(help="n-gram language models: train, convert, describe, measure.", no_args_is_help=True)


def _is_arpa(path: Path) -> bool:
    return path.name.removesuffix(".gz").endswith(".arpa")


def _summary(output: Path, counts: list[int]) -> str:
    return f"{output}: {' + '.join(f'{count:,}' for count in counts)} n-grams of orders 1 to {len(counts)}"


@app.command()
def train(
    inputs: list[Path] = typer.Argument(..., help="Token ids (.npy), or text (.txt) and JSONL files with --tokenizer."),
    output: Path = typer.Option(..., "--output", "-o", help="Model to write: .fst, .arpa or .arpa.gz."),
    order: int = typer.Option(4, min=1, help="Longest n-gram."),
    tokenizer: Path | None = typer.Option(None, help="tokenizer.json that turns text into tokens, or that made the ids."),
    min_count: str = typer.Option("1,1,2,4", help="Least count of an n-gram, order by order; the last holds for higher orders."),
    max_ngrams: int | None = typer.Option(None, min=1, help="Prune by relative entropy to at most this many n-grams."),
    end_of_text: int = typer.Option(0, min=0, help="Token id between documents, where no tokenizer tells; 0 is latticebpd's own."),
    prune_theta: float | None = typer.Option(None, min=0.0, help="Prune n-grams whose loss changes perplexity by less than this share."),
    field: str = typer.Option("text", help="JSONL field that holds the text."),
) -> None:
    """Estimate a Katz backoff model.

    Example: [bold]latticebpd lm train corpus.npy --order 4 --max-ngrams 1000000 -o lm.fst[/bold]
    """
    from dataclasses import replace

    import numpy as np

    import fst
    from fst.fingerprint import vocabulary_fingerprint
    from lm_training.corpus import corpus_ids, end_of_text_id
    from lm_training.ngram import estimate

    if not (output.suffix == ".fst" or _is_arpa(output)):
        raise ValueError(f"{output}: expected a name that ends in .fst, .arpa or .arpa.gz")
    counts = positive_numbers("--min-count", min_count)
    counts = (counts + [counts[-1]] * order)[:order]
    bpe = None if tokenizer is None else load_tokenizer(tokenizer)
    ids = corpus_ids(inputs, bpe, field)
    if not len(ids):
        raise ValueError(f"expected some text, got none in {', '.join(map(str, inputs))}")
    vocab_size = bpe.get_vocab_size() if bpe else int(np.max(ids)) + 1
    if bpe is not None and int(np.max(ids)) >= vocab_size:
        raise ValueError(
            f"expected token ids below {vocab_size} (the tokenizer's), got {int(np.max(ids))}; name the tokenizer that made them"
        )
    fingerprint = vocabulary_fingerprint(bpe.get_vocab()) if bpe else None
    with err.status(f"estimating an {order}-gram from {len(ids):,} tokens"):
        table = estimate(
            ids,
            order=order,
            min_counts=counts,
            max_ngrams=max_ngrams,
            prune_theta=prune_theta,
            vocab_size=vocab_size,
            end_of_text=end_of_text_id(bpe) if bpe else end_of_text,
        )
        model = fst.NgramModel.from_table(replace(table, fingerprint=fingerprint))
        if _is_arpa(output):
            model.to_arpa(output)
        else:
            model.save(output)
    err.print(_summary(output, model.num_ngrams))


@app.command()
def arpa2fst(
    arpa: Path = typer.Argument(..., help="ARPA file, plain or .gz."),
    output: Path = typer.Argument(..., help="OpenFst file to write."),
    tokenizer: Path | None = typer.Option(None, help="tokenizer.json whose ids the words are; its hash is stored with the model."),
) -> None:
    """Turn an ARPA file into an OpenFst automaton that loads in no time; one pass, in less memory than the result.

    Example: [bold]latticebpd lm arpa2fst lm.arpa.gz lm.fst --tokenizer tokenizer.json[/bold]
    """
    import fst

    fingerprint = None
    if tokenizer is not None:
        from fst.fingerprint import vocabulary_fingerprint

        fingerprint = vocabulary_fingerprint(load_tokenizer(tokenizer).get_vocab())
    with progress_bytes() as bar:
        task = bar.add_task("reading", total=None)
        counts = fst.arpa_to_fst(
            arpa, output, fingerprint=fingerprint, progress=lambda done, total: bar.update(task, completed=done, total=total)
        )
    err.print(_summary(output, counts))


@app.command()
def fst2arpa(
    model: Path = typer.Argument(..., help="OpenFst file."),
    output: Path = typer.Argument(..., help="ARPA file to write; .gz compresses."),
) -> None:
    """Turn an automaton back into an ARPA file.

    Example: [bold]latticebpd lm fst2arpa lm.fst lm.arpa.gz[/bold]
    """
    import fst

    with err.status(f"writing {output}"):
        fst.NgramModel.load(model).to_arpa(output)


@app.command()
def info(
    model: Path = typer.Argument(..., help="n-gram model, FST or ARPA."),
    json: bool = typer.Option(False, "--json", help="Print one JSON object."),
) -> None:
    """Describe an n-gram model.

    Example: [bold]latticebpd lm info lm.fst[/bold]
    """
    import fst

    lm = fst.NgramModel.load(model)
    record = {
        "file": str(model),
        "bytes": model.stat().st_size,
        "order": lm.order,
        "num_ngrams": lm.num_ngrams,
        "states": len(lm.states),
        "arcs": len(lm.arcs),
        "vocab_size": lm.vocab_size,
        "words": lm.symbols is not None,
        "fingerprint": lm.fingerprint,
    }
    if json:
        print_json(record)
        return
    for name, value in record.items():
        out.print(f"{name:12} {value}")


@app.command()
def perplexity(
    model: Path = typer.Argument(..., help="n-gram model, FST or ARPA."),
    inputs: list[Path] = typer.Argument(..., help="Token ids (.npy), or text and JSONL files with --tokenizer."),
    tokenizer: Path | None = typer.Option(None, help="tokenizer.json that turns text into tokens."),
    field: str = typer.Option("text", help="JSONL field that holds the text."),
    json: bool = typer.Option(False, "--json", help="Print one JSON object."),
) -> None:
    """Perplexity of a model on text, tokens out of its vocabulary counted apart.

    Example: [bold]latticebpd lm perplexity lm.fst held-out.npy[/bold]
    """
    from dataclasses import asdict

    import fst
    from lm_training import perplexity as measure
    from lm_training.corpus import corpus_ids

    lm = fst.NgramModel.load(model)
    bpe = None if tokenizer is None else load_tokenizer(tokenizer)
    result = measure.perplexity(lm, corpus_ids(inputs, bpe, field))
    record = {name: value if not isinstance(value, float) or math.isfinite(value) else None for name, value in asdict(result).items()}
    if json:
        print_json(record)
        return
    for name, value in record.items():
        out.print(f"{name:24} {value}")
