"""Renders chat templates: Jinja's immutable sandbox with the functions that ``transformers`` gives to templates.

`chat_templates` starts `main` in a process of its own, which imports only Jinja and the standard library.
"""

from __future__ import annotations

import gc
import json
import resource
import signal
import sys
from contextlib import suppress
from datetime import datetime
from functools import lru_cache
from importlib import import_module
from typing import Any

from jinja2 import Template, TemplateError
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.nodes import Node, Scope
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

MAX_TEXT = 1 << 26
"""Bytes of a rendered text as JSON."""
_LATE = ("encodings.unicode_escape", "html", "jinja2.constants", "jinja2.debug", "pprint", "textwrap", "unicodedata")
"""What Jinja imports when a template first needs it."""


class _Generation(Extension):
    """``{% generation %}`` around the model's turns, which marks what is learned in training; a scope, no more."""

    tags = {"generation"}  # noqa: RUF012  (as Jinja declares it)

    def parse(self, parser: Parser) -> Node:
        line = next(parser.stream).lineno
        return Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True), lineno=line)


class _Dict:
    """``dict`` without its attributes."""

    __call__: Any = staticmethod(dict)
    fromkeys = staticmethod(dict.fromkeys)


class _Namespace(Namespace):
    """Jinja's, without names that begin with an underscore."""

    def __init__(*args: Any, **named: Any) -> None:  # no name of its own, for namespace(self=...)
        Namespace.__init__(args[0])
        for name, value in dict(*args[1:], **named).items():
            args[0][name] = value

    def __setitem__(self, name: str, value: Any) -> None:
        if isinstance(name, str) and name.startswith("_"):
            raise SecurityError(f"the template stores {name!r} in a namespace")
        super().__setitem__(name, value)


def _raise_exception(message: str) -> None:
    raise TemplateError(message)


def _tojson(
    value: Any, ensure_ascii: bool = False, indent: int | None = None, separators: Any = None, sort_keys: bool = False
) -> str:
    """Jinja's own would escape HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


@lru_cache(maxsize=8)
def compiled(template: str) -> Template:
    jinja = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols])
    jinja.filters["tojson"] = _tojson
    jinja.globals |= {"dict": _Dict(), "namespace": _Namespace, "raise_exception": _raise_exception}
    jinja.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    return jinja.from_string(template)


def cause(error: Exception) -> str:
    """An error in one short line."""
    return " ".join(f"{type(error).__name__}: {error}".split())[:400]


def main(cpu_seconds: float, memory: int) -> None:
    """Answer requests, lines of JSON ``[template, variables]`` -> ``[accepted, text or cause]``, until the input ends.

    cpu_seconds: of an answer; more end the process, also within a call of C.  memory: bytes of address space.
    """
    for name in _LATE:
        import_module(name)
    datetime.now()  # reads the time zone
    # From here on no file or socket can be opened.
    for kind, value in (resource.RLIMIT_AS, memory), (resource.RLIMIT_NOFILE, 0), (resource.RLIMIT_CORE, 0):
        with suppress(ValueError, OSError):  # a lower limit stands; macOS may have none of memory
            resource.setrlimit(kind, (value, value))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which ends this process
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    gc.freeze()
    for line in sys.stdin.buffer:
        signal.setitimer(signal.ITIMER_PROF, cpu_seconds)
        print(_answer(line), flush=True)
        gc.collect()  # contexts and macros refer to each other, and hold conversations
        signal.setitimer(signal.ITIMER_PROF, 0)


def _answer(line: bytes) -> str:
    try:
        template, variables = json.loads(line)
        answer = json.dumps([True, compiled(template).render(variables)])
        if len(answer) > MAX_TEXT:
            raise SecurityError(f"the template writes more than {MAX_TEXT >> 20} MiB")
        return answer
    except MemoryError:  # what remains of memory is uncertain: end this process
        raise
    except Exception as error:  # templates raise errors of any kind
        return json.dumps([False, cause(error)])
