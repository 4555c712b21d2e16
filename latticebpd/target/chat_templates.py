"""Chat templates: Jinja templates that write a conversation as a model was tuned on, rendered as by ``transformers``.

Templates come with models and are untrusted: they run in Jinja's sandbox, cannot change what they are given, and end
after a number of steps.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from types import FrameType
from typing import Any

from jinja2 import Template, TemplateError
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.nodes import CallBlock, Node
from jinja2.parser import Parser
from jinja2.runtime import Context, Macro, Undefined
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

MAX_STEPS = 500_000
"""Lines of a compiled template, and calls, that one rendering may take; a message takes 20 to 100."""
MAX_ITEMS = 1_000_000
"""Of a sequence repeated by ``*``."""
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
        sys.settrace(count)
        given = {"tools": None, "documents": None, "add_generation_prompt": False, **variables}
        return compiled.render(messages=[_as_templates_read(message) for message in messages], **given)
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


class _Environment(ImmutableSandboxedEnvironment):
    """Refuses internals of Python, and products and powers that take much time or memory in a single step."""

    intercepted_binops = frozenset({"*", "**"})

    def unsafe_undefined(self, obj: Any, attribute: str) -> Undefined:
        raise SecurityError(f"the template reads {attribute!r} of {type(obj).__name__}")

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        length = sum(len(each) for each in (left, right) if isinstance(each, str | list | tuple))
        limit = 1000 if operator == "**" else MAX_ITEMS // length if length else 2**1000
        if any(isinstance(each, int) and abs(each) > limit for each in (left, right)):
            raise SecurityError(f"the template computes more than {limit} by {operator}")
        return super().call_binop(context, operator, left, right)


def _raise_exception(message: str) -> None:
    raise TemplateError(message)


def _tojson(
    value: Any, ensure_ascii: bool = False, indent: int | None = None, separators: Any = None, sort_keys: bool = False
) -> str:
    """Jinja's own would escape HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


@lru_cache(maxsize=8)
def _compiled(template: str) -> Template:
    environment = _Environment(trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols])
    environment.filters["tojson"] = _tojson
    environment.globals |= {
        "raise_exception": _raise_exception,
        "strftime_now": lambda form: datetime.now().strftime(form),
        "dict": _Dict(),
        "namespace": _Namespace,
    }
    return environment.from_string(template)
