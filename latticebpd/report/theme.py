"""Colours and type of a report: one drawing for light and dark.

Figures are drawn in the light colours, which become CSS variables in the page: the same drawing follows the reader's
preference. Hues are from Okabe and Ito's palette, for people of any colour vision; lines also differ in their markers.
"""

from __future__ import annotations

import io
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Colour:
    """A role, and its colour on light and on dark ground."""

    name: str
    light: str
    dark: str


INK = Colour("ink", "#1c2024", "#e6e8ea")
FAINT = Colour("faint", "#60666c", "#a2a9b0")
RULE = Colour("rule", "#d9dcdf", "#3a4046")
SERIES = (
    Colour("c1", "#0072b2", "#5ab4ec"),
    Colour("c2", "#c45100", "#ff9248"),
    Colour("c3", "#00835e", "#2fc79a"),
    Colour("c4", "#b0578d", "#e39ac6"),
    Colour("c5", "#9a6a00", "#edbb4f"),
    Colour("c6", "#4a5a9e", "#a3b1f2"),
)
"""Blue is vanilla or the first of several, vermilion the language model, green what is right: the oracle."""
RAMP = tuple(
    Colour(f"r{i + 1}", light, dark)
    for i, (light, dark) in enumerate([
        ("#3f1d63", "#8a6bd1"), ("#41397f", "#7f87dd"), ("#365c8d", "#6aa0dd"), ("#277f8e", "#4fb6d0"),
        ("#1fa187", "#3fcab0"), ("#3a9a5c", "#6fdb8a"), ("#65902f", "#a4e05f"), ("#8d8016", "#d6dd4e"),
        ("#ab740a", "#fbd24e"),
    ])
)  # fmt: skip
"""From the first head to the last."""
COLOURS = (INK, FAINT, RULE, *SERIES, *RAMP)

MARKERS = ("o", "s", "^", "D", "v", "P")
STYLE: Any = {
    "font.family": "sans-serif", "font.size": 9.5, "text.color": INK.light, "axes.edgecolor": FAINT.light,
    "axes.labelcolor": INK.light, "axes.titlecolor": INK.light, "axes.titlesize": 10.5, "axes.titleweight": "bold",
    "axes.titlelocation": "left", "axes.spines.top": False, "axes.spines.right": False, "axes.axisbelow": True,
    "axes.grid": True, "grid.color": RULE.light, "grid.linewidth": 0.7, "xtick.color": FAINT.light,
    "ytick.color": FAINT.light, "xtick.labelcolor": INK.light, "ytick.labelcolor": INK.light, "lines.linewidth": 1.8,
    "lines.markersize": 5, "legend.frameon": False, "legend.fontsize": 9, "svg.fonttype": "none",
    "svg.hashsalt": "latticebpd", "savefig.dpi": 160,
}  # fmt: skip
"""For ``matplotlib.rc_context``; drawing and writing must both happen within."""


def png(figure: Figure) -> bytes:
    """The figure on white ground."""
    from matplotlib import rc_context

    file = io.BytesIO()
    with rc_context(STYLE):
        figure.savefig(file, format="png", facecolor="white", metadata={"Software": None})
    return file.getvalue()


def inline_svg(figure: Figure, name: str, description: str) -> str:
    """The figure as an SVG element for a page: colours are CSS variables, ids prefixed, the ground transparent."""
    from matplotlib import rc_context

    file = io.StringIO()
    metadata = dict.fromkeys(("Date", "Creator", "Format", "Type"))
    with rc_context(STYLE):
        figure.savefig(file, format="svg", transparent=True, metadata=metadata)
    svg = file.getvalue()
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>\s*", "", svg, flags=re.DOTALL)
    svg = re.sub(r'\b(id|href|xlink:href)="(#?)([^"]+)"', rf'\1="\2{name}-\3"', svg)
    svg = re.sub(r"url\(#([^)]+)\)", rf"url(#{name}-\1)", svg)
    for colour in COLOURS:
        svg = re.sub(re.escape(colour.light), f"var(--{colour.name})", svg, flags=re.IGNORECASE)
    size = re.search(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', svg)
    assert size is not None
    head = (
        f'<svg class="plot" viewBox="0 0 {size[1]} {size[2]}" style="max-width:{float(size[1]) * 4 / 3:.0f}px"'
        f' role="img" aria-label="{description}" xmlns="http://www.w3.org/2000/svg"'
        ' xmlns:xlink="http://www.w3.org/1999/xlink">'
    )
    return head + svg[svg.index(">") + 1 :]


def css_colours() -> str:
    """Declarations of all colours, for light ground and for dark."""
    light = "".join(f"--{colour.name}:{colour.light};" for colour in COLOURS)
    dark = "".join(f"--{colour.name}:{colour.dark};" for colour in COLOURS)
    return f":root{{{light}}}\n@media (prefers-color-scheme: dark){{:root{{{dark}}}}}"
