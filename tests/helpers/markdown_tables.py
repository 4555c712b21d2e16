"""Markdown tables as cells of plain text."""

from __future__ import annotations

import re
from collections.abc import Iterator


def markdown_tables(page: str) -> Iterator[list[list[str]]]:
    """The tables of a page, row by row, the head first, without marks of bold type and the rule below the head."""
    rows: list[list[str]] = []
    for line in [*page.splitlines(), ""]:
        if line.startswith("|"):
            rows.append([cell.strip() for cell in line.replace("**", "").strip().strip("|").split("|")])
        elif rows:
            yield [row for row in rows if not all(re.fullmatch(r":?-+:?", cell) for cell in row)]
            rows = []
