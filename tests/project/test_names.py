"""Names stand once, few functions take many parameters, lines and pages are short."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("fst", "latticebpd", "lm_training")
SOURCES = [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]
LINES = [
    path
    for folder in (*PACKAGES, "benchmarks")
    for path in sorted((ROOT / folder).rglob("*"))
    if path.suffix in {".py", ".pyi", ".cpp", ".hpp", ".inc", ".j2", ".js"}
]
REPEATED = {"base", "__init__", "options", "block", "heads", "masks"}
"""Basenames that two packages, or a family and its training, may share."""
MAX_PARAMETERS, MAX_WIDE_FUNCTIONS = 8, 12


def functions() -> Iterator[tuple[Path, ast.FunctionDef]]:
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef):
                yield path, node


@pytest.mark.parametrize("package", PACKAGES)
def test_a_basename_stands_once_in_a_package(package: str) -> None:
    """Commands apart, which are named as users type them."""
    names = Counter(
        path.stem
        for path in (ROOT / package).rglob("*.py")
        if path.stem not in REPEATED and path.parent.name != "cli" and "__" not in path.stem
    )
    assert [name for name, count in names.items() if count > 1] == []


def test_class_names_stand_once() -> None:
    """Those for hosts apart, which users name by their path."""
    names: Counter[str] = Counter()
    for path in (path for path in SOURCES if path.parent.name != "hosts"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        names.update(node.name for node in tree.body if isinstance(node, ast.ClassDef) and node.name[0] != "_")
    assert [name for name, count in names.items() if count > 1] == []


def test_lines_of_code_have_at_most_120_columns() -> None:
    long = [
        f"{path.relative_to(ROOT)}: {line}"
        for path in LINES
        for line in path.read_text(encoding="utf-8").splitlines()
        if len(line.split("  # type: ignore")[0]) > 120
    ]
    assert long == []


def test_few_functions_take_many_parameters() -> None:
    """Commands apart, whose parameters are options."""
    wide = []
    for path, node in functions():
        arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
        own = [each for each in arguments if each.arg not in ("self", "cls")]
        if len(own) > MAX_PARAMETERS and path.parent.name != "cli":
            wide.append(f"{path.relative_to(ROOT)}: {node.name}")
    assert len(wide) <= MAX_WIDE_FUNCTIONS, wide


@pytest.mark.parametrize(("page", "limit"), [("benchmarks/README.md", 650), ("CHANGELOG.md", 300)])
def test_pages_are_short(page: str, limit: int) -> None:
    assert len((ROOT / page).read_text(encoding="utf-8").split()) <= limit
