"""The pages of commands and options, from the program itself: ``python -m docs.site`` after one changed."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from enum import Enum
from importlib import import_module
from pathlib import Path
from typing import Any

import typer

from latticebpd.cli import PANELS
from latticebpd.cli.help_panels import FIRST
from tests.helpers.command_options import Parameter, parameters

FOLDER = Path(__file__).parents[1] / "reference" / "commands"
BAR = "\\|"
"""Within a table's cell."""
TYPES = {str: "TEXT", int: "INTEGER", float: "NUMBER", Path: "PATH", bool: ""}


def functions(name: str, position: str) -> Iterator[tuple[str, Callable[..., None]]]:
    """The words and the functions of a command, or of a group of them."""
    module, attribute = position.split(":")
    program = getattr(import_module(module), attribute)
    if not isinstance(program, typer.Typer):
        yield name, program
        return
    for each in program.registered_commands:
        assert each.callback is not None
        yield f"{name} {each.name or each.callback.__name__.replace('_', '-')}", each.callback


def type_of(kind: Any) -> str:
    """What is typed for an option's value: its type, or one of several words."""
    if kinds := getattr(kind, "__args__", ()):  # of a tuple
        return " ".join(map(type_of, kinds))
    return "|".join(str(value.value) for value in kind) if issubclass(kind, Enum) else TYPES[kind]


def number(value: float) -> str:
    return str(int(value)) if value == int(value) else str(value)


def row(each: Parameter) -> str:
    """An argument or option, and what it is, as a row of a table."""
    info: Any = each.info
    listed = str(each.kind).startswith("list[")
    kind = each.kind.__args__[0] if listed else each.kind
    if type(info).__name__ == "ArgumentInfo":
        names = f"{info.metavar or each.name.upper()}{'...' * listed}"
    else:
        declared = [name for name in info.param_decls or () if name.startswith("-")] or [each.flag]
        if kind is bool and declared == [each.flag] and not info.param_decls:
            declared = [each.flag if info.default is False else f"{each.flag}/--no-{each.flag[2:]}"]
        names = f"{', '.join(declared)} {info.metavar or type_of(kind)}".strip()
    facts = ["required"] if info.default is ... else []
    facts += ["may be repeated"] if listed and "repeat" not in (info.help or "") else []
    facts += [f"from {number(info.min)}"] if info.min is not None else []
    facts += [f"up to {number(info.max)}"] if info.max is not None else []
    if info.default not in (..., None, False, []) and info.show_default is True and kind is not bool:
        values = info.default if isinstance(info.default, list) else [info.default]
        facts.append(f"default `{' '.join(str(getattr(value, 'value', value)) for value in values)}`")
    about = " ".join([*filter(None, [info.help]), *([f"({', '.join(facts)})"] if facts else [])])
    return f"| `{names.replace('|', BAR)}` | {escaped(about)} |"


def escaped(text: str) -> str:
    """Help as Markdown: no markup of rich, options as code."""
    pieces = re.sub(r"\[/?\w+\]", "", text.replace("``", "`")).replace("|", BAR).split("`")
    for i in range(0, len(pieces), 2):  # the others are code already
        pieces[i] = re.sub(r"(?<![\w-])(--[a-z][\w-]*)", r"`\1`", pieces[i]).replace("<", "&lt;")
    return "`".join(pieces)


def section(words: str, function: Callable[..., None]) -> str:
    """A command: what it does, its examples, its options, those first that are used most."""
    paragraphs = [" ".join(each.split()) for each in re.split(r"\n\s*\n|\n\s*(?=Example: )", function.__doc__ or "")]
    examples = [re.sub(r"\[/?bold\]", "", each[9:]) for each in paragraphs if each.startswith("Example: ")]
    texts = [escaped(each) for each in paragraphs if not each.startswith("Example: ")]
    known = [each for each in parameters(function) if not getattr(each.info, "hidden", False)]
    first = FIRST.get(words, "").split()
    known.sort(key=lambda each: first.index(each.name) if each.name in first else len(first))
    known.sort(key=lambda each: type(each.info).__name__)  # arguments first
    block = ["```sh", *examples, "```"] if examples else []
    table = ["| argument or option | meaning |", "|---|---|", *map(row, known)]
    return "\n\n".join([f"## latticebpd {words}", *texts, *filter(None, ["\n".join(block)]), "\n".join(table)])


def pages() -> dict[str, str]:
    """File name -> text, one for each panel of ``latticebpd --help``."""
    result = {}
    for panel, commands in PANELS.items():
        every = [each for item in commands.items() for each in functions(*item)]
        intro = f"Here you can look up the options of {', '.join(f'`{words}`' for words, _ in every)}."
        sections = [section(*each) for each in every]
        result[f"{panel.lower().replace(' ', '-')}.md"] = "\n\n".join([f"# {panel}", intro, *sections]) + "\n"
    return result


def write() -> None:
    FOLDER.mkdir(exist_ok=True)
    for name, text in pages().items():
        (FOLDER / name).write_text(text, encoding="utf-8")
