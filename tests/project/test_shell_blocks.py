"""The commands of every shell block of the guide run, page by page and in order, on tiny models."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import httpx
import pytest

from latticebpd.hosts.sglang import VARIABLE, LatticeCorpus
from latticebpd.hosts.vllm import KEY, Settings
from tests.helpers.commands import Run
from tests.helpers.mtp_models import BUILDS_LAYERS, NO_LAYERS
from tests.helpers.page_commands import DOCS, Command, blocks, commands, fences
from tests.helpers.page_files import bring

ROOT = DOCS.parent
ADDRESS = "http://127.0.0.1:8000"
TRAINING = (f"training/{name}" for name in ("heads", "block-drafters", "data", "rescorers", "translation"))
GUIDE = ("training", *TRAINING, "calibrate", "trees", "analysis")
"""Pages that go on with each other's files."""
PAGES = [path.relative_to(DOCS).with_suffix("").as_posix() for path in sorted(DOCS.rglob("*.md"))]
PAGES = [page for page in PAGES if not page.startswith("reference/")]
NOT_RUN = {
    "pip": "installs packages",
    "strip": "changes installed packages",
    "torchrun": "its line leaves out most arguments; tests of training start several processes",
    "models get": "downloads",
}
"""Command -> why."""
ANSWERS: dict[str, Callable[[Any], object]] = {
    "/v1/chat/completions": lambda answer: answer["choices"][0]["message"]["content"],
    "/v1/completions": lambda answer: answer["choices"][0]["text"] in (" yes", " no"),
    "/v1/models": lambda answer: answer["data"][0]["id"] == "smollm2-135m",
    "/infill": lambda answer: answer["content"],
}
"""What has to be in an endpoint's answer."""


class Reader:
    """Types a page's commands in the working directory, and has at most one server at a time."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.server: subprocess.Popen[str] | None = None
        self.url = ""

    def read(self, page: str) -> None:
        for block in blocks(page):
            for command in commands(block):
                if command.name not in NOT_RUN:
                    bring(command.arguments, page)
                    TYPED[command.program](self, command)
        self.stop()

    def latticebpd(self, command: Command) -> None:
        if command.name == "serve":
            self.serve(command)
            return
        assert not command.variables
        status, _, err = self.run(*command.small)
        assert status == 0, (command, err)

    def serve(self, command: Command) -> None:
        self.stop()
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), **command.variables}
        with open("server.txt", "w", encoding="utf-8") as log:
            self.server = subprocess.Popen(
                [sys.executable, "-m", "latticebpd", *command.small], stdout=subprocess.PIPE, stderr=log, text=True,
                env=environment,
            )  # fmt: skip
        assert self.server.stdout is not None
        line = self.server.stdout.readline()
        assert line, Path("server.txt").read_text(encoding="utf-8")
        self.url = re.sub(r"//[\d.]+:(\d+)/v1", r"//127.0.0.1:\1", json.loads(line)["url"])
        assert httpx.get(f"{self.url}/health", timeout=60).status_code == 200

    def stop(self) -> None:
        if self.server is not None:
            self.server.terminate()
            self.server.communicate(timeout=60)
            self.server = None
            assert "Traceback" not in Path("server.txt").read_text(encoding="utf-8")

    def curl(self, command: Command) -> None:
        (address,) = (word for word in command.arguments if word.startswith(ADDRESS))
        if self.server is None:  # that of the first page about servers
            (start,) = (each for block in blocks("serve") for each in commands(block) if each.name == "serve")
            bring(start.arguments)
            self.serve(start)
        words = [command.program, *(word.replace(ADDRESS, self.url) for word in command.small)]
        done = subprocess.run(words, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, (command, done.stderr)
        assert ANSWERS[address.removeprefix(ADDRESS)](json.loads(done.stdout)), done.stdout

    def vllm(self, command: Command) -> None:
        """Not run, but what it would load for us is there and takes its settings."""
        given = [json.loads(word) for word in command.arguments if word.startswith("{")]
        assert given
        for options in given:
            if KEY in options:
                Settings.of(options[KEY])
            else:
                module, _, name = options["model"].rpartition(".")
                assert callable(getattr(import_module(module), name))

    def python(self, command: Command) -> None:
        """SGLang is not run, but what it would load drafts from the file that the page has made."""
        assert command.arguments[:2] == ["-m", "sglang.launch_server"], command
        with pytest.MonkeyPatch.context() as patched:
            patched.setenv(VARIABLE, command.variables[VARIABLE])
            assert len(LatticeCorpus(16).batch_get(["a"], [[20, 21, 22]], [3])[0]) == 16


TYPED: dict[str, Callable[[Reader, Command], None]] = {
    "latticebpd": Reader.latticebpd,
    "curl": Reader.curl,
    "vllm": Reader.vllm,
    "python": Reader.python,
}
"""How the commands of each program are typed."""


@pytest.fixture
def reader(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Reader]:
    monkeypatch.chdir(tmp_path)
    reader = Reader(run)
    yield reader
    if reader.server is not None:
        reader.server.kill()
        reader.server.communicate()


def programs(page: str) -> set[str]:
    return {command.program for block in blocks(page) for command in commands(block)}


@pytest.mark.parametrize("page", PAGES)
def test_programs_and_languages_of_pages_are_known(page: str) -> None:
    """So a new one is not left out."""
    assert programs(page) <= TYPED.keys() | NOT_RUN.keys()
    assert {*fences(page)} <= {"sh", "python", "py"}
    assert (DOCS / f"{page}.md").read_text(encoding="utf-8").count("```") == 2 * len(fences(page))


@pytest.mark.long
@pytest.mark.parametrize("page", ["training", *(page for page in PAGES if page not in GUIDE and blocks(page))])
def test_all_commands_of_a_page_run(page: str, reader: Reader) -> None:
    """With the first page of the guide to training, all of its pages."""
    if "curl" in programs(page) and shutil.which("curl") is None:
        pytest.skip("needs curl")
    if page == "mtp" and not BUILDS_LAYERS:
        pytest.skip(NO_LAYERS)
    for each in GUIDE if page in GUIDE else (page,):
        reader.read(each)


def test_blocks_are_fenced_or_indented_and_formulas_are_none() -> None:
    assert "\n    tokens a second = " in (DOCS / "concepts" / "cost.md").read_text(encoding="utf-8")
    assert [[each.name for each in commands(block)] for block in blocks("concepts/cost")] == [["profile", "generate"]]
    (start, call) = commands(blocks("serving/limits")[0])
    assert (start.name, start.variables) == ("serve", {"LATTICEBPD_API_KEY": "secret"})
    assert (call.name, call.arguments[1]) == ("curl", "-H")
