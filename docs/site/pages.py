"""The site's pages, for MkDocs: those of the repository, each at its own path, so that a link between two of them holds
on GitHub and here. A link to another file of the repository leads to GitHub.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[2]
SHOWN = (
    "README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "docs/**/*.md", "docs/**/*.svg", "docs/**/*.png",
    "docs/**/*.css", "docs/**/*.js", "benchmarks/**/*.md", "benchmarks/**/*.svg", "benchmarks/**/*.png",
)  # fmt: skip
LINK = re.compile(r"\]\((?!\w+:|#)([^)#\s]+)")


def on_files(files: Files, config: Any) -> Files:
    """The theme's files, and those of the repository in place of the ones below ``docs_dir``."""
    theme = [each for each in files if each.src_dir != config.docs_dir]
    paths = sorted({path.relative_to(ROOT).as_posix() for pattern in SHOWN for path in ROOT.glob(pattern)})
    own = [File(path, str(ROOT), config.site_dir, config.use_directory_urls) for path in paths]
    return Files([*theme, *own])


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """The page with links to files that the site does not show as links to GitHub."""
    folder = posixpath.dirname(page.file.src_uri)

    def shown(link: re.Match[str]) -> str:
        path = posixpath.normpath(posixpath.join(folder, link[1]))
        if files.get_file_from_path(path) is not None or not (ROOT / path).exists():
            return link[0]
        kind = "tree" if (ROOT / path).is_dir() else "blob"
        return f"]({config.extra['repository']}/{kind}/main/{path}"

    return LINK.sub(shown, markdown)
