"""Constraints that would end the process, or take too long, are refused."""

from __future__ import annotations

import json
from typing import Any

import pytest

from latticebpd.constraints import trial
from latticebpd.constraints.trial import tried


def chain(length: int) -> str:
    """A schema whose definitions refer to each other, one after another."""
    links: dict[str, Any] = {
        f"d{i}": {"properties": {"a": {"$ref": f"#/$defs/d{i + 1}"}}, "required": ["a"]} for i in range(length)
    }
    return json.dumps({"$defs": links | {f"d{length}": {"type": "null"}}, "$ref": "#/$defs/d0"})


def test_a_large_constraint_is_what_it_is_without_a_trial() -> None:
    text = chain(200)
    assert len(text) > trial.SMALL
    assert tried("json", text) == trial.KINDS["json"](text)


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("json", chain(5000)),
        ("lark", "start: r0\n" + "".join(f'r{i}: "a" r{(i + 1) % 9000} | "b"\n' for i in range(9000))),
    ],
)
def test_a_constraint_beyond_the_compilers_stack_is_refused(kind: str, text: str) -> None:
    with pytest.raises(ValueError, match="expected a constraint of limited complexity"):
        tried(kind, text)


def test_a_constraint_that_takes_too_long_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial, "SECONDS", 0.01)
    with pytest.raises(ValueError, match="expected a constraint of limited complexity"):
        tried("json", chain(200))


@pytest.mark.parametrize(
    ("kind", "text", "message"),
    [
        ("json", '{"a": ' * 10_000 + "1" + "}" * 10_000, "recursion limit"),
        ("json", json.dumps({"not": {"enum": ["a" * 10_000]}}), "not"),
        ("regex", "(?<=a)" + "a" * 10_000, "regular expression"),
        ("lark", "start: other\n#" + "a" * 10_000, "Lark grammar"),
        ("json", '{"description": "' + "a" * 5_000_000 + '"}', "at most 1000000 bytes"),
    ],
)
def test_errors_of_a_trial_are_those_of_the_constraint(kind: str, text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        tried(kind, text)
