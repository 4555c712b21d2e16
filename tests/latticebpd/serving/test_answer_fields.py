"""Log-probabilities, penalties and several answers over HTTP, with the ``openai`` client: each text and each number is
that of a decode of its own without drafts, and of ``transformers``."""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import openai
import pytest
import torch
from transformers import (
    LogitsProcessor,
    LogitsProcessorList,
    RepetitionPenaltyLogitsProcessor,
    SequenceBiasLogitsProcessor,
)

from latticebpd import Exact, Generated, Loaded, NoDrafter, Sampling, generate, load, regex
from latticebpd.serving.limits import Limits
from tests.helpers.engine_models import on_engine, stock
from tests.helpers.served import HeldDrafter, Served, serving, tiny

PENALTIES: list[dict[str, Any]] = [
    {},
    {"presence_penalty": 1.5},
    {"frequency_penalty": 0.8},
    {"presence_penalty": -0.7, "frequency_penalty": -2},
    {"repetition_penalty": 1.3},
    {"repetition_penalty": 0.8, "presence_penalty": 0.4},
    {"logit_bias": {"4": 3, "7": -100}},
    {"logit_bias": {"4": 3.5}, "repetition_penalty": 1.5, "frequency_penalty": 1},
]


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with serving(tiny()) as server:
        server.service.scheduler.max_block = 8  # so that prompts are read in several blocks
        yield server


class Subtracted(LogitsProcessor):
    """OpenAI's penalties, token by token."""

    def __init__(self, prompt_length: int, presence: float, frequency: float) -> None:
        self.prompt_length, self.presence, self.frequency = prompt_length, presence, frequency

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        scores = scores.clone()
        for token, count in Counter(input_ids[0, self.prompt_length :].tolist()).items():
            scores[0, token] -= self.frequency * count
            scores[0, token] -= self.presence
        return scores


def processors(prompt_length: int, fields: dict[str, Any]) -> LogitsProcessorList:
    """As ``transformers`` has them."""
    own = LogitsProcessorList()
    if "logit_bias" in fields:
        own.append(
            SequenceBiasLogitsProcessor({(int(key),): float(bias) for key, bias in fields["logit_bias"].items()})
        )
    if "repetition_penalty" in fields:
        own.append(RepetitionPenaltyLogitsProcessor(float(fields["repetition_penalty"])))
    own.append(Subtracted(prompt_length, fields.get("presence_penalty", 0), fields.get("frequency_penalty", 0)))
    return own


def alone(loaded: Loaded, prompt: str, length: int, **fields: Any) -> Generated:
    """A decode of its own without drafts."""
    ids, rule = loaded.encode(prompt), Exact()
    if "seed" in fields:
        generator = torch.Generator().manual_seed(fields["seed"])
        rule = Sampling(fields.get("temperature", 1.0), 0, 1.0, generator, min_p=fields.get("min_p"))  # type: ignore[assignment]
    return generate(
        loaded.target, [ids], NoDrafter(), rule, length, attention_mask=[[1] * len(ids)],
        logits_processor=processors(len(ids), fields), log_probs=fields.get("logprobs", 0),
    )  # fmt: skip


def text_of(loaded: Loaded, out: Generated) -> str:
    return loaded.decode(out.sequences[0, out.prompt_length :])


def check_completion(loaded: Loaded, found: Any, out: Generated, top: int) -> None:
    """A completion's ``logprobs``, on models of letters."""
    assert out.log_probs is not None
    (expected,) = out.log_probs
    assert found.tokens == [loaded.decode([each.token]) for each in expected]
    assert found.token_logprobs == [each.log_prob for each in expected]
    assert found.text_offset == list(range(len(expected)))
    for likely, each in zip(found.top_logprobs, expected, strict=True):
        assert likely == {loaded.decode([token]): value for token, value in (*each.top, (each.token, each.log_prob))}
        assert top <= len(likely) <= top + 1


def test_sixteen_streams_with_fields_of_their_own_have_the_texts_and_numbers_of_each_alone(served: Served) -> None:
    """Greedy and sampled ones, with and without penalties and log-probabilities, over each other's passes."""
    rng, loaded, asks = random.Random(0), served.service.loaded, list[tuple[str, dict[str, Any]]]()
    for number in range(16):
        fields = dict(PENALTIES[number % len(PENALTIES)])
        if number % 3 == 1:
            fields |= {"seed": number, "temperature": 1.5}
        if number % 6 == 1:
            fields |= {"min_p": 0.1}
        if number % 4 != 3:
            fields |= {"logprobs": number % 4}
        asks.append(("".join(rng.choices("abcdefghijkl", k=1 + 3 * number)), fields))

    async def streamed(client: openai.AsyncOpenAI, prompt: str, fields: dict[str, Any]) -> tuple[str, list[Any]]:
        extra = {name: fields[name] for name in ("repetition_penalty", "min_p") if name in fields}
        known: Any = {name: value for name, value in fields.items() if name not in extra}
        chunks = await client.completions.create(
            model="tiny", prompt=prompt, max_tokens=40, stream=True, extra_body=extra, **known
        )
        choices = [chunk.choices[0] async for chunk in chunks]
        return "".join(choice.text for choice in choices), [c.logprobs for c in choices if c.logprobs is not None]

    async def everyone() -> list[tuple[str, list[Any]]]:
        async with served.async_client as client:
            return await asyncio.gather(*(streamed(client, *ask) for ask in asks))

    num_blocks = 0
    for (prompt, fields), (text, blocks) in zip(asks, asyncio.run(everyone()), strict=True):
        out = alone(loaded, prompt, 40, **fields)
        assert text == text_of(loaded, out)
        if "logprobs" not in fields:
            assert blocks == []
            continue
        num_blocks += len(blocks)
        joined = blocks[0].model_copy(
            update={
                name: [each for block in blocks for each in getattr(block, name)]
                for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset")
            }
        )
        check_completion(loaded, joined, out, fields["logprobs"])
    assert num_blocks < 12 * 40  # some passes have several tokens


@pytest.mark.parametrize("fields", PENALTIES)
def test_texts_are_those_of_transformers_in_float32(fields: dict[str, Any]) -> None:
    loaded, model = tiny(on_engine("float32")), stock()
    with serving(loaded, loaded.drafter("8-copies")) as server:
        for prompt in ("abcab", "kkl"):
            ids = torch.tensor([loaded.encode(prompt)])
            expected = model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                do_sample=False,
                max_new_tokens=40,
                logits_processor=processors(ids.shape[1], fields),
            )
            body = {"prompt": prompt, "max_tokens": 40, **fields}
            answer = httpx.post(f"{server.url}/v1/completions", json=body).json()
            assert answer["choices"][0]["text"] == loaded.decode(expected[0, ids.shape[1] :])


def test_a_chats_log_probs_are_of_all_its_tokens_and_in_streams_of_each_pass(served: Served) -> None:
    loaded = served.service.loaded
    asked: Any = {"model": "tiny", "messages": [{"role": "user", "content": "abc"}], "max_tokens": 20}
    out = alone(loaded, "abc", 20, logprobs=2)
    assert out.log_probs is not None
    (choice,) = served.client.chat.completions.create(logprobs=True, top_logprobs=2, **asked).choices
    assert choice.logprobs is not None
    assert choice.logprobs.content is not None
    for found, each in zip(choice.logprobs.content, out.log_probs[0], strict=True):
        assert (found.token, found.logprob) == (loaded.decode([each.token]), each.log_prob)
        assert found.bytes == list(found.token.encode())
        likely = [(other.token, other.logprob, other.bytes) for other in found.top_logprobs]
        expected = [(loaded.decode([token]), value) for token, value in each.top]
        assert likely == [(text, value, list(text.encode())) for text, value in expected]
    chunks = list(served.client.chat.completions.create(logprobs=True, stream=True, **asked))
    blocks = [(c.choices[0].delta.content, c.choices[0].logprobs) for c in chunks if c.choices[0].logprobs]
    for text, block in blocks:
        assert block is not None
        assert block.content is not None
        assert text == "".join(each.token for each in block.content)  # a letter is a token
        assert all(each.top_logprobs == [] for each in block.content)
    assert "".join(text or "" for text, _ in blocks) == choice.message.content
    assert len(blocks) < 20


def test_a_constraints_log_probs_are_of_legal_tokens_and_bytes_of_parts_of_characters() -> None:
    loaded = load()
    with serving(loaded, loaded.drafter(), Limits(context=400)) as server:
        body = {"prompt": "The history", "max_tokens": 30, "logprobs": 5, "guided_regex": "( of|é) the (river|city)\\."}
        answer = httpx.post(f"{server.url}/v1/completions", json=body).json()["choices"][0]
        ids = loaded.prompts.document("The history")
        out = loaded.generate(
            ids, NoDrafter(), max_new_tokens=30, constraint=regex("( of|é) the (river|city)\\."), log_probs=5
        )
        assert out.log_probs is not None
        (expected,) = out.log_probs
        assert answer["logprobs"]["token_logprobs"] == [each.log_prob for each in expected]
        assert expected[-1].log_prob == 0.0  # the only token that is legal there
        names = [name for likely in answer["logprobs"]["top_logprobs"] for name in likely]
        assert all(len(likely) <= 6 for likely in answer["logprobs"]["top_logprobs"])
        assert "bytes:\\xc3" in names
        usage = httpx.post(f"{server.url}/v1/completions", json=body).json()["usage"]
        assert usage["completion_tokens"] == len(expected)


def test_log_probs_of_a_text_that_a_stop_string_cuts_are_of_all_tokens_that_are_counted(served: Served) -> None:
    loaded = served.service.loaded
    full = text_of(loaded, alone(loaded, "abc", 40))
    answer = served.client.completions.create(model="tiny", prompt="abc", max_tokens=40, stop=full[10:13], logprobs=0)
    log_probs = answer.choices[0].logprobs
    assert log_probs is not None
    assert log_probs.token_logprobs is not None
    assert answer.usage is not None
    assert len(log_probs.token_logprobs) == answer.usage.completion_tokens == full.index(full[10:13]) + 3


@pytest.mark.parametrize("stream", [False, True])
def test_several_answers_have_the_texts_of_successive_seeds(served: Served, stream: bool) -> None:
    loaded, prompt = served.service.loaded, "abcdefghijklabcdefghijkl"
    cached = served.count("cached_tokens_total")
    options: Any = {"model": "tiny", "prompt": prompt, "max_tokens": 20, "temperature": 1.2, "seed": 7, "n": 5}
    if stream:
        chunks = list(served.client.completions.create(stream=True, stream_options={"include_usage": True}, **options))
        texts, ends = [""] * 5, Counter[int]()
        for chunk in chunks[:-1]:
            (choice,) = chunk.choices
            texts[choice.index] += choice.text
            ends[choice.index] += choice.finish_reason == "length"
        assert ends == Counter(range(5))
        usage = chunks[-1].usage
    else:
        answer = served.client.completions.create(**options)
        assert [(choice.index, choice.finish_reason) for choice in answer.choices] == [(i, "length") for i in range(5)]
        texts, usage = [choice.text for choice in answer.choices], answer.usage
    assert texts == [text_of(loaded, alone(loaded, prompt, 20, seed=7 + i, temperature=1.2)) for i in range(5)]
    assert usage is not None
    assert (usage.prompt_tokens, usage.completion_tokens) == (24, 100)
    assert served.count("cached_tokens_total") - cached >= 4 * 23  # the prompt is read once


def test_several_answers_of_a_chat_call_no_tool_of_each_other(served: Served) -> None:
    answer = served.client.chat.completions.create(
        model="tiny", messages=[{"role": "user", "content": "abc"}], max_tokens=12, n=3
    )
    expected = text_of(served.service.loaded, alone(served.service.loaded, "abc", 12))
    assert [choice.message.content for choice in answer.choices] == [expected] * 3  # greedy ones


def test_several_answers_need_as_many_places_and_free_them() -> None:
    drafter = HeldDrafter()
    drafter.go.set()
    with serving(tiny(), drafter, Limits(context=120, rows=2, queue=2)) as small:
        url = f"{small.url}/v1/completions"
        body = {"prompt": "abc", "max_tokens": 6, "temperature": 1, "seed": 1}
        assert len(httpx.post(url, json={**body, "n": 4}).json()["choices"]) == 4
        refused = httpx.post(url, json={**body, "n": 5})
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "n")
        drafter.go.clear()
        with ThreadPoolExecutor(1) as pool:
            one = pool.submit(httpx.post, url, json={**body, "n": 3}, timeout=30)
            while len(small.service.scheduler._running) + len(small.service.scheduler._waiting) < 3:
                time.sleep(0.01)
            assert httpx.post(url, json={**body, "n": 2}).status_code == 429
            drafter.go.set()
            assert len(one.result().json()["choices"]) == 3
        small.wait_for("requests_running", 0)
        assert len(httpx.post(url, json={**body, "n": 4}).json()["choices"]) == 4


def test_usage_in_every_chunk_counts_what_was_written_up_to_it(served: Served) -> None:
    chunks = list(
        served.client.completions.create(
            model="tiny", prompt="abc", max_tokens=20, stream=True, logprobs=0,
            extra_body={"stream_options": {"continuous_usage_stats": True}},
        )
    )  # fmt: skip
    tokens = 0
    for calls, chunk in enumerate(chunks[:-1]):
        assert chunk.usage is not None
        assert chunk.usage.model_extra is not None
        log_probs = chunk.choices[0].logprobs
        assert log_probs is not None
        assert log_probs.tokens is not None
        tokens += len(log_probs.tokens)
        assert chunk.usage.completion_tokens == tokens
        assert chunk.usage.model_extra["calls"] == calls  # the first chunk is the prefill's
    assert tokens == 20


def test_the_generation_configs_penalty_holds_unless_a_request_has_its_own() -> None:
    loaded = tiny(on_engine())
    with serving(loaded, NoDrafter()) as server:
        plain, penalized = (
            server.client.completions.create(
                model="tiny", prompt="abc", max_tokens=30, extra_body={"repetition_penalty": penalty}
            ).choices[0].text
            for penalty in (1.0, 1.7)
        )  # fmt: skip
    assert plain != penalized
    loaded.target.generation["repetition_penalty"] = 1.7
    with serving(loaded, NoDrafter()) as server:
        for penalty, expected in ((None, penalized), (1.7, penalized), (1.0, plain)):
            answer = server.client.completions.create(
                model="tiny", prompt="abc", max_tokens=30, extra_body={"repetition_penalty": penalty}
            )
            assert answer.choices[0].text == expected


def test_impossible_tokens_have_openais_number(served: Served) -> None:
    from latticebpd.decoding.log_probs import TokenLogProb

    one = [(TokenLogProb(3, -math.inf, ((4, 0.0),)), 0)]
    assert served.service.formats.of_completion(one)["top_logprobs"] == [{"d": -9999.0, "e": 0.0}]
    assert served.service.formats.of_chat(one)["content"][0]["logprob"] == -9999.0
