"""The page at ``/``: what it may load, and a chat in headless Chromium."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.helpers.browser import CHROMIUM, Browser, browser
from tests.helpers.served import HeldDrafter, Served, serving, tiny

in_browser = pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed (apt-get install chromium)")
ANSWERED = "document.querySelectorAll('.answer[data-done]').length === {}"


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with serving(tiny()) as server:
        yield server


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with browser(tmp_path_factory.mktemp("profile")) as page:
        yield page


def asked(page: Browser, text: str, **settings: Any) -> None:
    """Type a turn and send it."""
    for name, value in settings.items():
        page.value(f"document.getElementById('{name}').value = '{value}'")
    page.value("document.getElementById('text').focus()")
    page.type(f"{text}\n")


def content(server: Served, *turns: str, length: int) -> Any:
    """What the server answers, and its usage."""
    messages = [{"role": ("user", "assistant")[i % 2], "content": turn} for i, turn in enumerate(turns)]
    body = {"messages": messages, "max_tokens": length}
    answer = httpx.post(f"{server.url}/v1/chat/completions", json=body).json()
    return answer["choices"][0]["message"]["content"], answer["usage"]


def test_the_page_loads_nothing_and_runs_its_own_script_only(served: Served) -> None:
    answer = httpx.get(f"{served.url}/")
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    policy = dict(each.split(" ", 1) for each in answer.headers["content-security-policy"].split("; "))
    for tag, name in (("script", "script-src"), ("style", "style-src")):
        (source,) = re.findall(rf"<{tag}\b[^>]*>(.*?)</{tag}>", answer.text, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(source.encode()).digest()).decode()
        assert policy[name] == f"'sha256-{digest}'"
    assert policy["default-src"] == policy["frame-ancestors"] == policy["base-uri"] == policy["form-action"] == "'none'"
    assert policy["connect-src"] == "'self'"
    assert not re.search(r"https?://|//[a-z]+\.|\bsrc=|@import|url\(|innerHTML|\bon\w+=|\bstyle=", answer.text)


def test_the_page_needs_no_key_but_everything_that_it_asks_for_does() -> None:
    with serving(tiny(), api_key="secret") as locked:
        assert httpx.get(f"{locked.url}/").status_code == 200
        assert httpx.get(f"{locked.url}/v1/models").status_code == 401


def test_models_say_whether_they_chat() -> None:
    for chat, expected in ((True, ["completion", "chat"]), (False, ["completion"])):
        with serving(tiny(chat=chat)) as server:
            assert httpx.get(f"{server.url}/v1/models").json()["data"][0]["capabilities"] == expected


@pytest.mark.long
@in_browser
@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_chat_shows_the_servers_texts_and_the_tokens_of_each_call(
    served: Served, chromium: Browser, width: int, scheme: str
) -> None:
    chromium.open(f"{served.url}/", width, 800, scheme)
    chromium.wait_for("document.title === 'tiny'")
    first, usage = content(served, "abcabc", length=40)
    asked(chromium, "abcabc", most=40)
    chromium.wait_for(ANSWERED.format(1))
    assert chromium.value("document.querySelector('.answer .text').textContent") == first
    blocks = chromium.value(
        "[...document.querySelectorAll('.answer .block')].map(it => [it.textContent, it.dataset.tokens, it.title])"
    )
    assert "".join(text for text, _, _ in blocks) == first
    assert len(blocks) == usage["calls"] + 1  # the first one is the prefill's
    for text, marked, title in blocks:  # a letter is a token
        assert int(marked) == min(len(text), 5)
        assert title == f"{len(text)} token{'s' if len(text) > 1 else ''} in 1 call"
    stats = chromium.value("document.querySelector('.stats').textContent")
    assert stats.startswith("40 tokens · ")
    assert f"{usage['tokens_per_call']:.2f} tokens per call" in stats
    assert " tokens/s" in stats

    second, _ = content(served, "abcabc", first, "kl", length=40)
    asked(chromium, "kl")
    chromium.wait_for(ANSWERED.format(2))
    assert chromium.value("document.querySelectorAll('.answer .text')[1].textContent") == second
    chromium.value("document.getElementById('settings').open = true")
    assert chromium.value("document.scrollingElement.scrollWidth") <= width
    ground = chromium.value("getComputedStyle(document.body).backgroundColor")
    light = sum(map(int, re.findall(r"\d+", ground))) > 3 * 128
    assert light == (scheme == "light")
    chromium.value("document.getElementById('new').click()")
    assert chromium.value("document.querySelectorAll('article').length") == 0
    asked(chromium, "abcabc")
    chromium.wait_for(ANSWERED.format(1))
    assert chromium.value("document.querySelector('.answer .text').textContent") == first  # nothing is left of the rest
    assert chromium.messages == []


@pytest.mark.long
@in_browser
def test_a_server_with_a_key_is_asked_again_with_it(chromium: Browser) -> None:
    with serving(tiny(), api_key="secret") as locked:
        chromium.open(f"{locked.url}/")
        chromium.wait_for("document.querySelector('[role=alert]') !== null")
        assert "key" in chromium.value("document.querySelector('[role=alert]').textContent")
        assert chromium.value("document.getElementById('settings').open")
        asked(chromium, "abc", key="secret", most=8)
        chromium.wait_for(ANSWERED.format(1))
        assert len(chromium.value("document.querySelector('.answer .text').textContent")) == 8
        chromium.messages.clear()  # the refusal's


@pytest.mark.long
@in_browser
def test_a_model_without_a_chat_template_goes_on_with_the_text(served: Served, chromium: Browser) -> None:
    with serving(tiny(chat=False)) as plain:
        chromium.open(f"{plain.url}/")
        chromium.wait_for("document.title === 'tiny'")
        asked(chromium, "abc", most=8)
        chromium.wait_for(ANSWERED.format(1))
        text = plain.client.completions.create(model="tiny", prompt="abc", max_tokens=8).choices[0].text
        assert chromium.value("document.querySelector('.answer .text').textContent") == text


@pytest.mark.long
@in_browser
def test_an_answer_that_is_stopped_stays_as_it_is_and_frees_its_row(chromium: Browser) -> None:
    drafter = HeldDrafter(pause=0.1)
    drafter.go.set()
    with serving(tiny(), drafter) as slow:
        chromium.open(f"{slow.url}/")
        asked(chromium, "abc", most=100)
        chromium.wait_for("document.querySelectorAll('.answer .block').length > 2")
        chromium.value("document.getElementById('stop').click()")
        chromium.wait_for(ANSWERED.format(1))
        assert 2 < len(chromium.value("document.querySelector('.answer .text').textContent")) < 100
        assert chromium.value("document.querySelector('[role=alert]')") is None
        slow.wait_for("finished_total", 1, reason="cancelled")
