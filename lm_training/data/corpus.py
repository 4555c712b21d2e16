"""Documents into token ids.

A *document* is one string; a *corpus* is a flat array of token ids in which every document ends with the tokenizer's
end-of-text token. A line of a ``.jsonl`` file, a row of a ``.parquet`` file or saved data set, or any other file is one
document.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from fst.files import PathLike
from latticebpd.checks import expect
from latticebpd.lattices.npz import DAMAGE
from lm_training.data.batching import token_dtype
from lm_training.data.records import Record, read_records

END_OF_TEXT = "<|endoftext|>"


@dataclass(frozen=True)
class Document:
    """A text and its origin."""

    id: str
    source: str
    text: str


def read_documents(paths: Iterable[PathLike], field: str = "text") -> Iterator[Document]:
    """Yield the documents of text, JSONL and Parquet files and of saved data sets, in order; CRLF is read as LF.

    field: of JSONL objects and rows, with the text.
    Raises ValueError: a line is no JSON object or has no string under ``field``; invalid UTF-8; a damaged file.
    """
    return (document_of(record, field) for record in read_records(paths, [field]))


def document_of(record: Record, field: str) -> Document:
    """A record as a document; ValueError for a record without text."""
    fields = record.fields()
    text = fields.get(field) if record.has_fields else fields["text"]
    if not isinstance(text, str):
        raise ValueError(f"{record.origin}: expected a string under {field!r}; name the field that holds the text")
    name = f"{record.path.name}:{record.number}" if record.number else str(record.path)
    return Document(str(fields.get("id", name)), str(fields.get("source", record.path.name)), text)


def is_held_out(document_id: str, per_mille: int = 10) -> bool:
    """Whether a document belongs to the held-out part, by a fixed hash of its id."""
    return zlib.crc32(document_id.encode()) % 1000 < per_mille


def train_tokenizer(
    texts: Iterable[str],
    vocab_size: int = 8192,
    progress: bool = False,
    special_tokens: Sequence[str] = (END_OF_TEXT,),
    add_prefix_space: bool = False,
) -> Tokenizer:
    """A byte-level BPE tokenizer; the special tokens, of which the first ends texts, have ids 0, 1, ..."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=add_prefix_space)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(special_tokens),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=progress,
    )
    tokenizer.train_from_iterator(texts, trainer=trainer)
    return tokenizer


def encoded_documents(
    documents: Iterable[Document], tokenizer: Tokenizer, end_id: int, batch_size: int = 256
) -> Iterator[np.ndarray]:
    """Each document's ids ``[n]`` and then ``end_id``: uint16, or uint32 for large vocabularies."""
    dtype, iterator = token_dtype(tokenizer.get_vocab_size()), iter(documents)
    while batch := [document.text for document in islice(iterator, batch_size)]:
        for encoding in tokenizer.encode_batch_fast(batch, add_special_tokens=False):
            yield np.array([*encoding.ids, end_id], dtype=dtype)


def encode_documents(documents: Iterable[Document], tokenizer: Tokenizer, end_id: int) -> np.ndarray:
    """Documents as one corpus ``[n]``, each ending with ``end_id``."""
    none = np.empty(0, token_dtype(tokenizer.get_vocab_size()))
    return np.concatenate([none, *encoded_documents(documents, tokenizer, end_id)])


def load_tokens(paths: Sequence[PathLike]) -> np.ndarray:
    """Memory-map one ``.npy`` corpus, or concatenate several: ``[n]`` unsigned ids."""
    arrays = []
    for path in paths:
        try:
            array = np.load(path, mmap_mode="r", allow_pickle=False)
        except FileNotFoundError:
            raise
        except DAMAGE as error:
            raise ValueError(f"{path}: expected a .npy array of token ids: {error}") from error
        wanted = "a one-dimensional integer array"
        expect(array.ndim == 1 and array.dtype.kind in "ui", wanted, f"shape {array.shape} of {array.dtype}", of=path)
        arrays.append(array)
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)


def corpus_ids(paths: Sequence[PathLike], encoder: tuple[Tokenizer, int] | None, field: str = "text") -> np.ndarray:
    """``[n]`` unsigned ids of ``.npy`` corpora or encoded documents; ValueError for both, or text without tokenizer.

    encoder: the tokenizer of documents, and the id that ends each.
    """
    encoded = [Path(path).suffix == ".npy" for path in paths]
    if all(encoded):
        return load_tokens(paths)
    expect(not any(encoded), "either .npy corpora or text files", "both", "encode the text first")
    if encoder is None:
        first = next(iter(paths))
        raise ValueError(f"{first}: expected token ids (.npy), or text with a tokenizer; name one with --tokenizer")
    return encode_documents(read_documents(paths, field), *encoder)
