"""``latticebpd lm``: n-gram models, estimated, converted, described, measured."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from fst.processors import available_processors
from latticebpd import console
from latticebpd.checks import expect
from latticebpd.cli.input_data import readable
from latticebpd.cli.json_option import with_json
from lm_training.cli.options import END_OF_TEXT

if TYPE_CHECKING:
    import numpy as np
    from tokenizers import Tokenizer

    from lm_training.ngram.inputs import Encoder, Inputs

OUTPUT = typer.Option(..., "--output", "-o", callback=console.writable_file, help="Model: .fst, .arpa or .arpa.gz.")
TOKENIZER = typer.Option(None, help="tokenizer.json, or a model: directory, .gguf file or name; of text or ids.")
INPUTS = typer.Argument(
    ...,
    callback=readable,
    help="Token ids (.npy); folders of `distill`, sequences (.npz); or text (.txt), JSONL and Parquet with --tokenizer "
    "or --words; .gz, .xz, .zst.",
)

app = typer.Typer(help="n-gram language models: train, convert, describe, measure.", no_args_is_help=True)


def _is_arpa(path: Path) -> bool:
    return path.name.removesuffix(".gz").endswith(".arpa")


def _made(output: Path, counts: Iterable[int], about: str = "") -> dict[str, Any]:
    """Say which model was written, and return it as a record."""
    ngrams = [int(count) for count in counts]
    shown = " + ".join(f"{count:,}" for count in ngrams)
    console.err.print(f"{output}: {shown} n-grams of orders 1 to {len(ngrams)}{about}")
    return {"output": str(output), "ngrams": ngrams}


def _print_record(record: dict[str, Any], json: bool, width: int) -> None:
    if json:
        console.print_json(record)
        return
    for name, value in record.items():
        console.out.print(f"{name:{width}} {value}")


def _check_output(output: Path) -> None:
    if not (output.suffix == ".fst" or _is_arpa(output)):
        raise ValueError(f"{output}: expected a name that ends in .fst, .arpa or .arpa.gz")


def _bytes(option: str, text: str) -> int:
    """The number of bytes that ``500M`` or ``4G`` stands for."""
    digits, unit = text[:-1], text[-1:].upper()
    if unit not in _UNITS:
        digits, unit = text, ""
    if not (digits.isascii() and digits.isdigit() and len(digits) < 16 and int(digits)):
        raise ValueError(f"expected {option} as a number of bytes such as 500M or 4G, got {text!r}")
    return int(digits) << _UNITS[unit]


_UNITS = {"": 0, "K": 10, "M": 20, "G": 30, "T": 40}


def _stored(bpe: Tokenizer) -> dict[str, Any]:
    """What a model stores of the tokenizer whose ids it has, and its size."""
    from fst.fingerprint import vocabulary_fingerprint

    return {"fingerprint": vocabulary_fingerprint(bpe.get_vocab()), "vocab_size": bpe.get_vocab_size()}


def _reading(
    inputs: list[Path], words: bool, tokenizer: str | None, end_of_text: str | None
) -> tuple[Encoder | None, dict[str, Any], int | None]:
    """What turns text into ids, None for ids; what is stored of the tokenizer; the id between documents."""
    from lm_training.data.sequences import holds_sequences
    from lm_training.data.text_tokenizer import text_tokenizer
    from lm_training.ngram.inputs import TokenizerEncoder, WordEncoder

    remedy = "they are two ways to read the same text"
    expect(not words or tokenizer is None, "either --words or --tokenizer", "both", remedy)
    if tokenizer is not None:
        bpe, separator = text_tokenizer(tokenizer, end_of_text)
        return TokenizerEncoder(bpe, separator), _stored(bpe), separator
    is_id = end_of_text is None or (end_of_text.isascii() and end_of_text.isdigit() and len(end_of_text) < 10)
    expect(is_id, "--end-of-text as a token's id, without --tokenizer", repr(end_of_text), "give --tokenizer")
    default = None if any(map(holds_sequences, inputs)) else 0
    return WordEncoder() if words else None, {}, default if end_of_text is None else int(end_of_text)


@contextmanager
def _log_lines() -> Iterator[None]:
    """Show what estimation logs, a line at a time: which discounts were estimated, and which were not possible."""
    handler = _ConsoleHandler()
    logger = logging.getLogger("lm_training")
    before = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before)


class _ConsoleHandler(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        console.err.print(record.getMessage())


@contextmanager
def _reporting() -> Iterator[Callable[[str, int, int | None], None]]:
    """A progress bar whose description changes with what is being done."""
    with console.progress() as bar:
        task = bar.add_task("", total=None)
        yield lambda what, done, total: bar.update(task, description=what, completed=done, total=total)


@app.command()
@with_json
def train(
    inputs: list[Path] = INPUTS,
    output: Path = OUTPUT,
    order: int = typer.Option(4, min=1, max=255, help="Longest n-gram."),
    smoothing: str = typer.Option("katz", help="katz, or katz-opengrm, which is OpenGrm's."),
    min_count: str = typer.Option("1,1,2,4", help="Least count of an n-gram by order; the last also of higher ones."),
    max_ngrams: int | None = typer.Option(None, min=1, help="Prune by relative entropy to at most this many n-grams."),
    prune_theta: float | None = typer.Option(None, min=0.0, help="Prune n-grams that change perplexity by less."),
    unk: bool = typer.Option(False, help="Reserve probability for <unk>; else unseen words have natural log -1000."),
    unseen: str = typer.Option(
        "smoothed", help="Unseen ids: smoothed, each has a share of the mass, or floor, natural log -1000 (Kim)."
    ),
    vocab_size: int | None = typer.Option(None, min=1, max=1 << 24, help="Ids are below it; default: the tokenizer's."),
    words: bool = typer.Option(False, help="Text is one sentence a line, words between white space."),
    tokenizer: str | None = TOKENIZER,
    end_of_text: str | None = END_OF_TEXT,
    field: str = typer.Option("text", help="JSONL field or Parquet column that holds the text."),
    engine: str = typer.Option("auto", help="sort: count in memory, in passes; spark: on a cluster; auto is sort."),
    memory: str = typer.Option("4G", help="Memory for counting."),
    threads: int | None = typer.Option(None, min=1, max=1024, help="Threads for counting; by default all cores."),
    master: str = typer.Option("local[*]", help="Spark's master."),
    work_dir: Path | None = typer.Option(
        None, callback=console.writable_folder, help="For intermediate files; OUTPUT.work by default; resumes there."
    ),
) -> dict[str, Any]:
    """Estimate a backoff model.

    Of prompts and texts (`latticebpd distill`) the texts are learnt, each after the end of its prompt.

    Example: [bold]latticebpd lm train corpus.npy --order 4 --max-ngrams 1000000 -o lm.fst[/bold]
    Example: [bold]latticebpd lm train written --tokenizer model -o lm.fst[/bold]
    """
    from latticebpd.drafters.registry import family_beside
    from lm_training.ngram.building import CountingOptions, Recipe, build
    from lm_training.ngram.inputs import Inputs

    _check_output(output)
    counts = console.positive_numbers("--min-count", min_count)
    encoder, stored, separator = _reading(inputs, words, tokenizer, end_of_text)
    recipe = Recipe(
        order=order,
        smoothing=smoothing,
        min_counts=tuple(counts),
        max_ngrams=max_ngrams,
        prune_theta=prune_theta,
        unknown_word=unk,
        unseen=unseen,
        vocab_size=vocab_size or stored.get("vocab_size"),
        end_of_text=separator,
        fingerprint=stored.get("fingerprint"),
    )
    counting = CountingOptions(engine, _bytes("--memory", memory), threads or available_processors(), master)
    work = work_dir or output.with_name(f"{output.name}.work")
    with _reporting() as report, _log_lines():
        num_ngrams = build(Inputs(inputs, field, order - 1), encoder, recipe, counting, output, work, report)
    made = _made(output, num_ngrams)
    if output.name == "lm.fst" and family_beside(output.parent) is not None:
        held_out = inputs[0].with_name(f"{inputs[0].name}-held-out")
        prompts = held_out if held_out.exists() else "HELD-OUT"
        sizes = "--teacher-force --context 1024 -o lattices"
        console.next_command("lattices --prompts {} --model {} " + sizes, prompts, output.parent)
    elif recipe.fingerprint is not None:
        console.next_command("generate TEXT --model MODEL --lm {}", output)
    return made


@app.command()
@with_json
def interpolate(
    first: Path = typer.Argument(..., help="n-gram model, FST or ARPA."),
    second: Path = typer.Argument(..., help="Another of the same tokenizer, or of words."),
    output: Path = OUTPUT,
    weight: float | None = typer.Option(None, help="The first model's share of the mixture, between 0 and 1."),
    held_out: Path | None = typer.Option(
        None, callback=readable, help="Text on which to choose it instead, as for `lm perplexity`."
    ),
    tokenizer: str | None = typer.Option(None, help="Tokenizer of the held-out text."),
    max_ngrams: int | None = typer.Option(None, min=1, help="Prune the mixture to at most this many n-grams."),
) -> dict[str, Any]:
    """Mix two models linearly, such as an in-domain and a general one.

    Example: [bold]latticebpd lm interpolate domain.fst general.fst --held-out domain-dev.npy -o mixed.fst[/bold]
    """
    import fst
    from lm_training.ngram.inputs import Inputs
    from lm_training.ngram.interpolation import best_weight, in_one_vocabulary
    from lm_training.ngram.interpolation import interpolate as mix
    from lm_training.ngram.pruning import prune

    _check_output(output)
    if (weight is None) == (held_out is None):
        raise ValueError("expected either --weight or --held-out, and not both; one of them decides the mixture")
    with console.err.status("mixing"):
        tables = in_one_vocabulary(*(fst.NgramModel.load(path).to_table() for path in (first, second)))
        if weight is None:
            assert held_out is not None
            text = Inputs([held_out], history=tables[0].order - 1)
            weight = best_weight(*tables, _tokens_to_score(text, tables[0].symbols, tokenizer))
        mixed = mix(*tables, weight)
        if max_ngrams is not None:
            mixed = prune(mixed, max_ngrams=max_ngrams)
        model = fst.NgramModel.from_table(mixed)
        if _is_arpa(output):
            model.to_arpa(output)
        else:
            model.save(output)
    return {**_made(output, model.num_ngrams, f"; weight of {first}: {weight:.4f}"), "weight": float(weight)}


@app.command()
@with_json
def kenlm(
    inputs: list[Path] = INPUTS,
    output: Path = OUTPUT,
    order: int = typer.Option(4, min=1, max=255, help="Longest n-gram."),
    prune: str = typer.Option("0,0,1,1", help="Highest count dropped, by order; the last also of higher orders."),
    binary: Path | None = typer.Option(None, callback=console.writable_file, help="Also write KenLM's binary file."),
    words: bool = typer.Option(False, help="Text is one sentence a line, words between white space."),
    tokenizer: str | None = TOKENIZER,
    end_of_text: str | None = END_OF_TEXT,
    field: str = typer.Option("text", help="JSONL field or Parquet column that holds the text."),
    memory: str = typer.Option("4G", help="Memory for lmplz."),
) -> dict[str, Any]:
    """Estimate a modified Kneser-Ney model with KenLM's lmplz, and convert it into an automaton.

    Example: [bold]latticebpd lm kenlm corpus.npy --order 4 -o lm.fst[/bold]
    """
    import tempfile

    import fst
    from fst.files import replacing
    from lm_training.ngram import kenlm as programs
    from lm_training.ngram.inputs import Inputs, write_corpus

    _check_output(output)
    try:
        dropped = [int(part) for part in prune.split(",")]
    except ValueError:
        raise ValueError(f"expected --prune as numbers separated by commas, such as 0,0,1, got {prune!r}") from None
    programs.program("lmplz")
    if binary is not None:
        programs.program("build_binary")
    encoder, stored, separator = _reading(inputs, words, tokenizer, end_of_text)
    size = _bytes("--memory", memory)
    output.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=output.parent, prefix=f".{output.name}.") as scratch, _reporting() as report:
        directory = Path(scratch)
        report("reading", 0, None)
        stream, symbols = write_corpus(Inputs(inputs, field, order - 1), encoder, separator, directory)
        report("estimating", 0, None)
        arpa = directory / "lm.arpa"
        programs.estimate_arpa(stream, symbols, arpa, directory, order, dropped, size)
        if binary is not None:
            with replacing(binary) as temporary:
                programs.build_binary(arpa, temporary)
        report("converting", 0, None)
        model = directory / "lm.fst"
        counts = fst.arpa_to_fst(arpa, model, **stored)
        if output.suffix == ".fst":
            model.replace(output)
        elif output.suffix == ".arpa":
            arpa.replace(output)
        else:
            fst.NgramModel.load(model).to_arpa(output)
    return _made(output, counts)


def _tokens_to_score(source: Inputs, symbols: list[str] | None, tokenizer: str | None) -> np.ndarray:
    """Text as ids ``[n]`` of a model with these words, ``<s>`` before and ``</s>`` after every sentence; or of a
    tokenizer."""
    import numpy as np

    from fst.table import BOS, EOS
    from lm_training.data.text_tokenizer import text_tokenizer
    from lm_training.ngram.inputs import TokenizerEncoder, WordEncoder

    bpe = None if tokenizer is None else text_tokenizer(tokenizer)
    if source.are_ids:
        arrays = list(source.arrays(None if bpe is None else bpe[1]))
        return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)
    if bpe is not None:
        pieces = TokenizerEncoder(*bpe).encode(source.documents())
        return np.concatenate([np.zeros(0, dtype=np.uint16), *pieces])
    if symbols is None:
        wanted = "token ids (.npy), or text together with a tokenizer"
        raise ValueError(f"{source.paths[0]}: expected {wanted}; name one with --tokenizer")
    ids = np.concatenate([np.zeros(0, dtype=np.int32), *WordEncoder(symbols).encode(source.documents())])
    return np.insert(ids, np.append(0, np.flatnonzero(ids == EOS) + 1)[:-1], BOS)


@app.command()
@with_json
def arpa2fst(
    arpa: Path = typer.Argument(..., help="ARPA file, plain or .gz."),
    output: Path = typer.Argument(..., callback=console.writable_file, help="OpenFst file to write."),
    tokenizer: Path | None = typer.Option(None, help="tokenizer.json whose ids the words are; its hash is stored."),
) -> dict[str, Any]:
    """Convert an ARPA file into an OpenFst automaton, which is memory-mapped and loads at once; one pass, little
    memory.

    Example: [bold]latticebpd lm arpa2fst lm.arpa.gz lm.fst --tokenizer tokenizer.json[/bold]
    """
    import fst

    stored = {} if tokenizer is None else _stored(console.load_tokenizer(tokenizer))
    with console.progress_bytes() as bar:
        task = bar.add_task("reading", total=None)

        def show(done: int, total: int) -> None:
            what = "reading" if done < total else "linking and writing"
            bar.update(task, completed=done, total=total, description=what)

        counts = fst.arpa_to_fst(arpa, output, progress=show, **stored)
    return _made(output, counts)


@app.command()
@with_json
def fst2arpa(
    model: Path = typer.Argument(..., help="OpenFst file."),
    output: Path = typer.Argument(..., callback=console.writable_file, help="ARPA file to write; .gz compresses."),
) -> dict[str, Any]:
    """Convert an automaton into an ARPA file that KenLM opens: with ``<s>``, ``</s>`` and ``<unk>``.

    Example: [bold]latticebpd lm fst2arpa lm.fst lm.arpa.gz[/bold]
    """
    import fst

    with console.err.status(f"writing {output}"):
        lm = fst.NgramModel.load(model)
        lm.to_arpa(output, markers=True)
    return _made(output, lm.num_ngrams)


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
    _print_record(record, json, 12)


@app.command()
def perplexity(
    model: Path = typer.Argument(..., help="n-gram model, FST or ARPA."),
    inputs: list[Path] = typer.Argument(
        ..., callback=readable, help="Token ids (.npy), sequences, or text, JSONL and Parquet files."
    ),
    tokenizer: str | None = typer.Option(None, help="Tokenizer of the text; models of words need none."),
    field: str = typer.Option("text", help="JSONL field or Parquet column that holds the text."),
    json: bool = typer.Option(False, "--json", help="Print one JSON object."),
) -> None:
    """Perplexity of a model on text, tokens outside its vocabulary counted separately.

    Example: [bold]latticebpd lm perplexity lm.fst held-out.npy[/bold]
    """
    from dataclasses import asdict

    import fst
    from lm_training.ngram import perplexity as measure
    from lm_training.ngram.inputs import Inputs

    lm = fst.NgramModel.load(model)
    source = Inputs(inputs, field, lm.order - 1)
    measured = asdict(measure.perplexity(lm, _tokens_to_score(source, lm.symbols, tokenizer)))
    record = {name: value if math.isfinite(value) else None for name, value in measured.items()}
    _print_record(record, json, 24)
