"""Clients that disconnect at any moment, and requests that are damaged: a fixed number of each, the same every time."""

from __future__ import annotations

import asyncio
import gc
import json
import random
import resource
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from latticebpd.serving.limits import Limits
from tests.helpers.served import Served, alone, serving, tiny

STREAMS, REQUESTS, BODIES = 32, 2400, 4000
LEAK = 8 << 20
"""Bytes that the process may grow by in the last two thirds of the requests."""


@pytest.fixture
def served() -> Iterator[Served]:
    with serving(tiny(), limits=Limits(context=120, rows=8)) as server:
        server.service.scheduler.max_block = 8
        yield server


@dataclass(frozen=True)
class Ask:
    """A request and the text that it gets: a decode of its own, up to a stop string."""

    prompt: str
    length: int
    seed: int | None
    stop: str | None
    text: str


def asks(served: Served, count: int) -> list[Ask]:
    rng, every = random.Random(0), []
    for number in range(count):
        prompt = "".join(rng.choices("abcdefghijkl", k=rng.randint(1, 70)))
        length, seed = rng.randint(1, 45), number if number % 2 else None
        text = alone(served.service.loaded, prompt, length, seed)
        stop = text[at : at + 2] if number % 3 == 0 and (at := rng.randrange(len(text))) else None
        every.append(Ask(prompt, length, seed, stop, text.partition(stop)[0] if stop else text))
    return every


async def answered(client: openai.AsyncOpenAI, ask: Ask, chat: bool, stream: bool, chunks: int | None) -> str:
    """The text; of a stream, that of the first so many chunks, after which the client disconnects."""
    options: dict[str, Any] = {"model": "tiny", "max_tokens": ask.length, "stop": ask.stop, "stream": stream}
    if ask.seed is not None:
        options |= {"seed": ask.seed, "temperature": 1}
    if chat:
        asked: Any = client.chat.completions.create(messages=[{"role": "user", "content": ask.prompt}], **options)
    else:
        asked = client.completions.create(prompt=ask.prompt, **options)
    answer, parts = await asked, list[str]()
    if not stream:
        return str(answer.choices[0].message.content if chat else answer.choices[0].text)
    async with answer:
        async for chunk in answer:
            if chunks is not None and len(parts) >= chunks:
                break
            parts.append((chunk.choices[0].delta.content if chat else chunk.choices[0].text) or "")
    return "".join(parts)


def resident() -> int:
    """Bytes of this process that lie in memory."""
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


@pytest.mark.nightly
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # generators of clients that left
def test_clients_that_disconnect_at_random_change_no_text_and_leave_no_memory(served: Served) -> None:
    """Streams and single answers, greedy and sampled, with stop strings; a third of the clients leaves."""
    every, rng, sizes = asks(served, 60), random.Random(1), list[int]()
    numbers = iter(range(REQUESTS))

    async def client_of_many(client: openai.AsyncOpenAI) -> None:
        for number in numbers:
            ask, chat, stream = rng.choice(every), rng.random() < 0.5, rng.random() < 0.7
            leaves = rng.random() < 1 / 3
            chunks = rng.randrange(8) if leaves and stream else None
            asked = asyncio.create_task(answered(client, ask, chat, stream, chunks))
            if leaves and not stream:
                await asyncio.sleep(rng.random() * 0.2)
                asked.cancel()
                await asyncio.gather(asked, return_exceptions=True)
                continue
            text = await asked
            assert text == ask.text if chunks is None else ask.text.startswith(text)
            if number in (REQUESTS // 3, REQUESTS - STREAMS):
                sizes.append(resident())

    async def everyone() -> None:
        async with served.async_client as client:
            await asyncio.gather(*(client_of_many(client) for _ in range(STREAMS)))

    asyncio.run(everyone())
    scheduler = served.service.scheduler
    served.wait_for("requests_running", 0)
    assert not scheduler._waiting
    assert not scheduler._preparing
    assert scheduler._batch is None or not scheduler._batch.rows
    assert served.count("finished_total", reason="error") == 0
    assert served.count("finished_total", reason="cancelled") > REQUESTS / 10
    early, late = sizes
    assert late - early < LEAK


GOOD: list[dict[str, Any]] = [
    {"prompt": "abc", "max_tokens": 3},
    {"prompt": [1, 2, 3], "max_tokens": 3, "temperature": 1.0, "top_p": 0.9, "top_k": 4, "seed": 1, "stop": ["a"]},
    {"messages": [{"role": "user", "content": "abc"}], "max_tokens": 3, "stream": True},
    {
        "messages": [
            {"role": "system", "content": "ab"},
            {"role": "user", "content": [{"type": "text", "text": "abc"}]},
        ],
        "max_completion_tokens": 3, "stream_options": {"include_usage": True}, "n": 1, "tools": [],
    },
    {
        "messages": [
            {"role": "user", "content": "abc"},
            {"role": "assistant", "tool_calls": [
                {"id": "a", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}},
            ]},
            {"role": "tool", "tool_call_id": "a", "name": "f", "content": "d"},
        ],
        "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}, "strict": True}}],
        "tool_choice": {"type": "function", "function": {"name": "f"}}, "parallel_tool_calls": True, "max_tokens": 3,
    },
    {
        "prompt": "abc", "max_tokens": 3,
        "response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": {"enum": ["a", 1]}}},
    },
    {
        "input_prefix": "abc\n", "input_suffix": "d", "prompt": "e", "input_extra": [{"text": "fg\n", "filename": "h"}],
        "n_predict": 3, "n_indent": 1, "t_max_predict_ms": 100, "response_fields": ["content", "timings/prompt_n"],
        "samplers": ["top_k"], "cache_prompt": True, "stop": [],
    },
    {"prompt": "abc", "suffix": "def", "n_predict": 3, "cache_prompt": False, "stream": True},
    {"prompt": "abc", "max_tokens": 3, "structured_outputs": {"regex": "a{1,3}b*", "disable_any_whitespace": True}},
    {
        "prompt": "abc", "max_tokens": 3, "temperature": 1, "min_p": 0.1, "n": 2, "logprobs": 3, "presence_penalty": 1,
        "frequency_penalty": -0.5, "repetition_penalty": 1.2, "logit_bias": {"3": 1.5, "4": -100},
    },
    {
        "messages": [{"role": "user", "content": "abc"}], "max_tokens": 3, "logprobs": True, "top_logprobs": 2, "n": 2,
        "stream": True, "stream_options": {"continuous_usage_stats": True},
    },
    {
        "input": [{"role": "user", "content": [{"type": "input_text", "text": "abc"}], "type": "message"}],
        "instructions": "d", "max_output_tokens": 3, "store": False,
    },
    {"input": "abc", "max_output_tokens": 3, "stream": True},
]  # fmt: skip
VALUES: list[Any] = [
    None, True, False, 0, 1, -1, 2**31, 2**63, -(2**70), 0.5, 1e308, -0.0, "", "a", "é\U0001f600", "\x00", "a" * 3000,
    [], [[]], [None], {}, {"a": {}}, [1] * 200, ["a", "b"], {"role": "user"}, {"type": "text", "text": "a"}, [[1, 2]],
]  # fmt: skip
NAMES = [
    "prompt",
    "messages",
    "stop",
    "seed",
    "model",
    "n",
    "logit_bias",
    "logprobs",
    "min_p",
    "repetition_penalty",
    "input",
    "tool_calls",
    "name",
    "x",
    "",
    "é" * 50,
    "guided_json",
    "suffix",
    "n_predict",
    "input_extra",
    "n_indent",
    "response_fields",
]


def damaged(rng: random.Random, record: Any) -> Any:
    """JSON with one value, at any depth, replaced, deleted, doubled or under another name."""
    record = json.loads(json.dumps(record))
    at: Any = record
    while True:
        keys = list(at.keys() if isinstance(at, dict) else range(len(at)))
        key = rng.choice(keys)
        if isinstance(at[key], dict | list) and at[key] and rng.random() < 0.7:
            at = at[key]
            continue
        value = at[key]
        match rng.randrange(4), at:
            case 0, _:
                del at[key]
            case 1, dict():
                at[rng.choice(NAMES)] = value
            case 1, list():
                at.append(value)
            case _:
                at[key] = rng.choice(VALUES)
        return record


def body(rng: random.Random, record: Any) -> bytes:
    text = bytearray(json.dumps(record, ensure_ascii=rng.random() < 0.5).encode())
    if rng.random() < 0.2:
        position = rng.randrange(len(text))
        match rng.randrange(3):
            case 0:
                del text[position:]
            case 1:
                text[position] = rng.randrange(256)
            case 2:
                text[position:position] = rng.choice(
                    [b"\xff", b"\\ud800", b"NaN", b"1e999", b"[" * 5000, b"}", b"\x00"]
                )
    return bytes(text)


@pytest.mark.nightly
def test_damaged_requests_are_answered_or_refused_in_openais_form() -> None:
    rng, good = random.Random(0), {"prompt": "abc", "max_tokens": 9}
    with (
        serving(tiny(code=True), limits=Limits(context=120, rows=8)) as served,
        httpx.Client(base_url=served.url, timeout=60) as client,
    ):
        expected = client.post("v1/completions", json=good).json()["choices"]
        statuses = dict[int, int]()
        for _ in range(BODIES):
            record = rng.choice(GOOD)
            path = "chat/completions" if "messages" in record else "responses" if "input" in record else "completions"
            path = "infill" if "input_prefix" in record else f"v1/{path}"
            for _ in range(rng.randint(1, 3)):
                record = damaged(rng, record) or record
            sent = body(rng, record)
            answer = client.post(path, content=sent)
            statuses[answer.status_code] = statuses.get(answer.status_code, 0) + 1
            assert answer.status_code in (200, 400, 404), (sent, answer.text)
            if answer.status_code != 200:
                error = answer.json()["error"]
                assert error["type"] == "invalid_request_error", sent
                assert 0 < len(error["message"]) < 400, sent
        assert min(statuses[200], statuses[400]) > BODIES / 20
        assert client.post("v1/completions", json=good).json()["choices"] == expected
