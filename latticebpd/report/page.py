"""A report as one self-contained HTML page, with its tables and plots as files next to it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from markupsafe import Markup

from fst.files import replacing_files
from latticebpd.report import page_templates
from latticebpd.report.content import Drawing, Plot, Section, Table
from latticebpd.report.theme import inline_svg, png

PAGE = "report.html"


@dataclass(frozen=True)
class Headline:
    """Tokens per call of vanilla drafts, of the best system, of the oracle.

    recovered: share of the headroom, 0..1; None where there is none.
    """

    data_set: str
    vanilla: float
    system: str
    best: float
    oracle: float
    recovered: float | None


@dataclass(frozen=True)
class Report:
    """Everything on the page. facts: names and values of what the numbers depend on."""

    title: str
    subtitle: str
    headline: Headline
    sections: Sequence[Section]
    facts: Sequence[tuple[str, str]]

    def html(self) -> str:
        """The page: no script, nothing loaded."""
        return page_templates.render("report", self.title, self.subtitle, report=self, runs=_runs, svg=_svg)

    def write(self, directory: str | os.PathLike[str]) -> list[Path]:
        """Write the page, every table as CSV, every plot as PNG and every drawing as SVG; returns their paths."""
        directory = Path(directory)
        items = [item for section in self.sections for item in section.items]
        names = [item.name for item in items]
        if (twice := next((name for name in names if names.count(name) > 1), None)) is not None:
            raise ValueError(
                f"expected data sets whose names differ in letters and digits, got two files called {twice}; name them"
                " apart"
            )
        files: dict[str, bytes] = {PAGE: self.html().encode()}
        for item in items:
            if isinstance(item, Table):
                files[f"{item.name}.csv"] = item.csv().encode()
            elif isinstance(item, Plot):
                files[f"{item.name}.png"] = png(item.figure)
            else:
                files[f"{item.name}.svg"] = item.svg.encode()
        with replacing_files(directory) as temporary:
            for name, data in files.items():
                (temporary / name).write_bytes(data)
        return [directory / name for name in files]


def _runs(items: Sequence[Any]) -> list[tuple[str, list[Any]]]:
    """Runs of neighbours of one kind: plots stand side by side."""
    kinds = {Table: "table", Plot: "plot", Drawing: "drawing"}
    return [(kind, list(group)) for kind, group in groupby(items, lambda item: kinds[type(item)])]


def _svg(item: Plot | Drawing) -> Markup:
    # Names and captions in this markup are already escaped.
    if isinstance(item, Drawing):
        return Markup(item.svg)
    return Markup(inline_svg(item.figure, item.name, str(Markup.escape(item.caption))))
