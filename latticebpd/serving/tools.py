"""Tools: how models write calls of functions, the grammar of such calls, and the calls in an answer as it grows.

What a call looks like is a row of `FORMATS`, chosen by the text of the model's chat template.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from latticebpd.checks import expect
from latticebpd.constraints.grammar import json_in_lark
from latticebpd.constraints.triggered import START
from latticebpd.serving.answer_text import overlap
from latticebpd.serving.schema import RequestError, Tool


@dataclass(frozen=True)
class ToolFormat:
    """Calls are ``trigger begin call (separator call)* close``, where a call is ``head NAME middle ARGUMENTS end`` and
    arguments are a JSON object.

    name: of the models that write so.
    marks: texts that a chat template of this format has, all of them, once it is `_bare`.
    lead: None: a trigger begins calls wherever it is written; else only where an answer begins, or right after this.
    begin: one of these texts.
    separator: None: one call is all that the template of such a model takes.
    """

    name: str
    marks: tuple[str, ...]
    trigger: str
    head: str = '{"name": "'
    middle: str = '", "arguments": '
    end: str = "}"
    begin: tuple[str, ...] = ("",)
    separator: str | None = ", "
    close: str = ""
    lead: str | None = None

    @property
    def triggers(self) -> tuple[str, ...]:
        """What begins calls in free text."""
        return (self.trigger,) if self.lead is None else (START + self.trigger, self.lead + self.trigger)

    @property
    def texts(self) -> tuple[str, ...]:
        """All that calls of this format have around names and arguments."""
        parts = (self.trigger, *self.begin, self.head, self.middle, self.end, self.separator, self.close, self.lead)
        return tuple(part for part in parts if part)

    def written(self, calls: Sequence[Mapping[str, Any]]) -> str:
        """The text of at least one call.  calls: objects with a ``name`` and ``arguments``."""
        texts = (
            self.head + call["name"] + self.middle + json.dumps(call["arguments"], ensure_ascii=False) + self.end
            for call in calls
        )
        return self.trigger + self.begin[0] + (self.separator or "").join(texts) + self.close


FORMATS = (
    ToolFormat("SmolLM2", ("<tool_call>[",), "<tool_call>", begin=("[",), close="]</tool_call>"),
    ToolFormat(
        "Hermes", ("<tool_call>", '{"name":'), "<tool_call>",
        head='\n{"name": "', end="}\n</tool_call>", separator="\n<tool_call>",
    ),
    ToolFormat(
        "Llama 3", ('{"name":functionname,"parameters":',), '{"name": "',
        head="", middle='", "parameters": ', separator=None, lead="<|python_tag|>",
    ),
    ToolFormat(
        "Mistral v11", ("[TOOL_CALLS]", "[ARGS]"), "[TOOL_CALLS]",
        head="", middle="[ARGS]", end="", separator="[TOOL_CALLS]",
    ),
    ToolFormat("Mistral v3", ("[TOOL_CALLS][",), "[TOOL_CALLS]", begin=("[", " ["), close="]"),
    ToolFormat("Phi-4-mini", ("<|tool|>",), "<|tool_call|>", begin=("[",), close="]<|/tool_call|>"),
    ToolFormat("Granite 3", ("<|tool_call|>",), "<|tool_call|>", begin=("[",), close="]"),
)  # fmt: skip
"""In the order in which a template is looked at."""


def format_of(template: str | None) -> ToolFormat:
    """That of a chat template; RequestError without one."""
    expected = "expected a model whose chat template has tools"
    if template is None or "tools" not in template:
        raise RequestError(400, f"tools: {expected}, got one without", "unsupported_parameter", "tools")
    bare = _bare(template)
    for known in FORMATS:
        if all(mark in bare for mark in known.marks):
            return known
    names = ", ".join(known.name for known in FORMATS)
    raise RequestError(400, f"tools: {expected} in a known format ({names}), got another", "unsupported_parameter")


def _bare(template: str) -> str:
    """Without white space and escapes, which templates of one format have in different ways."""
    return re.sub(r"\\n|[\s\\]", "", template)


def turns_as_read(
    template: str, form: ToolFormat, turns: Sequence[Mapping[str, Any]], offers: Sequence[Mapping[str, Any]] | None
) -> list[dict[str, Any]]:
    """Turns of a chat so that its template drops nothing: calls become text where it does not read them, and tools part
    of the system prompt where it reads them there.

    offers: the tools, if any.
    """
    read = [dict(turn) for turn in turns]
    for turn in read if "tool_calls" not in template else ():
        if calls := [call["function"] for call in turn.pop("tool_calls", ())]:
            turn["content"] += ("\n" if turn["content"] else "") + form.written(calls)
        if turn["role"] == "tool" and "'tool_response'" in template:
            turn["role"] = "tool_response"
    if offers and "message['tools']" in template:
        if read[0]["role"] != "system":
            read.insert(0, {"role": "system", "content": "You are a helpful assistant with some tools."})
        read[0]["tools"] = json.dumps([offer["function"] for offer in offers], ensure_ascii=False)
    return read


def calls_grammar(tools: Sequence[Tool], form: ToolFormat, several: bool, triggered: bool) -> str:
    """One call or, if ``several``, at least one, in Lark's notation.  triggered: the text before has the trigger."""
    trigger = "" if triggered else form.trigger
    begin = " | ".join(_quoted(trigger + begin) for begin in form.begin if trigger + begin)
    more = f"({_quoted(form.separator)} call)*" if several and form.separator else ""
    parts = (begin and f"({begin})", "call", more, form.close and _quoted(form.close))
    rules = ["start: " + " ".join(filter(None, parts)), "call: " + " | ".join(f"call_{i}" for i in range(len(tools)))]
    for i, tool in enumerate(tools):
        head, end = form.head + tool.function.name + form.middle, form.end and f" {_quoted(form.end)}"
        rules.append(f"call_{i}: {_quoted(head)} {json_in_lark(parameters(tool))}{end}")
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


_NAME = re.compile(r"[a-zA-Z0-9_.-]*\Z")
"""A function's, where a text ends with it."""


class AnswerReader:
    """A chat's answer, piece by piece, as the changes of its message that OpenAI's streams have.

    Any text has its content and its calls; those of another form than ``form`` says are read as far as they can be.

    form: of calls; None: the answer is text alone.
    calls: so far.
    complete: whether the last call has its arguments.
    """

    def __init__(self, form: ToolFormat | None) -> None:
        self.form, self.calls, self.complete = form, 0, True
        self._left = START
        self._in_calls = False
        self._arguments = _JsonEnd()

    def read(self, new: str, ended: bool = False) -> list[dict[str, Any]]:
        """What new characters add; ``ended``: they are the last ones."""
        self._left += new
        return [change for change in self._changes(ended) if change]

    def _changes(self, ended: bool) -> Iterator[dict[str, Any]]:
        if self.form is None:
            yield self._content(len(self._left))
            return
        if not self._in_calls:
            yield self._text(self.form.triggers, ended)
        while self._in_calls:
            if self.complete:
                head, found, after = self._left.partition(self.form.middle)
                if not found:
                    return
                self.complete, self._left, self._arguments = False, after, _JsonEnd()
                self.calls += 1
                named = _NAME.search(head)
                function = {"name": named.group() if named else "", "arguments": ""}
                # Nine letters and digits, which is all that Mistral's templates take.
                yield self._call(id=uuid.uuid4().hex[:9], type="function", function=function)
            length = self._arguments.of(self._left)
            self.complete = self._arguments.ended
            arguments, self._left = self._left[:length], self._left[length:]
            yield self._call(function={"arguments": arguments}) if arguments else {}
            if not self.complete:
                return

    def _text(self, triggers: Sequence[str], ended: bool) -> dict[str, Any]:
        """Content, up to the first trigger."""
        found = [(at, trigger) for trigger in triggers if (at := self._left.find(trigger)) >= 0]
        if found:
            at, trigger = min(found)
            before, self._left, self._in_calls = self._left[:at].rstrip(), self._left[at + len(trigger) :], True
            before = before.removeprefix(START)
            return {"content": before} if before else {}
        if ended:
            return self._content(len(self._left))
        held = max(overlap(self._left, trigger) for trigger in triggers)
        return self._content(len(self._left[: len(self._left) - held].rstrip()))

    def _content(self, length: int) -> dict[str, Any]:
        content, self._left = self._left[:length].removeprefix(START), self._left[length:]
        return {"content": content} if content else {}

    def _call(self, **fields: Any) -> dict[str, Any]:
        return {"tool_calls": [{"index": self.calls - 1, **fields}]}


class _JsonEnd:
    """Finds where a JSON object ends, in a text that comes in pieces."""

    def __init__(self) -> None:
        self.ended = False
        self._depth, self._in_string, self._escaped = 0, False, False

    def of(self, text: str) -> int:
        """The characters of the next piece that belong to the object."""
        for at, character in enumerate(text):
            if self._in_string:
                self._in_string = self._escaped or character != '"'
                self._escaped = character == "\\" and not self._escaped
            elif character == '"':
                self._in_string = True
            elif character in "{[":
                self._depth += 1
            elif character in "]}":
                self._depth -= 1
                if self._depth <= 0:
                    self.ended = True
                    return at + 1
        return len(text)


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
