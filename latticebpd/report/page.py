"""Pages: each is one Jinja template on the same base and in the same style. A report's tables and plots are also files.

A page is one file that loads nothing: it contains its style, pictures and script. Colours are CSS variables
(`latticebpd.report.theme`), so that a page follows its reader's preference for light or dark.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from fst.files import PathLike, replacing_files
from latticebpd.report.content import Drawing, Plot, Section, Table
from latticebpd.report.theme import css_colours, inline_svg, png

PAGE = "report.html"


@cache
def environment() -> Environment:
    """The environment of all templates, with the colours as a global; everything is escaped."""
    loader = PackageLoader("latticebpd.report", "pages")
    env = Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    env.globals["colours"] = Markup(css_colours())
    env.filters["whole"] = _whole
    return env


def _whole(text: str) -> Markup:
    """The text, whose words with hyphens stay on one line."""
    return Markup(re.sub(r"\S+-\S+", r'<span class="whole">\g<0></span>', str(Markup.escape(text))))


def render_page(template: str, title: str, subtitle: str = "", **values: Any) -> str:
    """The page that ``pages/<template>.html.j2`` makes of the values."""
    return environment().get_template(f"{template}.html.j2").render(title=title, subtitle=subtitle, **values)


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
        return render_page("report", self.title, self.subtitle, report=self, runs=_runs, svg=_svg)

    def write(self, directory: PathLike) -> list[Path]:
        """Write the page, every table as CSV, every plot as PNG and every drawing as SVG; returns their paths."""
        directory = Path(directory)
        items = [item for section in self.sections for item in section.items]
        names = [item.name for item in items]
        if (twice := next((name for name in names if names.count(name) > 1), None)) is not None:
            wanted = "data sets whose names differ in letters and digits"
            raise ValueError(f"expected {wanted}, got two files called {twice}; name them apart")
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
