"""``latticebpd chat`` as a user types it: in a terminal, and by lines of standard input."""

from __future__ import annotations

import io
import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from latticebpd import load
from latticebpd.cli import chat as command
from tests.helpers.chat_models import save_chat_model
from tests.helpers.commands import Run

COST = re.compile(r"(\d+) tokens(?:, [\d.]+ a call)?, [\d.]+ a second; (\d+) of (\d+) tokens of the conversation read")

PROMPT = "\x1b[?2004h"
"""A prompt begins with it: the terminal is to tell pasted text from typed text."""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_chat_model(tmp_path_factory.mktemp("chat") / "model", heads=True)


@pytest.fixture
def talk(run: Run, model: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Lines of standard input -> exit status, standard output, standard error."""

    def call(*lines: str, options: tuple[object, ...] = ()) -> tuple[int, str, str]:
        monkeypatch.setattr("sys.stdin", io.StringIO("\n".join(lines)))
        return run("chat", "--model", model, "--max-new-tokens", 12, *options)

    return call


@pytest.fixture
def in_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "_in_terminal", lambda: True)
    monkeypatch.setattr(command, "_prompt", lambda: input)


def answers(model: Path, *turns: str, system_prompt: str | None = None) -> list[str]:
    """The same conversation, each turn by `generate` at once."""
    loaded = load(model, system_prompt=system_prompt)
    texts: list[str] = []
    for turn in turns:
        prompt = loaded.prompts.prompt([*texts, turn])
        out = loaded.generate(prompt, max_new_tokens=12)
        texts += [turn, loaded.prompts.text(out.sequences[0, len(prompt) :].tolist())]
    return texts[1::2]


def test_with_json_the_answers_are_one_list(talk: Run, model: Path) -> None:
    status, out, err = talk("the history of the city", "the river", options=("--json",))
    assert status == 0, err
    told = json.loads(out)
    assert [each["answer"] for each in told] == answers(model, "the history of the city", "the river")
    assert [each["tokens"] for each in told] == [12, 12]


def test_lines_of_standard_input_are_turns_of_one_conversation(talk: Run, model: Path) -> None:
    status, out, err = talk("the history of the city", "", "  the river  ")
    assert (status, out.split()) == (0, " ".join(answers(model, "the history of the city", "the river")).split())
    costs = [[int(number) for number in match.groups()] for match in COST.finditer(err)]
    assert len(costs) == len(err.splitlines()) == 2
    assert [new for new, _, _ in costs] == [12, 12]
    assert costs[0][1] == costs[0][2]
    assert costs[1][1] < costs[1][2] - costs[0][2]  # the first turn and its answer are not read again


def test_commands_begin_anew_and_save(talk: Run, model: Path, tmp_path: Path) -> None:
    first, second = tmp_path / "one.json", tmp_path / "two.json"
    status, _, err = talk(
        "the city", "/new", "the river", f"/save {first}", "/system Be brief.", "the river", f"/save {second}", "/quit",
        "the king", options=("--system-prompt", "Shout."),
    )  # fmt: skip
    assert status == 0, err
    saved = [json.loads(path.read_text())["messages"] for path in (first, second)]
    for messages, system_prompt in zip(saved, ("Shout.", "Be brief."), strict=True):
        assert [each["role"] for each in messages] == ["system", "user", "assistant"]
        assert messages[0]["content"] == system_prompt
        assert [messages[2]["content"]] == answers(model, "the river", system_prompt=system_prompt)
    assert err.count("2 turns in ") == 2
    assert len(COST.findall(err)) == 3  # nothing after /quit


def test_help_lists_the_commands_on_lines_that_fit_a_terminal(talk: Run) -> None:
    status, out, err = talk("/help")
    assert (status, out) == (0, "")
    names = [re.split(r"  +", line)[0] for line in err.splitlines()]
    assert names == ["/help", "/retry", "/new", "/system TEXT", "/save FILE", "/quit"]
    assert max(map(len, err.splitlines())) <= 80


def test_the_last_turn_is_answered_again_in_place_of_its_answer(talk: Run, tmp_path: Path) -> None:
    options = ("--temperature", 2.0, "--seed", 1)
    first, second = tmp_path / "one.json", tmp_path / "two.json"
    lines = ("the city", f"/save {first}", "/retry", f"/save {second}")
    status, _, err = talk(*lines, options=options)
    assert status == 0, err
    (user, one), (same, other) = (json.loads(path.read_text())["messages"] for path in (first, second))
    assert user == same
    assert one != other
    assert len(COST.findall(err)) == 2
    assert COST.findall(err)[1][1] == "1"  # nothing but the prompt's last token is read again


INTENDED = "/help, /retry, /new, /system TEXT, /save FILE, /quit"


@pytest.mark.parametrize("line", ["/nothing", "/save", "/new x", "/quit now", "/retry now"])
def test_unknown_commands_end_with_one_line(talk: Run, line: str) -> None:
    status, out, err = talk(line, "the city")
    assert (status, out, err.strip()) == (2, "", f"latticebpd: error: expected one of {INTENDED}, got {line}")


def test_nothing_can_be_answered_again_before_the_first_turn(talk: Run) -> None:
    status, out, err = talk("/retry")
    expected = "latticebpd: error: expected a turn to answer again, got an empty conversation"
    assert (status, out, err.strip()) == (2, "", expected)


@pytest.mark.usefixtures("in_terminal")
@pytest.mark.parametrize("line", ["/nothing", "/save", "/new x", "/quit now", "/retry"])
def test_in_a_terminal_a_wrong_command_ends_nothing(talk: Run, line: str) -> None:
    status, _, err = talk(line, "the city", "/save /proc/nothing/chat.json")
    assert status == 0
    assert "\nlatticebpd: error: expected " in err
    assert COST.search(err)
    assert "/proc/nothing" in err.splitlines()[-1]


def test_models_without_a_template_are_refused(run: Run) -> None:
    status, out, err = run("chat")
    assert (status, out, len(err.splitlines())) == (2, "", 1)
    assert "expected a model with a chat template, got bundled without one; `latticebpd models get" in err


def interrupting(monkeypatch: pytest.MonkeyPatch, presses: int) -> None:
    """Press Ctrl-C while the third block of the first answer is written."""
    streamer_for, streamers = command.streamer_for, []

    def pressed(*arguments: Any) -> Any:
        streamer = streamer_for(*arguments)
        put, blocks = streamer.put, []
        streamers.append(streamer)

        def counted(tokens: Any) -> None:
            put(tokens)
            blocks.append(tokens)
            if len(blocks) == 4 and len(streamers) == 1:  # the first is the prompt
                for _ in range(presses):
                    signal.raise_signal(signal.SIGINT)

        streamer.put = counted
        return streamer

    monkeypatch.setattr(command, "streamer_for", pressed)


@pytest.mark.usefixtures("in_terminal")
def test_an_interrupted_answer_stays_in_the_conversation_as_far_as_it_came(
    talk: Run, model: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    interrupting(monkeypatch, 1)
    status, _, err = talk("the city", f"/save {tmp_path / 'x.json'}", "the river", options=("-s", "greedy"))
    assert status == 0, err
    first, second = COST.findall(err)
    assert (int(first[0]), int(second[0])) == (4, 12)
    assert err.count("; interrupted") == 1
    answer = json.loads((tmp_path / "x.json").read_text())["messages"][1]["content"]
    assert answers(model, "the city")[0].startswith(answer)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.usefixtures("in_terminal")
def test_a_second_interrupt_drops_the_turn(
    talk: Run, model: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    interrupting(monkeypatch, 2)
    status, _, err = talk("the city", "the river", f"/save {tmp_path / 'x.json'}")
    assert status == 0, err
    assert "interrupted; the turn is dropped" in err
    messages = json.loads((tmp_path / "x.json").read_text())["messages"]
    assert [each["content"] for each in messages] == ["the river", *answers(model, "the river")]


def test_an_interrupt_without_a_terminal_ends_the_program(talk: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    interrupting(monkeypatch, 1)
    status, _, err = talk("the city", "the river")
    assert status != 0
    assert not COST.search(err)


@pytest.mark.usefixtures("in_terminal")
def test_a_text_of_several_lines_is_one_turn_and_no_command(
    talk: Run, model: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pasted, typed = "/new\nthe river", iter(["the city", "/new\nthe river", f"/save {tmp_path / 'x.json'}"])

    def read() -> str:
        for text in typed:
            return text
        raise EOFError

    monkeypatch.setattr(command, "_prompt", lambda: read)
    assert talk()[0] == 0
    messages = json.loads((tmp_path / "x.json").read_text())["messages"]
    assert [each["content"] for each in messages[::2]] == ["the city", pasted]


@pytest.mark.long
def test_in_a_terminal_answers_stream_in_colour_and_control_keys_do_as_they_say(model: Path, tmp_path: Path) -> None:
    """Ctrl-C while an answer is written, Ctrl-C at the prompt, a pasted text that is one turn, Ctrl-D."""
    here, there = pty.openpty()
    arguments = ["chat", "--model", str(model), "--max-new-tokens", "400", "--show-blocks"]
    environment = {**os.environ, "TERM": "xterm", "OMP_NUM_THREADS": "1", "COLUMNS": "100"}
    environment["PROMPT_TOOLKIT_NO_CPR"] = "1"  # nobody answers here where the cursor is
    shown, saved = "", tmp_path / "chat.json"

    def until(done: Callable[[str], object]) -> None:
        nonlocal shown
        begun = time.monotonic()
        while not done(shown):
            assert time.monotonic() - begun < 300, shown
            if select.select([here], [], [], 1.0)[0]:
                shown += os.read(here, 65536).decode(errors="replace")

    program = subprocess.Popen(
        [sys.executable, "-m", "latticebpd", *arguments], stdin=there, stdout=there, stderr=there, env=environment,
        start_new_session=True, preexec_fn=lambda: os.close(os.open(os.ttyname(there), os.O_RDWR)),
    )  # fmt: skip
    try:
        until(lambda text: text.count(PROMPT) == 1)
        os.write(here, b"the city\r")
        until(lambda text: "┃" in text)
        os.write(here, b"\x03")
        until(lambda text: "; interrupted" in text and text.count(PROMPT) == 2)
        os.write(here, b"half a line")
        until(lambda text: "half a line" in text)
        os.write(here, b"\x03")
        until(lambda text: text.count(PROMPT) == 3)
        os.write(here, b"/new\r")
        until(lambda text: text.count(PROMPT) == 4)
        os.write(here, b"\x1b[200~the river\nthe king\x1b[201~")
        until(lambda text: "the king" in text)
        os.write(here, b"\r")
        until(lambda text: len(COST.findall(text)) == 2 and text.count(PROMPT) == 5)
        os.write(here, f"/save {saved}\r".encode())
        until(lambda text: text.count(PROMPT) == 6)
        os.write(here, b"\x04")
        assert program.wait(60) == 0
    finally:
        program.kill()
        os.close(here)
        os.close(there)
    assert "\x1b[32m" in shown
    assert "\x1b[36m" in shown
    assert int(COST.findall(shown)[0][0]) < 400
    assert json.loads(saved.read_text())["messages"][0]["content"] == "the river\nthe king"
