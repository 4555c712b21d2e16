"""Pages: every page of this project is one Jinja template on the same base and in the same style.

A page is one file that loads nothing: it contains its style, pictures and script. Colours are CSS variables
(`latticebpd.report.theme`), so that a page follows its reader's preference for light or dark.
"""

from __future__ import annotations

import os
from functools import cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from fst.files import replacing
from latticebpd.report.theme import css_colours


@cache
def environment() -> Environment:
    """The environment of all templates, with the colours as a global; everything is escaped."""
    loader = PackageLoader("latticebpd.report", "pages")
    made = Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    made.globals["colours"] = Markup(css_colours())
    return made


def render(template: str, title: str, subtitle: str = "", **values: Any) -> str:
    """The page that ``pages/<template>.html.j2`` makes of the values."""
    return environment().get_template(f"{template}.html.j2").render(title=title, subtitle=subtitle, **values)


def write(path: str | os.PathLike[str], page: str) -> None:
    """Write a page, whole or not at all."""
    with replacing(path) as temporary:
        temporary.write_text(page, encoding="utf-8")
