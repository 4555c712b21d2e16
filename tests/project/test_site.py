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
PAGES = [
    path.relative_to(ROOT).as_posix()
    for folder in ("docs", "benchmarks")
    for path in sorted((ROOT / folder).rglob("*.md"))
]
MOST_WORDS = {"docs": 700, "benchmarks": 500}
"""Of a page's prose, by folder; tables and code are not counted."""
MOST_LINES = 10
"""Of prose below a heading."""
EXEMPT = {
    "docs/glossary.md": "words are looked up there, and nobody reads it through",
    "docs/history.md": "it keeps what changed, and grows",
    **dict.fromkeys(
        (page for page in PAGES if page.startswith("docs/reference/commands/")), "written by the commands' help"
    ),
    **dict.fromkeys(
        (page for page in PAGES if page.count("/") == 2 and page.startswith("docs/reference/")),
        "lists public names, whose docstrings the site adds",
    ),
}
"""Pages of any length -> why."""
GUIDES = [page for page in PAGES if page.startswith("docs/") and page not in EXEMPT]


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


def prose(text: str) -> list[str]:
    """The lines of a page without code, tables and the targets of links."""
    lines = re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE).splitlines()
    return [re.sub(r"\]\([^)]*\)", "", line) for line in lines if not line.startswith(("|", "    "))]


def number_of_words(lines: list[str]) -> int:
    return len(re.findall(r"[\w’'-]*[A-Za-z][\w’'-]*", "\n".join(lines)))


def test_words_are_those_of_the_prose() -> None:
    page = "# A title\n\nSee [one\npage](two/three.md), 4 times.\n\n| a | b |\n\n```sh\nrun it\n```\n\n    code\n"
    assert number_of_words(prose(page)) == 6


@pytest.mark.parametrize("page", [page for page in PAGES if page not in EXEMPT])
def test_a_page_is_short(page: str) -> None:
    assert number_of_words(prose((ROOT / page).read_text(encoding="utf-8"))) <= MOST_WORDS[page.split("/")[0]]


@pytest.mark.parametrize("page", GUIDES)
def test_a_guide_says_first_what_its_reader_can_do_and_has_headings(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    assert text.split("\n\n")[1].startswith(
        ("After this page you ", "After these six pages you ", "Here you can look up ")
    )
    parts = "\n".join(prose(text)).split("\n#")
    assert max(len([line for line in part.splitlines() if line]) for part in parts) <= MOST_LINES + 1


def test_every_page_that_may_be_long_exists() -> None:
    assert EXEMPT.keys() <= set(PAGES)


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
