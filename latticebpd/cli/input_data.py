"""Data sets as commands take them: text, JSONL, conversations, Spec-Bench questions, token ids, sequences -> prompts
and what follows."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from latticebpd.checks import expect

if TYPE_CHECKING:
    from latticebpd.lattices.texts import Texts
    from latticebpd.models.chat import PlainText


def readable(paths: Any) -> Any:
    """The callback of an option or argument that names data sets: where a package that reads one is missing, that is
    said before any work is done."""
    from lm_training.data.records import require_readers

    require_readers(paths if isinstance(paths, list) else [] if paths is None else [paths])
    return paths


def require_inputs(paths: Iterable[Path], *models: str | Path | None) -> None:
    """Refuse data sets and models that do not exist, before anything slow is imported or loaded.

    Raises FileNotFoundError for a path, ValueError for a model's name.
    """
    from latticebpd.models.catalogue import resolved

    for path in paths:
        if not path.exists():
            raise FileNotFoundError(2, "expected a file", str(path))
    for model in models:
        if model is not None:
            resolved(model)


def read_texts(
    path: Path,
    prompts: PlainText,
    max_prompt_tokens: int,
    max_following: int,
    field: str = "text",
    limit: int | None = None,
    sources: bool = False,
) -> Texts:
    """The prompts of a data set, each with what follows it there; ValueError for a file that cannot be read as what its
    name says, or holds no text.

    ``.npy`` token ids are cut into windows; where there are more than ``limit``, windows are taken from all over the
    array. Sequences (``.npz``, folders of ``latticebpd distill``) know their prompts. Of Spec-Bench's questions the
    first turn is the prompt. Conversations (``messages``) go up to the model's last turn, which follows. Every other
    text is cut: its first tokens are the prompt.

    prompts: tokenizer of text, and how questions and conversations become prompts.
    max_prompt_tokens: where a text is cut; of prompts that are longer by themselves, the end is kept. What a chat
        template has written is never cut.
    max_following: tokens after the prompt to keep, at most.
    sources: the prompts are an encoder–decoder's sources, so none is cut.
    """
    from latticebpd.lattices.texts import Texts
    from lm_training.data.sequences import holds_sequences, load_texts

    wanted = "text or sequences (.npz) as an encoder–decoder's sources"
    expect(not sources or path.suffix != ".npy", wanted, "an array of token ids", of=path)
    max_prompt_tokens = sys.maxsize if sources else max_prompt_tokens
    if path.suffix == ".npy":
        pairs = _windows(path, max_prompt_tokens, max_following, limit)
    elif holds_sequences(path):
        pairs = load_texts(path, 0).items()
    elif (kind := _records_of(path)) is not None:
        if kind == "questions":
            from latticebpd.measuring.questions import read_questions

            asked = (prompts.prompt(question.turns[:1]) for question in read_questions(path))
            pairs = ((ids, len(ids)) for ids in asked)
        else:
            pairs = _conversations(path, prompts)
        if prompts.eos_ids is not None:
            max_prompt_tokens = sys.maxsize
    else:
        pairs = _documents(path, prompts, field, max_prompt_tokens)
    rows, lengths = [], []
    for text, prompt_length in islice(pairs, limit):
        begin = max(0, prompt_length - max_prompt_tokens)
        rows.append(text[begin : prompt_length + max_following])
        lengths.append(prompt_length - begin)
    expect(rows, "at least one text of one token", of=path)
    return Texts.of_rows(rows, lengths)


def _documents(path: Path, prompts: PlainText, field: str, max_prompt_tokens: int) -> Iterator[tuple[list[int], int]]:
    from lm_training.data.corpus import read_documents

    for document in read_documents([path], field):
        if ids := prompts.document(document.text):
            yield ids, min(len(ids), max_prompt_tokens)


def _windows(path: Path, prompt_tokens: int, following: int, limit: int | None) -> Iterable[tuple[list[int], int]]:
    from lm_training.data.corpus import load_tokens

    ids = load_tokens([path])
    size = prompt_tokens + following
    count = len(ids) // size
    expect(count, f"at least {size} token ids (one window)", len(ids), of=path)
    starts = np.arange(count) * size
    if limit is not None and limit < count:
        starts = starts[np.arange(limit) * count // limit]
    return ((ids[start : start + size].tolist(), prompt_tokens) for start in starts.tolist())


def _conversations(path: Path, prompts: PlainText) -> Iterator[tuple[list[int], int]]:
    from latticebpd.models.chat import ChatTemplate, read_messages

    if not isinstance(prompts, ChatTemplate):
        raise ValueError(f"{path}: expected a tokenizer with a chat template for conversations, got none, or --no-chat")
    for messages, answer in read_messages(path):
        ids = prompts.prompt_of(messages)
        following = [] if answer is None else [*prompts.ids(answer), *prompts.turn_ends]
        yield [*ids, *following], len(ids)


def _records_of(path: Path) -> str | None:
    """What the first line of a JSONL file is: one of Spec-Bench's questions, a conversation's messages, or None of
    these."""
    if path.suffix != ".jsonl":
        return None
    with open(path, encoding="utf-8", errors="surrogateescape") as file:
        try:
            record = json.loads(next((line for line in file if line.strip()), "null"))
        except (ValueError, RecursionError):
            return None  # the reader of documents says what is wrong, and where
    if not isinstance(record, dict):
        return None
    return "questions" if {"turns", "question_id"} <= record.keys() else "messages" if "messages" in record else None
