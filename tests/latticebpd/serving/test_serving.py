"""A running server and the ``openai`` client: texts, limits, errors, clients that go away, shutdown."""

from __future__ import annotations

import asyncio
import json
import random
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import openai
import pytest

from latticebpd import NoDrafter, ReferenceDrafter, generate
from latticebpd.models.transformers.transformers_model import TransformersModel
from latticebpd.serving import schema
from latticebpd.serving.api import Service
from latticebpd.serving.limits import Limits
from latticebpd.serving.scheduler import Job
from tests.helpers.engine_models import on_engine, stock
from tests.helpers.served import HeldDrafter, Served, alone, serving, tiny

PROMPTS = ["".join(random.Random(i).choices("abcdefghijkl", k=1 + 3 * i)) for i in range(16)]


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with serving(tiny()) as server:
        server.service.scheduler.max_block = 8  # so that prompts are read in several blocks
        yield server


async def streamed(client: openai.AsyncOpenAI, prompt: str, **options: Any) -> str:
    chunks = await client.completions.create(model="tiny", prompt=prompt, stream=True, **options)
    return "".join([chunk.choices[0].text async for chunk in chunks])


def test_sixteen_streams_at_a_time_have_the_texts_of_each_alone(served: Served) -> None:
    """Greedy ones and sampled ones, of several lengths, over each other's passes."""
    settings = [(30 + i, None if i % 2 else i) for i in range(len(PROMPTS))]

    async def all_of_them() -> list[str]:
        async with served.async_client as client:
            return await asyncio.gather(
                *(
                    streamed(
                        client, prompt, max_tokens=length, **({} if seed is None else {"seed": seed, "temperature": 1})
                    )
                    for prompt, (length, seed) in zip(PROMPTS, settings, strict=True)
                )
            )

    before = served.count("passes_total"), served.count("calls_total")
    texts = asyncio.run(all_of_them())
    loaded = served.service.loaded
    assert texts == [alone(loaded, prompt, *each) for prompt, each in zip(PROMPTS, settings, strict=True)]
    passes, calls = served.count("passes_total") - before[0], served.count("calls_total") - before[1]
    assert passes < calls / 3  # which rows share


def test_a_chat_is_answered_and_counted(served: Served) -> None:
    messages: Any = [
        {"role": "system", "content": "ab"},
        {"role": "user", "content": [{"type": "text", "text": "c"}, {"type": "text", "text": "de"}]},
    ]
    answer = served.client.chat.completions.create(model="tiny", messages=messages, max_completion_tokens=20)
    (choice,), usage = answer.choices, answer.usage
    assert usage is not None
    assert (choice.message.role, choice.finish_reason) == ("assistant", "length")
    assert choice.message.content == alone(served.service.loaded, "abcde", 20)
    assert (usage.prompt_tokens, usage.completion_tokens, usage.total_tokens) == (5, 20, 25)
    details, extra = usage.completion_tokens_details, usage.model_extra
    assert details is not None
    assert extra is not None
    assert details.accepted_prediction_tokens == 20 - 1 - extra["calls"]  # the prefill writes one, each call one more
    assert extra["tokens_per_call"] == pytest.approx(19 / extra["calls"])


def test_a_stream_of_a_chat_ends_with_reason_and_usage(served: Served) -> None:
    chunks = list(
        served.client.chat.completions.create(
            model="tiny", messages=[{"role": "user", "content": "abc"}], max_tokens=9, stream=True,
            stream_options={"include_usage": True},
        )
    )  # fmt: skip
    assert chunks[0].choices[0].delta.role == "assistant"
    assert [chunk.choices[0].finish_reason for chunk in chunks[:-1]] == [None] * (len(chunks) - 2) + ["length"]
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 9
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks[:-1])
    assert text == alone(served.service.loaded, "abc", 9)


def test_a_seed_fixes_a_sampled_text_and_others_differ(served: Served) -> None:
    def text(seed: int | None) -> str:
        answer = served.client.completions.create(
            model="tiny", prompt="abc", max_tokens=30, temperature=1.5, top_p=0.95, seed=seed
        )
        return answer.choices[0].text

    assert text(5) == text(5)
    assert len({text(5), text(6), text(None), text(None)}) == 4


@pytest.mark.parametrize("stream", [False, True])
def test_a_text_ends_before_its_first_stop_string(served: Served, stream: bool) -> None:
    full = alone(served.service.loaded, "abc", 40)
    stop = full[10:13]
    options: Any = {"model": "tiny", "prompt": "abc", "max_tokens": 40, "stop": [stop, "zzz"]}
    if stream:
        chunks = list(served.client.completions.create(stream=True, **options))
        text, reason = "".join(chunk.choices[0].text for chunk in chunks), chunks[-1].choices[0].finish_reason
    else:
        (choice,) = served.client.completions.create(**options).choices
        text, reason = choice.text, choice.finish_reason
    assert (text, reason) == (full[: full.index(stop)], "stop")


def test_stop_strings_of_the_generation_config_hold_unless_a_request_has_its_own() -> None:
    loaded = tiny(on_engine())
    full = alone(loaded, "abc", 40)
    loaded.target.generation["stop_strings"] = [full[10:13]]
    with serving(loaded, NoDrafter()) as server:
        for stop, end in ((None, full.index(full[10:13])), (full[20:23], full.index(full[20:23]))):
            answer = server.client.completions.create(model="tiny", prompt="abc", max_tokens=40, stop=stop)
            assert answer.choices[0].text == full[:end]


def test_a_text_that_ends_by_itself_stops_and_counts_no_draft_past_its_end() -> None:
    loaded = tiny(on_engine())
    ids = loaded.encode("abc")
    out = generate(loaded.target, [ids], NoDrafter(), max_new_tokens=20, attention_mask=[[1] * len(ids)])
    text = out.sequences[0, len(ids) :].tolist()
    end = next(i for i, token in enumerate(text) if i >= 3 and token not in text[:i])
    loaded.target.generation["eos_token_id"] = text[end]
    with serving(loaded, ReferenceDrafter(text, len(text) - 1)) as server:
        answer = server.client.completions.create(model="tiny", prompt="abc", max_tokens=40)
        assert answer.choices[0].finish_reason == "stop"
        assert answer.usage is not None
        assert answer.usage.completion_tokens == end + 1
        details = answer.usage.completion_tokens_details
        assert details is not None
        assert details.accepted_prediction_tokens == end + 1
        assert server.count("accepted_tokens_total") == end + 1


def test_limits_of_length_are_the_requests_the_servers_and_the_contexts(served: Served) -> None:
    def length(prompt: Any, **options: Any) -> int:
        answer = served.client.completions.create(model="tiny", prompt=prompt, **options)
        assert answer.choices[0].finish_reason == "length"
        assert answer.usage is not None
        return answer.usage.completion_tokens

    assert length("abc") == 16  # OpenAI's default
    assert length([1, 2, 3], max_tokens=5) == 5
    assert length(["a" * 110], max_tokens=50) == 10
    with serving(served.service.loaded, limits=Limits(context=120, max_tokens=7)) as small:
        answer = small.client.chat.completions.create(model="tiny", messages=[{"role": "user", "content": "ab"}])
        assert answer.usage is not None
        assert answer.usage.completion_tokens == 7


GOOD = {"prompt": "abc"}
CHAT = {"messages": [{"role": "user", "content": "ab"}]}
PART = {"type": "text", "text": "ab"}


def said(**fields: Any) -> dict[str, Any]:
    """A chat whose message has these fields."""
    return {"messages": [{"role": "user", "content": "ab", **fields}]}


@pytest.mark.parametrize(
    ("path", "body", "status", "param", "message"),
    [
        ("completions", b"", 400, None, "Invalid JSON"),
        ("completions", b'{"prompt": "abc"', 400, None, "Invalid JSON"),
        ("completions", b"\xff\xfe", 400, None, "Invalid JSON"),
        ("completions", b"[" * 100_000, 400, None, "Invalid JSON"),
        ("completions", b"[1]", 400, None, "object"),
        ("completions", {}, 400, "prompt", "required"),
        ("completions", {"prompt": ["a", "b"]}, 400, "prompt", "prompt"),
        ("completions", {"prompt": []}, 400, None, "at least one token"),
        ("completions", {"prompt": ""}, 400, None, "at least one token"),
        ("completions", {"prompt": [1, 10**6]}, 400, None, "expected token ids from 0 to"),
        ("completions", {"prompt": [2**70]}, 400, "prompt", "prompt"),
        ("completions", {"prompt": "a" * 120}, 400, None, "expected a prompt of fewer than 120 tokens, got 120"),
        ("completions", {**GOOD, "max_tokens": 0}, 400, "max_tokens", "greater than or equal to 1"),
        ("completions", {**GOOD, "max_tokens": "5"}, 400, "max_tokens", "valid integer"),
        ("completions", {**GOOD, "temperature": 3}, 400, "temperature", "less than or equal to 2"),
        ("completions", {**GOOD, "temperature": 1e-5}, 400, "temperature", "0 or at least 0.01"),
        ("completions", b'{"prompt": "abc", "temperature": NaN}', 400, "temperature", "finite"),
        ("completions", {**GOOD, "top_p": -1}, 400, "top_p", "greater than or equal to 0"),
        ("completions", {**GOOD, "seed": 2**64}, 400, "seed", "seed"),
        ("completions", {**GOOD, "stop": list("abcde")}, 400, "stop", "up to 4 stop strings"),
        ("completions", {**GOOD, "stop": ""}, 400, "stop", "stop strings of 1 to"),
        ("completions", {**GOOD, "best_of": 2}, 400, "best_of", "cannot honour"),
        ("completions", {**GOOD, "n": 0}, 400, "n", "greater than or equal to 1"),
        ("completions", {**GOOD, "n": 9}, 400, "n", "less than or equal to 8"),
        ("completions", {**GOOD, "n": True}, 400, "n", "valid integer"),
        ("completions", {**GOOD, "logprobs": 21}, 400, "logprobs", "less than or equal to 20"),
        ("completions", {**GOOD, "logprobs": True}, 400, "logprobs", "valid integer"),
        ("completions", {**GOOD, "top_logprobs": 2}, 400, "top_logprobs", "known field"),
        ("completions", {**GOOD, "presence_penalty": 2.5}, 400, "presence_penalty", "less than or equal to 2"),
        ("completions", {**GOOD, "frequency_penalty": "1"}, 400, "frequency_penalty", "valid number"),
        ("completions", {**GOOD, "repetition_penalty": 0}, 400, "repetition_penalty", "greater than or equal to 0.01"),
        ("completions", {**GOOD, "repetition_penalty": 1e300}, 400, "repetition_penalty", "less than or equal to 100"),
        ("completions", {**GOOD, "min_p": 1.5}, 400, "min_p", "less than or equal to 1"),
        ("completions", {**GOOD, "logit_bias": {"a": 1}}, 400, "logit_bias", "valid integer"),
        ("completions", {**GOOD, "logit_bias": {"1": 101}}, 400, "logit_bias", "less than or equal to 100"),
        ("completions", {**GOOD, "logit_bias": {"23": 1}}, 400, "logit_bias", "token ids from 0 to 22, got 23"),
        ("completions", {**GOOD, "logit_bias": [1]}, 400, "logit_bias", "object"),
        ("chat/completions", {**CHAT, "logprobs": 1}, 400, "logprobs", "valid boolean"),
        ("chat/completions", {**CHAT, "top_logprobs": 2}, 400, "top_logprobs", "logprobs true"),
        ("chat/completions", {**CHAT, "logprobs": True, "top_logprobs": 21}, 400, "top_logprobs", "equal to 20"),
        ("completions", {**GOOD, "beams": 2}, 400, "beams", "known field"),
        ("completions", {**GOOD, "model": "gpt-4"}, 404, "model", "expected the model 'tiny', got 'gpt-4'"),
        ("completions", {"prompt": "a" * (1 << 20)}, 413, None, "expected a request of up to 1048576 bytes"),
        ("chat/completions", {"messages": []}, 400, "messages", "at least 1 item"),
        ("chat/completions", {"messages": [{"role": "function", "content": "a"}]}, 400, "messages", "'system'"),
        ("chat/completions", {"messages": [{"role": "assistant", "content": "a"}]}, 400, None, "user's turn"),
        ("chat/completions", {**CHAT, "response_format": {"type": "xml"}}, 400, "response_format", "'json_object'"),
        ("chat/completions", {**CHAT, "tools": [{"type": "function"}]}, 400, "tools", "required"),
        ("completions", {**GOOD, "tools": [{"type": "function"}]}, 400, "tools", "cannot honour"),
        ("chat/completions", said(tool_calls=[{"id": "a"}]), 400, "messages", "required"),
        ("chat/completions", said(name="eve"), 400, "messages", "of the role tool only"),
        ("chat/completions", said(metadata={}), 400, "messages[0].metadata", "known field"),
        ("chat/completions", said(content=[{**PART, "x": 1}]), 400, "messages[0].content[0].x", "known field"),
        ("chat/completions", said(content=[{**PART, "text": 1}]), 400, "messages", "string"),
        ("completions", {**GOOD, "stream_options": {"foo": 1}}, 400, "stream_options.foo", "known field"),
        ("completions", {**GOOD, "stream_options": {"include_usage": 1}}, 400, "stream_options", "boolean"),
        ("completions", {"prompt": "é" * 961}, 400, None, "a prompt of up to 1920 bytes (120 tokens), got 1922"),
        ("completions", {"prompt": "a" * 1920}, 400, None, "a prompt of fewer than 120 tokens, got 1920"),
        ("chat/completions", said(content="a" * 1921), 400, None, "a prompt of up to 1920 bytes (120 tokens)"),
        ("nothing", {}, 404, None, "Not Found"),
    ],
)  # fmt: skip
def test_what_cannot_be_honoured_is_refused_in_openais_form(
    served: Served, path: str, body: Any, status: int, param: str | None, message: str
) -> None:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    answer = httpx.post(f"{served.url}/v1/{path}", content=content)
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (status, param)
    assert message in error["message"]
    assert len(error["message"]) < 300
    assert error["type"] == "invalid_request_error"


def test_neutral_values_and_fields_without_effect_change_nothing(served: Served) -> None:
    fields: Any = {"n": 1, "presence_penalty": 0, "frequency_penalty": 0.0, "user": "someone", "logit_bias": {}}
    fields |= {"repetition_penalty": 1.0, "min_p": 0, "logprobs": False, "top_logprobs": 0}
    fields |= {"response_format": {"type": "text"}, "metadata": {"a": "b"}, "tools": [], "seed": None}
    fields |= said(name=None, tool_calls=[], refusal=None, content=[{**PART, "cache_control": None}])
    fields |= {"stream_options": {"include_usage": False, "include_obfuscation": False}}
    one, other = (
        httpx.post(f"{served.url}/v1/chat/completions", json={**CHAT, "max_tokens": 8, **extra}).json()
        for extra in ({}, fields)
    )
    assert one["choices"] == other["choices"]


def test_developers_speak_as_the_system() -> None:
    roles = ("system", "developer", "user", "assistant")
    turns = [schema.Message(role=role, content="a").turn["role"] for role in roles]
    assert turns == ["system", "system", "user", "assistant"]


def test_models_are_listed(served: Served) -> None:
    assert [model.id for model in served.client.models.list()] == ["tiny"]
    assert served.client.models.retrieve("tiny").owned_by == "latticebpd"
    with pytest.raises(openai.NotFoundError):
        served.client.models.retrieve("other")


def test_a_model_without_a_chat_template_completes_only() -> None:
    with serving(tiny(chat=False)) as plain:
        assert plain.client.completions.create(model="tiny", prompt="abc").choices[0].text
        with pytest.raises(openai.BadRequestError, match="chat template"):
            plain.client.chat.completions.create(model="tiny", messages=[{"role": "user", "content": "ab"}])


def test_a_key_is_asked_for_where_there_is_one() -> None:
    with serving(tiny(), api_key="secret") as locked:
        assert locked.client.completions.create(model="tiny", prompt="abc").choices[0].text
        for header in ("", "secret", "Basic secret", "Bearer", "Bearer other", "Bearer secret2", "Bearer é"):
            headers = {"authorization": header.encode()}
            refused = httpx.post(f"{locked.url}/v1/completions", json=GOOD, headers=headers)
            assert (refused.status_code, refused.json()["error"]["code"]) == (401, "invalid_api_key")
        assert httpx.get(f"{locked.url}/v1/models").status_code == 401
        assert httpx.get(f"{locked.url}/health").status_code == 200


def test_a_full_queue_refuses_and_takes_in_again() -> None:
    drafter = HeldDrafter()
    with serving(tiny(), drafter, Limits(context=120, rows=1, queue=1)) as full, httpx.Client() as client:
        body = {**GOOD, "max_tokens": 4, "stream": True}

        async def three() -> list[int]:
            async with httpx.AsyncClient(timeout=60) as several:
                url = f"{full.url}/v1/completions"
                held = [asyncio.create_task(several.post(url, json=body)) for _ in range(2)]
                while len(full.service.scheduler._waiting) + len(full.service.scheduler._running) < 2:
                    await asyncio.sleep(0.01)
                third = await several.post(url, json=body)
                assert third.headers["retry-after"] == "1"
                assert third.json()["error"]["type"] == "rate_limit_error"
                drafter.go.set()
                return [third.status_code, *[(await each).status_code for each in held]]

        assert asyncio.run(three()) == [429, 200, 200]
        assert client.post(f"{full.url}/v1/completions", json=body).status_code == 200


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_goes_away_frees_its_row(stream: bool) -> None:
    """Before its first token and after it; another request goes on."""
    drafter = HeldDrafter()
    with serving(tiny(), drafter, Limits(context=120, rows=2, queue=0)) as left:
        body = {"prompt": "abcd", "max_tokens": 100, "stream": stream}
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(f"{left.url}/v1/completions", json=body, timeout=0.5)
        assert len(left.service.scheduler._running) == 1
        drafter.go.set()
        left.wait_for("finished_total", 1, reason="cancelled")
        drafter.pause = 0.05
        with httpx.stream("POST", f"{left.url}/v1/completions", json={**body, "stream": True}) as response:
            next(response.iter_lines())
        left.wait_for("finished_total", 2, reason="cancelled")
        assert left.service.scheduler._batch is None or not left.service.scheduler._batch.rows
        assert left.count("generated_tokens_total") < 100
        drafter.pause = 0
        text = left.client.completions.create(model="tiny", prompt="abc", max_tokens=20).choices[0].text
        assert text == alone(left.service.loaded, "abc", 20)


def test_a_row_that_leaves_changes_no_other_text() -> None:
    drafter = HeldDrafter(pause=0.02)
    drafter.go.set()
    with serving(tiny(), drafter) as server:

        async def both() -> str:
            async with server.async_client as client:
                staying = asyncio.create_task(streamed(client, "abc", max_tokens=40))
                leaving = asyncio.create_task(streamed(client, "hgf", max_tokens=100))
                await asyncio.sleep(0.3)
                leaving.cancel()
                return await staying

        assert asyncio.run(both()) == alone(server.service.loaded, "abc", 40)
        server.wait_for("finished_total", 1, reason="cancelled")


def test_a_text_ends_at_its_time_with_what_it_has() -> None:
    drafter = HeldDrafter(pause=0.1)
    drafter.go.set()
    with serving(tiny(), drafter, Limits(context=120, seconds=1.0)) as slow:
        answer = slow.client.completions.create(model="tiny", prompt="abc", max_tokens=100)
        (choice,) = answer.choices
        assert choice.finish_reason == "length"
        assert answer.usage is not None
        assert 1 <= answer.usage.completion_tokens <= 20
        assert choice.text == alone(slow.service.loaded, "abc", answer.usage.completion_tokens)
        assert slow.count("finished_total", reason="time") == 1


@pytest.mark.parametrize("stream", [False, True])
def test_a_request_that_waited_all_its_time_is_told(stream: bool) -> None:
    drafter = HeldDrafter()
    with serving(tiny(), drafter, Limits(context=120, rows=1, seconds=0.5)) as slow:

        async def both() -> tuple[httpx.Response, httpx.Response]:
            async with httpx.AsyncClient(timeout=60) as client:
                url, body = f"{slow.url}/v1/completions", {"prompt": "abc", "max_tokens": 100, "stream": stream}
                first = asyncio.create_task(client.post(url, json=body))
                while not slow.service.scheduler._running:
                    await asyncio.sleep(0.01)
                second = asyncio.create_task(client.post(url, json=body))
                await asyncio.sleep(1.0)
                drafter.go.set()
                return await first, await second

        first, second = asyncio.run(both())
        assert first.status_code == 200  # it has the token of the pass that was held up
        assert (second.status_code, second.json()["error"]["code"]) == (503, "overloaded")


def test_a_pass_that_fails_ends_its_requests_and_no_others() -> None:
    drafter = HeldDrafter(failing=True)
    drafter.go.set()
    with serving(tiny(), drafter) as server:
        body = {**GOOD, "max_tokens": 5}
        failed = httpx.post(f"{server.url}/v1/completions", json=body)
        assert (failed.status_code, failed.json()["error"]["type"]) == (500, "server_error")
        broken = httpx.post(f"{server.url}/v1/completions", json={**body, "stream": True}).text
        assert '"error"' in broken
        assert "[DONE]" not in broken
        drafter.failing = False
        assert httpx.post(f"{server.url}/v1/completions", json=body).status_code == 200
        assert server.count("finished_total", reason="error") == 2


def test_models_on_pytorch_answer_one_request_after_another() -> None:
    loaded = tiny(TransformersModel(stock()))
    with serving(loaded, loaded.drafter("8-copies")) as plain:

        async def four() -> list[str]:
            async with plain.async_client as client:
                return await asyncio.gather(*(streamed(client, prompt, max_tokens=20) for prompt in PROMPTS[:4]))

        assert asyncio.run(four()) == [alone(loaded, prompt, 20) for prompt in PROMPTS[:4]]
        assert plain.count("passes_total") == plain.count("calls_total")


def test_health_and_metrics_tell_what_was_served(served: Served) -> None:
    served.client.completions.create(model="tiny", prompt="abcd", max_tokens=12)
    assert httpx.get(f"{served.url}/health").json() == {"status": "ok"}
    page = httpx.get(f"{served.url}/metrics")
    assert page.headers["content-type"].startswith("text/plain; version=0.0.4")
    names = {line.split("{")[0].split()[0] for line in page.text.splitlines() if not line.startswith("#")}
    expected = "requests_running requests_waiting generated_tokens_total accepted_tokens_total request_seconds_count"
    assert {f"latticebpd_{name}" for name in expected.split()} <= names
    assert served.count("responses_total", path="/v1/completions", status="200") >= 1
    assert served.count("requests_running") == 0


def test_a_shutdown_lets_answers_end_and_takes_no_more() -> None:
    drafter = HeldDrafter(pause=0.02)
    drafter.go.set()
    with serving(tiny(), drafter) as server:
        lines = []
        with httpx.stream(
            "POST", f"{server.url}/v1/completions", json={**GOOD, "max_tokens": 40, "stream": True}
        ) as one:
            for line in one.iter_lines():
                if not lines:
                    server.stop()
                lines.append(line)
        text = "".join(json.loads(line[6:])["choices"][0]["text"] for line in lines if line.startswith("data: {"))
        assert text == alone(server.service.loaded, "abc", 40)
        assert "data: [DONE]" in lines
        server.thread.join(30)
        assert not server.thread.is_alive()
        assert not server.service.scheduler._thread.is_alive()
        with pytest.raises(httpx.ConnectError):
            httpx.get(f"{server.url}/health")


def test_a_shutdown_ends_what_takes_longer_than_its_grace() -> None:
    drafter = HeldDrafter(pause=0.1)
    drafter.go.set()
    with serving(tiny(), drafter, grace=0.5) as server:
        begin = time.monotonic()
        url, body = f"{server.url}/v1/completions", {**GOOD, "max_tokens": 100, "stream": True}
        with httpx.stream("POST", url, json=body) as one:
            lines = one.iter_lines()
            next(lines)
            server.stop()
            rest = list(lines)
        assert json.loads([line for line in rest if line.startswith("data: {")][-1][6:])["choices"][0][
            "finish_reason"
        ] == ("length")
        assert "data: [DONE]" in rest
        server.thread.join(30)
        assert time.monotonic() - begin < 8
        assert server.count("generated_tokens_total") < 100


def test_a_shutdown_gives_no_request_more_time() -> None:
    drafter = HeldDrafter()
    with serving(tiny(), drafter) as server, ThreadPoolExecutor(1) as pool:
        answer = pool.submit(httpx.post, f"{server.url}/v1/completions", json={**GOOD, "max_tokens": 4}, timeout=60)
        scheduler = server.service.scheduler
        while not scheduler._running:
            time.sleep(0.01)
        (job,) = scheduler._running
        deadline = job.deadline
        scheduler.drain(1e6)
        assert job.deadline == deadline
        scheduler.drain(5)
        assert job.deadline < deadline
        drafter.go.set()
        assert answer.result().status_code == 200


def unstarted(block: int = 8, **limits: int) -> Service:
    service = Service(tiny(), HeldDrafter(), "tiny", Limits(**{"context": 120, "prefix_memory": 0, **limits}))
    service.scheduler.max_block = block
    return service


def queued(service: Service, *lengths: int, token: int = 1) -> list[Job]:
    """Requests with prompts of so many tokens, one after another, in the queue of a scheduler that does not run."""
    request, begin = schema.CompletionRequest(prompt=[]), len(service.scheduler._waiting)
    jobs = [
        service._job(request, [token] * length, 4, None, lambda progress: None, float(begin + number))
        for number, length in enumerate(lengths)
    ]
    service.scheduler._waiting.extend(jobs)
    return jobs


def test_prompts_that_are_read_between_two_passes_have_a_blocks_tokens_together() -> None:
    """Each one's last token too, which the pass itself reads."""
    service = unstarted()
    scheduler = service.scheduler
    jobs = queued(service, 5, 20, 20)
    unread = []
    for _ in range(2):
        scheduler._read_prompts()
        unread.append([len(job.batch.unread.tokens[0]) for job in jobs])
    assert unread == [[1, 17, 20], [1, 9, 20]]
    assert scheduler._live == jobs[:1]


def test_short_prompts_are_read_before_the_rest_of_a_long_one() -> None:
    service = unstarted(rows=17)
    scheduler = service.scheduler
    (long,) = queued(service, 110)
    scheduler._read_prompts()
    short = queued(service, *[4] * 16)
    for _ in range(4 * 16 // 8 + 2):  # every fourth block is the long one's
        assert len(scheduler._live) < 16
        scheduler._read_prompts()
    assert scheduler._live == short
    assert long.unread_tokens == 110 - 8 * (1 + 2)


def test_a_prompt_that_is_mostly_known_is_a_short_one() -> None:
    service = unstarted(prefix_memory=1 << 20)
    scheduler = service.scheduler
    queued(service, 90)
    while not scheduler._live:
        scheduler._read_prompts()
    (short,), (known,) = queued(service, 20), queued(service, 95)
    (other,) = queued(service, 12, token=2)
    scheduler._read_prompts()
    assert (known.cached, short.cached) == (89, 19)
    assert [job in scheduler._live for job in (known, short, other)] == [True, True, False]


def test_a_long_prompt_is_read_while_short_ones_keep_coming() -> None:
    service = unstarted(rows=100)
    (long,) = queued(service, 110)
    read = []
    for _ in range(40):
        queued(service, 8)
        before = long.unread_tokens
        service.scheduler._read_prompts()
        read.append(before - long.unread_tokens)
    assert read == [0, 0, 0, 8] * 10


def test_prompts_that_are_not_next_hold_no_row() -> None:
    service = unstarted(rows=4)
    queued(service, 100, 110, 90, 105)
    for _ in range(8):
        service.scheduler._read_prompts()
    (short,) = queued(service, 3)
    service.scheduler._read_prompts()
    assert service.scheduler._live == [short]
    assert len(service.scheduler._reading) == 2  # the shortest and the first


def test_a_prompt_that_is_partly_read_holds_a_row() -> None:
    service = unstarted(rows=2)
    queued(service, 110, 90)
    for _ in range(4):  # the fourth block is the first one's
        service.scheduler._read_prompts()
    (short,) = queued(service, 3)
    service.scheduler._read_prompts()
    assert service.scheduler._waiting == [short]


def test_a_block_has_as_many_tokens_as_fit_into_its_time() -> None:
    scheduler = unstarted(block=128).scheduler
    for tokens, seconds, expected in ((8, 0.02, 80), (80, 0.4, 40), (40, 8.0, 8), (8, 1e-9, 128)):
        scheduler.adapt_block(tokens, seconds)
        assert scheduler.block == expected


def test_requests_that_are_prepared_count_and_hold_up_no_others() -> None:
    """A prompt that takes long to tokenize."""
    held = threading.Event()
    with serving(tiny(), limits=Limits(context=120, rows=2, queue=0)) as server, ThreadPoolExecutor(1) as pool:
        document = server.service.loaded.prompts.document

        def slow(text: str) -> list[int]:
            assert text != "hgf" or held.wait(30)
            return document(text)

        vars(server.service.loaded.prompts)["document"] = slow
        url, body = f"{server.url}/v1/completions", {"max_tokens": 4}
        one = pool.submit(httpx.post, url, json={**body, "prompt": "hgf"}, timeout=60)
        while not server.service.scheduler._preparing:
            time.sleep(0.01)
        assert httpx.post(url, json={**body, "prompt": "abc"}).status_code == 200
        server.service.limits = server.service.scheduler.limits = Limits(context=120, rows=1, queue=0)
        assert httpx.post(url, json={**body, "prompt": "abc"}).status_code == 429
        held.set()
        assert one.result().status_code == 200
        assert httpx.post(url, json={**body, "prompt": "abc"}).status_code == 200


def test_a_requests_time_begins_with_its_arrival() -> None:
    (job,) = queued(unstarted(), 3)
    assert (job.arrived, job.deadline) == (0.0, 300.0)


@pytest.mark.parametrize("key", ["schlüssel", "a b", "a\n", "\udcff"])
def test_a_key_that_no_client_can_send_is_refused(key: str) -> None:
    with pytest.raises(ValueError, match="a key of visible ASCII characters") as error:
        Service(tiny(), HeldDrafter(), "tiny", api_key=key)
    assert key not in str(error.value)


def test_a_body_that_does_not_come_is_not_waited_for_for_ever() -> None:
    with serving(tiny(), limits=Limits(context=120, seconds=0.5)) as server:
        with socket.create_connection(("127.0.0.1", server.port), timeout=30) as slow:
            slow.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\n{")
            assert b" 408 " in slow.recv(1000)
        assert server.client.completions.create(model="tiny", prompt="abc", max_tokens=2).choices
