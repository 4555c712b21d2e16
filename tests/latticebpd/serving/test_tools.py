"""Calls in an answer that comes in pieces."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from latticebpd.serving.schema import Function, RequestError, Tool
from latticebpd.serving.tools import FORMATS, AnswerReader, calls_grammar, format_of, message_of

(HERMES,) = FORMATS
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8) | st.just("}\n</tool_call>"),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)
CALLS = st.lists(
    st.tuples(st.sampled_from(["f", "get.weather"]), st.dictionaries(st.text(max_size=4), VALUES, max_size=3)),
    max_size=3,
)


@given(st.sampled_from(["", "Well", "a <tool_cal", "a\n <b>"]), CALLS, st.lists(st.integers(0, 200), max_size=12))
def test_an_answer_in_pieces_has_its_text_and_its_calls(
    text: str, calls: list[tuple[str, dict[str, Any]]], cuts: list[int]
) -> None:
    written = [f'<tool_call>\n{{"name": "{name}", "arguments": {json.dumps(of)}}}\n</tool_call>' for name, of in calls]
    answer = text + "".join("\n" + call for call in written)
    ends = sorted(min(cut, len(answer)) for cut in cuts)
    reader, changes = AnswerReader(HERMES), list[dict[str, Any]]()
    for begin, end in zip([0, *ends], [*ends, len(answer)], strict=True):
        changes += reader.read(answer[begin:end])
    changes += reader.read("", ended=True)
    message = message_of(changes)
    assert message["content"] == (text or (None if calls else ""))
    got = message.get("tool_calls", [])
    assert [(call["function"]["name"], json.loads(call["function"]["arguments"])) for call in got] == calls
    assert len({call["id"] for call in got}) == reader.calls == len(calls)
    assert reader.complete


def test_a_call_that_is_cut_off_has_what_was_written() -> None:
    reader = AnswerReader(HERMES)
    changes = reader.read('<tool_call>\n{"name": "f", "arguments": {"a": {}}', ended=True)
    assert message_of(changes)["tool_calls"][0]["function"] == {"name": "f", "arguments": '{"a": {}}'}
    assert not reader.complete


def test_an_answer_without_tools_is_text_whatever_it_says() -> None:
    text = '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>'
    assert AnswerReader(None).read(text) == [{"content": text}]


def test_a_template_without_known_calls_is_refused() -> None:
    assert format_of("{{ tools }} <tool_call>") == HERMES
    for template in (None, "<tool_call>", "{{ tools }}"):
        with pytest.raises(RequestError, match="a model whose chat template has tools"):
            format_of(template)


def test_each_function_has_its_rule() -> None:
    tools = [Tool(type="function", function=Function(name=name)) for name in ("f", "g")]
    one, several = (calls_grammar(tools, HERMES, many, triggered=True).splitlines() for many in (False, True))
    assert one[0] == "start: call"
    assert several[0] == 'start: call ("\\n<tool_call>" call)*'
    assert one[1:] == several[1:]
    assert one[1] == "call: call_0 | call_1"
