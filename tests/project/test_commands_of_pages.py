"""Every command that a page shows is one of the program or of the benchmarks, with options that it has."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.main import get_command

from latticebpd.cli import app

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
PAGES += [page for folder in ("docs", "benchmarks", "latticebpd") for page in sorted((ROOT / folder).rglob("*.md"))]
USAGE_ERROR: Any = typer.BadParameter.__base__
SHELL = re.compile(r"^```sh\n(.*?)^```|((?:^    .*\n)+)|`([^`\n]+)`", re.DOTALL | re.MULTILINE)
"""A block of shell code, indented code, code within a line."""


def commands(text: str) -> Iterator[list[str]]:
    """The words of every command of a page's shell code."""
    for block in SHELL.findall(text):
        for line in "".join(block).replace("\\\n", " ").splitlines():
            bare = re.sub(r"\s#\s.*", "", line.strip().removeprefix("$ "))
            for part in re.split(r" (?:&&|\||>|;) ", bare):
                if "latticebpd" in part or "benchmarks." in part:
                    yield split(part)


def split(line: str) -> list[str]:
    try:
        return [word for word in shlex.split(line) if not re.fullmatch(r"\w+=.*", word) or word.startswith("-")]
    except ValueError:  # a word of prose, or text in quotes over several lines
        return line.split()


def fault(words: list[str]) -> str:
    """What is wrong with a command; empty if nothing is, or if it is of another program."""
    if words[:1] == ["latticebpd"]:
        return fault_of_program(words[1:])
    if words[1:2] == ["-m"] and words[2:] and re.fullmatch(r"benchmarks[.\w]+", words[2]):
        return fault_of_benchmark(words[2], words[3:])
    return ""


def fault_of_program(words: list[str]) -> str:
    command: Any = get_command(app)
    context = command.context_class(command, info_name="latticebpd")
    while hasattr(command, "get_command") and words and not words[0].startswith("-"):
        found = command.get_command(context, words[0])
        if found is None:
            return f"no command {words[0]}"
        command, words = found, words[1:]
        context = command.context_class(command, parent=context, info_name=command.name)
    try:  # the last option may be named without what it takes
        command.make_parser(context).parse_args([*(word for word in words if word != "..."), "an argument"])
    except USAGE_ERROR as error:
        return error.format_message()
    return ""


def fault_of_benchmark(module: str, words: list[str]) -> str:
    if source_of(module) is None:
        return f"no module {module}"
    known = options_of(module, set())
    unknown = [word for word in words if re.match(r"--?[A-Za-z]", word) and word.split("=")[0] not in known]
    return f"no option {', '.join(unknown)}" if unknown else ""


def source_of(module: str) -> Path | None:
    paths = (ROOT / module.replace(".", "/") / "__main__.py", ROOT / f"{module.replace('.', '/')}.py")
    return next((path for path in paths if path.exists()), None)


def options_of(module: str, seen: set[str]) -> set[str]:
    """Those that a module names, or what it imports of the benchmarks."""
    path = source_of(module)
    if module in seen or path is None:
        return set()
    seen.add(module)
    source = path.read_text(encoding="utf-8")
    own = {*re.findall(r'"(--?[\w-]+)"', source)}
    names = re.findall(r'"(\w+)"|^    (\w+): ', source, re.MULTILINE)  # of f"--{name}", and of typer's parameters
    own |= {f"--{''.join(name)}" for name in names}
    imports = re.findall(r"^from (benchmarks[.\w]*) import ([\w, ]*)", source, re.MULTILINE)
    modules = [
        name for package, parts in imports for name in (package, *(f"{package}.{part}" for part in parts.split(", ")))
    ]
    return own.union(*(options_of(name, seen) for name in modules))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_commands_exist_and_have_their_options(page: Path) -> None:
    faults = [
        (" ".join(words), wrong) for words in commands(page.read_text(encoding="utf-8")) if (wrong := fault(words))
    ]
    assert not faults


@pytest.mark.parametrize(
    ("line", "wrong"),
    [
        ("latticebpd generate 'a b' --model m --lm lm.fst", ""),
        ("latticebpd train heads --kinds stern", "No such option: --kinds"),
        ("latticebpd lm make", "no command make"),
        ("python -m benchmarks.qwen.speed a.jsonl --most 2", ""),
        ("python -m benchmarks.qwen.speed a.jsonl --mots 2", "no option --mots"),
        ("python -m benchmarks.qwen.sped", "no module benchmarks.qwen.sped"),
    ],
)
def test_what_is_wrong_is_found(line: str, wrong: str) -> None:
    (words,) = commands(f"```sh\n{line}\n```\n")
    assert fault(words).startswith(wrong)
    assert bool(wrong) == bool(fault(words))
