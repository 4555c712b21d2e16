"""Spec-Bench: its calling convention, its files, its arithmetic, and the program on three questions written here."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import BatchEncoding

from benchmarks import spec_bench
from benchmarks.spec_bench import Answer, Run, forward_func, stock_forward_func, write_answers
from latticebpd import BlockwiseLM, NoDrafter, ReferenceDrafter, load
from latticebpd.measuring.questions import Question, read_questions
from tests.helpers.blockwise_models import greedy

QUESTIONS = [
    {"question_id": 81, "category": "writing", "turns": ["Describe the city.", "Now in one line."]},
    {
        "question_id": 161,
        "category": "translation",
        "turns": ["Translate German to English: Guten Tag."],
        "reference": ["Good day."],
    },
    {"question_id": 241, "category": "summarization", "turns": ["Summarize: " + "The river runs to the sea. " * 200]},
]


@pytest.fixture
def questions(tmp_path: Path) -> Path:
    path = tmp_path / "question.jsonl"
    path.write_text("".join(json.dumps(question) + "\n" for question in QUESTIONS))
    return path


def inputs(prompt: list[int]) -> BatchEncoding:
    ids = torch.tensor([prompt])
    return BatchEncoding({"input_ids": ids, "attention_mask": torch.ones_like(ids)})


def test_forward_func_keeps_the_benchmarks_contract(model: BlockwiseLM) -> None:
    prompt = [3, 1, 4]
    text = greedy(model, prompt, 20)
    output_ids, new_token, step, accept_lengths = forward_func(
        inputs(prompt), model, None, 20, drafter=ReferenceDrafter(text, 4)
    )
    assert output_ids[0].tolist() == prompt + text
    assert new_token == 20
    assert step == len(accept_lengths) == 4  # five tokens a call; the first reads the prompt and a draft together
    assert sum(accept_lengths) == new_token
    base_ids, base_new, base_step, base_lengths = stock_forward_func(inputs(prompt), model, None, 20)
    assert base_ids.tolist() == output_ids.tolist()
    assert (base_new, base_step, base_lengths) == (20, 19, [1] * 19)


def test_questions_are_read_and_limited_per_task(questions: Path) -> None:
    with questions.open("a") as file:
        file.write(json.dumps({"question_id": 90, "category": "math", "turns": ["1 + 1?"]}) + "\n\n")
    assert [question.question_id for question in read_questions(questions)] == [81, 161, 241, 90]
    limited = read_questions(questions, limit=1)
    assert [question.question_id for question in limited] == [81, 161, 241]  # math and writing are one task, MT-Bench
    assert [question.task for question in limited] == ["mt_bench", "translation", "summarization"]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "line 4: expected an object"),
        ("[1]", "line 4: expected an object"),
        ('{"question_id": 1, "category": "qa"}', "line 4: .*turns"),
        ('{"question_id": 1, "category": "qa", "turns": []}', "turns must be a list of texts"),
        ('{"question_id": 1, "category": "qa", "turns": "text"}', "turns must be a list of texts"),
        ('{"question_id": 1, "category": "qa", "turns": [""]}', "turns must be a list of texts"),
        ('{"question_id": "a", "category": "qa", "turns": ["x"]}', "question_id must be a number"),
    ],
)
def test_a_line_that_is_no_question_is_named(questions: Path, line: str, message: str) -> None:
    questions.write_text(questions.read_text() + line + "\n")
    with pytest.raises(ValueError, match=message):
        read_questions(questions)


def test_a_file_without_questions_is_refused(tmp_path: Path) -> None:
    (tmp_path / "q.jsonl").write_text("\n")
    with pytest.raises(ValueError, match="at least one question"):
        read_questions(tmp_path / "q.jsonl")


def answer(category: str, tokens: int, seconds: float, lengths: list[int]) -> Answer:
    return Answer(Question(1, category, ["?"]), ["text"], [len(lengths)], [tokens], [seconds], lengths)


def test_results_average_questions_for_speed_and_calls_for_acceptance() -> None:
    ours = [answer("qa", 10, 1.0, [1, 3]), answer("qa", 30, 1.0, [2, 2, 2, 2]), answer("rag", 40, 2.0, [4])]
    base = [answer("qa", 10, 2.0, [1]), answer("qa", 10, 1.0, [1]), answer("rag", 40, 4.0, [1])]
    qa, rag, overall = Run(ours, base, 0, 0).results()
    assert (qa.task, qa.questions, qa.mean_accepted) == ("qa", 2, 2.0)
    assert (qa.tokens_per_second, qa.greedy_tokens_per_second) == (20.0, 7.5)
    assert rag.speedup == 2.0
    assert (overall.task, overall.questions, overall.mean_accepted) == ("overall", 3, pytest.approx(16 / 7))
    assert overall.speedup == pytest.approx(20.0 / (25 / 3))


@pytest.mark.parametrize(("weights", "baseline"), [("torch", "generate()"), ("float32", "NoDrafter")])
def test_every_turn_is_asked_of_both_and_answers_go_into_the_next_prompt(
    weights: str, baseline: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded, asked = load(weights=weights), list[tuple[str, list[int]]]()

    def record(name: str) -> None:
        forward = getattr(spec_bench, name)

        def recording(inputs: Any, *args: Any, **kwargs: Any) -> Any:
            method = type(kwargs["drafter"]).__name__ if "drafter" in kwargs else "generate()"
            asked.append((method, inputs.input_ids[0].tolist()))
            return forward(inputs, *args, **kwargs)

        monkeypatch.setattr(spec_bench, name, recording)

    record("forward_func")
    record("stock_forward_func")
    questions = [Question(*(question[key] for key in ("question_id", "category", "turns"))) for question in QUESTIONS]
    result = spec_bench.run(loaded, questions, loaded.drafter("vanilla", k=1), 8)
    methods, prompts = zip(*asked[3 * 2 * 2 :], strict=True)  # after warm-ups on the first question, of two turns
    drafting = "LatticeDrafter"
    assert methods == (baseline, baseline, drafting, drafting, baseline, drafting, baseline, drafting)
    first, second, *others = prompts[:2] + prompts[4::2]
    assert loaded.decode(first) == "Describe the city.\n\n"
    answered = result.answers[0].turns[0]
    assert loaded.decode(second) == f"Describe the city.\n\n{answered}\n\nNow in one line.\n\n"
    assert len(others) == 2
    assert len(others[1]) == 1024 - 8  # too long a prompt: its end, with room for the answer
    assert result.cut == 1
    assert result.differing == 0
    assert [answer.turns for answer in result.answers] == [answer.turns for answer in result.greedy]
    assert all(sum(answer.accept_lengths) == sum(answer.new_tokens) - len(answer.turns) for answer in result.answers)


def test_answer_files_have_the_benchmarks_layout(tmp_path: Path, model: BlockwiseLM) -> None:
    answers = [
        Answer(Question(9, "rag", ["?"]), ["b"], [2], [3], [0.5], [1, 1]),
        Answer(Question(4, "qa", ["?"]), ["a"], [1], [2], [0.1], [1]),
    ]
    write_answers(answers, tmp_path / "answers.jsonl", "model")
    records = [json.loads(line) for line in (tmp_path / "answers.jsonl").read_text().splitlines()]
    assert [record["question_id"] for record in records] == [4, 9]
    assert set(records[0]) == {"question_id", "category", "answer_id", "model_id", "choices", "tstamp"}
    assert records[1]["choices"] == [
        {
            "index": 0,
            "turns": ["b"],
            "decoding_steps": [2],
            "new_tokens": [3],
            "wall_time": [0.5],
            "accept_lengths": [1, 1],
        }
    ]


def program(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> None:
    monkeypatch.setattr("sys.argv", ["spec_bench", *map(str, arguments)])
    spec_bench.common.run(spec_bench.main)


def test_the_program_prints_every_task_and_writes_the_answers(
    questions: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    output, few = tmp_path / "answers.jsonl", ("--limit", 1, "--max-new-tokens", 6)
    program(monkeypatch, questions, *few, "--system", "copies+4-tree", "-o", output)
    printed = capsys.readouterr().out
    rows = [line.split(" | ") for line in printed.splitlines() if line.startswith("| ")]
    assert [row[0].strip("| ") for row in rows[2:]] == ["mt_bench", "translation", "summarization", "overall"]
    assert "\nPrompts that lost their beginning: 1; answers unlike greedy decoding's: 0\n" in printed
    answers = [json.loads(line)["choices"][0] for line in output.read_text().splitlines()]
    lengths = [length for each in answers for length in each["accept_lengths"]]
    assert math.isclose(float(rows[-1][2]), sum(lengths) / len(lengths), abs_tol=0.005)


def test_the_program_refuses_bad_questions_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "q.jsonl").write_text("no json\n")
    with pytest.raises(SystemExit, match=r"error: .*q\.jsonl, line 1: expected an object"):
        program(monkeypatch, tmp_path / "q.jsonl")
    with pytest.raises(SystemExit, match=r"none\.jsonl"):
        program(monkeypatch, tmp_path / "none.jsonl")


def test_limit_below_one_token_is_refused() -> None:
    with pytest.raises(ValueError, match="max_new_tokens >= 1"):
        spec_bench.run(load(), [Question(1, "qa", ["?"])], NoDrafter(), 0)
