"""Pictures of the statistics, drawn without a display."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from fst.files import replacing
from latticebpd.measuring.comparison import Comparison
from latticebpd.measuring.entropy import BIN, HeadEntropy, Regression
from latticebpd.measuring.oracle_tally import OracleTally
from latticebpd.report.theme import FAINT, INK, MARKERS, RAMP, SERIES, STYLE
from latticebpd.scoring.weights import Tuning

if TYPE_CHECKING:  # it is fitted with torch, which pictures do without
    from latticebpd.measuring.calibrate import Reliability

FORMATS = (".png", ".svg", ".pdf")
BLUE, VERMILION, GREEN, PLUM = (colour.light for colour in SERIES[:4])


def _figure(width: float = 5.6, height: float = 3.5) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, figure.subplots()


def _powers_of_two(axes: Axes, values: Sequence[int]) -> None:
    axes.set_xscale("log", base=2)
    axes.set_xticks(values, [str(value) for value in values])
    axes.minorticks_off()


@rc_context(STYLE)
def oracle_curves(tally: OracleTally) -> Figure:
    """Block efficiency against arcs per slot, a line for each number of heads (Kim 2024, figure 6)."""
    figure, axes = _figure()
    order = sorted(range(len(tally.ks)), key=lambda i: tally.ks[i])
    ks = [tally.ks[i] for i in order]
    for j, heads in enumerate(tally.heads):
        style: dict[str, Any] = {"color": SERIES[j % len(SERIES)].light, "marker": MARKERS[j % len(MARKERS)]}
        axes.plot(ks, tally.block_efficiency[order, j], label=f"{heads} heads", **style)
    _powers_of_two(axes, ks)
    axes.set_xlabel("arcs per slot (k)")
    axes.set_ylabel(f"block efficiency (tokens per call, by {tally.signature.by})")
    axes.set_ylim(1, 1 + max(0.5, 1.25 * (float(tally.block_efficiency.max()) - 1)))
    axes.legend(loc="upper left", ncols=2)
    return figure


def _level(axes: Axes, y: float, text: str, colour: str) -> None:
    """A horizontal line with its name on it."""
    axes.axhline(y, color=colour, linewidth=1.2, linestyle=":")
    axes.annotate(
        text, (0.995, y), xycoords=("axes fraction", "data"), ha="right", va="bottom", color=colour, fontsize=9
    )


@rc_context(STYLE)
def path_curves(efficiency: Mapping[str, float], ps: Sequence[int], model: str | None) -> Figure:
    """Block efficiency against drafts verified in parallel (Kim 2024, figure 7).

    efficiency: of every system, by name.  model: the name of the language model.
    """
    figure, axes = _figure()
    lines = [("without a language model", ":0-gram", BLUE, "o"), (f"with {model}", "", VERMILION, "s")]
    for name, suffix, colour, marker in lines:
        drawn = [(p, efficiency[f"{p}-best{suffix}"]) for p in ps if f"{p}-best{suffix}" in efficiency]
        if suffix:
            drawn = [(1, efficiency["vanilla"]), *drawn]  # the one best path of the lattice itself
        if len(drawn) > 1:
            axes.plot(*zip(*drawn, strict=True), marker=marker, color=colour, label=name)
    _level(axes, efficiency["vanilla"], "vanilla", FAINT.light)
    _level(axes, efficiency["oracle"], "oracle", GREEN)
    _powers_of_two(axes, ps)
    axes.set_xlabel("drafts verified in parallel (p)")
    axes.set_ylabel("block efficiency (tokens per call)")
    axes.set_ylim(bottom=1, top=max(efficiency.values()) * 1.06)
    axes.legend(loc="best")
    return figure


@rc_context(STYLE)
def trade_off(efficiency: Mapping[str, float], verified: Mapping[str, float], model: str | None) -> Figure:
    """Block efficiency against verified tokens: p best paths against prefix trees, calibrated or not, with and without
    a language model.

    efficiency, verified: of every system, by name.  model: the name of the language model.
    """
    figure, axes = _figure()
    for kind, word, filled in (
        ("calibrated", "calibrated trees", True),
        ("tree", "trees", True),
        ("best", "p best paths", False),
    ):
        for suffix, colour, text in (("", VERMILION, f"with {model}"), (":0-gram", BLUE, "no language model")):
            at = [name for name in efficiency if name.endswith(f"-{kind}{suffix}")]
            if not at:
                continue
            axes.plot(
                [verified[name] for name in at], [efficiency[name] for name in at],
                color=PLUM if kind == "calibrated" else colour,
                marker="s" if suffix == "" else "o",
                linestyle="-" if filled else "--", markerfacecolor=colour if filled else "none",
                label=f"{word}, {text}",
            )  # fmt: skip
    _level(axes, efficiency["oracle"], "oracle", GREEN)
    axes.plot(
        verified["vanilla"],
        efficiency["vanilla"],
        color=INK.light,
        marker="*",
        markersize=10,
        linestyle="none",
        label="vanilla",
    )
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.minorticks_off()
    axes.set_xlabel("verified tokens per call (log scale)")
    axes.set_ylabel("block efficiency (tokens per call)")
    axes.set_ylim(bottom=1, top=max(efficiency.values()) * 1.06)
    axes.legend(loc="best")
    return figure


@rc_context(STYLE)
def accepted_histogram(comparison: Comparison, labels: Mapping[str, str]) -> Figure:
    """Share of steps by accepted drafted tokens; ``labels``: the systems to show, and what to call them."""
    figure, axes = _figure()
    lengths = np.arange(comparison.counts.shape[1])
    width = 0.8 / len(labels)
    for i, (name, label) in enumerate(labels.items()):
        counts = comparison.counts[comparison.systems.index(name)]
        share = 100 * counts / counts.sum()
        colour = {"vanilla": BLUE, "oracle": GREEN}.get(name, VERMILION)
        axes.bar(lengths + (i - (len(labels) - 1) / 2) * width, share, width * 0.92, color=colour, label=label)
    axes.set_xticks(lengths)
    axes.grid(axis="x", visible=False)
    axes.set_xlabel("accepted drafted tokens")
    axes.set_ylabel(f"{comparison.signature.steps} (%)")
    axes.legend()
    return figure


@rc_context(STYLE)
def losses_by_head(tally: OracleTally) -> Figure:
    """Where vanilla drafts end, and why."""
    figure, axes = _figure()
    share = tally.lost_share
    heads = np.arange(2, 2 + len(share))
    bottom = np.zeros(len(share))
    causes = (
        ("in the lattice, misranked", VERMILION),
        ("not in the lattice", BLUE),
        ("the text had ended", FAINT.light),
    )
    for cause, (name, colour) in enumerate(causes):
        if share[:, cause].any() or cause < 2:
            axes.bar(heads, share[:, cause], 0.7, bottom=bottom, color=colour, label=name)
        bottom += share[:, cause]
    axes.set_xticks(heads)
    axes.grid(axis="x", visible=False)
    axes.set_xlabel("head whose token is the first wrong one")
    axes.set_ylabel(f"{tally.signature.steps} (%)")
    axes.legend()
    return figure


@rc_context(STYLE)
def entropy_densities(entropy: HeadEntropy) -> Figure:
    """How often each head is how unsure (Kim 2024, figure 3a): one row per head, its mean marked."""
    figure, axes = _figure(5.6, 0.8 + 0.36 * len(entropy.heads))
    edges = np.arange(entropy.histogram.shape[1] + 1) * BIN
    last = int(np.flatnonzero(entropy.histogram.any(axis=0)).max(initial=4)) + 2
    density = entropy.histogram / entropy.histogram.sum(axis=1, keepdims=True)
    scale = 0.95 / density.max()
    for row in range(len(entropy.heads)):
        colour = RAMP[min(row, len(RAMP) - 1)].light
        base = len(entropy.heads) - 1 - row
        heights = base + density[row] * scale
        axes.fill_between(
            np.repeat(edges[:last], 2)[1:-1],
            np.repeat(heights[: last - 1], 2),
            base,
            color=colour,
            alpha=0.55,
            linewidth=0,
        )
        axes.plot(np.repeat(edges[:last], 2)[1:-1], np.repeat(heights[: last - 1], 2), color=colour, linewidth=1.2)
        mean = (entropy.low[row] + entropy.high[row]) / 2
        axes.plot([mean, mean], [base, base + 0.55], color=INK.light, linewidth=1.5)
        axes.annotate(
            f"{mean:.2f}",
            (mean, base + 0.55),
            textcoords="offset points",
            xytext=(3, -5),
            fontsize=8.5,
            color=INK.light,
        )
    axes.set_yticks(range(len(entropy.heads)), [f"head {head}" for head in reversed(entropy.heads)])
    axes.set_xlim(0, edges[last - 1])
    axes.set_xlabel("entropy (nats); line: mean")
    axes.grid(axis="y", visible=False)
    return figure


@rc_context(STYLE)
def h_max_scatter(x: np.ndarray, y: np.ndarray, line: Regression, points: str, first: int = 1) -> Figure:
    """Block efficiency against h_max, with the line of least squares (Kim 2024, figure 3b)."""
    figure, axes = _figure()
    spread = np.random.default_rng(0).uniform(-0.12, 0.12, len(x))  # equal heads side by side
    axes.plot(x + spread, y, marker="o", linestyle="none", color=BLUE, alpha=0.75, label=points)
    if line.slope == line.slope:
        ends = np.array([x.min(), x.max()])
        axes.plot(ends, line.slope * ends + line.intercept, color=VERMILION, label=f"least squares, R = {line.r:.2f}")
    axes.set_xticks(range(int(x.min()), int(x.max()) + 1))
    axes.set_xlim(x.min() - 0.5, x.max() + 0.5)
    axes.set_xlabel(f"h_max: last head up to which mean entropy never falls, from head {first}")
    axes.set_ylabel("block efficiency, vanilla")
    axes.legend()
    return figure


CURVES = ("1-best", "16-best", "64-tree")
"""Systems whose block efficiency is drawn against the weight, where many were tuned."""


@rc_context(STYLE)
def weight_curves(tunings: Mapping[str, Sequence[Tuning]]) -> Figure:
    """Block efficiency against the language model's weight, of a few systems."""
    figure, axes = _figure()
    shown = [
        (name, tuning)
        for name, each in tunings.items()
        for tuning in each
        if tuning.system in CURVES or len(each) <= len(CURVES)
    ]
    for i, (name, tuning) in enumerate(shown):
        colour = SERIES[(i + 1) % len(SERIES)].light
        at = [(alpha, value) for alpha, value in zip(tuning.alphas, tuning.block_efficiency, strict=True) if alpha > 0]
        axes.plot(
            *zip(*at, strict=True), marker=MARKERS[i % len(MARKERS)], color=colour, label=f"{tuning.system}, {name}"
        )
        best = tuning.block_efficiency[tuning.alphas.index(tuning.alpha)]
        axes.plot(tuning.alpha, best, marker="o", markersize=11, markerfacecolor="none", color=colour)
    axes.set_xscale("log")
    ticks = (0.1, 0.2, 0.5, 1, 2, 5, 10)
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.minorticks_off()
    axes.set_xlabel("weight of the language model, α (log scale); ring: the best")
    axes.set_ylabel("block efficiency (tokens per call)")
    axes.legend()
    return figure


@rc_context(STYLE)
def reliability_curve(found: Reliability) -> Figure:
    """Predicted probability of drafted tokens against the share of them that was right."""
    figure, axes = _figure()
    kept = found.count > 0
    axes.plot([0, 1], [0, 1], color=INK.light, linewidth=0.8)
    axes.plot(found.predicted[kept], found.observed[kept], marker="o", color=BLUE)
    axes.set_xlim(0, 1)
    axes.set_ylim(0, 1)
    axes.set_xlabel("predicted probability of a drafted token")
    axes.set_ylabel("share that was right; line: perfect")
    return figure


def save(figure: Figure, path: str | os.PathLike[str]) -> None:
    """Write a picture, whole or not at all.

    Raises:
        ValueError: the name ends in none of ``FORMATS``.
    """
    kind = Path(path).suffix.lower()
    if kind not in FORMATS:
        raise ValueError(f"{path}: expected a name that ends in {', '.join(FORMATS)}")
    FigureCanvasAgg(figure)
    with replacing(path) as temporary, rc_context(STYLE):
        figure.savefig(temporary, format=kind[1:])
