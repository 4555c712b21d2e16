"""Renders chat templates: Jinja's immutable sandbox with the functions that ``transformers`` gives to templates.

A process of its own renders templates that are not known: `chat_templates` starts it by `main` and ends it. It imports
nothing but Jinja and the standard library, and takes only JSON values.
"""

from __future__ import annotations

import errno
import gc
import json
import os
import signal
import sys
from collections.abc import Iterable
from contextlib import suppress
from datetime import datetime
from functools import lru_cache
from importlib import import_module
from struct import Struct
from typing import Any

from jinja2 import Template, TemplateError
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.nodes import CallBlock, Node
from jinja2.parser import Parser
from jinja2.runtime import Macro, Undefined
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

MAX_TEXT = 1 << 25
"""Bytes of a rendered text in UTF-8."""
ANSWER = Struct("<?Q")
"""What precedes each answer: whether it is the text, or why there is none; its bytes."""


def cause(error: Exception) -> str:
    """An error in one short line."""
    return " ".join(f"{type(error).__name__}: {error}".split())[:400]


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
    """Raises where a template reads internals of Python, which Jinja takes for undefined."""

    def unsafe_undefined(self, obj: Any, attribute: str) -> Undefined:
        raise SecurityError(f"the template reads {attribute!r} of {type(obj).__name__}")


def _raise_exception(message: str) -> None:
    raise TemplateError(message)


def _tojson(
    value: Any, ensure_ascii: bool = False, indent: int | None = None, separators: Any = None, sort_keys: bool = False
) -> str:
    """Jinja's own would escape HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


@lru_cache(maxsize=8)
def compiled(template: str) -> Template:
    environment = _Environment(trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols])
    environment.filters["tojson"] = _tojson
    environment.globals |= {
        "raise_exception": _raise_exception,
        "strftime_now": lambda form: datetime.now().strftime(form),
        "dict": _Dict(),
        "namespace": _Namespace,
    }
    return environment.from_string(template)


def main(cpu_seconds: float, memory: int) -> None:
    """Answer requests, lines of JSON ``[template, variables]``, until standard input ends.

    cpu_seconds: processor time of an answer.  memory: bytes of this process.  It ends where it would take more.
    """
    _restrict(memory)
    for line in sys.stdin.buffer:
        _allow(cpu_seconds)
        accepted, answer = _answer(line)
        sys.stdout.buffer.write(ANSWER.pack(accepted, len(answer)) + answer)
        sys.stdout.buffer.flush()
        gc.collect()  # contexts and macros refer to each other, and hold conversations
        _allow(0)


def _answer(line: bytes) -> tuple[bool, bytes]:
    try:
        template, variables = json.loads(line)
        text = compiled(template).render(variables).encode("utf-8", "surrogatepass")
        if len(text) > MAX_TEXT:
            raise SecurityError(f"the template writes more than {MAX_TEXT} bytes")
        return True, text
    except MemoryError:
        os._exit(errno.ENOMEM)  # what remains of memory is uncertain
    except Exception as error:  # templates raise errors of any kind
        return False, cause(error).encode("utf-8", "replace")


def _restrict(memory: int) -> None:
    """Limit memory, and open no file or socket from now on, where the system has such limits."""
    for name in ("encodings.unicode_escape", "jinja2.constants", "jinja2.debug", "pprint", "textwrap", "unicodedata"):
        import_module(name)  # Jinja, when it first needs them
    datetime.now()  # reads the time zone
    if sys.platform != "win32":
        import resource

        signal.signal(signal.SIGPROF, signal.SIG_DFL)
        for kind, value in (resource.RLIMIT_AS, memory), (resource.RLIMIT_NOFILE, 0), (resource.RLIMIT_CORE, 0):
            hard = resource.getrlimit(kind)[1]
            value = min(value, hard) if hard >= 0 else value
            with suppress(ValueError, OSError):  # macOS refuses some limits of memory
                resource.setrlimit(kind, (value, value))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's, which ends this process
    gc.freeze()


def _allow(seconds: float) -> None:
    """End this process after so much processor time, also within a call of C; 0 for no limit."""
    if sys.platform != "win32":
        signal.setitimer(signal.ITIMER_PROF, seconds)
