"""Prompts that begin like earlier texts: the same bits, the same texts, only the rest is read, and how much is kept."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from typing import Any

import httpx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from latticebpd import NoDrafter
from latticebpd.drafters.copies.text_history import TextHistory, with_history
from latticebpd.models.transformers.transformers_model import TransformersModel
from latticebpd.serving.limits import Limits
from latticebpd.serving.prefix_store import PrefixStore, ReadText
from latticebpd.verification.engine_verifier import EngineVerifier
from tests.helpers.engine_models import on_engine, stock
from tests.helpers.served import HeldDrafter, Served, alone, serving, tiny

MODEL = on_engine("int8")
LIMITS = Limits(context=120)


def read(tokens: Sequence[int], layers: Sequence[int] = ()) -> EngineVerifier:
    """A verifier of one row that has read these tokens."""
    verifier = EngineVerifier(MODEL, layers)
    verifier.begin(1)
    if tokens:
        verifier.extend(0, tokens)
    return verifier


def kept(store: PrefixStore) -> list[list[int]]:
    return [text.tokens.tolist() for text in store.texts]


texts = st.lists(st.integers(0, 2), min_size=1, max_size=40)


@settings(deadline=None, max_examples=60)
@given(texts, texts, st.lists(st.integers(1, 9), max_size=6), st.booleans())
def test_states_do_not_depend_on_where_reading_was_interrupted_or_taken_up(
    one: list[int], other: list[int], blocks: list[int], live: bool
) -> None:
    """In float32's bits, of all layers too: after another text's beginning, and in blocks of several sizes."""
    store, prompt = PrefixStore(1 << 30), np.array(other, np.int64)
    source = read(one, (0, 1))
    if not live:
        store.add(one, source, 0)
    found = store.begin(prompt, [ReadText(np.array(one), source)] if live else [])
    shared = next((i for i, pair in enumerate(zip(one, other[:-1], strict=False)) if pair[0] != pair[1]), None)
    expected = min(len(one), len(other) - 1) if shared is None else shared
    verifier, count = found if found is not None else (read([], (0, 1)), 0)
    assert (count, verifier.caches[0].length) == (expected, expected)
    whole = read([], (0, 1))
    hidden = whole.extend(0, other)
    rest, at = list[np.ndarray](), count
    for block in [*blocks, len(other)]:
        if at < len(other):
            rest.append(verifier.extend(0, other[at : at + block]))
            at += block
    assert np.concatenate(rest).tobytes() == hidden[count:].tobytes()
    assert verifier.layer_states(0).tobytes() == whole.layer_states(0).tobytes()


def test_a_copy_leaves_its_text_as_it_was_and_takes_no_more_memory_than_it_needs() -> None:
    source, tokens = read(range(20), (0,)), [20, 21, 22]
    before = source.layer_states(0).copy()
    copied = source.first(0, 3)
    copied.extend(0, tokens)
    assert (source.caches[0].length, copied.caches[0].length) == (20, 6)
    assert source.layer_states(0).tobytes() == before.tobytes()
    assert source.extend(0, tokens).tobytes() == read([]).extend(0, [*range(20), *tokens])[20:].tobytes()
    cache = source.caches[0]
    assert [cache.first(n).memory / cache.first(16).memory for n in (0, 1, 16, 17)] == [0, 1, 1, 2]
    assert (cache.first(1000).length, cache.first(5).length) == (23, 5)
    assert cache.memory >= cache.first(23).memory


def test_the_text_used_least_recently_goes_first() -> None:
    size = read([1] * 9).memory
    store = PrefixStore(3 * size)
    for first in (1, 2, 3):
        store.add([first] * 9, read([first] * 9), 0)
    assert store.begin(np.array([1] * 5 + [7])) is not None  # a part of the first one, which is copied
    store.add([4] * 9, read([4] * 9), 0)
    assert kept(store) == [[3] * 9, [1] * 9, [4] * 9]
    assert store.memory == 3 * size
    store.add([5] * 30, read([5] * 30), 0)  # takes the memory of several
    assert kept(store) == [[5] * 30]
    store.add([6] * 100, read([6] * 100), 0)  # more than all of it
    assert kept(store) == []


def test_a_text_that_goes_on_takes_the_place_of_its_beginning() -> None:
    store = PrefixStore(1 << 30)
    store.add([1, 2, 3], read([1, 2, 3]), 0)
    found = store.begin(np.array([1, 2, 3, 4, 5]))
    assert found is not None
    assert found[1] == 3
    assert kept(store) == []  # the row has it now
    for tokens in ([1, 2, 3], [1, 2, 3, 4], [9], [1, 2]):
        store.add(tokens, read(tokens), 0)
    assert kept(store) == [[9], [1, 2, 3, 4]]  # the last one used the longer one again


def test_nothing_is_kept_or_shared_without_memory_for_it() -> None:
    store, source = PrefixStore(0), read([1, 2, 3])
    live = [ReadText(np.array([1, 2, 3]), source)]
    store.add([1, 2, 3], source, 0)
    assert (store.texts, store.shared(np.array([1, 2, 3, 4]), live)) == ([], 0)
    assert store.begin(np.array([1, 2, 3, 4]), live) is None


def test_texts_are_kept_as_far_as_they_were_read_and_are_final() -> None:
    store = PrefixStore(1 << 30)
    store.add([1, 2, 3, 4], read([1, 2]), 0)  # a prompt that is partly read
    store.add([5, 6], read([5, 6, 7]), 0)  # a draft that was accepted after the text's end
    store.add([8], read([]), 0)
    assert kept(store) == [[1, 2], [5, 6]]
    assert store.texts[1].verifier.caches[0].length == 2


def complete(server: Served, prompt: str, length: int = 8, **options: Any) -> tuple[str, int]:
    """A completion, and how many tokens of its prompt were not read."""
    answer = server.client.completions.create(model="tiny", prompt=prompt, max_tokens=length, **options)
    assert answer.usage is not None
    assert answer.usage.prompt_tokens_details is not None
    return answer.choices[0].text, answer.usage.prompt_tokens_details.cached_tokens or 0


def test_conversations_go_on_from_what_was_read_with_the_texts_of_decodes_of_their_own() -> None:
    with serving(tiny()) as server:
        loaded, text = server.service.loaded, "abcdefgh"
        server.service.scheduler.max_block = 8
        for turn in range(4):
            written, cached = complete(server, text)
            assert written == alone(loaded, text, 8)
            assert cached == (len(text) - 4 if turn else 0)  # of the answer, the token chosen last was not read
            text += written + "kji"
        assert complete(server, text[:20]) == (alone(loaded, text[:20], 8), 19)  # all of it is known
        assert complete(server, text[:20] + "nm", temperature=1, seed=5) == (alone(loaded, text[:20] + "nm", 8, 5), 20)
        assert complete(server, text[:20], extra_body={"cache_prompt": False}) == (alone(loaded, text[:20], 8), 0)
        cached = server.count("cached_tokens_total")
        assert 0 < cached < server.count("prompt_tokens_total")
        assert server.count("prefix_memory_bytes") == server.service.scheduler.prefixes.memory > 0


def test_random_sessions_that_share_beginnings_have_the_texts_of_decodes_of_their_own() -> None:
    """Twelve clients at a time, greedy and sampled, in little memory, so that texts come and go."""
    rng = random.Random(0)
    stems = ["".join(rng.choices("abcdefghij", k=30)) for _ in range(3)]
    asked = [
        (rng.choice(stems)[: rng.randint(1, 30)] + "".join(rng.choices("klm", k=rng.randint(0, 20))), n)
        for n in range(40)
    ]
    with serving(tiny(), limits=Limits(context=120, prefix_memory=60_000)) as server:

        async def all_of_them() -> list[str]:
            semaphore = asyncio.Semaphore(12)
            async with server.async_client as client:

                async def one(prompt: str, number: int) -> str:
                    seeded: Any = {"seed": number, "temperature": 1} if number % 3 == 0 else {}
                    async with semaphore:
                        answer = await client.completions.create(model="tiny", prompt=prompt, max_tokens=20, **seeded)
                    return answer.choices[0].text

                return await asyncio.gather(*(one(*each) for each in asked))

        texts, loaded = asyncio.run(all_of_them()), server.service.loaded
        assert texts == [alone(loaded, prompt, 20, n if n % 3 == 0 else None) for prompt, n in asked]
        assert server.count("cached_tokens_total") > 100
        assert server.service.scheduler.prefixes.memory <= 60_000


def test_rows_that_are_read_at_the_same_time_share_their_beginning() -> None:
    drafter = HeldDrafter()
    with serving(tiny(), drafter) as server:
        stem = "abcdefghijklmnopqrst"

        async def several() -> list[int]:
            async with server.async_client as client:
                tasks = [
                    asyncio.create_task(client.completions.create(model="tiny", prompt=stem + end, max_tokens=4))
                    for end in ("", "a", "bc", "def")
                ]
                while len(server.service.scheduler._running) < 1:
                    await asyncio.sleep(0.01)
                drafter.go.set()
                answers = [await task for task in tasks]
                assert [answer.choices[0].text for answer in answers] == [
                    alone(server.service.loaded, stem + end, 4) for end in ("", "a", "bc", "def")
                ]
                return [answer.usage.prompt_tokens_details.cached_tokens for answer in answers]  # type: ignore[union-attr,misc]

        cached = sorted(asyncio.run(several()))  # the shortest prompt, if it is not read first, reads its last token
        assert cached in ([0, 19, 20, 20], [0, 20, 20, 20])


def test_what_a_client_that_left_had_read_is_kept() -> None:
    """While it waits for a pass, and in the middle of its answer."""
    drafter = HeldDrafter()
    with serving(tiny(), drafter, LIMITS) as server:
        body = {"prompt": "abcdefghijklm", "max_tokens": 100}
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(f"{server.url}/v1/completions", json=body, timeout=0.5)
        drafter.go.set()
        server.wait_for("finished_total", 1, reason="cancelled")
        assert complete(server, "abcdefghijklmabc") == (alone(server.service.loaded, "abcdefghijklmabc", 8), 13)


def test_a_text_that_ended_at_its_time_is_kept_and_one_of_a_failed_pass_is_not() -> None:
    drafter = HeldDrafter(pause=0.1)
    drafter.go.set()
    with serving(tiny(), drafter, Limits(context=120, seconds=0.8)) as server:
        loaded = server.service.loaded
        written, _ = complete(server, "abcdefgh", 100)
        assert 0 < len(written) < 20
        drafter.pause = 0
        prompt = "abcdefgh" + written + "a"
        assert complete(server, prompt) == (alone(loaded, prompt, 8), len(prompt) - 2)
        drafter.failing = True
        assert httpx.post(f"{server.url}/v1/completions", json={"prompt": "nmlkjihg"}).status_code == 500
        drafter.failing = False
        assert complete(server, "nmlkjihgf") == (alone(loaded, "nmlkjihgf", 8), 0)


def test_earlier_texts_are_drafted_from_if_that_is_asked_for() -> None:
    """A text that the server wrote before, in the prompt of another one; without prefixes in memory too."""
    for limits in (LIMITS, Limits(context=120, prefix_memory=0)):
        loaded, calls, history = tiny(), list[int](), TextHistory(1000)
        drafter = with_history(NoDrafter(), history, 16)
        with serving(loaded, drafter, limits, history=history) as server:
            for prompt in ("abcdefgh", "nabcdefgh", "abcdefgh"):
                answer = server.client.completions.create(model="tiny", prompt=prompt, max_tokens=30)
                assert answer.choices[0].text == alone(loaded, prompt, 30)
                calls.append(answer.usage.model_extra["calls"])  # type: ignore[union-attr,index]
        assert calls[2] < calls[0] / 2
        sizes = [38, 39, 38] if limits.prefix_memory == 0 else [38, 39, 38 - 7]
        assert history.tokens == sum(sizes)


def test_a_server_without_memory_for_it_and_models_on_pytorch_read_every_prompt() -> None:
    on_pytorch = tiny(TransformersModel(stock()))
    for loaded, limits in ((tiny(), Limits(context=120, prefix_memory=0)), (on_pytorch, LIMITS)):
        with serving(loaded, NoDrafter(), limits) as server:
            for _ in range(2):
                assert complete(server, "abcdefgh") == (alone(loaded, "abcdefgh", 8), 0)
            assert server.count("prefix_memory_bytes") == 0
