"""Docstrings as Markdown, for mkdocstrings: the lines ``name: what it is`` of parameters and fields become a list.

A line begins an item where all its names are parameters or attributes of what is documented; so does a sentence in such
a line. Roles lose their kind, sessions of the interpreter become blocks of code.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable
from typing import Any

import griffe

NAMES = r"\*{0,2}[a-z_]\w*(?:, \*{0,2}[a-z_]\w*)*"
ITEM = re.compile(rf"({NAMES}):(?: +(\S.*))?")
SEPARATOR = re.compile(rf"(?<=[.;]) +(?={NAMES}:(?: |$)|Raises )")
ROLE = re.compile(r":\w+:(`[^`]+`)")
SECTIONS = ("Args:", "Raises:", "Example:")
COLUMNS = re.compile(r"\S+(?: \S+)*   +\S")
SKIP = re.compile(r" *# doctest: \+SKIP")


class Docstrings(griffe.Extension):
    """Rewrites the docstring of every object as it is read."""

    def on_function(self, *, func: griffe.Function, **kwargs: Any) -> None:
        _rewrite(func, (each.name for each in func.parameters))

    def on_class(self, *, cls: griffe.Class, **kwargs: Any) -> None:
        own = [each.name for each in cls.parameters] if "__init__" in cls.members else []
        _rewrite(cls, [*own, *cls.members])

    def on_attribute(self, *, attr: griffe.Attribute, **kwargs: Any) -> None:
        _rewrite(attr, ())

    def on_module(self, *, mod: griffe.Module, **kwargs: Any) -> None:
        _rewrite(mod, ())


def _rewrite(documented: griffe.Object, names: Iterable[str]) -> None:
    if documented.docstring is not None:
        documented.docstring.value = as_markdown(documented.docstring.value, {*names})


def as_markdown(docstring: str, names: set[str]) -> str:
    """The text with lists, blocks of code and plain references."""
    paragraphs = re.split(r"\n\s*\n", ROLE.sub(r"\1", SKIP.sub("", docstring)))
    return "\n\n".join(_paragraph(each, names) for each in paragraphs).replace("::\n", ":\n")


def _paragraph(text: str, names: set[str]) -> str:
    title, _, rest = text.partition("\n")
    if text.lstrip().startswith(">>>"):
        return f"```pycon\n{textwrap.dedent(text)}\n```"
    if rest and title.endswith(":") and all(line.startswith("    ") for line in rest.splitlines()):
        inner = _paragraph(textwrap.dedent(rest), names) if title in SECTIONS else rest
        return inner if title in ("Args:", "Raises:") else f"{title}\n\n{inner}"
    if COLUMNS.match(title):
        return f"```text\n{text}\n```"
    parts: list[list[str]] = []  # items and what is between them, as lines
    for line in text.splitlines():
        if line.startswith("    ") and parts:
            parts[-1].append(line)
            continue
        for number, piece in enumerate(SEPARATOR.split(line)):
            match = ITEM.fullmatch(piece)
            if match and {name.lstrip("*") for name in match[1].split(", ")} <= names:
                parts.append([f"- {', '.join(f'`{name}`' for name in match[1].split(', '))}: {match[2] or ''}"])
            elif piece.startswith("Raises "):
                parts.append([piece])
            elif number:
                parts[-1][-1] += f" {piece}"
            elif parts and not parts[-1][0].startswith("- "):
                parts[-1].append(piece)
            elif parts and parts[-1][-1][-1] not in ".;":  # an item that began within a line
                parts[-1].append(f"    {piece}")
            else:
                parts.append([piece])
    result = ""
    for before, part in zip([[""], *parts], parts, strict=False):
        part[-1] = re.sub(";$", ".", part[-1])
        adjacent = before[0].startswith("- ") and part[0].startswith("- ")
        result += ("\n" if adjacent else "\n\n" if result else "") + "\n".join(part)
    return result
