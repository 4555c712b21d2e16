"""Decoding dependency graphs and heat maps of texts, as pictures and as a page (Santilli 2023, figure 4)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from fst.printable import printable
from latticebpd.jacobi.analysis import CorpusStatistics, Sentence
from latticebpd.jacobi.solution import TokenStatus
from latticebpd.report.page import render_page
from latticebpd.report.theme import FAINT, SERIES

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

CELLS = {
    TokenStatus.NOT_RIGHT: ("#eef0f1", "not yet right"),
    TokenStatus.NEWLY_RIGHT: (SERIES[0].light, "newly right, with its probability"),
    TokenStatus.SETTLED: ("#b3d5e8", "settled"),
    TokenStatus.AHEAD: (SERIES[4].light, "right ahead of the frontier"),
}
"""Colour and label of each status."""
EDGE = FAINT.light


def graphs_page(sentences: Sequence[Sentence], statistics: CorpusStatistics, settings: str) -> str:
    """The page of graphs and heat maps, with a slider over the iterations, as HTML; it loads nothing.

    sentences: those shown. statistics: of all texts. settings: one line on how the numbers came about.
    """
    data = {"texts": [sentence.record() for sentence in sentences]}
    return render_page("graphs", "Decoding dependency graphs", settings, data=data, statistics=statistics)


def picture(sentence: Sentence) -> Figure:
    """Above each token of the text the tokens it waited for, without redundant edges; below it its status by pass."""
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    columns, passes = len(sentence.pieces), sentence.trajectory.passes
    longest = max((wait.position - wait.on for wait in sentence.dependencies.edges), default=1)
    arcs = min(0.35 + 0.16 * longest, 2.4)
    # The heat map's cells are half as high as wide; labels and legend need room of their own.
    figure = Figure(figsize=(1.2 + max(0.44 * columns, 5.6), 1.9 + arcs + 0.25 * passes), layout="constrained")
    upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=[arcs, 0.25 * passes])
    _graph(upper, sentence, longest)
    _heat_map(lower, sentence)
    lower.set_xlim(-0.5, columns - 0.5)
    edge: Any = {"edgecolor": "#9aa3ad", "linewidth": 0.5}
    labels = [Patch(facecolor=colour, label=label, **edge) for colour, label in CELLS.values()]
    figure.legend(handles=labels, loc="outside lower center", ncols=2 if columns < 18 else 4, fontsize=8, frameon=False)
    return figure


def _graph(axes: Axes, sentence: Sentence, longest: int) -> None:
    from matplotlib.patches import Arc

    for wait in sentence.dependencies.edges:
        span = wait.position - wait.on
        middle, width, height = (wait.position + wait.on) / 2, span, 2 * span / longest
        axes.add_patch(Arc((middle, 0), width, height, theta1=0, theta2=180, color=EDGE, linewidth=1.1))
        axes.plot(wait.position, 0, marker="v", color=EDGE, markersize=4, clip_on=False)
    free = [position for position, waits in enumerate(sentence.dependencies.waits) if not waits]
    axes.plot(free, [0] * len(free), "o", color="white", markeredgecolor=EDGE, markersize=4, clip_on=False)
    axes.set(ylim=(0, 1.08), yticks=[])
    axes.tick_params(axis="x", which="both", bottom=False, labelbottom=False)
    axes.spines[["top", "left", "right", "bottom"]].set_visible(False)
    axes.set_ylabel("waited for", fontsize=8)


def _heat_map(axes: Axes, sentence: Sentence) -> None:
    from matplotlib.colors import BoundaryNorm, ListedColormap

    # Without what matplotlib would read as mathematics, or write into an SVG file that no parser reads.
    iterates, pieces = sentence.trajectory, [printable(text).replace("$", r"\$") for text in sentence.pieces]
    colours = ListedColormap([colour for colour, _ in CELLS.values()])
    norm = BoundaryNorm(np.arange(-0.5, len(CELLS)), len(CELLS))
    axes.imshow(iterates.cells, cmap=colours, norm=norm, aspect="auto", interpolation="none")
    for number, position in np.argwhere(iterates.cells == TokenStatus.NEWLY_RIGHT):
        probability = f"{iterates.probabilities[number, position]:.2f}"
        axes.text(position, number, probability, ha="center", va="center", fontsize=6.5, color="white")
    axes.set_xticks(range(len(pieces)), pieces, rotation=45, ha="right", fontsize=8)
    ticks = range(0, iterates.passes, max(1, iterates.passes // 20))
    axes.set_yticks(ticks, [str(number + 1) for number in ticks], fontsize=8)
    axes.set_ylabel("iteration", fontsize=8)
    axes.set_xticks(np.arange(-0.5, len(pieces)), minor=True)
    axes.set_yticks(np.arange(-0.5, iterates.passes), minor=True)
    axes.grid(which="minor", color="white", linewidth=1.2)
    axes.tick_params(which="minor", length=0)
    axes.spines[["top", "left", "right", "bottom"]].set_visible(False)
