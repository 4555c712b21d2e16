"""The tables and figures of `kim.py`, from nothing but the counts in ``results/kim-*.csv``.

Intervals are of 95 %: texts are drawn anew 2,000 times, the same ones for both systems of a pair.  *All* are the texts of all tasks.
"""

from __future__ import annotations

import csv
import math
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from matplotlib import rc_context
from matplotlib.figure import Figure

from latticebpd.analysis.entropy import h_max, regress
from latticebpd.analysis.theme import FAINT, INK, MARKERS, SERIES, STYLE

sys.path.append(str(Path(__file__).parents[1] / "smollm2"))
from intervals import RESAMPLES, interval

TITLES = {
    "lambada": "LAMBADA", "wikitext": "WikiText-2", "squad": "SQuAD", "xquad": "XQuAD-en", "policyqa": "PolicyQA",
    "dialogsum": "DialogSum", "code": "Python code", "docs": "documentation", "news": "news", "all": "all",
}  # fmt: skip
KINDS = {"lambada": "LM", "wikitext": "LM", "squad": "QA", "xquad": "QA", "policyqa": "QA", "dialogsum": "summary"}
K = 16
Row = dict[str, str]


@dataclass(frozen=True, eq=False)
class Counts:
    """The files of one folder. Every array has one number for each text."""

    folder: Path

    def rows(self, name: str) -> list[Row]:
        with open(self.folder / f"kim-{name}.csv", newline="", encoding="utf-8") as file:
            return list(csv.DictReader(file))

    @cached_property
    def calls(self) -> list[Row]:
        return self.rows("calls")

    @cached_property
    def tasks(self) -> list[str]:
        return [task for task in TITLES if any(row["task"] == task for row in self.calls)]

    def column(self, name: str, task: str, rows: Sequence[Row] | None = None) -> np.ndarray:
        rows = self.calls if rows is None else rows
        return np.array([float(row[name]) for row in rows if task in ("all", row["task"])])

    def walked(self, task: str, system: str) -> tuple[np.ndarray, np.ndarray]:
        """Tokens and calls."""
        return self.column("tokens", task), self.column(system, task)

    def efficiency(self, task: str, system: str) -> tuple[float, float, float]:
        return interval(*self.walked(task, system))

    def gain(self, task: str, system: str, over: str = "vanilla") -> tuple[float, float, float]:
        value, low, high = interval(*self.walked(task, system), self.walked(task, over))
        return 100 * value, 100 * low, 100 * high


def markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def valued(value: tuple[float, float, float], digits: int = 2) -> str:
    middle, low, high = (f"{each:.{digits}f}" for each in value)
    return f"{middle} ({low}–{high})"


def gained(value: tuple[float, float, float]) -> str:
    """A gain in %, with a mark where its interval holds no 0."""
    middle, low, high = value
    return f"{middle:+.1f} ({low:+.1f} to {high:+.1f}){'*' if low > 0 or high < 0 else ''}"


# ---------------------------------------------------------------- tables
def table_1(counts: Counts) -> str:
    """Task quality and block efficiency."""
    quality, rows = counts.rows("quality"), []
    for task in counts.tasks:
        own = [row for row in quality if row["task"] == task]
        value, of = (np.array([float(row[name]) for row in own]) for name in ("value", "of"))
        if own[0]["measure"] == "nats":
            said = "perplexity {:.1f} ({:.1f}–{:.1f})".format(*map(math.exp, interval(value, of)))
        elif own[0]["measure"] == "ROUGE-L":
            said = "ROUGE-L {:.1f} ({:.1f}–{:.1f})".format(*interval(value, of))
        else:
            second = np.array([float(row["f1"]) for row in own])
            said = "exact {:.1f}, F1 {:.1f} ({:.1f}–{:.1f})".format(interval(value, of)[0], *interval(second, of))
        tokens = counts.column("tokens", task)
        rows.append([TITLES[task], KINDS.get(task, "LM"), f"{len(tokens)}", f"{tokens.sum():,.0f}", said,
                     valued(counts.efficiency(task, "vanilla")), valued(counts.efficiency(task, "oracle"))])  # fmt: skip
    return markdown(["task", "kind", "texts", "tokens", "quality", "block efficiency", "oracle (k=16)"], rows)


def table_3(counts: Counts) -> str:
    """Repetition in first drafts."""
    drafts, rows = counts.rows("drafts"), []
    systems = ("vanilla", "1-best:g2", "1-best:g4", "1-best:own4")
    for task in [*counts.tasks, "all"]:
        cells: tuple[list[str], list[str]] = [], []
        for system in systems:
            own = [row for row in drafts if row["system"] == system]
            equal, neighbours, run, *outcomes = (
                counts.column(name, task, own) for name in ("equal", "neighbours", "run", "wins", "ties", "losses")
            )
            cells[0].append("{:.1f} ({:.1f}–{:.1f})".format(*(100 * each for each in interval(equal, neighbours))))
            cells[1].append(f"{run.sum() / sum(each.sum() for each in outcomes):.2f}")
        rows.append([TITLES[task], *cells[0], *cells[1]])
    names = ("vanilla", "2-gram", "4-gram", "own 4-gram")
    return markdown(["task", *(f"% consec: {names[0]}", *names[1:]), *(f"max run: {names[0]}", *names[1:])], rows)


def gains(counts: Counts, systems: dict[str, str], over: str = "vanilla", first: Sequence[str] = ("vanilla",)) -> str:
    """Block efficiencies, and gains over one of them in %."""
    rows = []
    for task in [*counts.tasks, "all"]:
        shown = [f"{counts.efficiency(task, system)[0]:.2f}" for system in first]
        cells = [f"{counts.efficiency(task, system)[0]:.2f}: {gained(counts.gain(task, system, over))}" for system in systems.values()]
        rows.append([TITLES[task], *shown, *cells])
    return markdown(["task", *("vanilla" if system == "vanilla" else system for system in first), *systems], rows)


def table_4(counts: Counts) -> str:
    return gains(counts, {
        "1-best, 4-gram": "1-best:g4", "16-best, 0-gram": "16-best:0-gram", "16-best, 4-gram": "16-best:g4",
        "16-best, in-domain": "16-best:d4", "16-best, own": "16-best:own4", "oracle": "oracle",
    })  # fmt: skip


def table_4_trees(counts: Counts) -> str:
    """Trees of 16 nodes against 16 best paths without a language model, whose passes verify more tokens."""
    systems = {
        "16-best, 0-gram": "16-best:0-gram", "tree, 0-gram": "16-tree:0-gram", "tree, 4-gram": "16-tree:g4",
        "tree, in-domain": "16-tree:d4", "tree, own": "16-tree:own4", "calibrated, own, no text": "16-calibrated:own4-text",
        "calibrated, 4-gram": "16-calibrated:g4-all",
        "calibrated, own": "16-calibrated:own4-all", "64 calibrated, own": "64-calibrated:own4-all", "oracle": "oracle",
    }  # fmt: skip
    systems = {name: system for name, system in systems.items() if system in counts.calls[0]}
    rows = []
    for task in [*counts.tasks, "all"]:
        rows.append([TITLES[task], *(f"{counts.efficiency(task, system)[0]:.2f}" for system in systems.values())])
    rows.append(["gain over vanilla, %", *("{:.0f} ({:.0f}–{:.0f})".format(*counts.gain("all", system)) for system in systems.values())])
    verified = counts.rows("verified")
    share = [counts.column(system, "all", verified).sum() / counts.walked("all", system)[1].sum() for system in systems.values()]
    rows.append(["verified tokens", *(f"{each:.0f}" for each in share)])
    return markdown(["task", *systems], rows)


def table_5(counts: Counts) -> str:
    """Wins, ties and losses of rescored first drafts, and which mend or make a repetition."""
    drafts, rows = counts.rows("drafts"), []
    for system, title in (("1-best:g4", "4-gram"), ("1-best:own4", "own 4-gram")):
        own = [row for row in drafts if row["system"] == system]
        for task in [*counts.tasks, "all"]:
            win, tie, loss = (counts.column(name, task, own).sum() for name in ("wins", "ties", "losses"))
            shares = [
                f"{100 * counts.column(f'{name}_{what}', task, own).sum() / max(1, total):.1f}"
                for name, total in (("win", win), ("loss", loss)) for what in ("repair", "regress")
            ]  # fmt: skip
            rows.append([title, TITLES[task], f"{tie:,.0f}", f"{win:,.0f}", *shares[:2], f"{loss:,.0f}", *shares[2:]])
    return markdown(["rescorer", "task", "ties", "wins", "% repair", "% regress", "losses", "% repair", "% regress"], rows)


def table_7(counts: Counts) -> str:
    """General against in-domain n-gram models."""
    pairs = [("1-best:g2", "1-best:d2"), ("1-best:g4", "1-best:d4"), ("16-best:g4", "16-best:d4")]
    sizes = {(row["task"], row["lm"]): row for row in counts.rows("ngrams")}
    rows = []
    for task in [*counts.tasks, "all"]:
        cells = [
            f"{counts.efficiency(task, one)[0]:.2f}, {counts.efficiency(task, other)[0]:.2f}: {gained(counts.gain(task, other, one))}"
            for one, other in pairs
        ]
        told = "" if task == "all" else " / ".join(f"{float(sizes[task, lm]['perplexity']):.0f}" for lm in ("g4", "d4", "own4"))
        rows.append([TITLES[task], *cells, told])
    return markdown(["task", "2-gram", "4-gram", "16-best, 4-gram", "perplexity: general / in-domain / own"], rows)


def table_8(counts: Counts) -> str:
    """Tuned weights."""
    chosen = {(row["task"], row["lm"], row["system"]): row["alpha"] for row in counts.rows("weights") if row["chosen"] == "1"}
    systems = [(lm, system) for lm in ("g4", "d4", "own4") for system in ("1-best", "16-best", "16-tree")]
    names = {"g4": "4-gram", "d4": "in-domain", "own4": "own"}
    rows = [[TITLES[task], *(chosen[task, *system] for system in systems)] for task in counts.tasks]
    return markdown(["task", *(f"{system}, {names[lm]}" for lm, system in systems)], rows)


def table_9(counts: Counts) -> str:
    """Rescored first drafts, and the oracle."""
    made = {f"{order}-gram": f"1-best:g{order}" for order in (2, 3, 4)} | {"own 4-gram": "1-best:own4"}
    rows = []
    for task in [*counts.tasks, "all"]:
        cells = [f"{counts.efficiency(task, system)[0]:.2f}: {gained(counts.gain(task, system))}" for system in made.values()]
        oracle = [f"{oracle_efficiency(counts, task, k, 9)[0]:.2f}" for k in (2, 16, 64)]
        rows.append([TITLES[task], f"{counts.efficiency(task, 'vanilla')[0]:.2f}", *cells, *oracle])
    return markdown(["task", "vanilla", *made, "oracle, k=2", "k=16", "k=64"], rows)


def oracle_efficiency(counts: Counts, task: str, k: int, heads: int) -> tuple[float, float, float]:
    rows = [row for row in counts.rows("oracle") if row["k"] == str(k)]
    return interval(counts.column("tokens", task, rows), counts.column(f"h{heads}", task, rows))


def table_10(counts: Counts) -> str:
    """Block efficiency by heads."""
    rows = [
        [TITLES[task], *(valued(oracle_efficiency(counts, task, 1, heads), 3) for heads in (3, 6, 9)),
         *(f"{oracle_efficiency(counts, task, K, heads)[0]:.2f}" for heads in (3, 6, 9))]
        for task in [*counts.tasks, "all"]
    ]  # fmt: skip
    return markdown(["task", "h=3", "h=6", "h=9", "oracle, h=3", "h=6", "h=9"], rows)


# ---------------------------------------------------------------- entropy
@dataclass(frozen=True, eq=False)
class Entropies:
    """Of every task: means ``[heads]`` over calls, nats; block efficiency of vanilla drafts; the same of texts drawn anew."""

    means: np.ndarray
    efficiency: np.ndarray
    drawn_means: np.ndarray
    drawn_efficiency: np.ndarray

    @classmethod
    def of(cls, counts: Counts) -> Entropies:
        found: list[tuple[np.ndarray, ...]] = []
        rows = counts.rows("entropy")
        rng = np.random.default_rng(0)
        for task in counts.tasks:
            own = [row for row in rows if row["task"] == task]
            calls, tokens = np.array([float(row["calls"]) for row in own]), counts.column("tokens", task)
            sums = np.array([[float(row[f"h{head}"]) for head in range(1, 10)] for row in own]) * calls[:, None]
            drawn = rng.integers(0, len(calls), (RESAMPLES, len(calls)))
            all_calls = calls[drawn].sum(axis=1)
            found.append((sums.sum(axis=0) / calls.sum(), tokens.sum() / calls.sum(), sums[drawn].sum(axis=1) / all_calls[:, None],
                          tokens[drawn].sum(axis=1) / all_calls))  # fmt: skip
        means, efficiency, drawn_means, drawn_efficiency = zip(*found, strict=True)
        return cls(np.array(means), np.array(efficiency), np.stack(drawn_means, 1), np.stack(drawn_efficiency, 1))

    def correlation(self, quantity: Callable[[np.ndarray], float]) -> tuple[float, float, float]:
        """Pearson's, across tasks, of a quantity of the heads' mean entropies with block efficiency, and its interval."""

        def told(means: np.ndarray, efficiency: np.ndarray) -> float:
            return regress(np.array([quantity(each) for each in means]), efficiency).r

        drawn = [told(means, efficiency) for means, efficiency in zip(self.drawn_means, self.drawn_efficiency, strict=True)]
        low, high = np.nanquantile(drawn, [0.025, 0.975])
        return told(self.means, self.efficiency), float(low), float(high)


QUANTITIES: dict[str, Callable[[np.ndarray], float]] = {
    "h_max": lambda means: h_max(means)[0],
    "entropy of head 1": lambda means: float(means[0]),
    "entropy of head 2": lambda means: float(means[1]),
    "mean of heads 2 to 9": lambda means: float(means[1:].mean()),
}


def table_entropy(counts: Counts) -> str:
    """Figure 3 in numbers."""
    found = Entropies.of(counts)
    rows = []
    for task, means, efficiency in zip(counts.tasks, found.means, found.efficiency, strict=True):
        rows.append([TITLES[task], *(f"{each:.2f}" for each in means), f"{h_max(means)[0]}", f"{efficiency:.2f}"])
    return markdown(["task", "head 1", *map(str, range(2, 10)), "h_max", "block efficiency"], rows)


def gain_correlation(counts: Counts, system: str) -> tuple[float, float, float]:
    """Pearson's, across tasks, of vanilla block efficiency with a system's gain over it, and its interval."""
    rng, efficiencies = np.random.default_rng(0), []
    for task in counts.tasks:
        tokens, vanilla, calls = counts.column("tokens", task), counts.column("vanilla", task), counts.column(system, task)
        # The first of the draws is the texts themselves
        drawn = np.vstack([np.arange(len(tokens)), rng.integers(0, len(tokens), (RESAMPLES, len(tokens)))])
        all_tokens = tokens[drawn].sum(axis=1)
        efficiencies.append((all_tokens / vanilla[drawn].sum(axis=1), all_tokens / calls[drawn].sum(axis=1)))
    base, rescored = np.array(efficiencies).transpose(1, 2, 0)
    found = [regress(one, other / one).r for one, other in zip(base, rescored, strict=True)]
    low, high = np.nanquantile(found[1:], [0.025, 0.975])
    return found[0], float(low), float(high)


def table_correlations(counts: Counts) -> str:
    found = Entropies.of(counts)
    rows = [[f"{name}; block efficiency", "{:.2f} ({:.2f} to {:.2f})".format(*found.correlation(q))] for name, q in QUANTITIES.items()]
    for title, system in (("1-best, 4-gram", "1-best:g4"), ("16-best, 4-gram", "16-best:g4")):
        rows.append([f"block efficiency; gain of {title}", "{:.2f} ({:.2f} to {:.2f})".format(*gain_correlation(counts, system))])
    return markdown([f"across {len(counts.tasks)} tasks", "r"], rows)


# ---------------------------------------------------------------- figures
def panels(tasks: Sequence[str]) -> tuple[Figure, Iterator[tuple[str, object]]]:
    figure = Figure(figsize=(8.4, 6.6), layout="constrained")
    axes = figure.subplots(3, 3, sharex=True).ravel()
    for unused in axes[len(tasks) :]:
        unused.set_visible(False)
    for task, each in zip(tasks, axes, strict=False):
        each.set_title(TITLES[task], fontsize=9)
    return figure, iter(zip(tasks, axes, strict=False))


@rc_context(STYLE)
def figure_3(counts: Counts) -> Figure:
    figure = Figure(figsize=(8.4, 3.4), layout="constrained")
    left, right = figure.subplots(1, 2)
    found = Entropies.of(counts)
    task = "lambada" if "lambada" in counts.tasks else counts.tasks[0]
    bins = [row for row in counts.rows("entropy-bins") if row["task"] == task]
    for number, head in enumerate((1, 2, 3, 5, 9)):
        own = {float(row["from"]): int(row["calls"]) for row in bins if row["head"] == str(head)}
        at = np.arange(0, 9, 0.25)
        share = np.array([own.get(value, 0) for value in at]) / sum(own.values())
        left.plot(at, share.reshape(-1, 2).sum(axis=1).repeat(2), drawstyle="steps-post", color=SERIES[number].light, label=f"head {head}")
    left.set_xlabel(f"entropy, nats, {TITLES[task]}")
    left.set_ylabel("share of calls")
    left.legend(fontsize=8)
    h = [QUANTITIES["h_max"](means) for means in found.means]
    right.plot(h, found.efficiency, MARKERS[0], color=SERIES[0].light, linestyle="")
    for at, efficiency, name in zip(h, found.efficiency, counts.tasks, strict=True):
        right.annotate(TITLES[name], (at, efficiency), xytext=(4, 3), textcoords="offset points", fontsize=7, color=FAINT.light)
    right.set_xlabel("h_max")
    right.set_ylabel("block efficiency, vanilla")
    right.set_xlim(0.5, 10.5)
    return figure


@rc_context(STYLE)
def figure_6(counts: Counts) -> Figure:
    figure, each = panels(counts.tasks)
    rows = counts.rows("oracle")
    ks = sorted({int(row["k"]) for row in rows})
    for task, axes in each:
        for number, heads in enumerate((3, 6, 9)):
            found = []
            for k in ks:
                own = [row for row in rows if row["k"] == str(k)]
                found.append(interval(counts.column("tokens", task, own), counts.column(f"h{heads}", task, own)))
            middle, low, high = np.array(found).T
            axes.plot(ks, middle, color=SERIES[number].light, marker=MARKERS[number], markersize=3, label=f"{heads} heads")
            axes.fill_between(ks, low, high, color=SERIES[number].light, alpha=0.15, linewidth=0)
        axes.set_xscale("log", base=2)
        axes.set_xticks(ks, [str(k) for k in ks])
        axes.minorticks_off()
        axes.set_ylim(1)
    figure.axes[0].legend(fontsize=8, loc="upper left")
    figure.supxlabel("arcs per slot (k)", fontsize=9)
    figure.supylabel("oracle block efficiency", fontsize=9)
    return figure


@rc_context(STYLE)
def figure_7(counts: Counts) -> Figure:
    figure, each = panels(counts.tasks)
    ps = (1, 2, 4, 8, 16)
    for task, axes in each:
        for number, (lm, label) in enumerate((("g4", "4-gram"), ("0-gram", "0-gram"))):
            names = ["vanilla" if (p, lm) == (1, "0-gram") else f"{p}-best:{lm}" for p in ps]
            middle, low, high = np.array([counts.efficiency(task, name) for name in names]).T
            axes.plot(ps, middle, color=SERIES[number].light, marker=MARKERS[number], markersize=3, label=label)
            axes.fill_between(ps, low, high, color=SERIES[number].light, alpha=0.15, linewidth=0)
        axes.axhline(counts.efficiency(task, "oracle")[0], color=INK.light, linestyle=":", linewidth=1, label="oracle")
        axes.set_xscale("log", base=2)
        axes.set_xticks(ps, [str(p) for p in ps])
        axes.minorticks_off()
        axes.set_ylim(1)
    figure.legend(*figure.axes[0].get_legend_handles_labels(), fontsize=8, loc="lower right", ncols=3)
    figure.supxlabel("paths verified (p)", fontsize=9)
    figure.supylabel("block efficiency", fontsize=9)
    return figure


TABLES: dict[str, Callable[[Counts], str]] = {
    "1": table_1, "3": table_3, "4": table_4, "4-trees": table_4_trees, "5": table_5, "7": table_7, "8": table_8, "9": table_9,
    "10": table_10, "entropy": table_entropy, "correlations": table_correlations,
}  # fmt: skip
FIGURES: dict[str, Callable[[Counts], Figure]] = {"figure-3": figure_3, "figure-6": figure_6, "figure-7": figure_7}


def refreshed(page: str, counts: Counts) -> str:
    """A page with the tables of these counts between its marks, ``<!-- kim NAME -->`` and ``<!-- end -->``."""

    def table(found: re.Match[str]) -> str:
        return f"{found[1]}\n\n{TABLES[found[2]](counts)}\n\n<!-- end -->"

    return re.sub(r"(<!-- kim ([a-z0-9-]+) -->).*?<!-- end -->", table, page, flags=re.DOTALL)


def show(folder: Path, names: Sequence[str] | None = None) -> None:
    """Print tables, draw figures; all of what has been counted by default, and then put the tables into the page beside the folder.

    Raises:
        ValueError: a table that there is none of.
    """
    known = [*TABLES, *FIGURES]
    if unknown := sorted(set(names or ()) - set(known)):
        raise ValueError(f"expected tables among {', '.join(known)}, got {', '.join(unknown)}")
    counts = Counts(folder)
    for name in names or known:
        if name in TABLES:
            print(f"\n{name}\n\n{TABLES[name](counts)}")
        else:
            FIGURES[name](counts).savefig(folder / f"kim-{name}.png", dpi=100)
    if names is None and (page := folder.parent / "README.md").exists():
        page.write_text(refreshed(page.read_text(encoding="utf-8"), counts), encoding="utf-8")
