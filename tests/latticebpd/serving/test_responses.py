"""``/v1/responses`` with the ``openai`` client: the texts of chats, as one object and as events."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest

from tests.helpers.served import HeldDrafter, Served, alone, serving, tiny


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with serving(tiny()) as server:
        yield server


MESSAGES: list[Any] = [
    {"role": "user", "content": "ab"},
    {"type": "message", "role": "assistant", "id": "msg_1", "status": "completed",
     "content": [{"type": "output_text", "text": "c", "annotations": [], "logprobs": []}]},
    {"role": "user", "content": [{"type": "input_text", "text": "d"}, {"type": "input_text", "text": "e"}]},
]  # fmt: skip


@pytest.mark.parametrize(
    ("fields", "prompt"),
    [
        ({"input": "abc"}, "abc"),
        ({"input": "abc", "instructions": "kl"}, "klabc"),
        ({"input": MESSAGES}, "abcde"),
        ({"input": MESSAGES, "instructions": "f"}, "fabcde"),
    ],
)
def test_a_response_has_the_text_of_the_conversation_and_a_stream_the_same_object(
    served: Served, fields: dict[str, Any], prompt: str
) -> None:
    expected = alone(served.service.loaded, prompt, 20)
    response = served.client.responses.create(model="tiny", max_output_tokens=20, **fields)
    assert response.output_text == expected
    assert (response.status, response.incomplete_details and response.incomplete_details.reason) == (
        "incomplete", "max_output_tokens",
    )  # fmt: skip
    assert response.usage is not None
    usage = response.usage
    assert (usage.input_tokens, usage.output_tokens, usage.total_tokens) == (len(prompt), 20, len(prompt) + 20)
    with served.client.responses.stream(model="tiny", max_output_tokens=20, **fields) as stream:
        events = list(stream)
    assert [event.sequence_number for event in events] == list(range(len(events)))
    kinds = [event.type.removeprefix("response.") for event in events]
    assert kinds[:4] == ["created", "in_progress", "output_item.added", "content_part.added"]
    assert set(kinds[4:-4]) == {"output_text.delta"}
    assert kinds[-4:] == ["output_text.done", "content_part.done", "output_item.done", "incomplete"]
    assert "".join(event.delta for event in events if event.type == "response.output_text.delta") == expected
    last = events[-1]
    assert last.type == "response.incomplete"
    assert last.response.output_text == expected
    assert last.response.usage is not None
    assert (last.response.usage.output_tokens, last.response.usage.model_extra) == (20, usage.model_extra)


def test_a_text_that_ends_is_completed(served: Served) -> None:
    text = alone(served.service.loaded, "abc", 40)
    response = served.client.responses.create(model="tiny", input="abc", extra_body={"stop": text[10:13]})
    assert (response.output_text, response.status) == (text[: text.index(text[10:13])], "completed")


def test_sampling_has_the_request_s_seed(served: Served) -> None:
    response = served.client.responses.create(
        model="tiny", input="abc", max_output_tokens=20, temperature=1, extra_body={"seed": 3}
    )
    assert response.output_text == alone(served.service.loaded, "abc", 20, 3)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({}, "input"),
        ({"input": []}, "input"),
        ({"input": ""}, "input"),
        ({"input": 3}, "input"),
        ({"input": [{"role": "tool", "content": "a"}]}, "input"),
        ({"input": [{"type": "function_call", "role": "user", "content": "a"}]}, "input"),
        ({"input": [{"role": "user", "content": "a", "x": 1}]}, "input[0].x"),
        ({"input": "a", "max_output_tokens": 0}, "max_output_tokens"),
        ({"input": "a", "previous_response_id": "resp_1"}, "previous_response_id"),
        ({"input": "a", "tools": [{"type": "web_search"}]}, "tools"),
        ({"input": "a", "text": {"format": {"type": "json_object"}}}, "text"),
        ({"input": "a", "background": True}, "background"),
        ({"input": "a", "include": ["reasoning.encrypted_content"]}, "include"),
        ({"input": "a", "n": 2}, "n"),
    ],
)
def test_what_is_no_text_is_refused_by_name(served: Served, fields: dict[str, Any], param: str) -> None:
    answer = httpx.post(f"{served.url}/v1/responses", json=fields)
    error = answer.json()["error"]
    assert (answer.status_code, error["param"], error["type"]) == (400, param, "invalid_request_error")
    assert len(error["message"]) < 300


def test_neutral_fields_change_nothing(served: Served) -> None:
    fields: Any = {"text": {"format": {"type": "text"}}, "store": False, "tools": [], "truncation": "disabled"}
    fields |= {"include": [], "reasoning": {}, "metadata": {"a": "b"}, "previous_response_id": None}
    asked: Any = {"model": "tiny", "input": "abc", "max_output_tokens": 8}
    one, other = (served.client.responses.create(**asked, **extra) for extra in ({}, fields))
    assert one.output_text == other.output_text


def test_an_answer_that_fails_says_so_in_its_form_and_without_a_chat_template_there_is_none() -> None:
    drafter = HeldDrafter(failing=True)
    drafter.go.set()
    with serving(tiny(), drafter) as server, pytest.raises(openai.InternalServerError):
        server.client.responses.create(model="tiny", input="abc")
    with serving(tiny(chat=False)) as plain, pytest.raises(openai.BadRequestError, match="chat template"):
        plain.client.responses.create(model="tiny", input="abc")


def test_a_stream_that_fails_ends_with_the_failure() -> None:
    drafter = HeldDrafter(pause=0.02)
    drafter.go.set()
    with serving(tiny(), drafter) as server:
        kinds = []
        for event in server.client.responses.create(model="tiny", input="abc", stream=True):
            drafter.failing = True
            kinds.append(event.type)
        assert kinds[-1] == "response.failed"
        assert event.type == "response.failed"
        assert event.response.error is not None
        assert "failed" in event.response.error.message
