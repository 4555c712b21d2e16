"""The two pictures of a text, one above the other: its dependency graph and its heat map (Santilli 2023, figure 4)."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import BoundaryNorm, ListedColormap
from matplotlib.figure import Figure
from matplotlib.patches import Arc, Patch

from latticebpd.jacobi.analysis import Sentence
from latticebpd.jacobi.solution import TokenStatus
from latticebpd.report.theme import FAINT, SERIES

COLOURS = {
    TokenStatus.NOT_RIGHT: "#eef0f1",
    TokenStatus.NEWLY_RIGHT: SERIES[0].light,
    TokenStatus.SETTLED: "#b3d5e8",
    TokenStatus.AHEAD: SERIES[4].light,
}
NAMES = {
    TokenStatus.NOT_RIGHT: "not yet right",
    TokenStatus.NEWLY_RIGHT: "newly right, with its probability",
    TokenStatus.SETTLED: "settled",
    TokenStatus.AHEAD: "right ahead of the frontier",
}
EDGE = FAINT.light


def picture(sentence: Sentence) -> Figure:
    """Columns are the text's tokens; above them who waited for whom, without redundant edges; below them what each pass
    made of them."""
    columns, passes = len(sentence.pieces), sentence.trajectory.passes
    longest = max((wait.position - wait.on for wait in sentence.dependencies.edges), default=1)
    arcs = min(0.35 + 0.16 * longest, 2.4)
    # The heat map's cells are half as high as wide; labels and legend wait room of their own.
    figure = Figure(figsize=(1.2 + max(0.44 * columns, 5.6), 1.9 + arcs + 0.25 * passes), layout="constrained")
    upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=[arcs, 0.25 * passes])
    _graph(upper, sentence, longest)
    _heat_map(lower, sentence)
    lower.set_xlim(-0.5, columns - 0.5)
    patches = [
        Patch(facecolor=COLOURS[cell], edgecolor="#9aa3ad", linewidth=0.5, label=NAMES[cell]) for cell in TokenStatus
    ]
    figure.legend(
        handles=patches, loc="outside lower center", ncols=2 if columns < 18 else 4, fontsize=8, frameon=False
    )
    return figure


def _graph(axes: Axes, sentence: Sentence, longest: int) -> None:
    for wait in sentence.dependencies.edges:
        span = wait.position - wait.on
        middle, width, height = (wait.position + wait.on) / 2, span, 2 * span / longest
        axes.add_patch(Arc((middle, 0), width, height, theta1=0, theta2=180, color=EDGE, linewidth=1.1))
        axes.plot(wait.position, 0, marker="v", color=EDGE, markersize=4, clip_on=False)
    free = [place for place, waits in enumerate(sentence.dependencies.waits) if not waits]
    axes.plot(free, [0] * len(free), "o", color="white", markeredgecolor=EDGE, markersize=4, clip_on=False)
    axes.set_ylim(0, 1.08)
    axes.set_yticks([])
    axes.tick_params(axis="x", which="both", bottom=False, labelbottom=False)
    axes.spines[["top", "left", "right", "bottom"]].set_visible(False)
    axes.set_ylabel("waited for", fontsize=8)


def _heat_map(axes: Axes, sentence: Sentence) -> None:
    iterates = sentence.trajectory
    colours = ListedColormap([COLOURS[cell] for cell in TokenStatus])
    axes.imshow(
        iterates.cells,
        cmap=colours,
        norm=BoundaryNorm(np.arange(-0.5, len(TokenStatus)), len(TokenStatus)),
        aspect="auto",
        interpolation="none",
    )
    for number, place in np.argwhere(iterates.cells == TokenStatus.NEWLY_RIGHT):
        axes.text(
            place,
            number,
            f"{iterates.probabilities[number, place]:.2f}",
            ha="center",
            va="center",
            fontsize=6.5,
            color="white",
        )
    axes.set_xticks(
        range(len(sentence.pieces)), [_plain(text) for text in sentence.pieces], rotation=45, ha="right", fontsize=8
    )
    step = max(1, iterates.passes // 20)
    axes.set_yticks(
        range(0, iterates.passes, step), [str(number + 1) for number in range(0, iterates.passes, step)], fontsize=8
    )
    axes.set_ylabel("iteration", fontsize=8)
    axes.set_xticks(np.arange(-0.5, len(sentence.pieces)), minor=True)
    axes.set_yticks(np.arange(-0.5, iterates.passes), minor=True)
    axes.grid(which="minor", color="white", linewidth=1.2)
    axes.tick_params(which="minor", length=0)
    axes.spines[["top", "left", "right", "bottom"]].set_visible(False)


def _plain(text: str) -> str:
    """Without what matplotlib would read as mathematics."""
    return text.replace("$", r"\$")
