"""Statistics over many texts: which classes of tokens decode in parallel, and how wide the iteration is."""

from __future__ import annotations

import csv
import os
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from fst.files import replacing
from latticebpd.jacobi.sentence import Sentence
from latticebpd.jacobi.trajectory import Cell
from latticebpd.lattices.token_text import CLASSES


@dataclass(frozen=True)
class ClassStatistics:
    """One class of tokens.

    name: the class; ``all`` for all tokens together.
    tokens: how many there are.
    in_parallel: how many of those that are not a text's first became right for good no later than the token before
        them.
    followers: how many are not a text's first.
    mean_pass: mean number of the pass that made them right for good.
    mean_waits: earlier tokens that one waited for, redundant ones included.
    waited_for_previous: how many waited for the token right before them.
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
    """One pass, over the texts that have not ended before it.

    number: of the pass, from 1.
    texts: how many texts take part.
    mean_width: places made right for good.
    mean_ahead: places right with something before them that is not.
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
    """Add up.

    Raises:
        ValueError: no sentences.
    """
    if not sentences:
        raise ValueError("expected at least one text, got none")
    names = np.array([name for sentence in sentences for name in sentence.classes])
    since = np.concatenate([sentence.trajectory.right_since for sentence in sentences])
    follows = np.concatenate([np.arange(len(sentence.pieces)) > 0 for sentence in sentences])
    parallel = follows & np.concatenate([[False], since[1:] <= since[:-1]])
    waits = np.array([len(waits) for sentence in sentences for waits in sentence.dependencies.waits])
    previous = np.array(
        [
            any(wait.on == wait.place - 1 for wait in waits)
            for sentence in sentences
            for waits in sentence.dependencies.waits
        ]
    )

    def of(name: str, chosen: np.ndarray) -> ClassStatistics:
        return ClassStatistics(
            name=name,
            tokens=int(chosen.sum()),
            in_parallel=int(parallel[chosen].sum()),
            followers=int(follows[chosen].sum()),
            mean_pass=float(since[chosen].mean()),
            mean_waits=float(waits[chosen].mean()),
            waited_for_previous=int(previous[chosen].sum()),
        )

    passes = [sentence.trajectory.passes for sentence in sentences]
    iterations = []
    for number in range(1, max(passes) + 1):
        running = [sentence.trajectory for sentence in sentences if sentence.trajectory.passes >= number]
        ahead = [int((each.cells[number - 1] == Cell.AHEAD).sum()) for each in running]
        width = [int(each.widths[number - 1]) for each in running]
        iterations.append(PassStatistics(number, len(running), float(np.mean(width)), float(np.mean(ahead))))
    return CorpusStatistics(
        texts=len(sentences),
        tokens=len(names),
        passes=sum(passes),
        classes=[of(name, names == name) for name in CLASSES if (names == name).any()]
        + [of("all", np.ones(len(names), dtype=bool))],
        iterations=iterations,
    )


def write_csv(rows: Iterable[ClassStatistics | PassStatistics], path: str | os.PathLike[str]) -> None:
    """One line for each, under a heading; whole or not at all."""
    records = [asdict(row) for row in rows]
    with replacing(path) as temporary, temporary.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(records[0]))
        writer.writeheader()
        writer.writerows(records)
