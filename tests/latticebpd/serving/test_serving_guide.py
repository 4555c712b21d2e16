"""The code of the pages about the server runs against a server of a small model."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import pytest

from latticebpd import NoDrafter, load
from latticebpd.serving.limits import Limits
from tests.helpers.command_options import COMMAND_LIST
from tests.helpers.engine_models import on_engine
from tests.helpers.served import Served, serving, tiny

DOCS = Path(__file__).parents[3] / "docs"
PAGES = (DOCS / "serve.md", *sorted((DOCS / "serving").glob("*.md")))
ADDRESS = "http://127.0.0.1:8000"
TEMPLATE = (
    "{% for tool in tools or [] %}{{ tool | tojson }}\n{% endfor %}{% for message in messages %}{{ message.content }}\n"
    '{% endfor %}{# <tool_call>{"name": ...}</tool_call> #}'
)


def blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", (DOCS / f"{page}.md").read_text(encoding="utf-8"), re.DOTALL)


def lines(page: str, program: str) -> list[list[str]]:
    """The words of each of a page's commands that call a program."""
    every = [shlex.split(line, comments=True) for block in blocks(page, "sh") for line in block.splitlines()]
    return [words for words in every if program in words[:2]]


def called(served: Served, words: list[str]) -> Any:
    """What a line of curl gets."""
    options = {name: value for name, value in pairwise(words) if name in ("-d", "-H")}
    headers = {"content-type": "application/x-www-form-urlencoded"}  # as curl's -d has it
    headers |= dict([options["-H"].split(": ")]) if "-H" in options else {}
    (url,) = (word.replace(ADDRESS, served.url) for word in words if word.startswith(ADDRESS))
    answer = httpx.request(
        "POST" if "-d" in options else "GET", url, content=options.get("-d"), headers=headers, timeout=60
    )
    assert answer.status_code == 200, answer.text
    return answer.json()


def names_of(served: Served, code: str, model: str) -> dict[str, Any]:
    """The names that a block leaves."""
    served.service.name = model
    assert ADDRESS in code
    names: dict[str, Any] = {}
    exec(compile(code.replace(ADDRESS, served.url), "page", "exec", dont_inherit=True), names)
    return names


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    loaded = load()
    loaded.tokenizer.chat_template = TEMPLATE
    with serving(loaded, loaded.drafter(), Limits(context=400, max_tokens=100)) as server:
        yield server


def test_a_chat_is_answered_by_curl_and_by_the_client(served: Served, capsys: pytest.CaptureFixture[str]) -> None:
    (words,), (code,) = lines("serve", "curl"), blocks("serve", "py")
    text = called(served, words)["choices"][0]["message"]["content"]
    names_of(served, code, "smollm2-135m")
    assert capsys.readouterr().out == text
    assert text


def test_answers_have_the_forms_that_the_page_asks_for(served: Served) -> None:
    (words,) = lines("serving/forms", "curl")
    assert called(served, words)["choices"][0]["text"] in (" yes", " no")
    names = names_of(served, blocks("serving/forms", "py")[0], "smollm2-135m")
    assert isinstance(names["city"], names["City"])


def test_tools_are_offered_and_their_calls_are_read(served: Served, capsys: pytest.CaptureFixture[str]) -> None:
    code = blocks("serving/forms", "py")[1]
    assert names_of(served, code, "qwen2.5-coder-0.5b")["answer"].choices[0].message.content
    one = 'tools=[weather], tool_choice="required", parallel_tool_calls=False'
    names_of(served, code.replace("tools=[weather]", one), "qwen2.5-coder-0.5b")
    name, arguments = capsys.readouterr().out.split(maxsplit=1)
    assert name == "weather"
    assert json.loads(arguments.replace("'", '"')).keys() == {"city"}


def test_an_editor_s_request_is_filled_in() -> None:
    (words,) = lines("serving/editors", "curl")
    with serving(tiny(on_engine("int8", 1), code=True), NoDrafter(), Limits(context=120)) as server:
        answer = called(server, words)
    assert {"content", "stop_type", "truncated", "tokens_cached", "timings"} <= answer.keys()
    assert 1 <= answer["tokens_predicted"] <= 16


def test_the_key_of_the_page_is_asked_for() -> None:
    (words,), (start, *_) = lines("serving/limits", "curl"), lines("serving/limits", "latticebpd")
    key = start[0].removeprefix("LATTICEBPD_API_KEY=")
    with serving(tiny(), api_key=key) as server:
        assert called(server, words)["data"]
        assert httpx.get(f"{server.url}/v1/models").status_code == 401


def test_commands_and_options_of_the_pages_exist() -> None:
    flags = {" ".join(words): {each.flag for each in options} for words, options in COMMAND_LIST}
    commands = [
        words for page in PAGES for words in lines(page.relative_to(DOCS).with_suffix("").as_posix(), "latticebpd")
    ]
    assert len(commands) >= 5
    for words in commands:
        given = words[words.index("latticebpd") + 1 :]
        name = next(" ".join(given[:n]) for n in (2, 1) if " ".join(given[:n]) in flags)
        assert {word for word in given if word.startswith("--")} <= flags[name], words
    named = {flag for page in PAGES for flag in re.findall(r"`(--[a-z-]+)", page.read_text(encoding="utf-8"))}
    assert len(named) >= 10
    assert named <= flags["serve"]
