"""Spec-Bench's questions (Xia 2024), which ``latticebpd lattices`` and the benchmarks ask."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

from fst.files import PathLike
from latticebpd.checks import expect
from latticebpd.lattices.json_files import read_json_lines

MT_BENCH = frozenset(["writing", "roleplay", "reasoning", "math", "coding", "extraction", "stem", "humanities"])


@dataclass(frozen=True)
class Question:
    """One question; a turn may refer to the answers of the turns before."""

    question_id: int
    category: str
    turns: list[str]

    @property
    def task(self) -> str:
        """The benchmark's task: MT-Bench's eight categories are one."""
        return "mt_bench" if self.category in MT_BENCH else self.category


def read_questions(path: PathLike, limit: int | None = None) -> list[Question]:
    """The questions of a ``question.jsonl``, the first ``limit`` of every task; ValueError for a line that is none, by
    file and line, or no question at all."""

    def parse(record: Any) -> Question:
        number, category, turns = record["question_id"], record["category"], record["turns"]
        if not (type(number) is int and isinstance(category, str)):
            raise ValueError("question_id must be a number, category a string")
        if not (isinstance(turns, list) and turns and all(isinstance(turn, str) and turn for turn in turns)):
            raise ValueError("turns must be a list of texts")
        return Question(number, category, turns)

    taken: Counter[str] = Counter()
    questions = []
    for question in read_json_lines(path, parse, "an object of question_id, category and turns"):
        taken[question.task] += 1
        if limit is None or taken[question.task] <= limit:
            questions.append(question)
    expect(questions, "at least one question", of=path)
    return questions
