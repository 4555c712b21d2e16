"""The two sets of Spec-Bench's questions: apart, together all, by order of their ids."""

from __future__ import annotations

import json
import random
from collections import Counter
from pathlib import Path

import pytest

from benchmarks import question_sets
from benchmarks.common import in_turn
from benchmarks.question_sets import SETS, question_set
from latticebpd.measuring.questions import MT_BENCH, Question, read_questions

TASKS = ("translation", "summarization", "qa", "math_reasoning", "rag")


@pytest.fixture
def everything() -> list[Question]:
    """As many of each category as the benchmark has, in another order."""
    names = [*sorted(MT_BENCH) * 10, *(task for task in TASKS for _ in range(80))]
    questions = [Question(81 + number, name, ["?"]) for number, name in enumerate(names)]
    random.Random(0).shuffle(questions)
    return questions


def test_the_sets_have_no_question_in_common_and_are_all_questions(everything: list[Question]) -> None:
    development, test = (question_set(name, everything) for name in SETS)
    assert (len(development), len(test)) == (130, 350)
    numbers = [question.question_id for question in development + test]
    assert sorted(numbers) == list(range(81, 561))
    assert Counter(question.category for question in test) == dict.fromkeys(TASKS, 70)


def test_the_development_set_has_the_first_of_each_category_by_id(everything: list[Question]) -> None:
    for category in (*MT_BENCH, *TASKS):
        of_category = sorted(question.question_id for question in everything if question.category == category)
        asked = [each.question_id for each in question_set("development", everything) if each.category == category]
        assert asked == of_category[:10]


def test_it_is_what_earlier_rows_asked(everything: list[Question]) -> None:
    """One of each category in turn, in the file's order, the first so many."""
    in_file = sorted(everything, key=lambda question: question.question_id)
    before = in_turn(in_file, lambda question: question.category)
    for limit in (26, 39, 65, 130):
        assert question_set("development", everything, limit) == before[:limit]


@pytest.mark.parametrize(("name", "size"), [("development", 130), ("test", 350)])
def test_more_questions_than_a_set_has_are_refused(everything: list[Question], name: str, size: int) -> None:
    assert len(question_set(name, everything, size)) == size
    with pytest.raises(ValueError, match=f"expected at most {size} questions, the {name} set, got {size + 1}"):
        question_set(name, everything, size + 1)


def test_the_command_writes_the_sets_lines(
    everything: list[Question], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, output = tmp_path / "question.jsonl", tmp_path / "test.jsonl"
    path.write_text("".join(json.dumps({**vars(each), "reference": ["é"]}) + "\n" for each in everything))
    monkeypatch.setattr("sys.argv", ["question_sets", str(path), "--set", "test", "-o", str(output)])
    question_sets.main()
    kept = {question.question_id for question in read_questions(output)}
    assert kept == {question.question_id for question in question_set("test", everything)}
    assert set(output.read_text().splitlines()) < set(path.read_text().splitlines())
