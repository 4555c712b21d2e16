"""The benchmark of structured output: schemas of the leaderboard's types, right calls, calls by forced tokens."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from llguidance import LLMatcher, LLTokenizer

from benchmarks.common import MADE_BY, resumed
from benchmarks.structured import free_text, parts
from benchmarks.structured.forced import replayed
from benchmarks.structured.peers import LLAMA, XGRAMMAR
from benchmarks.structured.peers import lines_of as peer_lines
from benchmarks.structured.schemas import instance_lines, is_valid, judged, text_lines, written
from benchmarks.structured.tool_calls import is_right, measure_parts, schema_of
from latticebpd import TextCache, json_schema, load
from latticebpd.constraints.model_tokens import model_tokens

FUNCTION: dict[str, Any] = {
    "name": "area",
    "description": "Area of a rectangle.",
    "parameters": {
        "type": "dict",
        "properties": {
            "sides": {"type": "tuple", "items": {"type": "float"}},
            "unit": {"type": "string", "default": "m"},
            "any": {"type": "any"},
        },
        "required": ["sides"],
    },
}
CALL: dict[str, Any] = {"name": "area", "arguments": {"sides": [2.5, 3], "unit": "m"}}
ACCEPTED: list[Any] = [{"area": {"sides": [[2.5, 3], [3, 2.5]], "unit": ["m", "metre", ""]}}]


def test_schemas_of_functions_accept_their_calls_and_no_others() -> None:
    for functions in ([FUNCTION], [{**FUNCTION, "name": "length"}, FUNCTION]):
        schema = schema_of(functions)
        jsonschema.validate(CALL, schema)
        for wrong in ({**CALL, "name": "volume"}, {**CALL, "arguments": {"sides": [1], "other": 2}}, {"name": "area"}):
            with pytest.raises(jsonschema.ValidationError):
                jsonschema.validate(wrong, schema)
        json_schema(schema)


def test_a_call_is_right_if_every_argument_is_an_accepted_one() -> None:
    assert is_right(json.dumps(CALL), ACCEPTED)
    assert is_right('{"name": "area", "arguments": {"sides": [3, 2.5]}}', ACCEPTED)  # the unit is optional
    assert not is_right('{"name": "area", "arguments": {"unit": "m"}}', ACCEPTED)
    assert not is_right('{"name": "area", "arguments": {"sides": [3, 2.5], "unit": "km"}}', ACCEPTED)
    assert not is_right('{"name": "area", "arguments": {"sides": [3, 2.5], "more": 1}}', ACCEPTED)
    assert not is_right('{"name": "volume", "arguments": {}}', ACCEPTED)
    assert not is_right('{"name": "area", "argum', ACCEPTED)


def test_a_replay_counts_calls_and_right_drafts() -> None:
    loaded = load()
    tokens = model_tokens(loaded.tokenizer, loaded.target.vocab_size)
    schema = {"type": "object", "properties": {"a": {"enum": ["the", "of"]}}, "required": ["a"]}
    constraint = json_schema({**schema, "additionalProperties": False})
    text = [*tokens.encode('{"a": "the"}'), 0]
    counts = replayed(constraint.automaton(tokens, [0]), text)
    assert counts is not None
    assert (counts["tokens"], counts["calls"]) == (len(text), 2)
    assert counts["right"] == len(text) - 1  # all but the value's beginning
    assert replayed(constraint.automaton(tokens, [0]), [*tokens.encode('{"b": 1}'), 0]) is None


NAMES: dict[str, Any] = {
    "type": "object",
    "properties": {"name": {"enum": ["river", "city"]}},
    "required": ["name"],
    "additionalProperties": False,
}


def test_instances_are_judged_as_by_llguidance_itself_and_refused_schemas_are_counted() -> None:
    loaded = load()
    tokens = model_tokens(loaded.tokenizer, loaded.target.vocab_size)
    theirs = LLTokenizer(tokens.backend.to_str(), n_vocab=tokens.vocab_size)
    tests = [{"data": {"name": "river"}, "valid": True}, {"data": {"name": "sea"}, "valid": False}]
    tests += [{"data": {"name": "city", "more": 1}, "valid": True}]  # a wrong label
    rows = [
        judged({"id": "1", "group": "a", "schema": schema, "tests": tests}, tokens, 0, lambda g: LLMatcher(theirs, g))
        for schema in (NAMES, {"not": NAMES})
    ]
    assert instance_lines(rows)[0] == ["a", "2", "1", "3", "3", "2"]


def test_texts_of_all_systems_are_counted_and_validated() -> None:
    loaded, cache = load(), TextCache()
    record = {"id": "1", "group": "a", "schema": NAMES}
    rows = [written(loaded, record, system, 20, cache) for system in ("greedy", "forced", "default")]
    assert len({row["text"] for row in rows}) == 1
    assert [line[:4] for line in text_lines(rows)] == [
        [name, "1", "1", "1"] for name in ("greedy", "forced", "default", "default, a")
    ]
    assert is_valid(NAMES, '{"name": "city"}')
    assert not is_valid(NAMES, '{"name": "sea"}')
    assert not is_valid(NAMES, '{"name": "ci')


def test_a_run_that_was_killed_goes_on_where_it_was(tmp_path: Path) -> None:
    made = list[int]()

    def make(item: int) -> list[dict[str, int]]:
        if item == 3 and len(made) == 2:
            made.append(-1)
            raise KeyboardInterrupt
        made.append(item)
        return [{"item": item}]

    kept = tmp_path / "rows.jsonl"
    with pytest.raises(KeyboardInterrupt):
        resumed(kept, [1, 2, 3], str, make)
    rows = resumed(kept, [1, 2, 3], str, make)
    assert made == [1, 2, -1, 3]
    assert [row["item"] for row in rows] == [1, 2, 3]
    assert all(MADE_BY in row for row in rows)


def test_other_programs_have_a_line_each() -> None:
    rows = [
        {"program": program, "tokens": "10", "seconds": "2", "processor": "1", "right": right}
        for program in (LLAMA, XGRAMMAR) for right in "10"
    ]  # fmt: skip
    assert peer_lines(rows) == [[program, "2", "5.0", "10.0", "50 %"] for program in (LLAMA, XGRAMMAR)]


def test_the_clock_of_a_part_stops_while_another_one_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = iter(range(100))
    monkeypatch.setattr("time.perf_counter", lambda: next(ticks))
    clock = parts.Clock()
    with clock.part(parts.REST), clock.part(parts.DRAFTING):
        clock.timed(parts.MASKS, lambda: None)()
        with pytest.raises(ZeroDivisionError):
            clock.timed(parts.MASKS, lambda: 1 / 0)()
    assert clock.seconds == {parts.PASSES: 0, parts.MASKS: 2, parts.DRAFTING: 3, parts.REST: 2}


CHAT = "{% for message in messages %}{{ message.content }}{% endfor %}"
RECORDS = [
    {"id": str(i), "question": [[{"role": "user", "content": f"The city {i}"}]], "function": [FUNCTION]}
    for i in range(2)
]


@pytest.fixture
def model_that_chats(monkeypatch: pytest.MonkeyPatch) -> None:
    """In place of each model that is loaded."""
    loaded = load()
    loaded.tokenizer.chat_template = CHAT
    for module in ("tool_calls", "free_text"):
        monkeypatch.setattr(f"benchmarks.structured.{module}.load", lambda name: loaded)


def test_the_parts_of_a_question_add_up_to_its_time(model_that_chats: None, tmp_path: Path) -> None:
    begun = time.perf_counter()
    rows = measure_parts("any", RECORDS, 12, tmp_path / "rows.jsonl")
    taken = time.perf_counter() - begun
    names = (parts.PASSES, parts.DRAFTING, parts.MASKS, parts.REST)
    assert all(row[name] > 0 for row in rows for name in names)
    assert sum(row[name] for row in rows for name in names) < taken
    lines = parts.lines_of(rows)
    assert [line[0] for line in lines] == [*names, "drafting and masks"]
    assert sum(float(line[2].split()[0]) for line in lines[:4]) == pytest.approx(100, abs=0.3)


def test_free_text_is_the_same_under_constraints_that_allow_any(model_that_chats: None, tmp_path: Path) -> None:
    rows = free_text.measure("any", RECORDS, 12, tmp_path / "rows.jsonl")
    assert [row["system"] for row in rows if row["question"] == "1"] != list(free_text.SYSTEMS)  # in another order
    lines = free_text.lines_of(rows)
    assert [(line[0], line[-1]) for line in lines] == [(system, "2/2") for system in free_text.SYSTEMS]
    assert lines[1][2] == "1.00 (1.00 to 1.00)"
