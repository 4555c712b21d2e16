"""pass@1: the code of an answer, what a program may do in the sandbox, rows that resume, and the table of them."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.common import read_csv
from benchmarks.qwen import pass_at_1, speed
from benchmarks.qwen.pass_at_1 import check_solutions, code_of, definitions, judged, lines_of, program
from benchmarks.qwen.sandbox import PASSED, TIME, outcome, without_network
from latticebpd import Loaded
from tests.helpers.engine_models import on_engine
from tests.helpers.served import tiny

TASK = {
    "task_id": "HumanEval/0",
    "prompt": 'import math\n\n\ndef half(a):\n    return a / 2\n\n\ndef double(a):\n    """Twice."""\n',
    "entry_point": "double",
    "canonical_solution": "    return a * 2\n",
    "test": "def check(candidate):\n    assert candidate(2) == 4\n",
}


@pytest.mark.parametrize(
    ("text", "ended"),
    [
        ("So:\n```python\ndef double(a):\n    return 2 * a\n```\n```python\nassert double(1) == 3\n```", PASSED),
        ("```bash\npip install x\n```\n```python\ndef double(a): return 2 * a\n```", PASSED),
        ("  ```python\n  def double(a):\n      return 2 * a\n  ```", PASSED),
        ("```python\ndef double(a):\n    return math.floor(a) + half(2 * a)\n```", PASSED),
        ("```python\nN = 2\ndef double(a):\n    return N * a\nx = double('a', 1)\nprint(double())\n```", PASSED),
        ("```python\ndef double(a):\n    return 2 * a\n\ndef main(", PASSED),  # the limit was reached
        ("```python\n    return 2 * a\n```", PASSED),
        ("```\nreturn 2 * a\n```", PASSED),
        ("Here it is.\n\ndef double(a):\n    return 2 * a\n\nThat is all.", PASSED),
        ("```python\ndef double(a):\n    return 3 * a\n```", "AssertionError"),
        ("```python\ndef twice(a):\n    return 2 * a\n```", "AssertionError"),
        ("```python\ndef double(a):\n    return two * a\n```", "NameError"),
        ("", "AssertionError"),
        ("I cannot.", "SyntaxError"),
    ],
)
def test_the_code_of_an_answer_runs_the_task_s_tests(text: str, ended: str) -> None:
    assert outcome(program(TASK, text)) == ended


def test_code_is_the_block_with_the_function_or_the_first_one() -> None:
    text = "```\none\n```\n```python\ndef f_one(): 1\n```\n```python\nasync def f(): 2\n```"
    assert code_of(text, "f") == "async def f(): 2\n"
    assert code_of(text, "g") == "one\n"
    assert code_of("no code", "f") == "no code"
    assert definitions("def f(:", "f") is None
    assert definitions("def g(): 1", "f") is None


def test_what_is_filled_in_stands_between_the_task_s_texts() -> None:
    task = {**TASK, "prompt": "def double(a):\n    b = ", "suffix": "\n    return b\n", "canonical_solution": "2 * a"}
    assert outcome(program(task, "a + a")) == PASSED
    assert outcome(program(task, "a")) == "AssertionError"
    check_solutions([TASK, task])
    line = {**task, "task_id": "SingleLineInfilling/HumanEval/0", "suffix": task["suffix"][1:]}
    assert outcome(program(line, "a + a\n    b = a")) == outcome(program(line, "a + a")) == PASSED
    with pytest.raises(ValueError, match="HumanEval/0: expected its own solution to pass, got AssertionError"):
        check_solutions([TASK, {**task, "canonical_solution": "a"}])


@pytest.mark.parametrize(
    ("code", "ended"),
    [
        ("while True:\n    try:\n        while True: pass\n    except BaseException: pass", "SIGXCPU"),
        ("memory = bytearray(2 << 30)", "MemoryError"),
        ("import os; assert os.listdir() == []; open('a', 'w').write('text')", PASSED),
        ("open('a', 'wb').write(bytes(2 << 20))", "OSError"),
        ("open('../a', 'w')", "PermissionError"),
        ("import os; os.open('/tmp/of-a-sandbox', os.O_CREAT | os.O_WRONLY)", "PermissionError"),
        ("import os; os.remove('/no/such/file')", "PermissionError"),
        ("import os; os.system('true')", "PermissionError"),
        ("import subprocess; subprocess.run('true')", "PermissionError"),
        ("import os; os.fork()", "PermissionError"),
        ("import os; os.kill(os.getppid(), 0)", "PermissionError"),
        ("import socket; socket.socket()", "PermissionError"),
        ("import ctypes", "PermissionError"),
        ("import numpy", "ModuleNotFoundError"),
        ("import sys; sys.exit(0)", "SystemExit"),
        ("import os; print('passed', flush=True); os._exit(0)", "no reply"),
        ("from dataclasses import dataclass\n@dataclass\nclass A:\n    a: 'int' = 1\nassert A().a == 1", PASSED),
        ("assert not input()", "EOFError"),
        ("if __name__ == '__main__': raise ValueError", PASSED),
        ("def f(:", "SyntaxError"),
    ],
)
def test_a_program_may_do_little(code: str, ended: str) -> None:
    assert outcome(code, seconds=1 if ended == "SIGXCPU" else 10) == ended


@pytest.mark.long
def test_a_program_that_waits_is_ended() -> None:
    assert outcome("import time; time.sleep(1000)", seconds=1) == TIME


def test_there_is_no_network_where_the_kernel_can_take_it_away() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        code = f"import socket; socket.create_connection({server.getsockname()!r}, 5)"
        with_it, without = (
            subprocess.run([*prefix, sys.executable, "-c", code], capture_output=True).returncode
            for prefix in ((), without_network())
        )
    assert with_it == 0
    assert (without != 0) == bool(without_network())


def test_the_table_has_shares_with_intervals_and_counts_equal_texts() -> None:
    good, bad = "```python\ndef double(a):\n    return 2 * a\n```", "```python\ndef double(a):\n    return a\n```"
    tasks = [{**TASK, "task_id": str(number)} for number in range(4)]
    given = [("default", 0, good), ("default", 1, good), ("default", 2, bad), ("default", 3, good)]
    given += [("greedy", 0, good), ("greedy", 1, bad)]
    rows = [
        {"question": str(number), "system": system, "tokens": 10 + number, "answer": text, "made by": "x"}
        for system, number, text in given
    ]
    done = judged(rows, tasks)
    assert [list(row) for row in done[:1]] == [
        ["question", "system", "tokens", "passed", "ended", "text", "made by"],
    ]
    assert [row["ended"] for row in done] == [PASSED, PASSED, "AssertionError", PASSED, PASSED, "AssertionError"]
    stored = [{name: str(value) for name, value in row.items()} for row in done]
    assert lines_of(stored) == [
        ["default", "4", "3", "75.0 (25.0 to 100.0)", "12", "1 of 2"],
        ["greedy", "2", "1", "50.0 (0.0 to 100.0)", "10", "2 of 2"],
    ]
    assert lines_of(stored[:4]) == [["default", "4", "3", "75.0 (25.0 to 100.0)", "12", ""]]


def test_a_run_that_was_killed_goes_on_and_drafts_change_no_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    target, asked = tiny(), list[str]()

    def loaded(model: str, systems: list[str]) -> dict[str, Loaded]:
        assert (model, systems) == ("of-letters", ["default"])
        return {"default": target}

    def prompt(of: Loaded, question: speed.Question) -> tuple[list[int], list[int]]:
        asked.append(question.name)
        return of.encode("abc" + question.name), []

    monkeypatch.setattr(pass_at_1, "loaded_by_system", loaded)
    monkeypatch.setattr(pass_at_1, "prompt_of", prompt)
    tasks, output = tmp_path / "tasks.jsonl", tmp_path / "pass.csv"
    tasks.write_text("".join(json.dumps({**TASK, "task_id": name}) + "\n" for name in "abc"))
    for most, new in ((2, ["a", "b", "a"]), (3, ["c"])):
        command = f"x {tasks} -o {output} --model of-letters --greedy 1 --new-tokens 6 --most {most}"
        monkeypatch.setattr(sys, "argv", command.split())
        pass_at_1.main()
        assert asked == new
        asked.clear()
    rows = read_csv(output)
    assert [(row["system"], row["question"]) for row in rows] == [*(("default", n) for n in "abc"), ("greedy", "a")]
    assert all(row["tokens"] == "6" for row in rows)
    assert "| default | 3 | 0 | 0.0 (0.0 to 0.0) | 6 | 1 of 1 |" in capsys.readouterr().out


# ---------------------------------------------------------------- infilling
def infilling(kind: str, function: str, number: int) -> dict[str, Any]:
    name = f"{kind}/{function}/{number}"
    return {"task_id": name, "entry_point": function, "prompt": f"ab{number}", "suffix": "\nfed"}


def test_infilling_tasks_take_turns_by_kind_and_function(tmp_path: Path) -> None:
    tasks = [infilling("Line", function, number) for function in "fg" for number in (1, 2)]
    tasks += [infilling("Span", function, 1) for function in "fg"]
    path = tmp_path / "infilling.jsonl"
    path.write_text("".join(json.dumps(task) + "\n" for task in tasks))
    names = [question.name for question in speed.questions(path, None)]
    assert names == ["Line/f/1", "Span/f/1", "Line/g/1", "Span/g/1", "Line/f/2", "Line/g/2"]
    first = speed.questions(path, 1)
    assert first == [("Line/f/1", "Line", "ab1", "\nfed")]
    assert [question.name for question in speed.questions(path, 2, left_out=3)] == names[3:5]


def test_what_is_filled_in_ends_at_the_model_s_tokens_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    target = tiny(on_engine("int8", 1), code=True)
    monkeypatch.setattr(speed, "loaded_by_system", lambda *_: {speed.DEFAULT: target})
    asked = [speed.question_of(infilling("Line", "f", number)) for number in (1, 2)]
    ids, ends = speed.prompt_of(target, asked[0])
    tokens = target.tokenizer.convert_tokens_to_ids(["<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"])
    assert [ids[0], ids[-1]] == [tokens[0], tokens[2]]
    assert tokens[1] in ids
    assert {*tokens} <= {*ends}
    spelled = [None, b"a", b"\n", b")\n    "]
    monkeypatch.setattr(speed, "model_tokens", lambda *_: SimpleNamespace(spelled=spelled))
    line = speed.question_of(infilling("SingleLineInfilling", "f", 1))
    assert speed.prompt_of(target, line) == (ids, [*ends, 2, 3])
    rows = speed.measure("of-letters", asked, [speed.GREEDY, "2-copies"], 12, 0.0)
    assert [row["kind"] for row in rows] == ["Line"] * 4
    assert {row["prompt"] for row in rows} == {len(ids)}
    drafts = target.drafter("2-copies")
    for question, own in zip(asked, (rows[:2], rows[2:]), strict=True):
        prompt, stops = speed.prompt_of(target, question)
        out = target.generate(prompt, drafts, max_new_tokens=12, eos_token_id=stops)
        text = target.tokenizer.decode(out.tokens[0, len(prompt) :], skip_special_tokens=True)
        assert {row["text"] for row in own} == {speed.text_hash(text)}
    with pytest.raises(ValueError, match="expected a model with tokens to fill in the middle"):
        speed.prompt_of(tiny(), asked[0])


def test_a_chat_s_answers_end_at_the_tokens_that_end_a_turn() -> None:
    asked: Any = SimpleNamespace(
        encode=lambda text: [len(text)], prompts=SimpleNamespace(eos_ids=None), target=SimpleNamespace(eos_ids=[3])
    )
    assert speed.prompt_of(asked, speed.Question("a", "b", "text")) == ([4], [3])
    asked.prompts.eos_ids = [5, 3]
    assert speed.prompt_of(asked, speed.Question("a", "b", "text")) == ([4], [5, 3])
