"""The sessions of an editor and an agent: what they ask, and that every request is recorded."""

from __future__ import annotations

import json
import lzma
from pathlib import Path
from typing import Any

import httpx
import pytest

from benchmarks.serving import editor
from latticebpd import NoDrafter
from latticebpd.serving.limits import Limits
from tests.helpers.engine_models import on_engine
from tests.helpers.served import serving, tiny


def task(function: str, number: int, lines: list[str]) -> dict[str, Any]:
    """The function with one of its lines left out."""
    before, line, after = lines[:number], lines[number], lines[number + 1 :]
    return {
        "task_id": f"SingleLineInfilling/{function}/L{number}", "entry_point": function, "prompt": "".join(before),
        "canonical_solution": line, "suffix": "".join(after),
    }  # fmt: skip


ONE, TWO = ["ab\n", " cd\n", " ef\n"], ["gh\n", " ij\n"]
TASKS = [*(task("one", number, ONE) for number in (1, 2)), task("two", 1, TWO)]


def test_the_file_grows_by_functions_and_lines() -> None:
    assert list(editor.infills(TASKS)) == [
        ("ab\n", " ef\n", " cd\n"),
        ("ab\n cd\n", "", " ef\n"),
        ("ab\n cd\n ef\n\n\ngh\n", "", " ij\n"),
    ]


def test_each_turn_begins_with_those_before() -> None:
    first, second = editor.turns(TASKS, "x")
    assert second[:2] == first
    assert [message["role"] for message in second[2:]] == ["assistant", "tool", "user"]
    assert second[3]["content"] == "".join(ONE)


def test_tasks_are_read_with_and_without_compression(tmp_path: Path) -> None:
    other = {**TASKS[0], "task_id": "RandomSpanInfillingLight/1"}
    text = "".join(json.dumps(each) + "\n" for each in [*TASKS, other])
    plain, packed = tmp_path / "a.jsonl", tmp_path / "a.jsonl.xz"
    plain.write_text(text)
    packed.write_bytes(lzma.compress(text.encode()))
    assert editor.read_tasks(plain) == editor.read_tasks(packed) == TASKS
    plain.write_text(json.dumps(other))
    with pytest.raises(ValueError, match="expected tasks whose ids begin with SingleLineInfilling/, got none"):
        editor.read_tasks(plain)


def test_every_request_of_every_server_is_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tasks, output = tmp_path / "tasks.jsonl", tmp_path / "editor.csv"
    tasks.write_text("".join(json.dumps(each) + "\n" for each in TASKS))
    answer = {"text": "ab", "seconds": 2.0, "first": 1.5, "tokens": 3, "read": 4}
    monkeypatch.setattr(editor, "chat", lambda client, messages, limit: dict(answer))  # the tokenizer has no JSON
    loaded, limits = tiny(on_engine("int8", 1), code=True), Limits(context=120)
    with serving(loaded, NoDrafter(), limits) as one, serving(loaded, NoDrafter(), limits) as two:
        options = f"-o {output} --tasks {tasks} --server a={one.url} --server b={two.url} --rounds 2 --turns 1"
        monkeypatch.setattr("sys.argv", ["editor", *options.split()])
        editor.main()
        assert one.count("responses_total", path="/infill", status="200") == 1 + 2 * 3
    rows = editor.read_csv(output)
    expected = [*(("editor", n, name) for n in "012" for name in "ab"), ("agent", "0", "a"), ("agent", "0", "b")]
    assert [(row["session"], row["request"], row["server"]) for row in rows] == expected * 2
    assert all(float(row["seconds"]) > 0 and int(row["read"]) >= 1 for row in rows)
    out = capsys.readouterr().out
    assert "| editor | a |" in out
    assert "| agent | b | 1500 | 1500 | 4 |" in out


def test_an_answer_with_calls_is_read_from_a_stream() -> None:
    asked = list[dict[str, Any]]()

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(json.loads(request.content))
        call = {"index": 0, "function": {"name": "read_file", "arguments": ""}}
        deltas: list[Any] = [{"role": "assistant", "content": ""}, {"content": "ab"}, {"tool_calls": [call]}]
        deltas.append({"tool_calls": [{"index": 0, "function": {"arguments": '{"path"'}}]})
        chunks: list[Any] = [{"choices": [{"delta": delta}]} for delta in deltas]
        usage = {"prompt_tokens": 90, "completion_tokens": 7, "prompt_tokens_details": {"cached_tokens": 80}}
        chunks.append({"choices": [], "usage": usage})
        lines = [f"data: {json.dumps(each)}\n\n" for each in chunks]
        return httpx.Response(200, text="".join(lines) + "data: [DONE]\n\n")

    rows = list[dict[str, Any]]()
    with httpx.Client(base_url="http://a", transport=httpx.MockTransport(answer)) as client:
        for about, ask, _ in editor.asks(TASKS, {"editor": 0, "agent": 8}, 0):
            rows.append({**about, **ask(client)})
    assert [(row["session"], row["text"], row["tokens"], row["read"]) for row in rows] == [
        ("agent", 'abread_file{"path"', 7, 10)
    ] * 2
    assert all(0 < row["first"] <= row["seconds"] for row in rows)
    assert [len(each["messages"]) for each in asked] == [2, 5]
    assert {each["stream"] for each in asked} == {True}
