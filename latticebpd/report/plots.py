"""Pictures of the statistics, drawn without a display."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fst.files import PathLike, replacing
from latticebpd.measuring.comparison import Comparison
from latticebpd.measuring.entropy import BIN, HeadEntropy, Regression
from latticebpd.measuring.oracle_tally import OracleTally
from latticebpd.report.theme import FAINT, INK, MARKERS, RAMP, SERIES, STYLE
from latticebpd.scoring.weights import Tuning

if TYPE_CHECKING:  # it is fitted with torch, which pictures do without
    from latticebpd.measuring.calibrate import Reliability

FORMATS = (".png", ".svg", ".pdf")
BLUE, VERMILION, GREEN, PLUM = (colour.light for colour in SERIES[:4])
EFFICIENCY = "block efficiency (tokens per call)"
CURVES = ("1-best", "16-best", "64-tree")
"""Systems whose block efficiency is drawn against the weight, where many were tuned."""


def _axes(x_label: str, y_label: str = EFFICIENCY, height: float = 3.5) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(5.6, height), layout="constrained")
    axes = figure.subplots()
    axes.set(xlabel=x_label, ylabel=y_label)
    return figure, axes


def _powers_of_two(axes: Axes, values: Sequence[int]) -> None:
    axes.set_xscale("log", base=2)
    axes.set_xticks(values, [str(value) for value in values])
    axes.minorticks_off()


def _level(axes: Axes, y: float, text: str, colour: str) -> None:
    """A horizontal line with its name on it."""
    axes.axhline(y, color=colour, linewidth=1.2, linestyle=":")
    end: dict[str, Any] = {"xycoords": ("axes fraction", "data"), "ha": "right", "va": "bottom"}
    axes.annotate(text, (0.995, y), color=colour, fontsize=9, **end)


def _efficiency_limits(axes: Axes, efficiency: Mapping[str, float]) -> None:
    """The oracle's level, and room for all systems."""
    _level(axes, efficiency["oracle"], "oracle", GREEN)
    axes.set_ylim(bottom=1, top=max(efficiency.values()) * 1.06)
    axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1), ncols=2, columnspacing=1)  # lines may be anywhere below


def _bars(axes: Axes, ticks: np.ndarray) -> None:
    """The axes of bars: a tick for each, no lines between them."""
    axes.set_xticks(ticks)
    axes.grid(axis="x", visible=False)
    axes.legend()


@rc_context(STYLE)
def oracle_curves(tally: OracleTally) -> Figure:
    """Block efficiency against arcs per slot, a line for each number of heads (Kim 2024, figure 6)."""
    figure, axes = _axes("arcs per slot (k)", f"block efficiency (tokens per call, by {tally.signature.by})")
    order = sorted(range(len(tally.ks)), key=lambda i: tally.ks[i])
    ks = [tally.ks[i] for i in order]
    for j, heads in enumerate(tally.heads):
        style: dict[str, Any] = {"color": SERIES[j % len(SERIES)].light, "marker": MARKERS[j % len(MARKERS)]}
        axes.plot(ks, tally.block_efficiency[order, j], label=f"{heads} heads", **style)
    _powers_of_two(axes, ks)
    axes.set_ylim(1, 1 + max(0.5, 1.25 * (float(tally.block_efficiency.max()) - 1)))
    axes.legend(loc="upper left", ncols=2)
    return figure


@rc_context(STYLE)
def path_curves(efficiency: Mapping[str, float], ps: Sequence[int], model: str | None) -> Figure:
    """Block efficiency against drafts verified in parallel (Kim 2024, figure 7).

    efficiency: of every system, by name. model: the name of the language model.
    """
    figure, axes = _axes("drafts verified in parallel (p)")
    lines = [("without a language model", ":0-gram", BLUE, "o"), (f"with {model}", "", VERMILION, "s")]
    for name, suffix, colour, marker in lines:
        drawn = [(p, efficiency[f"{p}-best{suffix}"]) for p in ps if f"{p}-best{suffix}" in efficiency]
        if suffix:
            drawn = [(1, efficiency["vanilla"]), *drawn]  # the one best path of the lattice itself
        if len(drawn) > 1:
            axes.plot(*zip(*drawn, strict=True), marker=marker, color=colour, label=name)
    _level(axes, efficiency["vanilla"], "vanilla", FAINT.light)
    _powers_of_two(axes, ps)
    _efficiency_limits(axes, efficiency)
    return figure


@rc_context(STYLE)
def trade_off(efficiency: Mapping[str, float], verified: Mapping[str, float], model: str | None) -> Figure:
    """Block efficiency against verified tokens: p best paths and trees, calibrated or not, with and without a model.

    efficiency, verified: of every system, by name. model: the name of the language model.
    """
    figure, axes = _axes("verified tokens per call (log scale)")
    for kind, word in (("calibrated", "calibrated trees"), ("tree", "trees"), ("best", "p best paths")):
        for suffix, colour, text in (("", VERMILION, f"with {model}"), (":0-gram", BLUE, "no language model")):
            names = [name for name in efficiency if name.endswith(f"-{kind}{suffix}")]
            if not names:
                continue
            drawn = PLUM if kind == "calibrated" else colour
            axes.plot(
                [verified[name] for name in names], [efficiency[name] for name in names],
                color=drawn, marker="o" if suffix else "s",
                linestyle="--" if kind == "best" else "-", markerfacecolor="none" if kind == "best" else drawn,
                label=f"{word}, {text}",
            )  # fmt: skip
    star: dict[str, Any] = {"color": INK.light, "marker": "*", "markersize": 10, "linestyle": "none"}
    axes.plot(verified["vanilla"], efficiency["vanilla"], label="vanilla", **star)
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.minorticks_off()
    _efficiency_limits(axes, efficiency)
    return figure


@rc_context(STYLE)
def accepted_histogram(comparison: Comparison, labels: Mapping[str, str]) -> Figure:
    """Share of steps by accepted drafted tokens; ``labels``: the systems to show, and their labels."""
    figure, axes = _axes("accepted drafted tokens", f"{comparison.signature.steps} (%)")
    lengths = np.arange(comparison.counts.shape[1])
    width = 0.8 / len(labels)
    for i, (name, label) in enumerate(labels.items()):
        counts = comparison.counts[comparison.systems.index(name)]
        share = 100 * counts / counts.sum()
        colour = {"vanilla": BLUE, "oracle": GREEN}.get(name, VERMILION)
        axes.bar(lengths + (i - (len(labels) - 1) / 2) * width, share, width * 0.92, color=colour, label=label)
    _bars(axes, lengths)
    return figure


@rc_context(STYLE)
def losses_by_head(tally: OracleTally) -> Figure:
    """Where vanilla drafts end, and why."""
    figure, axes = _axes("head whose token is the first wrong one", f"{tally.signature.steps} (%)")
    share = tally.lost_share
    heads = np.arange(2, 2 + len(share))
    bottom = np.zeros(len(share))
    causes = {"in the lattice, misranked": VERMILION, "not in the lattice": BLUE, "the text had ended": FAINT.light}
    for cause, (name, colour) in enumerate(causes.items()):
        if share[:, cause].any() or cause < 2:
            axes.bar(heads, share[:, cause], 0.7, bottom=bottom, color=colour, label=name)
        bottom += share[:, cause]
    _bars(axes, heads)
    return figure


@rc_context(STYLE)
def entropy_densities(entropy: HeadEntropy) -> Figure:
    """The distribution of each head's entropy (Kim 2024, figure 3a): one row per head, its mean marked."""
    figure, axes = _axes("entropy (nats); line: mean", "", 0.8 + 0.36 * len(entropy.heads))
    edges = np.arange(entropy.histogram.shape[1] + 1) * BIN
    last = int(np.flatnonzero(entropy.histogram.any(axis=0)).max(initial=4)) + 2
    density = entropy.histogram / entropy.histogram.sum(axis=1, keepdims=True)
    scale = 0.95 / density.max()
    steps = np.repeat(edges[:last], 2)[1:-1]
    for row in range(len(entropy.heads)):
        colour = RAMP[min(row, len(RAMP) - 1)].light
        base = len(entropy.heads) - 1 - row
        heights = np.repeat((base + density[row] * scale)[: last - 1], 2)
        axes.fill_between(steps, heights, base, color=colour, alpha=0.55, linewidth=0)
        axes.plot(steps, heights, color=colour, linewidth=1.2)
        mean = (entropy.low[row] + entropy.high[row]) / 2
        axes.plot([mean, mean], [base, base + 0.55], color=INK.light, linewidth=1.5)
        offset: dict[str, Any] = {"textcoords": "offset points", "xytext": (3, -5)}
        axes.annotate(f"{mean:.2f}", (mean, base + 0.55), fontsize=8.5, color=INK.light, **offset)
    axes.set_yticks(range(len(entropy.heads)), [f"head {head}" for head in reversed(entropy.heads)])
    axes.set_xlim(0, edges[last - 1])
    axes.grid(axis="y", visible=False)
    return figure


@rc_context(STYLE)
def h_max_scatter(x: np.ndarray, y: np.ndarray, line: Regression, points: str, first: int = 1) -> Figure:
    """Block efficiency against h_max, with the line of least squares (Kim 2024, figure 3b)."""
    x_label = f"h_max: last head up to which mean entropy never falls, from head {first}"
    figure, axes = _axes(x_label, "block efficiency, vanilla")
    spread = np.random.default_rng(0).uniform(-0.12, 0.12, len(x))  # equal values side by side
    axes.plot(x + spread, y, marker="o", linestyle="none", color=BLUE, alpha=0.75, label=points)
    if line.slope == line.slope:
        ends = np.array([x.min(), x.max()])
        axes.plot(ends, line.slope * ends + line.intercept, color=VERMILION, label=f"least squares, R = {line.r:.2f}")
    axes.set_xticks(range(int(x.min()), int(x.max()) + 1))
    axes.set_xlim(x.min() - 0.5, x.max() + 0.5)
    axes.legend()
    return figure


@rc_context(STYLE)
def weight_curves(tunings: Mapping[str, Sequence[Tuning]]) -> Figure:
    """Block efficiency against the language model's weight, of a few systems."""
    figure, axes = _axes("weight of the language model, α (log scale); ring: the best")
    shown = [
        (name, tuning)
        for name, each in tunings.items()
        for tuning in each
        if tuning.system in CURVES or len(each) <= len(CURVES)
    ]
    for i, (name, tuning) in enumerate(shown):
        style: dict[str, Any] = {"color": SERIES[(i + 1) % len(SERIES)].light, "marker": MARKERS[i % len(MARKERS)]}
        tried = [pair for pair in zip(tuning.alphas, tuning.block_efficiency, strict=True) if pair[0] > 0]
        axes.plot(*zip(*tried, strict=True), label=f"{tuning.system}, {name}", **style)
        best = tuning.block_efficiency[tuning.alphas.index(tuning.alpha)]
        axes.plot(tuning.alpha, best, **{**style, "marker": "o"}, markersize=11, markerfacecolor="none")
    axes.set_xscale("log")
    ticks = (0.1, 0.2, 0.5, 1, 2, 5, 10)
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.minorticks_off()
    axes.legend()
    return figure


@rc_context(STYLE)
def reliability_curve(reliability: Reliability) -> Figure:
    """Predicted probability of drafted tokens against the share of them that was right."""
    figure, axes = _axes("predicted probability of a drafted token", "share that was right; line: perfect")
    is_known = reliability.count > 0
    axes.plot([0, 1], [0, 1], color=INK.light, linewidth=0.8)
    axes.plot(reliability.predicted[is_known], reliability.observed[is_known], marker="o", color=BLUE)
    axes.set(xlim=(0, 1), ylim=(0, 1))
    return figure


def save(figure: Figure, path: PathLike) -> None:
    """Write a picture atomically; ValueError where the name ends in none of ``FORMATS``."""
    kind = Path(path).suffix.lower()
    if kind not in FORMATS:
        raise ValueError(f"{path}: expected a name that ends in {', '.join(FORMATS)}")
    with replacing(path) as temporary, rc_context(STYLE):
        figure.savefig(temporary, format=kind[1:])
