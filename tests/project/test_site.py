"""The site builds without a warning, every page is in its menu, and it asks no other host for anything."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


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
