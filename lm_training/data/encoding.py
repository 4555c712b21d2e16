"""Files of records into token sequences, in shards of consecutive records, unusable ones included.

Processes may encode different shards at the same time. Shards are yielded in order, so the output is the same to the
byte for any number of processes.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, astuple, dataclass
from functools import partial
from itertools import islice
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

from fst.files import PathLike, save_array
from fst.processors import ignore, in_order
from latticebpd.lattices.shards import ShardDirectory, whole_number
from latticebpd.lattices.texts import Texts
from lm_training.data.batching import token_dtype
from lm_training.data.corpus import document_of
from lm_training.data.records import SHOWN, BadRecords, Record, read_records
from lm_training.data.templates import Conversation, Template

RECORD = "encoded.json"


@dataclass(frozen=True)
class Encoding:
    """How records become token ids.

    end_of_text: id that ends documents and answers.
    template: makes prompts and answers of records; None: a record is a document, whose sequence has a prompt of one
        token.
    field: of JSONL objects and rows, with a document.
    text_lines: every line of a text file is a document.
    max_tokens: longer sequences are skipped.

    Prompts get the tokenizer's special tokens, as they do in serving; sources thereby end as encoders expect. A chat
    template writes special tokens itself.
    """

    end_of_text: int
    template: Template | Conversation | None = None
    field: str = "text"
    text_lines: bool = False
    max_tokens: int | None = None
    shard_records: int = 4096


@dataclass(frozen=True)
class Encoded:
    """Counts over shards.  bad: unusable records.  too_long: skipped sequences."""

    shards: int = 0
    records: int = 0
    sequences: int = 0
    tokens: int = 0
    bad: int = 0
    too_long: int = 0

    def __add__(self, other: Encoded) -> Encoded:
        return Encoded(*(one + more for one, more in zip(astuple(self), astuple(other), strict=True)))


@dataclass(frozen=True, eq=False)
class EncodedShard:
    """The sequences of consecutive records, and the messages of the first bad ones."""

    sequences: Texts
    counts: Encoded
    bad: list[str]


def encode_shard(encoding: Encoding, tokenizer: Tokenizer, records: Sequence[Record]) -> EncodedShard:
    """Encode consecutive records."""
    texts: list[tuple[str, str | None]] = []
    bad: list[str] = []
    for record in records:
        try:
            texts.append(_prompt_and_answer(encoding, record))
        except ValueError as error:
            bad.append(str(error))
    special = encoding.template is not None and encoding.template.special_tokens
    prompts = tokenizer.encode_batch_fast([prompt for prompt, _ in texts], add_special_tokens=special)
    answers = tokenizer.encode_batch_fast([answer or "" for _, answer in texts], add_special_tokens=False)
    rows, lengths, too_long = [], [], 0
    for (_, text), prompt, answer in zip(texts, prompts, answers, strict=True):
        row = [*prompt.ids, *answer.ids, *([] if text is None else [encoding.end_of_text])]
        if row and (encoding.max_tokens is None or len(row) <= encoding.max_tokens):
            rows.append(row)
            lengths.append(max(1, len(prompt.ids)))
        else:
            too_long += 1
    sequences = Texts.of_rows(rows, lengths, token_dtype(tokenizer.get_vocab_size()))
    counts = Encoded(1, len(records), len(sequences), len(sequences.tokens), len(bad), too_long)
    return EncodedShard(sequences, counts, bad[:SHOWN])


def encode_files(
    paths: Sequence[Path], tokenizer: Tokenizer, encoding: Encoding, workers: int = 1, bad: BadRecords | None = None
) -> Iterator[EncodedShard]:
    """Yield the shards of all files together, in order; ValueError where a file cannot be read, or all records are bad.

    workers: processes that encode; 1: this process only. bad: collects bad records; by default the first is an error.
    """
    bad = bad or BadRecords()
    columns = [encoding.field] if encoding.template is None else encoding.template.columns
    records = read_records(paths, columns, encoding.text_lines)
    pieces = iter(lambda: list(islice(records, encoding.shard_records)), [])
    total = 0
    for shard in _mapped(pieces, tokenizer, encoding, workers):
        total += shard.counts.records
        bad.add(shard.bad, shard.counts.bad)
        yield shard
    if total and bad.count == total:
        raise ValueError(f"expected records that can be used, got {total} that cannot, first: {bad.first[0]}")


def write_encoded(
    shards: Iterator[EncodedShard], path: Path, on_shard: Callable[[EncodedShard], object] = ignore
) -> Encoded:
    """Write and count shards: a corpus (``.npy``), sequences (``.npz``), or a directory with one ``.npz`` per shard.

    ValueError for a directory with other files.
    """
    parts: list[Texts] = []
    done = Encoded()
    single = path.suffix in (".npy", ".npz")
    directory = encoded_directory(path)
    if not single:
        directory.renew()
    for number, shard in enumerate(shards):
        done += shard.counts
        if single:
            parts.append(shard.sequences)
        else:
            shard.sequences.save(directory.file(number))
        on_shard(shard)
    if path.suffix == ".npy":
        save_array(path, np.concatenate([part.tokens for part in parts]) if parts else np.empty(0, np.uint16))
    elif single:
        Texts.joined(parts).save(path)
    else:
        directory.record(asdict(done))
    return done


def encoded_directory(path: PathLike) -> ShardDirectory:
    """The directory that ``latticebpd train encode`` fills."""
    count = partial(whole_number, name="shards", least=0)
    return ShardDirectory(Path(path), RECORD, "latticebpd train encode", "sequences", count=count)


def _prompt_and_answer(encoding: Encoding, record: Record) -> tuple[str, str | None]:
    """Of a record; a document is an answer to an empty prompt."""
    if encoding.template is None:
        return "", document_of(record, encoding.field).text
    fields = record.fields()
    try:
        return encoding.template.fill(fields)
    except ValueError as error:
        raise ValueError(f"{record.origin}: {error}") from None


def _mapped(
    pieces: Iterator[list[Record]], tokenizer: Tokenizer, encoding: Encoding, workers: int
) -> Iterator[EncodedShard]:
    if workers == 1:
        for piece in pieces:
            yield encode_shard(encoding, tokenizer, piece)
        return
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, context, _start, (tokenizer.to_str(), encoding)) as pool:
        yield from in_order(pool, _encode, pieces, 2 * workers)


_state: list[tuple[Tokenizer, Encoding]] = []
"""Of a worker process."""


def _start(tokenizer: str, encoding: Encoding) -> None:
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    _state.append((Tokenizer.from_str(tokenizer), encoding))


def _encode(records: list[Record]) -> EncodedShard:
    tokenizer, encoding = _state[-1]
    return encode_shard(encoding, tokenizer, records)
