"""The site builds without a warning, every page is in its menu, and it asks no other host for anything."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
REFERENCE = ROOT / "docs" / "reference"
PUBLIC = ("fst", "latticebpd", "latticebpd.drafters", "latticebpd.jacobi", "latticebpd.measuring", "latticebpd.report")


def documented(path: str) -> Any:
    """The object of a name with dots."""
    module, _, name = path.rpartition(".")
    try:
        return getattr(import_module(module), name)
    except ModuleNotFoundError:
        return getattr(documented(module), name)


def test_every_public_name_is_in_the_reference_once() -> None:
    names = [name for page in REFERENCE.glob("*.md") for name in re.findall(r"^::: (\S+)$", page.read_text(), re.M)]
    assert sorted(names) == sorted(set(names))
    objects = [documented(name) for name in names]
    for package in map(import_module, PUBLIC):
        for name in set(package.__all__) - {"__version__"}:
            value = getattr(package, name)
            assert isinstance(value, ModuleType) or any(each is value for each in objects), f"{package.__name__}.{name}"


def test_docstrings_become_lists_and_blocks_of_code() -> None:
    pytest.importorskip("griffe", reason="needs pip install 'latticebpd[docs]'")
    as_markdown = import_module("docs.site.docstrings").as_markdown
    text = "See :func:`load`::\n\n    a = b\n\nk: arcs,\n    at most. slots, p: both.\nother: no item. p: one; k:\nmore"
    lines = as_markdown(text, {"k", "p", "slots"}).splitlines()
    assert lines[:3] == ["See `load`:", "", "    a = b"]
    assert lines[4:] == [
        "- `k`: arcs,",
        "    at most. slots, p: both.",
        "",
        "other: no item.",
        "",
        "- `p`: one.",
        "- `k`: ",
        "    more",
    ]
    assert as_markdown(">>> 1\n1", set()) == "```pycon\n>>> 1\n1\n```"


def test_pages_of_commands_are_what_the_program_says() -> None:
    """After a command or an option changed: ``python -m docs.site``."""
    pages = import_module("docs.site.commands").pages()
    assert {path.name for path in (REFERENCE / "commands").iterdir()} == pages.keys()
    for name, text in pages.items():
        assert (REFERENCE / "commands" / name).read_text(encoding="utf-8") == text


def test_what_is_supported_is_what_the_code_says() -> None:
    """After a family, a type of weights or a model came or went: ``python -m docs.site``."""
    supported = import_module("docs.site.supported")
    text = supported.PAGE.read_text(encoding="utf-8")
    assert all(f"<!-- end of {name} -->" in text for name in supported.PARTS)
    assert supported.with_tables(text) == text


def test_pages_that_teach_are_short_and_say_first_what_their_reader_can_do() -> None:
    names = ("choose", "compare", "costs", "calibrate", "engine", "engine-numbers", "training", "jacobi", "gad")
    folders = (ROOT / "docs" / name for name in ("concepts", "training"))
    for page in (
        *(ROOT / "docs" / f"{name}.md" for name in names),
        *(each for path in folders for each in path.glob("*.md")),
    ):
        text = page.read_text(encoding="utf-8")
        assert len(text.split()) <= 700, page
        assert text.split("\n\n")[1].startswith("After th"), page


def test_gains_of_the_decision_table_are_on_the_pages_that_it_names() -> None:
    rows = re.findall(r"\| ([\d.]+) times \|.*\]\(([^)#]+)", (ROOT / "docs" / "choose.md").read_text(encoding="utf-8"))
    assert len(rows) > 6
    for gain, page in rows:
        assert gain in (ROOT / "docs" / page).read_text(encoding="utf-8"), (gain, page)


RATIOS = {"choose": {"1.02", "1.1"}}
"""Numbers that a page computes from the times of the page that it names."""


def test_numbers_next_to_a_link_to_a_benchmark_are_on_its_page() -> None:
    checked = 0
    for page in [*(ROOT / "docs").rglob("*.md"), ROOT / "README.md"]:
        if page.stem == "history":  # compares with numbers of before
            continue
        text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
        for part in re.split(r"\n\s*\n|\n(?=[-*|#\d])|(?<=[.:;])\s+(?=[A-Z\[])", text):
            named = re.findall(r"\]\(([^)#]*benchmarks/[^)#]*\.md)", part)
            numbers = {*re.findall(r"(?<![\w.])\d+\.\d+(?![\w.]*\w)", re.sub(r"\]\([^)]*\)", "", part))}
            there = " ".join((page.parent / each).read_text(encoding="utf-8") for each in named)
            for number in numbers - RATIOS.get(page.stem, set()) if named else ():
                assert re.search(rf"(?<![\d.]){re.escape(number)}(?!\d)", there), (page, number, named)
                checked += 1
    assert checked > 20


def test_pictures_of_concepts_are_those_of_their_example() -> None:
    """After a change of what they show: ``python -m docs.site``."""
    pictures = import_module("docs.site.pictures").PICTURES
    for name, draw in pictures.items():
        assert (ROOT / "docs" / "concepts" / f"{name}.svg").read_text(encoding="utf-8") == draw(), name
        assert f"]({name}.svg)" in (ROOT / "docs" / "concepts" / f"{name}.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built with warnings as errors: links that lead nowhere, anchors that are missing, pages left out."""
    pytest.importorskip("mkdocstrings", reason="needs pip install 'latticebpd[docs]'")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.long
def test_every_page_of_the_repository_is_a_page_of_the_site(site: Path) -> None:
    for folder in ("docs", "benchmarks"):
        for path in (ROOT / folder).rglob("*.md"):
            name = "index" if path.stem == "README" else path.stem
            assert (site / path.relative_to(ROOT).with_name(f"{name}.html")).exists(), path


@pytest.mark.long
def test_pages_load_nothing_from_other_hosts_and_search_without_a_server(site: Path) -> None:
    pages = {path: path.read_text(encoding="utf-8") for path in site.rglob("*.html")}
    for path, page in pages.items():
        assert re.findall(r"""<(?:script|img|iframe)[^>]+src=["']?(?:https?:)?//""", page) == [], path
        assert re.findall(r"""<link[^>]+href=["']?(?:https?:)?//""", page) == [], path
    index = (site / "search" / "search_index.js").read_text(encoding="utf-8")
    assert "sausage lattice" in index.lower()
