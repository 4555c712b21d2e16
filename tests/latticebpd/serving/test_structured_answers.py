"""Structured output and tools over HTTP, with the ``openai`` client and the bundled model."""

from __future__ import annotations

import asyncio
import json
import re
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal

import httpx
import jsonschema
import numpy as np
import openai
import pytest
from pydantic import BaseModel

from latticebpd import choice, json_object, json_schema, lark, load, regex
from latticebpd.constraints.constraint import Constraint
from latticebpd.constraints.model_tokens import ModelTokens, model_tokens
from latticebpd.constraints.token_automaton import TokenAutomaton
from latticebpd.loading import Loaded
from latticebpd.models.catalogue import model_folder
from latticebpd.models.chat_templates import render_chat
from latticebpd.serving import structured, tools
from latticebpd.serving.limits import Limits
from latticebpd.serving.tools import ToolFormat
from tests.helpers.served import Served, serving, tiny

TEMPLATE = r"""
{%- for tool in tools or [] %}{{ tool | tojson }}{{ "\n" }}{% endfor %}
{%- for message in messages %}
{{- message.content }}
{%- for call in message.tool_calls or [] %}
{{- '\n<tool_call>\n{"name": "' + call.function.name + '", "arguments": ' }}
{{- call.function.arguments | tojson }}{{ '}\n</tool_call>' }}
{%- endfor %}{{ "\n" }}
{%- endfor %}"""
SCHEMA = {
    "type": "object",
    "properties": {"kind": {"enum": ["river", "city"]}, "name": {"type": "string", "maxLength": 9}},
    "required": ["kind", "name"],
    "additionalProperties": False,
}
SHAPE = {"type": "json_schema", "json_schema": {"name": "shape", "strict": True, "schema": SCHEMA}}
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather.",
        "parameters": {
            "type": "object",
            "properties": {"unit": {"enum": ["C", "F"]}, "days": {"enum": [1, 2, 3]}},
            "required": ["unit", "days"],
            "additionalProperties": False,
        },
    },
}
CLOCK = {"type": "function", "function": {"name": "clock", "strict": True}}
CHAT: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "The history of the city"}]}


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    loaded = load()
    loaded.tokenizer.chat_template = TEMPLATE
    with serving(loaded, loaded.drafter(), Limits(context=400, max_tokens=120)) as server:
        yield server


def alone(loaded: Loaded, prompt: str, constraint: Constraint | None, length: int) -> str:
    """The text of a decode of its own."""
    prompts = loaded.prompts
    out = loaded.generate(prompts.document(prompt), constraint=constraint, max_new_tokens=length)
    return str(loaded.tokenizer.decode(out.tokens[0, out.prompt_length :], skip_special_tokens=True))


@pytest.mark.parametrize("path", ["completions", "chat/completions"])
@pytest.mark.parametrize(
    ("fields", "constraint"),
    [
        ({"response_format": {"type": "json_object"}}, json_object()),
        ({"response_format": SHAPE}, json_schema(SCHEMA)),
        ({"structured_outputs": {"json": SCHEMA}}, json_schema(SCHEMA)),
        ({"structured_outputs": {"json": json.dumps(SCHEMA)}}, json_schema(SCHEMA)),
        (
            {"structured_outputs": {"json": SCHEMA, "disable_any_whitespace": False}},
            json_schema(SCHEMA, any_whitespace=True),
        ),
        ({"structured_outputs": {"json_object": True}}, json_object()),
        ({"structured_outputs": {"regex": "[a-z]{3,9} of [0-9]{4}"}}, regex("[a-z]{3,9} of [0-9]{4}")),
        ({"structured_outputs": {"choice": ["the river", "the city"]}}, choice(["the river", "the city"])),
        ({"structured_outputs": {"grammar": 'start: "a" start? "b"'}}, lark('start: "a" start? "b"')),
        ({"guided_json": SCHEMA}, json_schema(SCHEMA)),
        ({"guided_regex": "(the )?[a-z]{4}"}, regex("(the )?[a-z]{4}")),
        ({"guided_choice": ["yes", "no"]}, choice(["yes", "no"])),
        ({"guided_grammar": 'start: "x" | "y" start'}, lark('start: "x" | "y" start')),
        ({"response_format": {"type": "text"}}, None),
    ],
)
def test_an_answer_has_the_form_that_its_field_asks_for(
    served: Served, path: str, fields: dict[str, Any], constraint: Constraint | None
) -> None:
    is_chat = path != "completions"
    asked = CHAT if is_chat else {"prompt": "The history of the city"}
    body = {**asked, "max_tokens": 60, **fields}
    answer = httpx.post(f"{served.url}/v1/{path}", json=body, timeout=60)
    assert answer.status_code == 200, answer.text
    (got,) = answer.json()["choices"]
    text = got["message"]["content"] if is_chat else got["text"]
    loaded: Any = served.service.loaded
    prompt = "The history of the city" + ("\n" if is_chat else "")
    assert text == alone(loaded, prompt, constraint, 60)
    if fields.get("response_format") == SHAPE:
        jsonschema.validate(json.loads(text), SCHEMA)
        assert got["finish_reason"] == "stop"


def test_sixteen_streams_of_different_forms_have_the_texts_of_each_alone(served: Served) -> None:
    """Among them ones without a constraint; they share passes."""

    def schema(i: int) -> dict[str, Any]:
        name = {"type": "string", "maxLength": 3 + i}
        return {"type": "object", "properties": {f"key {i}": name}, "required": [f"key {i}"]}

    asked: list[tuple[dict[str, Any], Constraint | None]] = [
        *(({"structured_outputs": {"json": schema(i)}}, json_schema(schema(i))) for i in range(8)),
        *(
            ({"structured_outputs": {"regex": f"[a-z ]{{{i},9}}[0-9]"}}, regex(f"[a-z ]{{{i},9}}[0-9]"))
            for i in range(4)
        ),
        *[({}, None)] * 4,
    ]

    async def text(client: openai.AsyncOpenAI, number: int) -> str:
        prompt, (fields, _) = f"The river in {number}", asked[number]
        chunks = await client.completions.create(
            model="tiny", prompt=prompt, max_tokens=40, stream=True, extra_body=fields
        )
        return "".join([chunk.choices[0].text async for chunk in chunks])

    async def every_text() -> list[str]:
        async with served.async_client as client:
            return await asyncio.gather(*(text(client, number) for number in range(16)))

    before = served.count("passes_total"), served.count("calls_total")
    texts = asyncio.run(every_text())
    passes, calls = served.count("passes_total") - before[0], served.count("calls_total") - before[1]
    assert passes < calls / 2
    loaded = served.service.loaded
    assert texts == [alone(loaded, f"The river in {n}", asked[n][1], 40) for n in range(16)]


class Shape(BaseModel):
    """As users of the client write it."""

    kind: Literal["river", "city"]
    old: bool


def test_the_client_parses_an_answer_as_a_pydantic_model(served: Served) -> None:
    answer = served.client.chat.completions.parse(**CHAT, response_format=Shape)
    assert isinstance(answer.choices[0].message.parsed, Shape)


@pytest.mark.parametrize(("tool_choice", "names"), [("required", {"get_weather", "clock"}), ("clock", {"clock"})])
@pytest.mark.parametrize("several", [False, True])
def test_tools_that_must_be_called_are_called(served: Served, tool_choice: str, names: set[str], several: bool) -> None:
    choice: Any = tool_choice
    if tool_choice != "required":
        choice = {"type": "function", "function": {"name": tool_choice}}
    options: Any = {**CHAT, "tools": [WEATHER, CLOCK], "tool_choice": choice, "parallel_tool_calls": several}
    answer = served.client.chat.completions.create(**options)
    message, reason = answer.choices[0].message, answer.choices[0].finish_reason
    calls: Any = message.tool_calls
    assert message.content is None
    assert reason == ("tool_calls" if several is False else reason)
    assert several or len(calls) == 1
    for call in calls[: None if reason == "tool_calls" else -1]:
        arguments = json.loads(call.function.arguments)
        assert call.function.name in names
        schema = WEATHER["function"]["parameters"] if call.function.name == "get_weather" else {"maxProperties": 0}  # type: ignore[index]
        jsonschema.validate(arguments, schema)
    assert answer.usage is not None
    streamed = list(served.client.chat.completions.create(**options, stream=True))
    parts: list[dict[str, str]] = []
    for delta in (chunk.choices[0].delta for chunk in streamed):
        for piece in delta.tool_calls or ():
            if piece.index == len(parts):  # the name comes first, with the id
                assert piece.id
                assert piece.type == "function"
                parts.append({"name": piece.function.name, "arguments": piece.function.arguments})
            else:
                assert piece.index == len(parts) - 1
                assert piece.function.name is None
                parts[-1]["arguments"] += piece.function.arguments
        assert not delta.content
    assert parts == [{"name": call.function.name, "arguments": call.function.arguments} for call in calls]
    assert streamed[-1].choices[0].finish_reason == reason


def test_with_auto_the_model_calls_where_it_writes_the_trigger_and_is_free_elsewhere(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A trigger that the model writes by itself, or never."""
    loaded = load()
    loaded.tokenizer.chat_template = TEMPLATE.replace("{%", "{# of #}{%", 1)
    prompt = loaded.prompts
    with serving(loaded, limits=Limits(context=400, max_tokens=60)) as server:
        options: Any = {**CHAT, "tools": [WEATHER], "parallel_tool_calls": False, "max_tokens": 60}
        free = server.client.chat.completions.create(**options)
        text = alone(loaded, prompt.prompt_text(CHAT["messages"], [WEATHER]), None, 60)  # type: ignore[attr-defined]
        assert (free.choices[0].message.content, free.choices[0].message.tool_calls) == (text, None)
        trigger = text.split()[3]
        shape = ToolFormat("own", (trigger,), trigger, ' ["', '", ', "]\n", separator=None)
        monkeypatch.setattr(tools, "FORMATS", (shape,))
        loaded.tokenizer.chat_template = TEMPLATE + "{# " + trigger + " #}"
        for stream in (False, True):
            calling = httpx.post(
                f"{server.url}/v1/chat/completions", json={**options, "stream": stream}, timeout=60
            ).text
            assert "get_weather" in calling
            assert '"finish_reason": "tool_calls"' in calling.replace('":"', '": "')
        answer = server.client.chat.completions.create(**options).choices[0].message
        calls: Any = answer.tool_calls
        assert answer.content == (text.partition(trigger)[0].rstrip() or None)
        jsonschema.validate(json.loads(calls[0].function.arguments), WEATHER["function"]["parameters"])  # type: ignore[index]
        silent = server.client.chat.completions.create(**options, tool_choice="none").choices[0].message
        assert silent.tool_calls is None


def test_calls_and_their_results_go_into_the_template(served: Served) -> None:
    call = {"id": "call_1", "type": "function", "function": {"name": "clock", "arguments": '{"a": [1, "é"]}'}}
    messages: Any = [
        *CHAT["messages"],
        {"role": "assistant", "content": None, "tool_calls": [{**call, "index": 0}], "refusal": None},
        {"role": "tool", "tool_call_id": "call_1", "name": "clock", "content": "12:00"},
    ]
    answer = served.client.chat.completions.create(model="tiny", messages=messages, tools=[CLOCK], max_tokens=5)  # type: ignore[call-overload]
    offer = {"type": "function", "function": {"name": "clock"}}
    expected = json.dumps(offer) + "\nThe history of the city\n\n<tool_call>\n"
    expected += '{"name": "clock", "arguments": {"a": [1, "é"]}}\n</tool_call>\n12:00\n'
    assert answer.usage.prompt_tokens == len(served.service.loaded.prompts.ids(expected))
    reply = answer.choices[0].message.content
    assert reply == alone(served.service.loaded, expected, None, 5)


def called(**fields: Any) -> dict[str, Any]:
    call = {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}, **fields}
    return {"messages": [*CHAT["messages"], {"role": "assistant", "tool_calls": [call]}, *CHAT["messages"]]}


def shaped(schema: Any) -> dict[str, Any]:
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}}


def of_function(**fields: Any) -> dict[str, Any]:
    return {"tools": [{"type": "function", "function": {"name": "f", **fields}}]}


LINKS = {f"d{i}": {"properties": {"a": {"$ref": f"#/$defs/d{i + 1}"}}, "required": ["a"]} for i in range(5000)}
DEEP = {"$defs": LINKS | {"d5000": {"type": "null"}}, "$ref": "#/$defs/d0"}
"""Of which the recursion would end the process."""
BAD = {"type": "object", "properties": {"a": {"not": {"type": "string"}}}}


@pytest.mark.parametrize(
    ("fields", "param", "message"),
    [
        (shaped(BAD), "response_format", '["not"]'),
        (shaped({"type": "strange"}), "response_format", "strange"),
        (shaped([]), "response_format", "object"),
        (shaped({"$ref": "#"}), "response_format", "some text"),
        ({"response_format": {"type": "json_schema"}}, "response_format", "expected json_schema together"),
        ({"response_format": {"type": "xml"}}, "response_format", "'json_schema'"),
        ({"response_format": {"type": "text", "x": 1}}, "response_format.x", "known field"),
        ({"structured_outputs": {}}, "structured_outputs", "expected a constraint, got none"),
        ({"structured_outputs": {"regex": "(?<=a)b"}}, "structured_outputs.regex", "look-behind"),
        ({"structured_outputs": {"json": BAD}}, "structured_outputs.json", '["not"]'),
        ({"structured_outputs": {"structural_tag": "a"}}, "structured_outputs.structural_tag", "known field"),
        ({"guided_choice": []}, "guided_choice", "at least one text"),
        ({"guided_grammar": "start: other"}, "guided_grammar", "other"),
        ({"guided_regex": "((a{1,1000}){1,1000}){1,1000}"}, "guided_regex", "of limited complexity"),
        ({"guided_json": "{"}, "guided_json", "expected a JSON schema"),
        ({"guided_json": '{"items":' * 10_000 + "{}" + "}" * 10_000}, "guided_json", "recursion limit"),
        ({"guided_json": DEEP}, "guided_json", "of limited complexity (5 s of processor time"),
        ({"guided_regex": "a", "guided_choice": ["a"]}, "guided_choice", "expected one of them"),
        ({**shaped(SCHEMA), "tools": [CLOCK]}, "tools", "expected one of them"),
        (of_function(name="a b"), "tools", "match pattern"),
        (of_function(parameters=BAD), "tools[0].function.parameters", '["not"]'),
        (of_function(parameters={"type": "string"}), "tools[0].function.parameters", "object"),
        ({"tools": [CLOCK, CLOCK]}, "tools", "different names"),
        ({"tools": [CLOCK], "tool_choice": "always"}, "tool_choice", "'required'"),
        ({"tool_choice": "required"}, "tool_choice", "expected a tool of tools"),
        (
            {"tools": [CLOCK], "tool_choice": {"type": "function", "function": {"name": "f"}}},
            "tool_choice",
            "expected a tool of tools",
        ),
        (called(function={"name": "f", "arguments": "[]"}), "messages", "text of a JSON object"),
        (called(function={"name": "f", "arguments": "[" * 100_000}), "messages", "text of a JSON object"),
        (
            {"messages": [{"role": "tool", "content": "a", "tool_call_id": "b"}]},
            "messages[0].tool_call_id",
            "id of a call",
        ),
        ({"messages": [{"role": "tool", "content": "a"}]}, "messages", "a tool_call_id in every message"),
        ({"messages": [{"role": "user"}]}, "messages", "expected a content"),
    ],
)  # fmt: skip
def test_what_cannot_be_honoured_is_refused_with_its_field(
    served: Served, fields: dict[str, Any], param: str, message: str
) -> None:
    answer = httpx.post(f"{served.url}/v1/chat/completions", json={**CHAT, **fields}, timeout=60)
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, param)
    assert message in error["message"]
    assert len(error["message"]) <= 400


def test_a_model_without_tools_in_its_template_takes_none() -> None:
    with serving(tiny()) as plain:
        for fields in ({"tools": [CLOCK]}, called()):
            answer = httpx.post(f"{plain.url}/v1/chat/completions", json={**CHAT, **fields})
            assert answer.status_code == 400
            assert "a model whose chat template has tools" in answer.json()["error"]["message"]


class Failing:
    """A constraint that fails after three tokens."""

    def automaton(self, tokens: ModelTokens, eos_ids: Sequence[int]) -> TokenAutomaton:
        inner = regex("[a-z ]{60}").automaton(tokens, eos_ids)
        reached, release = [0], inner.release

        def failing(state: int) -> None:
            reached[0] += 1
            if reached[0] > 3:
                raise ValueError("too complex")
            release(state)

        vars(inner)["release"] = failing
        return inner


@pytest.mark.parametrize("stream", [False, True])
def test_a_constraint_that_fails_on_the_way_ends_its_own_answer_only(
    served: Served, monkeypatch: pytest.MonkeyPatch, stream: bool
) -> None:
    monkeypatch.setattr(structured, "_compiled", lambda kind, text: Failing())

    async def both() -> tuple[httpx.Response, httpx.Response]:
        async with httpx.AsyncClient(timeout=60) as client:
            url = f"{served.url}/v1/completions"
            body = {"prompt": "The city", "max_tokens": 50}
            failing = client.post(url, json={**body, "guided_regex": "a", "stream": stream})
            return await asyncio.gather(failing, client.post(url, json=body))  # type: ignore[return-value]

    failed, other = asyncio.run(both())
    assert other.json()["choices"][0]["text"] == alone(served.service.loaded, "The city", None, 50)
    assert "guided_regex: too complex" in failed.text
    assert failed.status_code == (200 if stream else 400)
    assert "[DONE]" not in failed.text


def test_a_constraint_that_takes_long_to_compile_holds_up_no_other_request(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    held, began = threading.Event(), threading.Event()

    def slow(kind: str, text: str) -> Constraint:
        began.set()
        assert held.wait(30)
        return choice(["yes"])

    monkeypatch.setattr(structured, "_compiled", slow)
    url, body = f"{served.url}/v1/completions", {"prompt": "The city", "max_tokens": 8}
    with ThreadPoolExecutor(1) as pool:
        one = pool.submit(httpx.post, url, json={**body, "guided_choice": ["yes"]}, timeout=60)
        assert began.wait(30)
        assert httpx.get(f"{served.url}/health").status_code == 200
        free = httpx.post(url, json=body, timeout=60).json()["choices"][0]["text"]
        assert not one.done()
        held.set()
        assert one.result().json()["choices"][0]["text"] == "yes"
    assert free == alone(served.service.loaded, "The city", None, 8)


def test_constraints_are_compiled_once_and_not_kept_without_limit(served: Served) -> None:
    texts = [f"a{number}" for number in range(structured.KEPT + 1)]
    compiled = [structured._compiled("choice", json.dumps([text])) for text in texts]
    before = structured._compiled.cache_info()
    assert before.currsize == structured.KEPT
    body = {"prompt": "The city", "max_tokens": 2, "guided_choice": [texts[-1]]}
    assert httpx.post(f"{served.url}/v1/completions", json=body).json()["choices"][0]["text"] == texts[-1]
    assert structured._compiled.cache_info().hits == before.hits + 1
    assert compiled[-1]._compiled  # type: ignore[attr-defined]  # for the model's tokens


def test_nothing_but_the_end_is_legal_after_a_failure() -> None:
    loaded = load()
    eos = loaded.target.eos_ids
    tokens = model_tokens(loaded.tokenizer, loaded.target.vocab_size)
    guarded = structured.GuardedAutomaton(Failing().automaton(tokens, eos), eos, structured._Refusing("a"))
    for _ in range(4):
        guarded.release(0)
    assert guarded.failure is not None
    assert np.flatnonzero(guarded.legal(0)).tolist() == sorted(eos)
    assert re.search("a: too complex", str(guarded.failure))


QWEN = "qwen2.5-coder-0.5b"


@pytest.mark.real_model
def test_qwen_calls_the_right_function_with_the_right_arguments() -> None:
    if not model_folder(QWEN).is_dir():
        pytest.skip(f"{QWEN} is not in {model_folder(QWEN).parent}: latticebpd models get {QWEN}")
    loaded = load(QWEN)
    template = loaded.tokenizer.get_chat_template()
    messages: Any = [{"role": "user", "content": "What is the weather in Rome and in Paris, in C, for 2 days?"}]
    rendered = [render_chat(each, messages, tools=[WEATHER]) for each in (template, template + "{# unknown #}")]
    assert json.dumps(WEATHER) in rendered[0]
    assert rendered[0] == rendered[1]  # by the process of its own
    with serving(loaded, loaded.drafter(), Limits(context=1000, max_tokens=100)) as server:
        answer = server.client.chat.completions.create(
            model="tiny",
            messages=messages,
            tools=[WEATHER],
            tool_choice="required",
            parallel_tool_calls=False,  # type: ignore[list-item]
        )
    calls: Any = answer.choices[0].message.tool_calls
    assert [(call.function.name, json.loads(call.function.arguments)) for call in calls] == [
        ("get_weather", {"unit": "C", "days": 2})
    ]
    assert answer.choices[0].finish_reason == "tool_calls"
    extra: Any = answer.usage.model_extra if answer.usage is not None else {}
    assert extra["tokens_per_call"] > 2
