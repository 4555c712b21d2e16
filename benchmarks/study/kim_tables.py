"""The tables and figures of `kim.py`, from nothing but the counts in ``results/kim-*.csv``.

Intervals are of 95 %: texts are drawn anew 2,000 times, the same ones for both systems of a pair.  *All* are the texts of all tasks.
"""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from matplotlib import rc_context
from matplotlib.figure import Figure

from benchmarks.smollm2.intervals import RESAMPLES, interval
from benchmarks.study.measuring import interval as interval_of
from latticebpd.measuring.entropy import h_max, regress
from latticebpd.report.theme import FAINT, INK, MARKERS, SERIES, STYLE

TITLES = {
    "lambada": "LAMBADA", "wikitext": "WikiText-2", "squad": "SQuAD", "xquad": "XQuAD-en", "policyqa": "PolicyQA",
    "dialogsum": "DialogSum", "code": "Python code", "docs": "documentation", "news": "news", "all": "all",
}  # fmt: skip
KINDS = {"lambada": "LM", "wikitext": "LM", "squad": "QA", "xquad": "QA", "policyqa": "QA", "dialogsum": "summary"}
K = 16
PAGES = ("kim.md", "kim_models.md")
UPDATES = "2000"
"""Of the heads that come with the package."""
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

    @cached_property
    def stages(self) -> dict[str, list[Row]]:
        """By updates of the heads, rising, calls and mean entropies of every text; the last are the heads that all else is counted of."""
        found: dict[str, list[Row]] = {}
        for row in self.rows("heads"):
            found.setdefault(row["updates"], []).append(row)
        last = [one | other for one, other in zip(self.calls, self.rows("entropy"), strict=True)]
        return dict(sorted((found | {UPDATES: last}).items(), key=lambda item: int(item[0])))

    @cached_property
    def rescorers(self) -> dict[str, list[Row]]:
        """By neural rescorer, from the smallest, what it is, task by task."""
        found: dict[str, list[Row]] = {}
        for row in sorted(self.rows("rescorers-models"), key=lambda row: int(row["parameters"])):
            found.setdefault(row["rescorer"], []).append(row)
        return found

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
        cells = [
            f"{counts.efficiency(task, system)[0]:.2f}: {gained(counts.gain(task, system, over))}"
            for system in systems.values()
        ]
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
    rows.append(
        [
            "gain over vanilla, %",
            *("{:.0f} ({:.0f}–{:.0f})".format(*counts.gain("all", system)) for system in systems.values()),
        ]
    )
    verified = counts.rows("verified")
    share = [
        counts.column(system, "all", verified).sum() / counts.walked("all", system)[1].sum()
        for system in systems.values()
    ]
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
    return markdown(
        ["rescorer", "task", "ties", "wins", "% repair", "% regress", "losses", "% repair", "% regress"], rows
    )


def table_7(counts: Counts) -> str:
    """General against in-domain n-gram models."""
    pairs = [
        ("1-best:g2", "1-best:d2"),
        ("1-best:g3", "1-best:d3"),
        ("1-best:g4", "1-best:d4"),
        ("16-best:g4", "16-best:d4"),
    ]
    sizes = {(row["task"], row["lm"]): row for row in counts.rows("ngrams")}
    rows = []
    for task in [*counts.tasks, "all"]:
        cells = [
            f"{counts.efficiency(task, one)[0]:.2f}, {counts.efficiency(task, other)[0]:.2f}: {gained(counts.gain(task, other, one))}"
            for one, other in pairs
        ]
        scoring_context = (
            ""
            if task == "all"
            else " / ".join(f"{float(sizes[task, lm]['perplexity']):.0f}" for lm in ("g4", "d4", "own4"))
        )
        rows.append([TITLES[task], *cells, scoring_context])
    return markdown(
        ["task", "2-gram", "3-gram", "4-gram", "16-best, 4-gram", "perplexity: general / in-domain / own"], rows
    )


def table_8(counts: Counts) -> str:
    """Tuned weights."""
    chosen = {
        (row["task"], row["lm"], row["system"]): row["alpha"] for row in counts.rows("weights") if row["chosen"] == "1"
    }
    systems = [(lm, system) for lm in ("g4", "d4", "own4") for system in ("1-best", "16-best", "16-tree")]
    names = {"g4": "4-gram", "d4": "in-domain", "own4": "own"}
    rows = [[TITLES[task], *(chosen[task, *system] for system in systems)] for task in counts.tasks]
    return markdown(["task", *(f"{system}, {names[lm]}" for lm, system in systems)], rows)


def table_9(counts: Counts) -> str:
    """Rescored first drafts, and the oracle."""
    made = {f"{order}-gram": f"1-best:g{order}" for order in (2, 3, 4)} | {"own 4-gram": "1-best:own4"}
    rows = []
    for task in [*counts.tasks, "all"]:
        cells = [
            f"{counts.efficiency(task, system)[0]:.2f}: {gained(counts.gain(task, system))}" for system in made.values()
        ]
        oracle = [f"{oracle_efficiency(counts, task, k, 9)[0]:.2f}" for k in (2, 16, 64)]
        rows.append([TITLES[task], f"{counts.efficiency(task, 'vanilla')[0]:.2f}", *cells, *oracle])
    return markdown(["task", "vanilla", *made, "oracle, k=2", "k=16", "k=64"], rows)


def oracle_efficiency(counts: Counts, task: str, k: int, heads: int) -> tuple[float, float, float]:
    rows = [row for row in counts.rows("oracle") if row["k"] == str(k)]
    return interval(counts.column("tokens", task, rows), counts.column(f"h{heads}", task, rows))


GAINS = {
    "1-best, 4-gram": ("1-best:g4", "vanilla"),
    "16-best, 0-gram": ("16-best:0-gram", "vanilla"),
    "16-best, 4-gram": ("16-best:g4", "vanilla"),
    "tree, 0-gram": ("16-tree:0-gram", "vanilla"),
    "tree, 4-gram": ("16-tree:g4", "vanilla"),
    "oracle": ("oracle", "vanilla"),
    "4-gram on 16-best": ("16-best:g4", "16-best:0-gram"),
    "4-gram on tree": ("16-tree:g4", "16-tree:0-gram"),
}
"""System and what it is compared with."""


def stage_efficiency(counts: Counts, updates: str, task: str) -> tuple[float, float, float]:
    """Tokens per call of the vanilla drafts of heads after so many updates."""
    return interval(*(counts.column(name, task, counts.stages[updates]) for name in ("tokens", "vanilla")))


def stage_gain(counts: Counts, updates: str, task: str, system: str, over: str) -> tuple[float, float, float]:
    """A gain, in %, of heads after so many updates."""
    tokens, calls, others = (counts.column(name, task, counts.stages[updates]) for name in ("tokens", system, over))
    value, low, high = interval(tokens, calls, (tokens, others))
    return 100 * value, 100 * low, 100 * high


def gain_difference(counts: Counts, first: str, second: str, system: str, over: str) -> tuple[float, float, float]:
    """By how many points the second stage's gain over all texts is greater than the first's; texts drawn anew in pairs."""

    def measure(drawn: np.ndarray) -> np.ndarray:
        before, after = (
            100
            * (
                counts.column(over, "all", rows)[drawn].sum(axis=-1)
                / counts.column(system, "all", rows)[drawn].sum(axis=-1)
                - 1
            )
            for rows in (counts.stages[first], counts.stages[second])
        )
        found: np.ndarray = after - before
        return found

    return interval_of(measure, len(counts.calls))


def table_heads(counts: Counts) -> str:
    """What rescoring brings to heads after a part of their training, over all texts."""
    rows = []
    for updates in counts.stages:
        gains = (gained(stage_gain(counts, updates, "all", *pair)) for pair in GAINS.values())
        rows.append([f"{int(updates):,}", valued(stage_efficiency(counts, updates, "all")), *gains])
    first, *_, last = counts.stages
    differences = (gained(gain_difference(counts, first, last, *pair)) for pair in GAINS.values())
    rows.append([f"{int(last):,} less {int(first):,}, points", "", *differences])
    return markdown(["updates", "vanilla", *GAINS], rows)


def table_heads_tasks(counts: Counts) -> str:
    """The same by task: vanilla, gain of the 16 best paths with a 4-gram, h_max."""
    rows = []
    for task in [*counts.tasks, "all"]:
        cells: tuple[list[str], ...] = ([], [], [])
        for updates, own in counts.stages.items():
            cells[0].append(f"{stage_efficiency(counts, updates, task)[0]:.2f}")
            cells[1].append(gained(stage_gain(counts, updates, task, *GAINS["16-best, 4-gram"])))
            calls = counts.column("vanilla", task, own)
            means = np.array([counts.column(f"h{head}", task, own) @ calls for head in range(1, 10)]) / calls.sum()
            cells[2].append(f"{h_max(means)[0]}")
        rows.append([TITLES[task], *(each for column in cells for each in column)])
    first, *others = (f"{int(updates):,}" for updates in counts.stages)
    names = ("vanilla", "16-best, 4-gram", "h_max")
    return markdown(["task", *(each for name in names for each in (f"{name}: {first}", *others))], rows)


def table_rescorers(counts: Counts) -> str:
    """Neural rescorers beside n-gram models: gains over vanilla, and their perplexities of what the model wrote."""
    ngrams = {"4-gram": "g4", "own 4-gram": "own4"}
    neural = {name: [row for row in counts.rows("rescorers") if row["rescorer"] == name] for name in counts.rescorers}
    columns = {f"1-best, {name}": (f"1-best:{lm}", counts.calls) for name, lm in ngrams.items()}
    columns |= {f"1-best, {name}": ("1-best", rows) for name, rows in neural.items()}
    scoring_context = {
        (row["task"], name): f"{float(row['perplexity']):.0f}"
        for name, rows in counts.rescorers.items()
        for row in rows
    }
    table = []
    for task in [*counts.tasks, "all"]:
        tokens, vanilla = counts.walked(task, "vanilla")
        cells = []
        for system, rows in columns.values():
            value, low, high = interval(tokens, counts.column(system, task, rows), (tokens, vanilla))
            cells.append(gained((100 * value, 100 * low, 100 * high)))
        perplexities = " / ".join(scoring_context[task, name] for name in neural if (task, name) in scoring_context)
        table.append([TITLES[task], f"{counts.efficiency(task, 'vanilla')[0]:.2f}", *cells, perplexities])
    return markdown(["task", "vanilla", *columns, f"perplexity: {' / '.join(neural)}"], table)


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

        def scoring_context(means: np.ndarray, efficiency: np.ndarray) -> float:
            return regress(np.array([quantity(each) for each in means]), efficiency).r

        drawn = [
            scoring_context(means, efficiency) for means, efficiency in zip(self.drawn_means, self.drawn_efficiency, strict=True)
        ]
        low, high = np.nanquantile(drawn, [0.025, 0.975])
        return scoring_context(self.means, self.efficiency), float(low), float(high)


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
        tokens, vanilla, calls = (
            counts.column("tokens", task),
            counts.column("vanilla", task),
            counts.column(system, task),
        )
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
    rows = [
        [f"{name}; block efficiency", "{:.2f} ({:.2f} to {:.2f})".format(*found.correlation(q))]
        for name, q in QUANTITIES.items()
    ]
    for title, system in (("1-best, 4-gram", "1-best:g4"), ("16-best, 4-gram", "16-best:g4")):
        rows.append(
            [
                f"block efficiency; gain of {title}",
                "{:.2f} ({:.2f} to {:.2f})".format(*gain_correlation(counts, system)),
            ]
        )
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
        left.plot(
            at,
            share.reshape(-1, 2).sum(axis=1).repeat(2),
            drawstyle="steps-post",
            color=SERIES[number].light,
            label=f"head {head}",
        )
    left.set_xlabel(f"entropy, nats, {TITLES[task]}")
    left.set_ylabel("share of calls")
    left.legend(fontsize=8)
    h = [QUANTITIES["h_max"](means) for means in found.means]
    right.plot(h, found.efficiency, MARKERS[0], color=SERIES[0].light, linestyle="")
    for at, efficiency, name in zip(h, found.efficiency, counts.tasks, strict=True):
        right.annotate(
            TITLES[name], (at, efficiency), xytext=(4, 3), textcoords="offset points", fontsize=7, color=FAINT.light
        )
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
            axes.plot(
                ks, middle, color=SERIES[number].light, marker=MARKERS[number], markersize=3, label=f"{heads} heads"
            )
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


@rc_context(STYLE)
def figure_heads(counts: Counts) -> Figure:
    """What rescoring gains against how good the heads are: a line for each task, a mark for each stage of training."""
    figure = Figure(figsize=(8.4, 3.4), layout="constrained")
    for axes, title in zip(figure.subplots(1, 2), ("1-best, 4-gram", "16-best, 4-gram"), strict=True):
        for task in [*counts.tasks, "all"]:
            color = INK.light if task == "all" else FAINT.light
            efficiency = [stage_efficiency(counts, updates, task)[0] for updates in counts.stages]
            gain = [stage_gain(counts, updates, task, *GAINS[title])[0] for updates in counts.stages]
            axes.plot(efficiency, gain, color=color, linewidth=2 if task == "all" else 0.8)
            for number, (updates, x, y) in enumerate(zip(counts.stages, efficiency, gain, strict=True)):
                label = f"{int(updates):,} updates" if task == "all" else None
                axes.plot(
                    x,
                    y,
                    MARKERS[number],
                    color=SERIES[number].light,
                    markersize=7 if task == "all" else 4,
                    label=label,
                    zorder=4,
                )
        axes.set_xlabel("block efficiency, vanilla")
        axes.set_ylabel(f"gain of {title}, %")
    figure.axes[0].legend(fontsize=8)
    return figure


TABLES: dict[str, Callable[[Counts], str]] = {
    "1": table_1, "3": table_3, "4": table_4, "4-trees": table_4_trees, "5": table_5, "7": table_7, "8": table_8, "9": table_9,
    "10": table_10, "entropy": table_entropy, "correlations": table_correlations,
    "heads": table_heads, "heads-tasks": table_heads_tasks, "rescorers": table_rescorers,
}  # fmt: skip
FIGURES: dict[str, Callable[[Counts], Figure]] = {
    "figure-3": figure_3, "figure-6": figure_6, "figure-7": figure_7, "figure-heads": figure_heads,
}  # fmt: skip


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
    for page in (folder.parent / name for name in PAGES if names is None):
        if page.exists():
            page.write_text(refreshed(page.read_text(encoding="utf-8"), counts), encoding="utf-8")
