"""Which tokens decode in parallel: the analysis of one text, and statistics over many."""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch

from fst.files import PathLike, replacing
from fst.processors import ignore
from latticebpd.checks import expect
from latticebpd.jacobi.dependencies import Dependencies, dependencies
from latticebpd.jacobi.initial_values import Initial
from latticebpd.jacobi.solution import UNKNOWN, TokenStatus, Trajectory, trajectory
from latticebpd.jacobi.solver import gauss_seidel_jacobi, jacobi
from latticebpd.lattices.token_text import CLASSES, classes, piece
from latticebpd.models.transformers.transformers_model import Model, TransformersModel


@dataclass(frozen=True)
class Sentence:
    """One decoded text.

    pieces, classes: ``[m]``, each new token's text and class.
    values: ``[passes + 1][m]``, each pass's output as pieces, row 0 before the first; empty before a block begins.
    """

    source: str
    pieces: list[str]
    classes: list[str]
    values: list[list[str]]
    trajectory: Trajectory
    dependencies: Dependencies

    def record(self) -> dict[str, Any]:
        """As JSON values: positions count from 0, passes from 1; probabilities are null at positions not computed."""
        iterates = self.trajectory
        edges = {(wait.position, wait.on) for wait in self.dependencies.edges}
        return {
            "source": self.source,
            "tokens": iterates.tokens,
            "pieces": self.pieces,
            "classes": self.classes,
            "values": self.values,
            "cells": [[TokenStatus(cell).name.lower() for cell in row] for row in iterates.cells.tolist()],
            "probabilities": [[None if math.isnan(p) else p for p in row] for row in iterates.probabilities.tolist()],
            "frontier": iterates.frontier.tolist(),
            "right_since": iterates.right_since.tolist(),
            "waits": [
                {"place": wait.position, "on": wait.on, "probability_without": wait.probability,
                 "redundant": (wait.position, wait.on) not in edges}
                for waits in self.dependencies.waits for wait in waits
            ],
        }  # fmt: skip


def analyse(
    model: Model,
    tokenizer: Any,
    text: str,
    initial: Initial | None = None,
    block_size: int | None = None,
    max_new_tokens: int = 128,
    on_progress: Callable[[float], object] = ignore,
) -> Sentence:
    """Decode a text by Jacobi iteration and measure what its tokens waited for.

    block_size: None solves the whole text together; a first decode in small blocks finds its length. on_progress:
    called with the finished share.
    """
    ids = torch.tensor([tokenizer(text)["input_ids"]])
    options: Any = {"attention_mask": torch.ones_like(ids), "max_new_tokens": max_new_tokens}  # no id means padding
    if block_size is None:
        length = int(gauss_seidel_jacobi(model, ids, **options).num_tokens[0])
        solution = jacobi(model, ids, initial, length, trace=True, **options)
    else:
        solution = gauss_seidel_jacobi(model, ids, block_size, initial, trace=True, **options)
    iterates = trajectory(solution)
    known = {*iterates.values.ravel().tolist(), *iterates.tokens} - {UNKNOWN}
    names = {token: piece(tokenizer, token) for token in known}
    pieces = [names[token] for token in iterates.tokens]
    ends = frozenset(TransformersModel.of(model).eos_ids)
    return Sentence(
        source=text,
        pieces=pieces,
        classes=classes(pieces, iterates.tokens, set(tokenizer.all_special_ids), ends),
        values=[[names.get(token, "") for token in row] for row in iterates.outputs.tolist()],
        trajectory=iterates,
        dependencies=dependencies(model, ids, iterates, max_new_tokens=max_new_tokens, on_progress=on_progress),
    )


@dataclass(frozen=True)
class ClassStatistics:
    """One class of tokens.

    name: the class; ``all`` for all tokens together.
    tokens, followers: number of tokens, and of those that are not a text's first.
    in_parallel: followers that became right for good no later than the token before them.
    mean_pass, mean_waits: means of the pass that made a token right for good, and of the tokens that it waited for.
    waited_for_previous: tokens that waited for the token right before them.
    """

    name: str
    tokens: int
    in_parallel: int
    followers: int
    mean_pass: float
    mean_waits: float
    waited_for_previous: int


@dataclass(frozen=True)
class PassStatistics:
    """Pass ``number``, from 1, over the ``texts`` that have not ended before it.

    mean_width, mean_ahead: positions made right for good, and right ones after a wrong one.
    """

    number: int
    texts: int
    mean_width: float
    mean_ahead: float


@dataclass(frozen=True)
class CorpusStatistics:
    """All texts together; ``classes`` ends with all tokens."""

    texts: int
    tokens: int
    passes: int
    classes: list[ClassStatistics]
    iterations: list[PassStatistics]

    @property
    def mean_width(self) -> float:
        """Tokens per pass: the speedup in iterations over greedy decoding."""
        return self.tokens / self.passes

    def record(self) -> dict[str, Any]:
        """As JSON values."""
        return {**asdict(self), "mean_width": self.mean_width}


def corpus_statistics(sentences: Sequence[Sentence]) -> CorpusStatistics:
    """The statistics of all sentences, at least one."""
    expect(sentences, "at least one text")
    names = np.array([name for sentence in sentences for name in sentence.classes])
    since = np.concatenate([sentence.trajectory.right_since for sentence in sentences])
    follows = np.concatenate([np.arange(len(sentence.pieces)) > 0 for sentence in sentences])
    parallel = follows & np.concatenate([[False], since[1:] <= since[:-1]])
    every = [waits for sentence in sentences for waits in sentence.dependencies.waits]
    waits = np.array(list(map(len, every)))
    previous = np.array([any(wait.on == wait.position - 1 for wait in each) for each in every])

    def of(name: str, chosen: np.ndarray) -> ClassStatistics:
        in_parallel, followers, waited = (int(each[chosen].sum()) for each in (parallel, follows, previous))
        means = float(since[chosen].mean()), float(waits[chosen].mean())
        return ClassStatistics(name, int(chosen.sum()), in_parallel, followers, *means, waited)

    trajectories = [sentence.trajectory for sentence in sentences]
    passes = [each.passes for each in trajectories]
    iterations = []
    for number in range(1, max(passes) + 1):
        running = [each for each in trajectories if each.passes >= number]
        width = float(np.mean([each.widths[number - 1] for each in running]))
        ahead = float(np.mean([(each.cells[number - 1] == TokenStatus.AHEAD).sum() for each in running]))
        iterations.append(PassStatistics(number, len(running), width, ahead))
    by_class = [of(name, names == name) for name in CLASSES if (names == name).any()]
    total = of("all", np.ones(len(names), dtype=bool))
    return CorpusStatistics(len(sentences), len(names), sum(passes), [*by_class, total], iterations)


def write_csv(rows: Iterable[ClassStatistics | PassStatistics], path: PathLike) -> None:
    """One line for each, after a heading; the file is replaced atomically."""
    records = [asdict(row) for row in rows]
    with replacing(path) as temporary, temporary.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(records[0]))
        writer.writeheader()
        writer.writerows(records)
