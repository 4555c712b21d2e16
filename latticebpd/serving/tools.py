"""Tools: how models write calls of functions, the grammar of such calls, and the calls in an answer as it grows.

What a call looks like is a row of `FORMATS`, chosen by the model's chat template.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from latticebpd.checks import expect
from latticebpd.constraints.grammar import json_in_lark
from latticebpd.serving.answer_text import overlap
from latticebpd.serving.schema import RequestError, Tool


@dataclass(frozen=True)
class ToolFormat:
    """A call is ``trigger head NAME middle ARGUMENTS end``, the arguments JSON; further ones follow a ``separator``.

    The trigger also is how a template with this format is recognized. ``end`` occurs in no JSON without white space
    around its tokens.
    """

    trigger: str
    head: str
    middle: str
    end: str
    separator: str


FORMATS = (ToolFormat("<tool_call>", '\n{"name": "', '", "arguments": ', "}\n</tool_call>", "\n"),)
"""That of Hermes, Qwen and others."""


def format_of(template: str | None) -> ToolFormat:
    """That of a chat template; RequestError without one."""
    expected = "expected a model whose chat template has tools"
    if template is None or "tools" not in template:
        raise RequestError(400, f"tools: {expected}, got one without", "unsupported_parameter", "tools")
    for known in FORMATS:
        if known.trigger in template:
            return known
    formats = ", ".join(f"{known.trigger}..." for known in FORMATS)
    raise RequestError(400, f"tools: {expected} in a known format ({formats}), got another", "unsupported_parameter")


def calls_grammar(tools: Sequence[Tool], form: ToolFormat, several: bool, triggered: bool) -> str:
    """One call or, if ``several``, at least one, in Lark's notation.  triggered: the text before has the trigger."""
    more = f" ({_quoted(form.separator + form.trigger)} call)*" if several else ""
    begin = "" if triggered else _quoted(form.trigger) + " "
    rules = [f"start: {begin}call{more}", "call: " + " | ".join(f"call_{i}" for i in range(len(tools)))]
    for i, tool in enumerate(tools):
        head = _quoted(form.head + tool.function.name + form.middle)
        rules.append(f"call_{i}: {head} {json_in_lark(parameters(tool))} {_quoted(form.end)}")
    return "\n".join(rules)


def parameters(tool: Tool) -> dict[str, Any]:
    """The schema of a function's arguments; ValueError unless they are an object."""
    own = tool.function.parameters
    if own is None:
        return {"type": "object", "properties": {}, "additionalProperties": False}
    expect(own.get("type", "object") == "object", "a schema of the type object", repr(own.get("type"))[:60])
    return {"type": "object", **own}


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


class AnswerReader:
    """A chat's answer, piece by piece, as the changes of its message that OpenAI's streams have.

    form: of calls; None: the answer is text alone.
    calls: so far.
    complete: whether the last call has its end.
    """

    def __init__(self, form: ToolFormat | None) -> None:
        self.form, self.calls, self.complete = form, 0, True
        self._left = ""
        self._named = False  # within a call: whether its name is known

    def read(self, new: str, ended: bool = False) -> list[dict[str, Any]]:
        """What new characters add; ``ended``: they are the last ones."""
        self._left += new
        changes: list[dict[str, Any]] = []
        while (change := self._next(ended)) is not None:
            changes += [change] if change else []
        return changes

    def _next(self, ended: bool) -> dict[str, Any] | None:
        """The next change, perhaps an empty one; None: more characters are needed."""
        if self.form is None:
            return self._content(len(self._left))
        if self.complete:
            before, found, after = self._left.partition(self.form.trigger)
            if not found and self.calls:  # separators
                return None
            if not found and ended:
                return self._content(len(before))
            if not found:
                return self._content(len(before[: len(before) - overlap(before, self.form.trigger)].rstrip()))
            self.complete, self._named, self._left = False, False, after
            return {"content": content} if not self.calls and (content := before.rstrip()) else {}
        if not self._named:
            head, found, after = self._left.partition(self.form.middle)
            if not found:
                return None
            self._named, self._left, self.calls = True, after, self.calls + 1
            function = {"name": head.removeprefix(self.form.head), "arguments": ""}
            return self._call(id=f"call_{uuid.uuid4().hex[:24]}", type="function", function=function)
        arguments, found, after = self._left.partition(self.form.end)
        if found:
            self.complete, self._left = True, after
        else:
            held = 0 if ended else overlap(arguments, self.form.end)
            arguments, self._left = arguments[: len(arguments) - held], arguments[len(arguments) - held :]
        if not arguments:
            return {} if found else None
        return self._call(function={"arguments": arguments})

    def _content(self, length: int) -> dict[str, Any] | None:
        content, self._left = self._left[:length], self._left[length:]
        return {"content": content} if content else None

    def _call(self, **fields: Any) -> dict[str, Any]:
        return {"tool_calls": [{"index": self.calls - 1, **fields}]}


def message_of(changes: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The whole message that changes add up to."""
    content = "".join(change.get("content", "") for change in changes)
    calls: list[dict[str, Any]] = []
    for (change,) in (each["tool_calls"] for each in changes if "tool_calls" in each):
        if change["index"] == len(calls):
            calls.append({name: value for name, value in change.items() if name != "index"})
        else:
            calls[-1]["function"]["arguments"] += change["function"]["arguments"]
    message: dict[str, Any] = {"role": "assistant", "content": content, "refusal": None}
    return message | {"content": content or None, "tool_calls": calls} if calls else message
