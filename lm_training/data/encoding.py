"""Files of records -> token sequences, in shards that depend on the input alone.

A shard is made of so many consecutive records, good or bad.  Processes may encode different shards at the same time;
they are handed on in order, so the result is the same to the byte whatever their number.
"""

from __future__ import annotations

import multiprocessing
import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from fst.files import replacing
from latticebpd.lattices.shards import ShardDirectory
from latticebpd.lattices.texts import Texts
from lm_training.data.corpus import document_of
from lm_training.data.records import SHOWN, BadRecords, Record, read_records
from lm_training.data.templates import Conversation, Template

RECORD = "encoded.json"


@dataclass(frozen=True)
class Encoding:
    """How records become token ids.

    end_of_text: id that ends documents and answers.
    template: makes prompts and answers of a record; None takes it as a document, whose sequence has a prompt of one
        token.
    field: of JSONL objects and rows, what holds a document.
    text_lines: every line of a text file is a document.
    max_tokens: longer sequences are left out.
    shard_records: records per shard.

    Prompts are encoded as the tokenizer encodes any text, with its special tokens, since so they will be when the model
    serves; an encoder-decoder's sources thereby end as its encoder expects. A chat template writes special tokens
    itself.
    """

    end_of_text: int
    template: Template | Conversation | None = None
    field: str = "text"
    text_lines: bool = False
    max_tokens: int | None = None
    shard_records: int = 4096


@dataclass(frozen=True, eq=False)
class EncodedShard:
    """The sequences of consecutive records.

    bad, bad_count: messages of the first bad records, and the number of all. too_long: sequences left out for their
        length.
    """

    sequences: Texts
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


def encode_shard(encoding: Encoding, tokenizer: Tokenizer, records: Sequence[Record]) -> EncodedShard:
    """Encode consecutive records."""
    texts: list[tuple[str, str | None]] = []
    bad: list[str] = []
    for record in records:
        try:
            texts.append(_texts(encoding, record))
        except ValueError as error:
            bad.append(str(error))
    special = encoding.template is not None and encoding.template.special_tokens
    prompts = tokenizer.encode_batch_fast([prompt for prompt, _ in texts], add_special_tokens=special)
    answers = tokenizer.encode_batch_fast([answer or "" for _, answer in texts], add_special_tokens=False)
    rows, lengths = [], []
    for (_, text), prompt, answer in zip(texts, prompts, answers, strict=True):
        end = [] if text is None else [encoding.end_of_text]
        rows.append(np.array([*prompt.ids, *answer.ids, *end], dtype=np.int64))
        lengths.append(max(1, len(prompt.ids)))
    kept = [
        index
        for index, row in enumerate(rows)
        if len(row) and (encoding.max_tokens is None or len(row) <= encoding.max_tokens)
    ]
    dtype = np.dtype(np.uint16 if tokenizer.get_vocab_size() <= 1 << 16 else np.uint32)
    sequences = Texts.of_rows([rows[index] for index in kept], [lengths[index] for index in kept], dtype)
    return EncodedShard(sequences, len(records), bad[:SHOWN], len(bad), len(rows) - len(kept))


def encode_files(
    paths: Sequence[Path], tokenizer: Tokenizer, encoding: Encoding, workers: int = 1, bad: BadRecords | None = None
) -> Iterator[EncodedShard]:
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


def write_encoded(
    shards: Iterator[EncodedShard], path: Path, on_shard: Callable[[EncodedShard], object] | None = None
) -> Encoded:
    """Write shards and count them: a corpus (``.npy``), sequences (``.npz``), or a directory of one ``.npz`` file per
    shard.

    Raises:
        ValueError: the directory holds something else.
    """
    parts: list[Texts] = []
    counts = np.zeros(6, dtype=np.int64)
    single = path.suffix in (".npy", ".npz")
    directory = encoded_directory(path)
    if not single:
        directory.renew()
    for number, shard in enumerate(shards):
        sequences = shard.sequences
        counts += (1, shard.records, len(sequences), len(sequences.tokens), shard.bad_count, shard.too_long)
        if single:
            parts.append(sequences)
        else:
            sequences.save(directory.file(number))
        if on_shard is not None:
            on_shard(shard)
    done = Encoded(*counts.tolist())
    if path.suffix == ".npy":
        with replacing(path) as temporary, open(temporary, "wb") as file:
            np.save(file, np.concatenate([part.tokens for part in parts]) if parts else np.empty(0, np.uint16))
    elif single:
        Texts.joined(parts).save(path)
    else:
        directory.record(asdict(done))
    return done


def encoded_directory(path: str | os.PathLike[str]) -> ShardDirectory:
    """What ``latticebpd train encode`` fills."""
    return ShardDirectory(Path(path), RECORD, "latticebpd train encode", "sequences", count=_num_shards)


def _num_shards(settings: dict[str, Any]) -> int:
    if type(settings["shards"]) is not int or settings["shards"] < 0:
        raise ValueError(f"{settings['shards']!r} shards")
    return int(settings["shards"])


def load_encoded(directory: str | os.PathLike[str]) -> Texts:
    """All sequences of a directory that `write_encoded` has filled.

    Raises:
        ValueError: the directory is none of ours, or is not complete.
    """
    return Texts.joined([Texts.load(path) for path in encoded_directory(directory).files()])


def _texts(encoding: Encoding, record: Record) -> tuple[str, str | None]:
    """Prompt and answer of a record; a document is an answer to nothing."""
    if encoding.template is None:
        return "", document_of(record, encoding.field).text
    fields = record.fields()
    try:
        return encoding.template.fill(fields)
    except ValueError as error:
        raise ValueError(f"{record.place}: {error}") from None


def _mapped(
    pieces: Iterator[list[Record]], tokenizer: Tokenizer, encoding: Encoding, workers: int
) -> Iterator[EncodedShard]:
    if workers == 1:
        for piece in pieces:
            yield encode_shard(encoding, tokenizer, piece)
        return
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, context, _start, (tokenizer.to_str(), encoding)) as pool:
        waiting: deque[Future[EncodedShard]] = deque()
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


def _encode(records: list[Record]) -> EncodedShard:
    tokenizer, encoding = _state[-1]
    return encode_shard(encoding, tokenizer, records)
