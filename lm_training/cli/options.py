"""Command-line options made of the dataclasses that hold their defaults (`lm_training.training.training_options`)."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import MISSING, Field, fields, is_dataclass
from typing import TYPE_CHECKING, Any, get_type_hints

import typer

from latticebpd.console import writable_folder

if TYPE_CHECKING:
    import torch


def with_options(function: Callable[..., None]) -> Callable[..., None]:
    """A command one of whose parameters is a dataclass, with an option for each of the dataclass's fields in its
    place."""
    hints = get_type_hints(function)
    signature = inspect.signature(function)
    kinds = {name: hints[name] for name in signature.parameters if is_dataclass(hints[name])}
    shown = {name: [each for each in fields(kind) if each.metadata.get("help")] for name, kind in kinds.items()}
    types = {name: get_type_hints(kind) for name, kind in kinds.items()}
    parameters: list[inspect.Parameter] = []
    for name, parameter in signature.parameters.items():
        if name not in kinds:
            parameters.append(parameter.replace(annotation=hints[name]))
        else:
            parameters += [_parameter(each, types[name][each.name]) for each in shown[name]]

    def command(**given: Any) -> None:
        for name, kind in kinds.items():
            values = {}
            for each in shown[name]:
                value, parse = given.pop(each.name), each.metadata.get("parse")
                values[each.name] = parse(value) if parse is not None and value is not None else value
            given[name] = kind(**values)
        function(**given)

    command.__name__, command.__doc__, command.__module__ = function.__name__, function.__doc__, function.__module__
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return command


def _parameter(each: Field[Any], annotation: Any) -> inspect.Parameter:
    assert each.default is not MISSING
    more = each.metadata
    names = [more["flag"]] if "flag" in more else []
    bounds = {key: more[name] for key, name in (("min", "min"), ("max", "max")) if name in more}
    default = typer.Option(each.default, *names, help=more["help"], **bounds)
    return inspect.Parameter(
        each.name,
        inspect.Parameter.KEYWORD_ONLY,
        default=default,
        annotation=str | None if "parse" in more else annotation,
    )


def base_type(name: str) -> torch.dtype:
    """The type of that name, of those that a base model may be loaded in; ValueError for any other."""
    import torch

    known = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
    if name not in known:
        raise ValueError(f"expected --base-dtype {', '.join(known)}, got {name!r}")
    return known[name]


DATA = typer.Argument(
    ..., help="What to learn: directories made by `latticebpd distill`, texts (.npz), or token ids (.npy)."
)
VALIDATION = typer.Option(..., help="Held-out data of the same kind.")
BASE_DTYPE = typer.Option("float32", help="Type in which the base model is loaded: float32, bfloat16 or float16.")
DEVICE = typer.Option("auto", help="Where to compute: cpu, cuda, ...; auto uses a GPU if there is one.")
OUTPUT = typer.Option(
    ...,
    "--output",
    "-o",
    callback=writable_folder,
    help="Directory of what is trained; an interrupted run there is resumed.",
)
