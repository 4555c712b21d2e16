"""Files of records -> token sequences, in shards that depend on the input alone.

A shard is made of so many consecutive records, good or bad.  Processes may encode different shards at the same time;
they are handed on in order, so the result is the same to the byte whatever their number.
"""

from __future__ import annotations

import json
import multiprocessing
import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

from fst.files import replacing
from lm_training.data.corpus import document_of
from lm_training.data.records import SHOWN, BadRecords, Record, read_records
from lm_training.data.sequences import Sequences
from lm_training.data.templates import Template

RECORD = "encoded.json"


@dataclass(frozen=True)
class Encoding:
    """How records become token ids.

    end_of_text: id that ends documents and answers.
    template: makes prompts and answers of a record; None takes it as a document, whose sequence has a prompt of one token.
    field: of JSONL objects and rows, what holds a document.
    text_lines: every line of a text file is a document.
    max_tokens: longer sequences are left out.
    shard_records: records per shard.

    Prompts are encoded as the tokenizer encodes any text, with its special tokens, since so they will be when the model
    serves; an encoder-decoder's sources thereby end as its encoder expects.
    """

    end_of_text: int
    template: Template | None = None
    field: str = "text"
    text_lines: bool = False
    max_tokens: int | None = None
    shard_records: int = 4096


@dataclass(frozen=True)
class Shard:
    """The sequences of consecutive records.

    bad, bad_count: messages of the first bad records, and the number of all.  too_long: sequences left out for their length.
    """

    sequences: Sequences
    records: int
    bad: list[str]
    bad_count: int
    too_long: int


@dataclass(frozen=True)
class Encoded:
    """What was encoded."""

    shards: int
    records: int
    sequences: int
    tokens: int
    bad: int
    too_long: int


def encode_shard(encoding: Encoding, tokenizer: Tokenizer, records: Sequence[Record]) -> Shard:
    """Encode consecutive records."""
    texts: list[tuple[str, str | None]] = []
    bad: list[str] = []
    for record in records:
        try:
            texts.append(_texts(encoding, record))
        except ValueError as error:
            bad.append(str(error))
    prompts = tokenizer.encode_batch_fast([prompt for prompt, _ in texts], add_special_tokens=encoding.template is not None)
    answers = tokenizer.encode_batch_fast([answer or "" for _, answer in texts], add_special_tokens=False)
    rows, lengths = [], []
    for (_, text), prompt, answer in zip(texts, prompts, answers, strict=True):
        end = [] if text is None else [encoding.end_of_text]
        rows.append(np.array([*prompt.ids, *answer.ids, *end], dtype=np.int64))
        lengths.append(max(1, len(prompt.ids)))
    kept = [index for index, row in enumerate(rows) if len(row) and (encoding.max_tokens is None or len(row) <= encoding.max_tokens)]
    dtype = np.dtype(np.uint16 if tokenizer.get_vocab_size() <= 1 << 16 else np.uint32)
    sequences = Sequences.of_rows([rows[index] for index in kept], [lengths[index] for index in kept], dtype)
    return Shard(sequences, len(records), bad[:SHOWN], len(bad), len(rows) - len(kept))


def encode_files(
    paths: Sequence[Path], tokenizer: Tokenizer, encoding: Encoding, workers: int = 1, bad: BadRecords | None = None
) -> Iterator[Shard]:
    """Yield the shards of all files together, in order.

    Args:
        workers: processes that encode; 1 encodes in this one.
        bad: takes note of bad records; by default the first is an error.

    Raises:
        ValueError: a file cannot be read, or no record of all can be used.
    """
    bad = bad or BadRecords()
    columns = [encoding.field] if encoding.template is None else encoding.template.columns
    records = read_records(paths, columns, encoding.text_lines)
    pieces = iter(lambda: list(islice(records, encoding.shard_records)), [])
    total = 0
    for shard in _mapped(pieces, tokenizer, encoding, workers):
        total += shard.records
        bad.add(shard.bad, shard.bad_count)
        yield shard
    if total and bad.count == total:
        raise ValueError(f"expected records that can be used, got {total} that cannot, first: {bad.first[0]}")


def write_encoded(shards: Iterator[Shard], path: Path, on_shard: Callable[[Shard], object] | None = None) -> Encoded:
    """Write shards and count them: a corpus (``.npy``), sequences (``.npz``), or a directory of one ``.npz`` file per shard.

    Raises:
        ValueError: the directory holds something else.
    """
    parts: list[Sequences] = []
    counts = np.zeros(6, dtype=np.int64)
    single = path.suffix in (".npy", ".npz")
    if not single:
        _claim(path)
    for number, shard in enumerate(shards):
        sequences = shard.sequences
        counts += (1, shard.records, len(sequences), len(sequences.tokens), shard.bad_count, shard.too_long)
        if single:
            parts.append(sequences)
        else:
            sequences.save(_shard_path(path, number))
        if on_shard is not None:
            on_shard(shard)
    done = Encoded(*counts.tolist())
    if path.suffix == ".npy":
        with replacing(path) as temporary, open(temporary, "wb") as file:
            np.save(file, np.concatenate([part.tokens for part in parts]) if parts else np.empty(0, np.uint16))
    elif single:
        Sequences.joined(parts).save(path)
    else:
        with replacing(path / RECORD) as temporary:
            temporary.write_text(json.dumps(asdict(done), indent=2) + "\n")
    return done


def load_encoded(directory: str | os.PathLike[str]) -> Sequences:
    """All sequences of a directory that `write_encoded` has filled.

    Raises:
        ValueError: the directory is none of ours, or is not complete.
    """
    directory = Path(directory)
    try:
        shards = json.loads((directory / RECORD).read_text(encoding="utf-8"))["shards"]
        if type(shards) is not int or shards < 0:
            raise ValueError(f"{shards!r} shards")
    except (ValueError, KeyError, TypeError, FileNotFoundError) as error:
        raise ValueError(f"{directory}: expected a directory that `latticebpd train encode` has filled: {error}") from error
    return Sequences.joined([Sequences.load(_shard_path(directory, number)) for number in range(shards)])


def _texts(encoding: Encoding, record: Record) -> tuple[str, str | None]:
    """Prompt and answer of a record; a document is an answer to nothing."""
    if encoding.template is None:
        return "", document_of(record, encoding.field).text
    fields = record.fields()
    try:
        return encoding.template.fill(fields)
    except ValueError as error:
        raise ValueError(f"{record.place}: {error}") from None


def _mapped(pieces: Iterator[list[Record]], tokenizer: Tokenizer, encoding: Encoding, workers: int) -> Iterator[Shard]:
    if workers == 1:
        for piece in pieces:
            yield encode_shard(encoding, tokenizer, piece)
        return
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, context, _start, (tokenizer.to_str(), encoding)) as pool:
        waiting: deque[Future[Shard]] = deque()
        for piece in pieces:
            waiting.append(pool.submit(_encode, piece))
            if len(waiting) > 2 * workers:  # no more than that is read ahead
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


_state: list[tuple[Tokenizer, Encoding]] = []
"""Of an encoding process."""


def _start(tokenizer: str, encoding: Encoding) -> None:
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    _state.append((Tokenizer.from_str(tokenizer), encoding))


def _encode(records: list[Record]) -> Shard:
    tokenizer, encoding = _state[-1]
    return encode_shard(encoding, tokenizer, records)


def _shard_path(directory: Path, number: int) -> Path:
    return directory / f"shard-{number:05d}.npz"


def _claim(directory: Path) -> None:
    """Empty a directory of ours; refuse any other that is not empty."""
    directory.mkdir(parents=True, exist_ok=True)
    names = {path.name for path in directory.iterdir()}
    strange = sorted(name for name in names if name != RECORD and not (name.startswith("shard-") and name.endswith(".npz")))
    if strange:
        raise ValueError(f"{directory}: expected a new directory, or one of encoded shards, found {strange[0]}; choose another")
    (directory / RECORD).unlink(missing_ok=True)  # what is half made has none
    for name in names - {RECORD}:
        (directory / name).unlink()
