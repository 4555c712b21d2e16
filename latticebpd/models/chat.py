"""How conversations become prompts: as plain text, or in the form that a model was tuned on.

Models that follow instructions have a *chat template*, which comes with the tokenizer. A prompt is a conversation in
that form up to where the model's turn begins; its answer ends with the token that ends a turn. The turns of base models
are plain text, with blank lines between them.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Any

from latticebpd.checks import expect, expect_utf8
from latticebpd.lattices.json_files import read_json_lines
from latticebpd.models.chat_templates import render_chat
from latticebpd.models.target_model import AnyModel, target_model

USER, ASSISTANT = "user", "assistant"


class PlainText:
    """Turns of the user and the model, alternating, the user's first -> the prompt of the model's next turn: here with
    blank lines between them.

    eos_ids: the tokens that end an answer; None for the model's own.
    """

    eos_ids: list[int] | None = None

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer: Any = tokenizer

    def prompt(self, turns: Sequence[str]) -> list[int]:
        """Token ids up to where the answer to the last turn begins."""
        return self.document("".join(turn + "\n\n" for turn in turns))

    def document(self, text: str) -> list[int]:
        """A text with the special tokens that the tokenizer adds; ValueError for one with halves of characters."""
        expect_utf8("a prompt", text)
        return list(self.tokenizer(text)["input_ids"])

    def ids(self, text: str) -> list[int]:
        """A text without added tokens; ValueError for one with halves of characters."""
        expect_utf8("a prompt", text)
        return list(self.tokenizer(text, add_special_tokens=False)["input_ids"])

    def text(self, tokens: Sequence[int]) -> str:
        """An answer as the next prompt quotes it."""
        return str(self.tokenizer.decode(list(tokens), skip_special_tokens=True)).strip()


class ChatTemplate(PlainText):
    """Turns in the tokenizer's chat template; ValueError if it has none.

    Answers end with the model's end-of-text tokens or with the one that the template puts after a turn; without a
    model, with the latter only. A system prompt of None leaves the template its own.
    """

    def __init__(self, tokenizer: Any, model: AnyModel | None, system_prompt: str | None = None) -> None:
        super().__init__(tokenizer)
        wanted = "a tokenizer with a chat template"
        expect(has_template(tokenizer), wanted, "one without", "is the model tuned to follow instructions?")
        self.opening = [] if system_prompt is None else [{"role": "system", "content": system_prompt}]
        # The special token that the template puts after the model's turn, if any.
        end, special = self._written(self.messages(["?", "!"])).rpartition("!")[2], set(tokenizer.all_special_ids)
        self.turn_ends = [token for token in self.ids(end) if token in special][:1]
        self.eos_ids = list(dict.fromkeys([*([] if model is None else target_model(model).eos_ids), *self.turn_ends]))

    def prompt(self, turns: Sequence[str]) -> list[int]:
        return self.prompt_of(self.messages(turns))

    @staticmethod
    def messages(turns: Sequence[str]) -> list[dict[str, str]]:
        """Turns as templates and data sets have them."""
        return [{"role": (USER, ASSISTANT)[i % 2], "content": turn} for i, turn in enumerate(turns)]

    def prompt_of(self, messages: Sequence[dict[str, str]]) -> list[int]:
        """Token ids of `prompt_text`."""
        return self.ids(self.prompt_text(messages))  # the template has written all special tokens

    def prompt_text(self, messages: Sequence[dict[str, Any]], tools: Sequence[dict[str, Any]] | None = None) -> str:
        """The prompt after a conversation of messages, each with a ``role`` and its ``content``; ValueError if the
        template refuses them or the last one is the model's.

        tools: that the model may call, as the template takes them.
        """
        fits = messages and messages[-1].get("role") != ASSISTANT
        expect(fits, "a conversation that ends with the user's turn", f"{len(messages)} messages")
        opening = [] if messages[0].get("role") == "system" else self.opening
        return self._written([*opening, *messages], add_generation_prompt=True, tools=tools)

    def _written(self, messages: list[dict[str, Any]], **settings: Any) -> str:
        variables = {**self.tokenizer.special_tokens_map, **settings}
        return render_chat(self.tokenizer.get_chat_template(tools=settings.get("tools")), messages, **variables)


def read_messages(path: str | os.PathLike[str]) -> Iterator[tuple[list[dict[str, str]], str | None]]:
    """The conversations of a JSONL file, ``{"messages": [{"role": ..., "content": ...}, ...]}`` a line, `parted`."""
    return read_json_lines(path, lambda record: parted(record["messages"]), "an object with messages")


def parted(messages: Any) -> tuple[list[dict[str, str]], str | None]:
    """A conversation before its last answer, and that answer, None if the last message is not the model's."""
    if not (isinstance(messages, list) and messages and all(map(_is_message, messages))):
        raise ValueError("messages must be a list of objects with role and content")
    answered = messages[-1]["role"] == ASSISTANT
    return messages[:-1] if answered else messages, messages[-1]["content"] if answered else None


def _is_message(record: Any) -> bool:
    return isinstance(record, dict) and all(isinstance(record.get(name), str) for name in ("role", "content"))


def has_template(tokenizer: Any) -> bool:
    return bool(getattr(tokenizer, "chat_template", None))


def prompt_format(
    tokenizer: Any, model: AnyModel, chat: bool | None = None, system_prompt: str | None = None
) -> PlainText:
    """The format of a model's prompts, by default its chat template if it has one; ValueError for a chat without a
    template, or a system prompt without a chat."""
    if chat is None:
        chat = has_template(tokenizer) or system_prompt is not None
    if not chat and system_prompt is not None:
        raise ValueError("expected a system prompt in a chat only, got one for plain text; omit it or ask for a chat")
    return ChatTemplate(tokenizer, model, system_prompt) if chat else PlainText(tokenizer)
