"""Every command of the program with its options, found by walking it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from inspect import signature
from types import NoneType
from typing import Any, get_args, get_type_hints

import typer
from typer.models import ParameterInfo

from latticebpd.cli import COMMANDS


@dataclass(frozen=True)
class Parameter:
    """One option or argument of a command: its name in Python, its type without None, how it is declared."""

    name: str
    kind: Any
    info: ParameterInfo

    @property
    def flag(self) -> str:
        declared = [name.split("/")[0] for name in self.info.param_decls or () if name.startswith("--")]
        return declared[0] if declared else f"--{self.name.replace('_', '-')}"

    @property
    def required(self) -> bool:
        return self.info.default is ...

    @property
    def is_output(self) -> bool:
        return getattr(self.info.callback, "__name__", "").startswith("writable")


def commands() -> Iterator[tuple[tuple[str, ...], list[Parameter]]]:
    """The words and the parameters of every command."""
    for name, position in COMMANDS.items():
        module, attribute = position.split(":")
        program = getattr(import_module(module), attribute)
        if isinstance(program, typer.Typer):
            for each in program.registered_commands:
                assert each.callback is not None
                yield (name, each.name or each.callback.__name__.replace("_", "-")), parameters(each.callback)
        else:
            yield (name,), parameters(program)


def parameters(function: Any) -> list[Parameter]:
    hints = get_type_hints(function)
    result = []
    for name, parameter in signature(function).parameters.items():
        kinds = (
            [kind for kind in get_args(hints[name]) if kind is not NoneType]
            if NoneType in get_args(hints[name])
            else [hints[name]]
        )
        result.append(Parameter(name, kinds[0], parameter.default))
    return result


COMMAND_LIST = list(commands())
