"""The tables and figures of `kim.py`, from nothing but the counts in ``results/kim-*.csv``.

Intervals are of 95 %: texts are resampled 2,000 times, the same ones for both systems of a pair.  *All* are the texts
of all tasks.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.figure import Figure

from benchmarks.common import (
    RESAMPLES,
    Interval,
    columns,
    grouped,
    markdown,
    permutation_p,
    pooled,
    read_csv,
    with_interval,
)
from benchmarks.decodes import draw_band
from benchmarks.study.kim_tasks import TASKS
from latticebpd.measuring.entropy import h_max, regress
from latticebpd.report.theme import FAINT, INK, MARKERS, SERIES, STYLE

TITLES = {name: task.title for name, task in TASKS.items()} | {"all": "all"}
KINDS = {"continue": "LM", "answer": "QA", "summarise": "summary"}
K = 16
PAGES = ("kim.md", "kim_failures.md", "kim_models.md")
Row = dict[str, str]


@dataclass(frozen=True, eq=False)
class Counts:
    """The files of one folder, of all tasks or those ``asked``. Every array has one number for each text."""

    folder: Path
    asked: Sequence[str] = tuple(TASKS)

    def rows(self, name: str) -> list[Row]:
        return [row for row in read_csv(self.folder / f"kim-{name}.csv") if row["task"] in self.asked]

    def suffice(self, name: str) -> bool:
        """For a table or figure: correlations are across tasks; one needs neural rescorers' counts."""
        kind = "rescorers" if name == "rescorers" else "calls"
        return (self.folder / f"kim-{kind}.csv").exists() and (name != "correlations" or len(self.tasks) > 1)

    @cached_property
    def calls(self) -> list[Row]:
        return self.rows("calls")

    @cached_property
    def tasks(self) -> list[str]:
        return [task for task in TITLES if any(row["task"] == task for row in self.calls)]

    def column(self, name: str, task: str, rows: Sequence[Row] | None = None) -> np.ndarray:
        rows = self.calls if rows is None else rows
        return columns([row for row in rows if task in ("all", row["task"])], name)[0]

    @cached_property
    def earlier(self) -> Counts:
        """Those with the package's earlier heads, if they are kept: neural rescorers and joint models had these."""
        folder = self.folder / "earlier"
        return Counts(folder, self.asked) if folder.exists() else self

    @cached_property
    def rescorers(self) -> dict[str, list[Row]]:
        """Calls of best paths by n-gram models and by neural rescorers."""
        ngrams, calls = (("4-gram", "g4"), ("own 4-gram", "own4")), self.earlier.calls
        every = {name: [{**row, "1-best": row[f"1-best:{lm}"]} for row in calls] for name, lm in ngrams}
        return every | grouped(self.rows("rescorers"), "rescorer")

    def efficiency(self, task: str, system: str, rows: Sequence[Row] | None = None) -> Interval:
        """Tokens per call."""
        return pooled(self.column("tokens", task, rows), self.column(system, task, rows))

    def gain(self, task: str, system: str, over: str = "vanilla", rows: Sequence[Row] | None = None) -> Interval:
        """Of tokens per call, in %."""
        tokens, own, others = (self.column(name, task, rows) for name in ("tokens", system, over))
        return percent(pooled(tokens, own, (tokens, others)))

    def oracle(self, task: str, k: int, heads: int) -> Interval:
        rows = [row for row in self.rows("oracle") if row["k"] == str(k)]
        return pooled(self.column("tokens", task, rows), self.column(f"h{heads}", task, rows))

    def table(self, head: Sequence[str], cells: Callable[[str], Iterable[Any]], with_all: bool = True) -> str:
        """A row for every task, and for the texts of all."""
        tasks = [*self.tasks, "all"] if with_all else self.tasks
        return markdown(["task", *head], [[TITLES[task], *cells(task)] for task in tasks])


def percent(share: Interval) -> Interval:
    value, low, high = share
    return 100 * value, 100 * low, 100 * high


def valued(value: Interval, digits: int = 2) -> str:
    middle, low, high = (f"{each:.{digits}f}" for each in value)
    return f"{middle} ({low}–{high})"


def gained(value: Interval) -> str:
    """A gain in %."""
    middle, low, high = value
    return f"{middle:+.1f} ({low:+.1f} to {high:+.1f})"


# ---------------------------------------------------------------- tables
def quality(counts: Counts, task: str) -> str:
    """Perplexity of passages' own continuations, exact match and F1 of answers, ROUGE-L of summaries."""
    own = [row for row in counts.rows("quality") if row["task"] == task]
    value, of = (counts.column(name, task, own) for name in ("value", "of"))
    measure, mean = own[0]["measure"], pooled(value, of)
    if measure == "nats":
        return "perplexity " + valued((math.exp(mean[0]), math.exp(mean[1]), math.exp(mean[2])), 1)
    if measure == "ROUGE-L":
        return f"ROUGE-L {valued(mean, 1)}"
    return f"exact {mean[0]:.1f}, F1 {valued(pooled(counts.column('f1', task, own), of), 1)}"


def table_1(counts: Counts) -> str:
    """Task quality and block efficiency."""

    def cells(task: str) -> list[str]:
        text = quality(counts, task)
        tokens = counts.column("tokens", task)
        efficiencies = (counts.efficiency(task, each) for each in ("vanilla", "oracle"))
        return [KINDS[TASKS[task].kind], f"{len(tokens)}", f"{tokens.sum():,.0f}", text, *map(valued, efficiencies)]

    head = ("kind", "texts", "tokens", "quality", "block efficiency", "oracle (k=16)")
    return counts.table(head, cells, with_all=False)


def table_3(counts: Counts) -> str:
    """Repetition in first drafts."""
    drafts, names = counts.rows("drafts"), ("vanilla", "2-gram", "4-gram", "own 4-gram")

    def cells(task: str) -> list[str]:
        shares, runs = [], []
        for system in ("vanilla", "1-best:g2", "1-best:g4", "1-best:own4"):
            own = [row for row in drafts if row["system"] == system]
            parts = ("equal", "neighbours", "run", "wins", "ties", "losses")
            equal, neighbours, run, *outcomes = (counts.column(name, task, own) for name in parts)
            shares.append(valued(percent(pooled(equal, neighbours)), 1))
            runs.append(f"{run.sum() / np.sum(outcomes):.2f}")
        return shares + runs

    return counts.table([*(f"% consec: {names[0]}", *names[1:]), *(f"max run: {names[0]}", *names[1:])], cells)


def table_4(counts: Counts) -> str:
    """Block efficiencies, and gains over vanilla in %."""
    systems = {
        "1-best, 4-gram": "1-best:g4", "16-best, 0-gram": "16-best:0-gram", "16-best, 4-gram": "16-best:g4",
        "16-best, in-domain": "16-best:d4", "16-best, own": "16-best:own4", "oracle": "oracle",
    }  # fmt: skip
    return counts.table(["vanilla", *systems], lambda task: with_gains(counts, task, systems.values()))


def with_gains(counts: Counts, task: str, systems: Iterable[str]) -> list[str]:
    """Vanilla's block efficiency, and every system's with its gain."""
    cells = [f"{counts.efficiency(task, system)[0]:.2f}: {gained(counts.gain(task, system))}" for system in systems]
    return [f"{counts.efficiency(task, 'vanilla')[0]:.2f}", *cells]


def table_4_trees(counts: Counts) -> str:
    """Trees of 16 nodes against 16 best paths without a language model, whose passes verify more tokens."""
    every = {
        "16-best, 0-gram": "16-best:0-gram", "tree, 0-gram": "16-tree:0-gram", "tree, 4-gram": "16-tree:g4",
        "tree, in-domain": "16-tree:d4", "tree, own": "16-tree:own4",
        "calibrated, own, no text": "16-calibrated:own4-text", "calibrated, 4-gram": "16-calibrated:g4-all",
        "calibrated, own": "16-calibrated:own4-all", "64 calibrated, own": "64-calibrated:own4-all", "oracle": "oracle",
    }  # fmt: skip
    systems = {name: system for name, system in every.items() if system in counts.calls[0]}
    rows = [
        [TITLES[task], *(f"{counts.efficiency(task, system)[0]:.2f}" for system in systems.values())]
        for task in [*counts.tasks, "all"]
    ]
    rows.append(["gain over vanilla, %", *(valued(counts.gain("all", system), 0) for system in systems.values())])
    verified, shares = counts.rows("verified"), []
    for system in systems.values():
        shares.append(counts.column(system, "all", verified).sum() / counts.column(system, "all").sum())
    rows.append(["verified tokens", *(f"{each:.0f}" for each in shares)])
    return markdown(["task", *systems], rows)


def table_5(counts: Counts) -> str:
    """Wins, ties and losses of rescored first drafts, and which repair or make a repetition."""
    drafts, rows = counts.rows("drafts"), []
    for system, title in (("1-best:g4", "4-gram"), ("1-best:own4", "own 4-gram")):
        own = [row for row in drafts if row["system"] == system]
        for task in [*counts.tasks, "all"]:
            names = own[0].keys() - {"task", "system", "text"}
            sums = {name: counts.column(name, task, own).sum() for name in names}
            shares = {
                name: [f"{100 * sums[f'{name}_{what}'] / max(1, total):.1f}" for what in ("repair", "regress")]
                for name, total in (("win", sums["wins"]), ("loss", sums["losses"]))
            }
            win, tie, loss = (f"{sums[name]:,.0f}" for name in ("wins", "ties", "losses"))
            rows.append([title, TITLES[task], tie, win, *shares["win"], loss, *shares["loss"]])
    mended = ("% repair", "% regress")
    return markdown(["rescorer", "task", "ties", "wins", *mended, "losses", *mended], rows)


def table_7(counts: Counts) -> str:
    """General against in-domain n-gram models."""
    pairs = [(f"1-best:g{order}", f"1-best:d{order}") for order in (2, 3, 4)] + [("16-best:g4", "16-best:d4")]
    sizes = {(row["task"], row["lm"]): row for row in counts.rows("ngrams")}

    def cells(task: str) -> list[str]:
        row = []
        for pair in pairs:
            efficiencies = ", ".join(f"{counts.efficiency(task, system)[0]:.2f}" for system in pair)
            row.append(f"{efficiencies}: {gained(counts.gain(task, pair[1], pair[0]))}")
        values = [] if task == "all" else [float(sizes[task, lm]["perplexity"]) for lm in ("g4", "d4", "own4")]
        return [*row, " / ".join(f"{each:.0f}" for each in values)]

    head = ("2-gram", "3-gram", "4-gram", "16-best, 4-gram", "perplexity: general / in-domain / own")
    return counts.table(head, cells)


def table_8(counts: Counts) -> str:
    """Tuned weights."""
    chosen = [row for row in counts.rows("weights") if row["chosen"] == "1"]
    tuned = {(row["task"], row["lm"], row["system"]): row["alpha"] for row in chosen}
    names = {"g4": "4-gram", "d4": "in-domain", "own4": "own"}
    systems = [(lm, system) for lm in names for system in ("1-best", "16-best", "16-tree")]
    head = [f"{system}, {names[lm]}" for lm, system in systems]
    return counts.table(head, lambda task: (tuned[task, *system] for system in systems), with_all=False)


def table_9(counts: Counts) -> str:
    """Rescored first drafts, and the oracle."""
    systems = {f"{order}-gram": f"1-best:g{order}" for order in (2, 3, 4)} | {"own 4-gram": "1-best:own4"}

    def cells(task: str) -> list[str]:
        oracle = [f"{counts.oracle(task, k, 9)[0]:.2f}" for k in (2, 16, 64)]
        return with_gains(counts, task, systems.values()) + oracle

    return counts.table(["vanilla", *systems, "oracle, k=2", "k=16", "k=64"], cells)


def table_10(counts: Counts) -> str:
    """Block efficiency by heads."""

    def cells(task: str) -> list[str]:
        vanilla = [valued(counts.oracle(task, 1, heads), 3) for heads in (3, 6, 9)]
        return [*vanilla, *(f"{counts.oracle(task, K, heads)[0]:.2f}" for heads in (3, 6, 9))]

    return counts.table(["h=3", "h=6", "h=9", "oracle, h=3", "h=6", "h=9"], cells)


COSTED = {
    "vanilla": "vanilla", "1-best, 4-gram": "1-best:g4", "16-best, 0-gram": "16-best:0-gram",
    "16-best, 4-gram": "16-best:g4", "16-node tree, 4-gram": "16-tree:g4",
    "16 nodes, calibrated": "16-calibrated:own4-all",
}  # fmt: skip
"""Systems of table 11."""


def costs(counts: Counts, system: str) -> tuple[float, float, float]:
    """Over all texts: tokens per call; calls, and so readings of the weights, per token; tokens computed per token, the
    last accepted one included."""
    tokens, calls = counts.column("tokens", "all").sum(), counts.column(system, "all").sum()
    verified = counts.column(system, "all", counts.rows("verified")).sum()
    return tokens / calls, calls / tokens, (calls + verified) / tokens


def table_11(counts: Counts) -> str:
    """What a token costs, against greedy decoding's one call and one computed token."""
    cells = {title: costs(counts, system) for title, system in COSTED.items() if system in counts.calls[0]}
    lines = [[title, *(f"{each:.2f}" for each in values)] for title, values in [("greedy", (1, 1, 1)), *cells.items()]]
    return markdown(["", "tokens per call", "weights read per token", "tokens computed per token"], lines)


def table_rescorers(counts: Counts) -> str:
    """Neural rescorers and n-gram models: gains over vanilla, and their perplexities of what the model wrote."""
    calls, models = counts.rescorers, counts.rows("rescorers-models")
    neural = list(dict.fromkeys(row["rescorer"] for row in models))
    general = (row["1-best"] for row in calls["general"])
    paired = [{**row, "general": other} for row, other in zip(calls["in-domain"], general, strict=True)]

    def cells(task: str) -> list[str]:
        gains = [gained(counts.gain(task, "1-best", rows=rows)) for rows in calls.values()]
        gains.append(gained(counts.gain(task, "1-best", "general", paired)))
        perplexities = (f"{float(row['perplexity']):.0f}" for row in models if row["task"] == task)
        return [f"{counts.efficiency(task, 'vanilla', paired)[0]:.2f}", *gains, " / ".join(perplexities)]

    names = [f"neural, {name}" if name in neural else name for name in calls]
    head = ("vanilla", *names, "in-domain over general", f"perplexity: {' / '.join(neural)}")
    return counts.table(head, cells)


# ---------------------------------------------------------------- entropy
QUANTITIES: dict[str, Callable[[np.ndarray], float]] = {
    "h_max": lambda means: h_max(means)[0],
    "entropy of head 1": lambda means: float(means[0]),
    "entropy of head 2": lambda means: float(means[1]),
    "mean of heads 2 to 9": lambda means: float(means[1:].mean()),
}


def draws(counts: Counts) -> Iterator[tuple[str, np.ndarray]]:
    """Every task, and its texts resampled; the first of the draws is the texts themselves."""
    rng = np.random.default_rng(0)
    for task in counts.tasks:
        count = len(counts.column("tokens", task))
        yield task, np.vstack([np.arange(count), rng.integers(0, count, (RESAMPLES, count))])


def entropies(counts: Counts) -> tuple[np.ndarray, np.ndarray]:
    """Mean entropies ``[draws, tasks, heads]``, nats, and vanilla block efficiency ``[draws, tasks]``."""
    rows, means, efficiencies = counts.rows("entropy"), [], []
    for task, drawn in draws(counts):
        calls, tokens = counts.column("calls", task, rows), counts.column("tokens", task)
        sums = np.stack([counts.column(f"h{head}", task, rows) * calls for head in range(1, 10)], axis=1)
        all_calls = calls[drawn].sum(axis=1)
        means.append(sums[drawn].sum(axis=1) / all_calls[:, None])
        efficiencies.append(tokens[drawn].sum(axis=1) / all_calls)
    return np.stack(means, axis=1), np.stack(efficiencies, axis=1)


def correlation(pairs: Iterable[tuple[Any, Any]]) -> tuple[str, str]:
    """Pearson's across tasks, and its interval, of draws of two quantities, texts resampled; and the `permutation_p` of
    the texts themselves."""
    every = [(np.asarray(one, np.float64), np.asarray(other, np.float64)) for one, other in pairs]
    first, *drawn = (regress(one, other).r for one, other in every)
    return with_interval(first, *np.nanquantile(drawn, [0.025, 0.975])), f"{permutation_p(*every[0]):.3f}"


def table_entropy(counts: Counts) -> str:
    """Figure 3 in numbers."""
    means, efficiencies = entropies(counts)
    points = {task: (means[0, n], efficiencies[0, n]) for n, task in enumerate(counts.tasks)}

    def cells(task: str) -> list[str]:
        own, efficiency = points[task]
        return [*(f"{each:.2f}" for each in own), f"{h_max(own)[0]}", f"{efficiency:.2f}"]

    head = ["head 1", *map(str, range(2, 10)), "h_max", "block efficiency"]
    return counts.table(head, cells, with_all=False)


def table_coverage(counts: Counts) -> str:
    """What heads 2 to 9, which know a shortlist of the tokens, cannot draft; head 1's entropy over that shortlist."""
    rows, names = counts.rows("coverage"), ("tokens", "outside", "foreseen", "h1", "calls")

    def cells(task: str) -> list[str]:
        tokens, outside, foreseen, nats, calls = (counts.column(name, task, rows) for name in names)
        shares = (pooled(outside, tokens), pooled(foreseen, tokens), pooled(foreseen, tokens - outside))
        return [*(valued(percent(each), 1) for each in shares), f"{np.average(nats, weights=calls):.2f}"]

    head = ("not known to heads, %", "head 2 right, %", "of known tokens, %", "entropy of head 1 over known tokens")
    return counts.table(head, cells)


def table_correlations(counts: Counts) -> str:
    means, efficiencies = entropies(counts)
    rows = []
    for name, quantity in QUANTITIES.items():
        pairs = zip(([quantity(task) for task in each] for each in means), efficiencies, strict=True)
        rows.append([f"{name}; block efficiency", *correlation(pairs)])
    for title, system in (("1-best, 4-gram", "1-best:g4"), ("16-best, 4-gram", "16-best:g4")):
        names = ("tokens", "vanilla", system)
        sums = [[counts.column(each, task)[drawn].sum(axis=1) for each in names] for task, drawn in draws(counts)]
        tokens, vanilla, calls = np.array(sums).transpose(1, 2, 0)
        pairs = zip(tokens / vanilla, vanilla / calls, strict=True)
        rows.append([f"block efficiency; gain of {title}", *correlation(pairs)])
    return markdown([f"across {len(counts.tasks)} tasks", "r", "p"], rows)


# ---------------------------------------------------------------- figures
def panels(tasks: Sequence[str], across: str, upwards: str) -> tuple[Figure, dict[str, Any]]:
    """Axes by task, and the labels of all."""
    figure = Figure(figsize=(8.4, 6.6), layout="constrained")
    figure.supxlabel(across, fontsize=9)
    figure.supylabel(upwards, fontsize=9)
    axes = figure.subplots(3, 3, sharex=True).ravel()
    for unused in axes[len(tasks) :]:
        unused.set_visible(False)
    by_task = dict(zip(tasks, axes, strict=False))
    for task, each in by_task.items():
        each.set_title(TITLES[task], fontsize=9)
    return figure, by_task


def band(axes: Any, at: Sequence[int], values: Iterable[Interval], label: str, number: int) -> None:
    """Values and their intervals on an axis of powers of two."""
    draw_band(axes, at, values, label, number, markersize=3)
    axes.set_xscale("log", base=2)
    axes.set_xticks(at, [str(each) for each in at])
    axes.minorticks_off()
    axes.set_ylim(1)


@rc_context(STYLE)
def figure_3(counts: Counts) -> Figure:
    figure = Figure(figsize=(8.4, 3.4), layout="constrained")
    left, right = figure.subplots(1, 2)
    means, efficiencies = (each[0] for each in entropies(counts))
    task, steps = "lambada" if "lambada" in counts.tasks else counts.tasks[0], np.arange(0, 9, 0.25)
    bins = [row for row in counts.rows("entropy-bins") if row["task"] == task]
    for number, head in enumerate((1, 2, 3, 5, 9)):
        own = {float(row["from"]): int(row["calls"]) for row in bins if row["head"] == str(head)}
        share = np.array([own.get(value, 0) for value in steps]) / sum(own.values())
        heights = share.reshape(-1, 2).sum(axis=1).repeat(2)
        left.plot(steps, heights, drawstyle="steps-post", color=SERIES[number].light, label=f"head {head}")
    left.set(xlabel=f"entropy, nats, {TITLES[task]}", ylabel="share of calls")
    left.legend(fontsize=8)
    draw_peaks(right, counts.tasks, means, efficiencies)
    return figure


def draw_peaks(axes: Any, tasks: Sequence[str], means: np.ndarray, efficiencies: np.ndarray) -> None:
    """Block efficiency by h_max, task by task."""
    peaks = [h_max(each)[0] for each in means]
    axes.plot(peaks, efficiencies, MARKERS[0], color=SERIES[0].light, linestyle="")
    small = {"textcoords": "offset points", "fontsize": 7, "color": FAINT.light}
    marks, near = sorted(zip(peaks, efficiencies, tasks, strict=True)), max(0.01, 0.025 * float(np.ptp(efficiencies)))
    for before, (peak, efficiency, name) in zip([(0, 0, ""), *marks], marks, strict=False):
        is_close = before[0] == peak and efficiency - before[1] < near
        axes.annotate(TITLES[name], (peak, efficiency), xytext=(4, 11 if is_close else 3), **small)
    axes.set(xlabel="h_max", ylabel="block efficiency, vanilla", xlim=(0.5, 10.5))


@rc_context(STYLE)
def figure_6(counts: Counts) -> Figure:
    ks = sorted({int(row["k"]) for row in counts.rows("oracle")})
    figure, panel = panels(counts.tasks, "arcs per slot (k)", "oracle block efficiency")
    for task, axes in panel.items():
        for number, heads in enumerate((3, 6, 9)):
            band(axes, ks, (counts.oracle(task, k, heads) for k in ks), f"{heads} heads", number)
    figure.axes[0].legend(fontsize=8, loc="upper left")
    return figure


@rc_context(STYLE)
def figure_7(counts: Counts) -> Figure:
    ps = (1, 2, 4, 8, 16)
    figure, panel = panels(counts.tasks, "paths verified (p)", "block efficiency")
    for task, axes in panel.items():
        for number, (lm, label) in enumerate((("g4", "4-gram"), ("0-gram", "0-gram"))):
            names = ["vanilla" if (p, lm) == (1, "0-gram") else f"{p}-best:{lm}" for p in ps]
            band(axes, ps, (counts.efficiency(task, name) for name in names), label, number)
        axes.axhline(oracle := counts.efficiency(task, "oracle")[0], color=INK.light, linestyle=":", label="oracle")
        axes.set_ylim(1, 1.03 * oracle)
    figure.legend(*figure.axes[0].get_legend_handles_labels(), fontsize=8, loc="lower right", ncols=3)
    return figure


def by_name(prefix: str, functions: Iterable[Callable[[Counts], Any]]) -> dict[str, Callable[[Counts], Any]]:
    return {each.__name__.removeprefix(prefix).replace("_", "-"): each for each in functions}


KIM = (table_1, table_3, table_4, table_4_trees, table_5, table_7, table_8, table_9, table_10, table_11)
FURTHER = (table_entropy, table_coverage, table_correlations, table_rescorers)
TABLES = by_name("table_", KIM + FURTHER)
FIGURES = by_name("", (figure_3, figure_6, figure_7))


def refreshed(page: str, counts: Counts) -> str:
    """A page with the tables of these counts between its marks, ``<!-- kim NAME -->`` and ``<!-- end -->``."""

    def table(match: re.Match[str]) -> str:
        return f"{match[1]}\n\n{TABLES[match[2]](counts)}\n\n<!-- end -->" if counts.suffice(match[2]) else match[0]

    return re.sub(r"(<!-- kim ([a-z0-9-]+) -->).*?<!-- end -->", table, page, flags=re.DOTALL)


def show(folder: Path, names: Sequence[str] | None = None, tasks: Sequence[str] = tuple(TASKS)) -> None:
    """Print tables and draw figures. By default all that there are counts for; of all tasks they are then also put into
    the pages next to the folder, of some tasks only tables are printed. ValueError for an unknown table."""
    known, complete = [*TABLES, *FIGURES], len(tasks) == len(TASKS)
    if unknown := sorted(set(names or ()) - set(known)):
        raise ValueError(f"expected tables among {', '.join(known)}, got {', '.join(unknown)}")
    counts = Counts(folder, tasks)
    for name in names or filter(counts.suffice, known if complete else TABLES):
        if name in TABLES:
            print(f"\n{name}\n\n{TABLES[name](counts)}")
        else:
            FIGURES[name](counts).savefig(folder / f"kim-{name}.png", dpi=100)
    for page in (folder.parent / name for name in PAGES if names is None and complete):
        if page.exists():
            page.write_text(refreshed(page.read_text(encoding="utf-8"), counts), encoding="utf-8")
