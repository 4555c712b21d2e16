"""Spec-Bench's questions in two sets: those that features were chosen on, and those that no feature was chosen on.

    python -m benchmarks.question_sets question.jsonl --set test -o test.jsonl    # for --prompts

*Development*: the first ten of each of the 13 categories by their ids, 130; all pages of before have read them, and
eleven versions of trees were compared on them. *Test*: the other 350, seventy of each task but MT-Bench, which has no
others; speeds of rescoring and of the engine were measured on 15 of them before. Both are asked one of each category in
turn, so that the first so many are of all categories alike.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from benchmarks import common
from fst.files import write_text
from latticebpd.checks import expect
from latticebpd.measuring.questions import Question, read_questions

DEVELOPED = 10
"""Questions of each category in the development set."""
SETS = {"development": slice(DEVELOPED), "test": slice(DEVELOPED, None)}
"""Of each category's questions, by their ids."""


def question_set(name: str, everything: Iterable[Question], limit: int | None = None) -> list[Question]:
    """The first so many questions of a set, one of each category in turn; ValueError for more than it has."""
    ordered = sorted(everything, key=lambda question: question.question_id)
    categories = common.by_kind(ordered, lambda question: question.category).values()
    asked = [question for each in categories for question in each[SETS[name]]]
    wanted = f"at most {len(asked)} questions, the {name} set"
    expect(limit is None or limit <= len(asked), wanted, limit)
    return common.in_turn(asked, lambda question: question.category)[:limit]


def main() -> None:
    parser = common.options(__doc__, whole=True)
    parser.add_argument("questions", type=Path, help="the benchmark's question.jsonl")
    parser.add_argument("--set", choices=SETS, required=True)
    parser.add_argument("-o", "--output", type=Path, required=True, help="a file of the same form")
    args = parser.parse_args()
    lines = args.questions.read_text(encoding="utf-8").splitlines(keepends=True)
    records = common.read_lines(args.questions)
    known = {record["question_id"]: line for line, record in zip(lines, records, strict=True)}
    asked = question_set(args.set, read_questions(args.questions))
    write_text(args.output, "".join(known[question.question_id] for question in asked))


if __name__ == "__main__":
    common.run(main)
