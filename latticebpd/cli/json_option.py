"""``--json`` of commands whose result is what they made: the record that they return."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from contextlib import redirect_stdout
from functools import wraps
from typing import Any, get_type_hints

import typer

from latticebpd.console import print_json

HELP = "Print what was made as one JSON object and nothing else."


def with_json(function: Callable[..., Any]) -> Callable[..., None]:
    """A command with ``--json``: what ``function`` returns is then printed as one JSON value, and what it prints itself
    goes to standard error. A process that returns None, a further one of ``torchrun``, prints none."""
    signature, hints = inspect.signature(function), get_type_hints(function)

    @wraps(function)
    def command(*, json: bool, **arguments: Any) -> None:
        if not json:
            function(**arguments)
            return
        with redirect_stdout(sys.stderr):
            record = function(**arguments)
        if record is not None:
            print_json(record)

    parameters = [each.replace(annotation=hints[name]) for name, each in signature.parameters.items()]
    option = typer.Option(False, "--json", help=HELP)
    parameters.append(inspect.Parameter("json", inspect.Parameter.KEYWORD_ONLY, default=option, annotation=bool))
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {each.name: each.annotation for each in parameters}
    return command
