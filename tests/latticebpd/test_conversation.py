"""Conversations: every answer is that of the whole conversation at once, and earlier turns are not read again."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from latticebpd import Chat, NoDrafter, choice, load
from latticebpd.models.chat import read_messages
from tests.helpers.chat_models import save_chat_model
from tests.helpers.tokenizers import TEMPLATE

TURNS = ["the history of the city", "the river", "the king of the city"]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_chat_model(tmp_path_factory.mktemp("chat") / "model", heads=True)


@pytest.mark.parametrize("weights", ["float32", "int8", "torch"])
def test_answers_are_those_after_the_whole_conversation(path: Path, weights: str) -> None:
    loaded = load(path, weights=weights)
    conversation, read = Chat(loaded), 0
    for turn in TURNS:
        prompt = loaded.prompts.prompt([*conversation.turns, turn])
        expected = loaded.generate(prompt, NoDrafter(), max_new_tokens=20)
        out = conversation.answer(turn, max_new_tokens=20)
        assert out.sequences.tolist() == expected.sequences.tolist()
        assert conversation.turns[-1] == loaded.prompts.text(out.sequences[0, len(prompt) :].tolist())
        assert conversation.cache.shared == read
        read = out.sequences.shape[1] - 1
    assert out.num_calls < out.num_tokens  # and drafts were accepted


@pytest.mark.parametrize("weights", ["float32", "torch"])
def test_constrained_answers_are_those_after_the_whole_conversation(path: Path, weights: str) -> None:
    """Their ends, which no pass reads, are read with the next turn."""
    loaded, constraint = load(path, weights=weights), choice(["the old town", "the north of the old town"])
    conversation = Chat(loaded)
    for turn in TURNS:
        prompt = loaded.prompts.prompt([*conversation.turns, turn])
        expected = loaded.generate(prompt, NoDrafter(), constraint=constraint)
        out = conversation.answer(turn, constraint=constraint)
        assert out.sequences.tolist() == expected.sequences.tolist()
        assert conversation.turns[-1] in ("the old town", "the north of the old town")
    conversation.answer(TURNS[0], constraint=choice(["yes, of the river and the king of the north"]))
    prompt = loaded.prompts.prompt([*conversation.turns, "the city"])
    free = loaded.generate(prompt, NoDrafter(), max_new_tokens=24)
    assert conversation.answer("the city", max_new_tokens=24).sequences.tolist() == free.sequences.tolist()


def test_a_system_prompt_begins_a_conversation_and_nothing_else_is_forgotten(path: Path) -> None:
    loaded = load(path, system_prompt="Shout.")
    conversation = Chat(loaded)
    first = conversation.answer("the city", max_new_tokens=4)
    assert "system\nShout.</s>" in loaded.decode(first.sequences[0])
    conversation.begin("Be brief.")
    assert (conversation.turns, conversation.messages) == ([], [{"role": "system", "content": "Be brief."}])
    second = conversation.answer("the city", max_new_tokens=4)
    assert "Shout" not in loaded.decode(second.sequences[0])
    assert "system\nBe brief.</s>" in loaded.decode(second.sequences[0])
    conversation.begin()
    assert "system\nBe kind.</s>" in loaded.decode(conversation.answer("the city", max_new_tokens=4).sequences[0])


def test_the_last_turn_is_answered_again_after_what_came_before_it(path: Path) -> None:
    conversation = Chat(load(path), NoDrafter())
    with pytest.raises(ValueError, match="expected a turn to answer again, got an empty conversation"):
        conversation.retry()
    for turn in TURNS[:2]:
        conversation.answer(turn, max_new_tokens=8)
    before = list(conversation.turns)
    longer = conversation.retry(max_new_tokens=20)
    assert conversation.turns[:3] == before[:3]
    assert conversation.turns[3].startswith(before[3])
    assert (len(conversation.turns), longer.num_tokens) == (4, 20)
    turns = list(conversation.turns)
    with pytest.raises(ValueError, match="max_new_tokens"):
        conversation.retry(max_new_tokens=-1)
    assert conversation.turns == turns


def test_a_conversation_is_saved_as_a_line_of_a_data_set_and_never_in_part(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    conversation = Chat(load(path), NoDrafter(), "Be brief.")
    conversation.answer("the “city”", max_new_tokens=4)
    file = tmp_path / "new" / "chat.json"
    conversation.save(file)
    saved = file.read_text(encoding="utf-8")
    assert (saved.count("\n"), json.loads(saved)["model"]) == (1, "model")
    assert json.loads(saved)["messages"] == conversation.messages
    ((messages, answer),) = read_messages(file)
    assert [*messages, {"role": "assistant", "content": answer}] == conversation.messages
    assert [each["role"] for each in messages] == ["system", "user"]

    def full_disk(self: Path, text: str, **options: Any) -> int:
        self.write_bytes(text.encode()[:20])
        raise OSError(28, "No space left on device")

    conversation.answer("the river", max_new_tokens=4)
    monkeypatch.setattr(Path, "write_text", full_disk)
    with pytest.raises(OSError, match="No space left"):
        conversation.save(file)
    assert file.read_text(encoding="utf-8") == saved
    assert list(file.parent.iterdir()) == [file]


def test_a_conversation_is_not_saved_over_a_pipe(path: Path, tmp_path: Path) -> None:
    os.mkfifo(pipe := tmp_path / "pipe")
    with pytest.raises(ValueError, match="expected to write a file of this name, got a pipe; name another"):
        Chat(load(path)).save(pipe)
    assert pipe.is_fifo()


def test_models_and_system_prompts_that_have_no_chat_are_refused(path: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="expected a model with a chat template, got bundled without one"):
        Chat(load())
    refusing = (
        "{% if messages[0]['role'] == 'system' %}{{ raise_exception('no system prompts') }}{% endif %}" + TEMPLATE
    )
    conversation = Chat(load(save_chat_model(tmp_path / "model", template=refusing)))
    conversation.answer("the city", max_new_tokens=4)
    turns = list(conversation.turns)
    with pytest.raises(ValueError, match="that the chat template accepts, got TemplateError: no system prompts"):
        conversation.begin("Be brief.")
    assert (conversation.turns, conversation.system_prompt) == (turns, None)


def test_an_error_leaves_the_conversation_as_it_was(path: Path) -> None:
    conversation = Chat(load(path))
    conversation.answer("the city", max_new_tokens=4)
    turns = list(conversation.turns)
    with pytest.raises(ValueError, match="expected prompts of fewer than"):
        conversation.answer("the city " * 5000, max_new_tokens=4)
    assert conversation.turns == turns


def test_text_that_is_not_utf8_is_refused_and_changes_nothing(path: Path) -> None:
    conversation = Chat(load(path))
    conversation.answer(TURNS[0], max_new_tokens=3)
    before = conversation.messages
    for call in (lambda: conversation.answer("caf\udce9"), lambda: conversation.begin("caf\udce9")):
        with pytest.raises(ValueError, match=r"^expected a prompt as text in UTF-8, got '.*caf\\udce9"):
            call()
        assert conversation.messages == before
