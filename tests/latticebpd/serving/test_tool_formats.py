"""Every format of tool calls: which templates have it, what a model may write in it, and what clients get of it."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from latticebpd import NoDrafter
from latticebpd.constraints.model_tokens import ModelTokens
from latticebpd.constraints.token_automaton import ILLEGAL, after
from latticebpd.serving.limits import Limits
from latticebpd.serving.schema import ChatRequest, RequestError
from latticebpd.serving.structured import constraint_of
from latticebpd.serving.tools import FORMATS, AnswerReader, ToolFormat, format_of, message_of, turns_as_read
from tests.helpers.markdown_tables import markdown_tables
from tests.helpers.scripted import END, Scripted, tokenizer_of_bytes
from tests.helpers.served import Served, serving

ODD = 'Oslo"}]</tool_call>[ARGS]\\ ü'
WEATHER = {
    "type": "object",
    "properties": {"city": {"enum": ["Rome", ODD]}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
    "required": ["city", "days"],
    "additionalProperties": False,
}
TOOLS: Any = [
    {"type": "function", "function": {"name": "get_weather", "parameters": WEATHER}},
    {"type": "function", "function": {"name": "clock"}},
]
CALLS: list[tuple[str, dict[str, Any]]] = [("get_weather", {"city": ODD, "days": 2}), ("clock", {})]
FIRST, SECOND = '{"city": ' + json.dumps(ODD, ensure_ascii=False) + ', "days": 2}', "{}"
SPECIAL = ("[TOOL_CALLS]", "[ARGS]", "<|tool_call|>", "<|/tool_call|>", "<|python_tag|>")
ORDINARY = ("<tool_call>", "</tool_call>")
"""Qwen's, which are no special ones."""
LIST = '[{"name": "get_weather", "arguments": %s}, {"name": "clock", "arguments": %s}]'
HERMES = '<tool_call>\n{"name": "%s", "arguments": %s}\n</tool_call>'
WRITTEN: dict[str, tuple[str, str, str]] = {
    "SmolLM2": (
        '<tool_call>[\n{"name": ...', '<tool_call>[{"name": "get_weather", "arguments": %s}]</tool_call>',
        f"<tool_call>{LIST}</tool_call>",
    ),
    "Hermes": (
        '"<tool_call>\\n{\\"name\\": <function-name>', HERMES % ("get_weather", "%s"),
        HERMES % ("get_weather", "%s") + "\n" + HERMES % ("clock", "%s"),
    ),
    "Llama 3": (
        'Respond in the format {"name": function name, "parameters": dictionary',
        '{"name": "get_weather", "parameters": %s}', "",
    ),
    "Mistral v11": (
        "'[TOOL_CALLS]' + name + '[ARGS]' + arguments", "[TOOL_CALLS]get_weather[ARGS]%s",
        "[TOOL_CALLS]get_weather[ARGS]%s[TOOL_CALLS]clock[ARGS]%s",
    ),
    "Mistral v3": (
        "'[TOOL_CALLS] [' + call", '[TOOL_CALLS] [{"name": "get_weather", "arguments": %s}]', f"[TOOL_CALLS]{LIST}",
    ),
    "Phi-4-mini": (
        "'<|tool|>' + message['tools'] + '<|/tool|>'",
        '<|tool_call|>[{"name": "get_weather", "arguments": %s}]<|/tool_call|>',
        f"<|tool_call|>{LIST}<|/tool_call|>",
    ),
    "Granite 3": (
        "respond only with <|tool_call|> followed by", '<|tool_call|>[{"name": "get_weather", "arguments": %s}]',
        f"<|tool_call|>{LIST}",
    ),
}  # fmt: skip
"""By format: what a template says of it, one call and two calls as such models write them; "" where they write one."""
NAMES = pytest.mark.parametrize("name", [form.name for form in FORMATS])
TEXTS = [(form.name, several) for form in FORMATS for several in (False, True) if form.separator or not several]
"""Each format with one call, and with two where it has two."""
MESSAGES: Any = [{"role": "user", "content": "How warm is it?"}]


def template_of(name: str) -> str:
    """Of which the prompt is what the user says last."""
    return f"{{# tools: {WRITTEN[name][0]} #}}{{{{ messages[-1].content }}}}"


def written(name: str, several: bool) -> str:
    one, two = WRITTEN[name][1:]
    return two % (FIRST, SECOND) if several else one % FIRST


def form_of(name: str) -> ToolFormat:
    (form,) = (form for form in FORMATS if form.name == name)
    return form


def test_each_format_has_its_row_here() -> None:
    assert [form.name for form in FORMATS] == list(WRITTEN)


@NAMES
def test_a_template_has_the_format_that_it_speaks_of(name: str) -> None:
    assert format_of(template_of(name)) == form_of(name)


def test_a_template_of_calls_in_xml_is_of_no_known_format() -> None:
    template = "{{ tools }} <tool_call>\n<function=' + name + '>\n<parameter=' + key + '>"
    with pytest.raises(RequestError, match=r"in a known format \(SmolLM2, Hermes, Llama 3,.* got another"):
        format_of(template)


@pytest.mark.parametrize(("name", "several"), TEXTS)
def test_a_text_is_legal_if_its_calls_are_of_the_functions(name: str, several: bool) -> None:
    """Over bytes and added tokens, in any choice; a changed text is not."""
    form, tokenizer = form_of(name), tokenizer_of_bytes(SPECIAL, ORDINARY)
    tokens = ModelTokens(tokenizer.backend_tokenizer, len(tokenizer))
    end = tokenizer.convert_tokens_to_ids(END)

    def is_legal(text: str, **choice: Any) -> bool:
        asked = ChatRequest(messages=MESSAGES, tools=TOOLS, **choice)
        constraint = constraint_of(asked, form)
        assert constraint is not None
        automaton = constraint.automaton(tokens, [end])
        state = automaton.start
        for token in [*tokens.writing(form.texts).encode(text), end]:
            is_next, state = automaton.legal(state)[token], after(automaton, state, token)
            assert is_next == (state != ILLEGAL)
            if state == ILLEGAL:
                return False
        return True

    text = written(name, several)
    before = "" if form.lead is None else form.lead
    for free in ("", "Well.\n"):
        assert is_legal(free + (before if free else "") + text)
        assert is_legal(free + text, tool_choice="required") == (not free)
    assert is_legal(text, parallel_tool_calls=False) == (not several)
    named = {"type": "function", "function": {"name": "get_weather"}}
    assert is_legal(text, tool_choice=named) == (not several)
    for changed in (text.replace("get_weather", "get_time"), text.replace('"days": 2', '"days": 0'), text[:-1]):
        assert not is_legal(changed)
    assert is_legal("Only text.")
    assert not is_legal("Only text.", tool_choice="required")


@pytest.fixture(scope="module")
def scripted() -> Iterator[tuple[Scripted, Served]]:
    scripted = Scripted(tokenizer_of_bytes(SPECIAL, ORDINARY))
    scripted.tokenizer.chat_template = template_of("Hermes")
    with serving(scripted.loaded, NoDrafter(drafts_forced=True), Limits(context=500, max_tokens=400)) as served:
        yield scripted, served


@pytest.mark.parametrize(
    ("name", "several", "choice"),
    [(*text, choice) for text in TEXTS for choice in ("auto", "required")]
    + [(name, False, choice) for name in WRITTEN for choice in ("named", "none")],
)
def test_clients_get_the_calls_that_a_model_writes(
    scripted: tuple[Scripted, Served], name: str, several: bool, choice: str
) -> None:
    """With ``auto`` text comes first; streams add up to the same."""
    model, served = scripted
    model.tokenizer.chat_template = template_of(name)
    form, text = form_of(name), written(name, several)
    free = "Wait … Zürich?" if choice in ("auto", "none") else ""
    model.write(free + (form.lead or "" if free else "") + text, len(MESSAGES[0]["content"]), form.texts)
    named = {"type": "function", "function": {"name": "get_weather"}}
    options: Any = {
        "model": "tiny", "messages": MESSAGES, "tools": TOOLS, "tool_choice": named if choice == "named" else choice,
    }  # fmt: skip
    answer = served.client.chat.completions.create(**options).choices[0]
    got: Any = answer.message.tool_calls or []
    if choice == "none":
        assert answer.message.content.startswith(free)
        assert (got, answer.finish_reason) == ([], "stop")
    else:
        assert answer.message.content == (free or None)
        assert [(call.function.name, json.loads(call.function.arguments)) for call in got] == CALLS[: 1 + several]
        assert answer.finish_reason == "tool_calls"
    assert all(len(call.id) == 9 and call.id.isalnum() for call in got)
    content, parts, reason = "", list[list[str]](), None
    for chunk in served.client.chat.completions.create(**options, stream=True):
        delta, reason = chunk.choices[0].delta, chunk.choices[0].finish_reason
        content += delta.content or ""
        for piece in delta.tool_calls or ():
            parts += [[piece.function.name, ""]] if piece.index == len(parts) else []
            parts[piece.index][1] += piece.function.arguments
    assert (content or None) == answer.message.content
    assert parts == [[call.function.name, call.function.arguments] for call in got]
    assert reason == answer.finish_reason


PIECES = st.sampled_from(
    [part for form in FORMATS for part in form.texts]
    + ["f", "{}", '{"a": "}"}', '"', "\\", "{", "}", "[", "]", " ", "\n", "x", "ü", '{"name": "f", "parameters": {}}']
)


@given(
    st.sampled_from(FORMATS),
    st.lists(PIECES | st.text(max_size=3), max_size=12).map("".join),
    st.lists(st.integers(0, 200), max_size=12),
)
def test_any_text_has_its_content_and_its_calls_however_it_comes(form: ToolFormat, text: str, cuts: list[int]) -> None:
    whole = message_of(AnswerReader(form).read(text, ended=True))
    ends = sorted(min(cut, len(text)) for cut in cuts)
    reader, changes = AnswerReader(form), list[dict[str, Any]]()
    for begin, end in zip([0, *ends], [*ends, len(text)], strict=True):
        changes += reader.read(text[begin:end])
    message = message_of(changes + reader.read("", ended=True))
    assert message["content"] == whole["content"]
    calls = [[call["function"] for call in each.get("tool_calls", [])] for each in (message, whole)]
    assert calls[0] == calls[1]
    assert text.startswith((message["content"] or "").rstrip())
    assert reader.calls == len(calls[0])
    if not any(trigger.lstrip("\udcff") in text for trigger in form.triggers):
        assert (message["content"], calls[0]) == (text, [])


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8) | st.sampled_from(["}\n</tool_call>", "[ARGS]{"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)
ARGUMENTS = st.dictionaries(st.text(max_size=4), VALUES, max_size=3)


@given(
    st.sampled_from(FORMATS),
    st.sampled_from(["", "Well", "a <tool_cal", "a\n <b>", "[TOOL", "{"]),
    st.lists(st.tuples(st.sampled_from(["f", "get.weather"]), ARGUMENTS), min_size=1, max_size=3),
)
def test_what_a_format_writes_is_read(form: ToolFormat, text: str, calls: list[tuple[str, Any]]) -> None:
    calls = calls if form.separator is not None else calls[:1]
    answer = form.written([{"name": name, "arguments": arguments} for name, arguments in calls])
    reader = AnswerReader(form)
    message = message_of(reader.read(text + (form.lead or "" if text else "") + answer, ended=True))
    assert message["content"] == (text or None)
    got = [call["function"] for call in message["tool_calls"]]
    assert [(call["name"], json.loads(call["arguments"])) for call in got] == calls
    assert reader.complete


def test_a_call_that_is_cut_off_has_what_was_written() -> None:
    reader = AnswerReader(form_of("Hermes"))
    changes = reader.read('<tool_call>\n{"name": "f", "arguments": {"a": {}', ended=True)
    assert message_of(changes)["tool_calls"][0]["function"] == {"name": "f", "arguments": '{"a": {}'}
    assert not reader.complete


def test_an_answer_without_tools_is_text_whatever_it_says() -> None:
    text = '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>'
    assert AnswerReader(None).read(text) == [{"content": text}]


def test_an_object_that_is_no_call_is_text_within_an_answer() -> None:
    text = 'So: {"name": "f", "parameters": {}}'
    assert message_of(AnswerReader(form_of("Llama 3")).read(text, ended=True))["content"] == text


CALLED: Any = [
    {"role": "user", "content": "Now?"},
    {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "clock", "arguments": {"a": "ü"}}}]},
    {"role": "tool", "content": "12:00"},
]


@pytest.mark.parametrize(
    ("reads", "roles", "content"),
    [
        ("message.tool_calls", ["user", "assistant", "tool"], ""),
        ("nothing", ["user", "assistant", "tool"], '<|tool_call|>[{"name": "clock", "arguments": {"a": "ü"}}]'),
        (
            "message['role'] == 'tool_response'", ["user", "assistant", "tool_response"],
            '<|tool_call|>[{"name": "clock", "arguments": {"a": "ü"}}]',
        ),
    ],
)  # fmt: skip
def test_a_template_that_reads_no_calls_gets_them_as_text(reads: str, roles: list[str], content: str) -> None:
    turns = turns_as_read(reads, form_of("Granite 3"), CALLED, None)
    assert [turn["role"] for turn in turns] == roles
    assert turns[1]["content"] == content
    assert ("tool_calls" in turns[1]) == (not content)
    assert CALLED[2]["role"] == "tool"


def test_a_template_that_reads_tools_from_the_system_prompt_gets_them_there() -> None:
    form, reads, offers = form_of("Phi-4-mini"), "message['tools'] message.tool_calls", [TOOLS[1]]
    for opening in ([], [{"role": "system", "content": "Be kind."}]):
        system, *others = turns_as_read(reads, form, [*opening, *MESSAGES], offers)
        assert others == MESSAGES
        assert json.loads(system["tools"]) == [{"name": "clock"}]
        assert system["content"] == (
            opening[0]["content"] if opening else "You are a helpful assistant with some tools."
        )
    assert turns_as_read(reads, form, MESSAGES, None) == MESSAGES


def test_the_page_has_each_format() -> None:
    page = (Path(__file__).parents[3] / "docs" / "serving" / "forms.md").read_text(encoding="utf-8")
    _, *rows = next(markdown_tables(page.partition("## Tool formats")[2]))
    calls = [html.unescape(re.sub("</?code>|`", "", row[-1])) for row in rows]
    expected = [form.written([{"name": "f", "arguments": {}}]).replace("\n", "⏎") for form in FORMATS]
    assert [(row[0], call) for row, call in zip(rows, calls, strict=True)] == [
        (form.name, call) for form, call in zip(FORMATS, expected, strict=True)
    ]
