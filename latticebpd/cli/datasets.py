"""Data sets as commands take them: text, JSONL, Spec-Bench questions, token ids and sequences -> prompts and what follows them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from tokenizers import Tokenizer

    from latticebpd.lattices.texts import Texts


def read_texts(
    path: Path,
    tokenizer: Tokenizer,
    max_prompt_tokens: int,
    max_following: int,
    field: str = "text",
    limit: int | None = None,
    sources: bool = False,
) -> Texts:
    """The prompts of a data set, each with what follows it there.

    ``.npy`` token ids are cut into windows; where there are more than ``limit``, windows are taken from all over the array.
    ``.npz`` sequences (``latticebpd distill`` writes them) know their prompts. Of Spec-Bench's questions the first turn is the
    prompt. Every other text is cut: its first tokens are the prompt.

    Args:
        tokenizer: for text.
        max_prompt_tokens: where a text is cut; of prompts that are longer by themselves, the end is kept.
        max_following: tokens behind the prompt to keep, at most.
        field: JSONL field that holds the text.
        limit: texts, at most.
        sources: the prompts are an encoder–decoder's sources, so none is cut.

    Raises:
        ValueError: the file cannot be read as what its name says, or holds no text.
    """
    from latticebpd.lattices.texts import Texts

    if sources and path.suffix == ".npy":
        raise ValueError(f"{path}: expected text or sequences (.npz) as an encoder–decoder's sources, got an array of token ids")
    if path.suffix == ".npy":
        pairs = _windows(path, max_prompt_tokens, max_following, limit)
    elif path.suffix == ".npz":
        pairs = Texts.load(path).items()
    elif _holds_questions(path):
        pairs = _questions(path, tokenizer)
    else:
        pairs = _documents(path, tokenizer, field, None if sources else max_prompt_tokens)
    rows, lengths = [], []
    for text, prompt_length in islice(pairs, limit):
        begin = 0 if sources else max(0, prompt_length - max_prompt_tokens)
        rows.append(text[begin : prompt_length + max_following])
        lengths.append(prompt_length - begin)
    if not rows:
        raise ValueError(f"{path}: expected at least one text of one token, found none")
    return Texts.of_rows(rows, lengths)


def _documents(path: Path, tokenizer: Tokenizer, field: str, max_prompt_tokens: int | None) -> Iterator[tuple[list[int], int]]:
    from lm_training.data.corpus import read_documents

    for document in read_documents([path], field):
        if ids := tokenizer.encode(document.text).ids:
            yield ids, len(ids) if max_prompt_tokens is None else min(len(ids), max_prompt_tokens)


def _windows(path: Path, prompt_tokens: int, following: int, limit: int | None) -> Iterable[tuple[list[int], int]]:
    from lm_training.data.corpus import load_tokens

    ids = load_tokens([path])
    size = prompt_tokens + following
    count = len(ids) // size
    if not count:
        raise ValueError(f"{path}: expected at least {size} token ids (one window), got {len(ids)}")
    starts = np.arange(count) * size
    if limit is not None and limit < count:
        starts = starts[np.arange(limit) * count // limit]
    return ((ids[start : start + size].tolist(), prompt_tokens) for start in starts.tolist())


def _questions(path: Path, tokenizer: Tokenizer) -> Iterator[tuple[list[int], int]]:
    from latticebpd.analysis.spec_bench import read_questions

    for question in read_questions(path):
        ids = tokenizer.encode(question.turns[0] + "\n\n").ids
        yield ids, len(ids)


def _holds_questions(path: Path) -> bool:
    """Whether the first line is one of Spec-Bench's."""
    if path.suffix != ".jsonl":
        return False
    with open(path, encoding="utf-8", errors="surrogateescape") as file:
        try:
            record = json.loads(next((line for line in file if line.strip()), "null"))
        except (ValueError, RecursionError):
            return False  # the reader of documents says what is wrong, and where
    return isinstance(record, dict) and "turns" in record and "question_id" in record
