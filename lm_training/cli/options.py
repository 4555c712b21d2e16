"""Command-line options from the dataclasses that hold their defaults (`lm_training.training.training_options`)."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from dataclasses import MISSING, Field, fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_type_hints

import typer

from latticebpd.checks import expect
from latticebpd.cli.input_data import readable
from latticebpd.cli.model_options import PART as PART
from latticebpd.console import writable_folder

if TYPE_CHECKING:
    import torch

RESUMES = """The run can be killed at any time; the same command resumes from its last checkpoint. For several
processes, put `torchrun --nproc_per_node N -m latticebpd` in place of `latticebpd`."""
"""What the help of every command with training options says."""


def with_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """A training command in which options replace each dataclass parameter, one for each of its fields."""
    hints = get_type_hints(function)
    signature = inspect.signature(function)
    kinds = {name: hints[name] for name in signature.parameters if is_dataclass(hints[name])}
    shown = {name: [each for each in fields(kind) if each.metadata.get("help")] for name, kind in kinds.items()}
    parameters: list[inspect.Parameter] = []
    for name, parameter in signature.parameters.items():
        if name in kinds:
            types = get_type_hints(kinds[name])
            parameters += [_parameter(each, types[each.name]) for each in shown[name]]
        else:
            parameters.append(parameter.replace(annotation=hints[name]))

    def command(**arguments: Any) -> Any:
        for name, kind in kinds.items():
            values = {}
            for each in shown[name]:
                value, parse = arguments.pop(each.name), each.metadata.get("parse")
                values[each.name] = parse(value) if parse is not None and value is not None else value
            arguments[name] = kind(**values)
        return function(**arguments)

    command.__name__, command.__module__ = function.__name__, function.__module__
    command.__doc__ = inspect.cleandoc(function.__doc__ or "").replace("\n\nExample:", f"\n\n{RESUMES}\n\nExample:", 1)
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return command


def _parameter(each: Field[Any], annotation: Any) -> inspect.Parameter:
    assert each.default is not MISSING
    more = each.metadata
    flags = [more["flag"]] if "flag" in more else []
    bounds = {name: more[name] for name in ("min", "max") if name in more}
    default = typer.Option(each.default, *flags, help=more["help"], **bounds)
    annotation = str | None if "parse" in more else annotation
    return inspect.Parameter(each.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def base_type(name: str) -> torch.dtype:
    """The type for ``--base-dtype``; ValueError for unknown names."""
    import torch

    known = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
    expect(name in known, f"--base-dtype {', '.join(known)}", repr(name))
    return known[name]


def require_texts(paths: Iterable[Path], kinds: str = "texts (.npz) or a directory of them") -> None:
    """ValueError for a path that is neither a directory nor an ``.npz`` file."""
    for path in paths:
        if not path.is_dir() and path.suffix != ".npz":
            raise ValueError(f"{path}: expected {kinds}, found neither")


END_OF_TEXT = typer.Option(
    None, help="Token that ends texts, or its id; by default the tokenizer's (of a chat template, its turn's end)."
)
DATA = typer.Argument(
    ..., callback=readable, help="Directories made by `latticebpd distill`, texts (.npz), or token ids (.npy)."
)
VALIDATION = typer.Option(..., callback=readable, help="Held-out data of the same kind.")
WRITER = typer.Option(..., "--model", help="Model that writes the texts: a directory or Hub id.")
LAYERS = typer.Option(None, help="Store these layers' states too, such as 10,20; counted from 1.")
BASE_DTYPE = typer.Option("float32", help="Type in which the base model is loaded: float32, bfloat16 or float16.")
NUM_HEADS = "Predictions per position, the base model's own included."
DEVICE = typer.Option("auto", help="Where to compute: cpu, cuda, ...; auto uses a GPU if there is one.")
OUTPUT = typer.Option(..., "--output", "-o", callback=writable_folder, help="Directory of the run, new or to resume.")
