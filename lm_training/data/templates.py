"""Prompts and answers built from records' fields.

`TASKS` has the prompts of the paper's tasks (Kim 2024, section 5), for the usual fields of their data sets.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from latticebpd.checks import expect

if TYPE_CHECKING:
    from latticebpd.models.chat import ChatTemplate

_FIELD = re.compile(r"\{([^{}]+)\}")


@dataclass(frozen=True)
class Template:
    """How a record becomes a prompt and its answer.

    prompt: text with fields in braces, ``question: {question}``; a dotted field is nested, ``{answers.text.0}``.
    answers: possible fields of the answer, of which a record's first counts.  None: prompts only.
    special_tokens: whether the tokenizer adds its own.
    """

    special_tokens: ClassVar[bool] = True

    prompt: str
    answers: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        expect(self.paths, "a prompt with fields in braces, such as 'question: {question}'", repr(self.prompt))
        expect(self.answers is None or self.answers, "at least one field for the answer")

    @property
    def paths(self) -> list[str]:
        """The prompt's fields."""
        return _FIELD.findall(self.prompt)

    @property
    def columns(self) -> list[str] | None:
        """The columns of a table to read; None if they depend on the record."""
        if self.answers is not None and len(self.answers) > 1:
            return None
        return sorted({path.split(".")[0] for path in (*self.paths, *(self.answers or ()))})

    def fill(self, fields: dict[str, Any]) -> tuple[str, str | None]:
        """Prompt and answer; ValueError for a field that is missing or no text, or a blank answer."""
        prompt = _FIELD.sub(lambda match: _text(fields, match[1]), self.prompt)
        if self.answers is None:
            return prompt, None
        field = next((path for path in self.answers if _value(fields, path) is not None), self.answers[0])
        answer = _text(fields, field)
        expect(answer.strip(), f"text under {field!r} (the answer)", repr(answer))
        return prompt, answer


@dataclass(frozen=True, eq=False)
class Conversation:
    """How a record's ``messages`` become a prompt in a chat template and an answer, the model's last turn.

    chat: the template.  asked: makes the user's only turn and the answer of other fields instead.
    """

    chat: ChatTemplate
    asked: Template | None = None
    prompts_only: bool = False
    special_tokens: ClassVar[bool] = False
    """The chat template writes them."""

    @property
    def columns(self) -> list[str] | None:
        return ["messages"] if self.asked is None else self.asked.columns

    def fill(self, fields: dict[str, Any]) -> tuple[str, str | None]:
        """Prompt and answer; ValueError for missing messages, fields or answer, or if the template refuses them."""
        from latticebpd.models.chat import USER, parted

        if self.asked is not None:
            turn, answer = self.asked.fill(fields)
            return self.chat.prompt_text([{"role": USER, "content": turn}]), answer
        messages, answer = parted(fields.get("messages"))
        if answer is None and not self.prompts_only:
            raise ValueError("expected messages that end with the assistant's (the answer), or --prompts-only")
        return self.chat.prompt_text(messages), None if self.prompts_only else answer


TASKS = {
    "squad": Template("question: {question} context: {context}", ("answer", "answers.text.0", "answers.0")),
    "cnn": Template("summarize: {article}", ("highlights", "summary")),
    "samsum": Template("Here is a dialogue: {dialogue}\nWrite a short summary!", ("summary",)),
    "multinews": Template("Write a summary based on this article: {document}", ("summary",)),
    "xsum": Template("Summarize: {document}", ("summary",)),
    "newsroom": Template("Please write a short summary for the following article: {title} {text}", ("summary",)),
}


def _value(fields: dict[str, Any], path: str) -> Any:
    """The value at a dotted path; None if there is none."""
    value: Any = fields
    for name in path.split("."):
        if isinstance(value, dict):
            value = value.get(name)
        elif isinstance(value, list) and name.isdigit() and int(name) < len(value):
            value = value[int(name)]
        else:
            return None
    return value


def _text(fields: dict[str, Any], path: str) -> str:
    value = _value(fields, path)
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise ValueError(f"expected text under {path!r}, got {'nothing' if value is None else type(value).__name__}")
    return str(value)
