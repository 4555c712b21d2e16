"""The benchmark of structured output: schemas of the leaderboard's types, right calls, calls by forced tokens."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest

from benchmarks.structured.forced import replayed
from benchmarks.structured.tool_calls import is_right, schema_of
from latticebpd import json_schema, load
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
