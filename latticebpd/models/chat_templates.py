"""Chat templates: Jinja templates that write a conversation as a model was tuned on, rendered as by ``transformers``.

Templates come with models and are untrusted: they run in Jinja's sandbox, cannot change their inputs, and end
after a number of steps, and of characters written on the way.
"""

from __future__ import annotations

import json
import re
import sys
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from functools import lru_cache, wraps
from types import FrameType
from typing import Any

from jinja2 import Template, TemplateError
from jinja2.compiler import CodeGenerator, Frame
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.nodes import CallBlock, Concat, Node
from jinja2.parser import Parser
from jinja2.runtime import Context, Macro, Undefined
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

MAX_STEPS = 500_000
"""Lines of a compiled template, and calls, that one rendering may take; a message takes 20 to 100."""
MAX_ITEMS = 1_000_000
"""Of a sequence repeated by ``*``; the largest number that a function accepts."""
MAX_TEXT = 1 << 25
"""Characters that all texts and intermediate results of one rendering may have together."""
MULTIPLYING = frozenset({"replace", "join", "translate", "expandtabs", "indent", "wordwrap", "tojson"})
MULTIPLYING |= {"format", "format_map"}
"""Functions whose result may be as long as the product of their arguments."""
REASONING = ("reasoning_content", "thinking", "reasoning")
"""Names of a message's reasoning, which templates read by the first or the second."""


def render_chat(template: str, messages: Sequence[Mapping[str, Any]], **variables: Any) -> str:
    """The text of a conversation; ValueError, in one line, for a template or a conversation that is refused.

    messages: JSON objects with ``role`` and ``content``; values of None count as missing.
    variables: ``add_generation_prompt``, ``tools``, special tokens and whatever else the template reads; JSON values.
    """
    steps, tracer = 0, sys.gettrace()

    def count(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal steps
        steps += 1
        if steps > MAX_STEPS:
            raise SecurityError(f"the template takes more than {MAX_STEPS} steps")
        return count if frame.f_code.co_filename == "<template>" else None

    try:
        if not messages:
            raise TemplateError("it is empty")
        compiled = _compiled(template)
        _budget.left = MAX_TEXT
        sys.settrace(count)
        context = {"tools": None, "documents": None, "add_generation_prompt": False, **variables}
        return compiled.render(messages=[_as_templates_read(message) for message in messages], **context)
    except Exception as error:  # templates raise errors of any kind
        cause = " ".join(f"{type(error).__name__}: {error}".split())[:500]
        raise ValueError(f"expected a conversation that the chat template accepts, got {cause}") from None
    finally:
        sys.settrace(tracer)


def _as_templates_read(message: Mapping[str, Any]) -> dict[str, Any]:
    present = {name: value for name, value in message.items() if value is not None}
    reasoning = [present[name] for name in REASONING if name in present][:1]
    return {"thinking": reasoning[0], **present, REASONING[0]: reasoning[0]} if reasoning else present


class _Generation(Extension):
    """``{% generation %}`` around the model's turns, which marks what is learned in training; a scope, no more."""

    tags = {"generation"}  # noqa: RUF012  (as Jinja declares it)

    def parse(self, parser: Parser) -> Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return CallBlock(self.call_method("_content"), [], [], body).set_lineno(line)

    def _content(self, caller: Macro) -> str:
        return caller()


class _Dict:
    """``dict`` without its attributes."""

    def __call__(self, *items: Any, **named: Any) -> dict[Any, Any]:
        return dict(*items, **named)

    def fromkeys(self, *items: Any) -> dict[Any, Any]:
        return dict.fromkeys(*items)


class _Namespace(Namespace):
    """Jinja's, without names that begin with an underscore."""

    def __init__(*args: Any, **named: Any) -> None:  # no name of its own, for namespace(self=...)
        _check_names(dict(*args[1:], **named))
        Namespace.__init__(*args, **named)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_names([name])
        super().__setitem__(name, value)


def _check_names(names: Iterable[Any]) -> None:
    for name in names:
        if isinstance(name, str) and name.startswith("_"):
            raise SecurityError(f"the template stores {name!r} in a namespace")


class _Budget(threading.local):
    """Characters that this thread's rendering may still write."""

    left = 0


_budget = _Budget()


def _spend(result: Any) -> Any:
    """The result, paid for."""
    _budget.left -= len(result) if isinstance(result, str | bytes | list | tuple) else 1
    if _budget.left < 0:
        raise SecurityError(f"the template writes more than {MAX_TEXT} characters")
    return result


def _weight(value: Any) -> int:
    """Characters and items of a value, at any depth."""
    total, left = 0, [value]
    while left:
        each = left.pop()
        total += len(each) if isinstance(each, str | bytes) else 1
        if isinstance(each, dict | list | tuple):
            left += [*each, *each.values()] if isinstance(each, dict) else each
        if total + len(left) > MAX_TEXT:
            raise SecurityError(f"the template writes more than {MAX_TEXT} characters")
    return total


def _check_call(name: str, arguments: Sequence[Any], *values: Any) -> None:
    """Refuse what may make far more of its arguments, and of the value that it is a method or filter of."""
    if any(isinstance(each, int) and abs(each) > MAX_ITEMS for each in arguments):
        raise SecurityError(f"the template gives {name} a number above {MAX_ITEMS}")
    if name in MULTIPLYING:
        if name.startswith("format") and any(isinstance(each, str) and re.search(r"\d{7}", each) for each in values):
            raise SecurityError(f"the template formats to a width above {MAX_ITEMS}")
        length = 1
        for each in (*arguments, *values):
            length *= max(1, abs(each) if isinstance(each, int) else _weight(each))
        if length > MAX_TEXT:
            raise SecurityError(f"the template may write more than {MAX_TEXT} characters by {name}")


def _filter(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """A filter that checks its arguments and pays for its result."""
    first = 1 + hasattr(function, "jinja_pass_arg")

    @wraps(function)
    def checked(*arguments: Any, **named: Any) -> Any:
        _check_call(name, [*arguments[first:], *named.values()], *arguments[first - 1 : first])
        return _spend(function(*arguments, **named))

    return checked


class _Code(CodeGenerator):
    """``~`` as a function of the environment."""

    def visit_Concat(self, node: Concat, frame: Frame) -> None:  # noqa: N802  (as Jinja names it)
        self.write("environment.concatenated((")
        for each in node.nodes:
            self.visit(each, frame)
            self.write(", ")
        self.write("))")


class _Environment(ImmutableSandboxedEnvironment):
    """Refuses internals of Python, and what takes much time or memory in a single step."""

    intercepted_binops = frozenset({"*", "**", "+", "%"})
    code_generator_class = _Code

    def concatenated(self, parts: Sequence[Any]) -> str:
        _weight(parts)
        return str(_spend("".join(map(str, parts))))

    def call(self, context: Context, function: Any, /, *arguments: Any, **named: Any) -> Any:
        name, method = getattr(function, "__name__", ""), getattr(function, "__wrapped__", function)
        owner = getattr(method, "__self__", None)
        _check_call(name, [*arguments, *named.values()], *([owner] if isinstance(owner, str | bytes) else []))
        return _spend(super().call(context, function, *arguments, **named))

    def unsafe_undefined(self, obj: Any, attribute: str) -> Undefined:
        raise SecurityError(f"the template reads {attribute!r} of {type(obj).__name__}")

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        length = sum(len(each) for each in (left, right) if isinstance(each, str | list | tuple))
        limit = 1000 if operator == "**" else MAX_ITEMS // length if length else 2**1000
        if operator[0] == "*" and any(isinstance(each, int) and abs(each) > limit for each in (left, right)):
            raise SecurityError(f"the template computes more than {limit} by {operator}")
        if operator == "%" and isinstance(left, str):
            widths = (right if isinstance(right, tuple) else (right,)) if "*" in left else ()
            _check_call("format", widths, left, right)
        return _spend(super().call_binop(context, operator, left, right))


def _written(value: Any) -> Any:
    """What a template writes, paid for."""
    _budget.left -= _weight(value) - 1
    _spend(None)
    return value


def _raise_exception(message: str) -> None:
    raise TemplateError(message)


def _tojson(
    value: Any, ensure_ascii: bool = False, indent: int | None = None, separators: Any = None, sort_keys: bool = False
) -> str:
    """Jinja's own would escape HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


@lru_cache(maxsize=8)
def _compiled(template: str) -> Template:
    environment = _Environment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols], finalize=_written
    )
    filters = environment.filters | {"tojson": _tojson}
    environment.filters = {name: _filter(name, function) for name, function in filters.items()}
    environment.globals |= {
        "raise_exception": _raise_exception,
        "strftime_now": lambda form: datetime.now().strftime(form),
        "dict": _Dict(),
        "namespace": _Namespace,
    }
    return environment.from_string(template)
