"""All four papers' methods and this project's, on one test set, with one verifier, in one run (Multi30k, English to
German).

    python -m benchmarks.study.together --work WORK --train multi30k-train.jsonl --validation multi30k-val.jsonl \
        --test multi30k-test_2016_flickr.jsonl --updates 600 --teacher-updates 1800 --written 12000      # from scratch
    python -m benchmarks.study.together                   # table and figure again, from results/together*.csv

WORK may be that of `gad_recipe.py` with the same options: what it holds (teacher, its text, verifier, drafters) is
not made again.  Heads learn the same text on the frozen verifier (`stern.py`'s setting *distilled*), and so does
a Katz 4-gram.  Every system is tuned for itself on validation sentences, by tokens a pass: the weight of the 4-gram
the best, whatever costs time (heads, masks, blocks) the smallest within half a per cent of the most, the bar of GAD++
the loosest whose BLEU there is not below greedy decoding's. Then all systems translate every test sentence by itself,
in turns.  The clock is the processor's.  Exact systems must write `generate()`'s text; the program stops where one
does not.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.figure import Figure

import fst
from benchmarks import common
from benchmarks.bench_jacobi import Results, blocks, hybrid, in_turns, whole
from benchmarks.decodes import bleu_interval, bleu_statistics, decode, most, save_figure, widened
from benchmarks.gad_recipe import BLOCKS, MADE_WITH, drafter_options, run_of, taught, translator_options
from benchmarks.study.stern import ALPHAS, MAX_NEW, NODES, Study, has_work, study_options
from latticebpd import Exact, Loaded, NoDrafter, TopBeta, TopK, drafter_named, load
from latticebpd.decoding.generation_config import GenerationSettings
from latticebpd.drafters.lattice_drafter import OracleDrafter
from latticebpd.jacobi.jacobi_comparison import GREEDY, Batch, BatchRun, System, SystemRun, compare, stock
from latticebpd.measuring.needed_slots import fewest
from latticebpd.models.transformers.transformers_model import Model
from latticebpd.models.weight_kinds import TORCH
from latticebpd.report.theme import FAINT, INK, SERIES, STYLE
from latticebpd.scoring.rescoring import as_scorer, calibrated_scorer

JACOBI_BLOCKS = (2, 3, 5, 8)
BARS = ((3, 1.0), (3, 3.0), (5, 3.0), (5, 5.0))
"""Beta and tau of GAD++, ever looser."""
EXACT = Exact()
COUNTS, QUALITY = "together.csv", "together-quality.csv"
ORACLE = "oracle"
STOCK, SANTILLI, STERN, KIM, HEADS, XIA, GAD = GROUPS = (
    "baseline", "Santilli 2023", "Stern 2018", "Kim 2024", "ours, on heads", "Xia 2022", "ours, on GAD",
)  # fmt: skip


@dataclass(frozen=True)
class Entry:
    """A line of the table.

    of: whose method, one of `GROUPS`.  make: settings -> the system.  grid: what is tuned, one after the other, and
    the values tried. exact: whether it must write greedy decoding's text.  rows: sentences that it may translate at
    once, where it is tuned.
    """

    of: str
    make: Callable[..., System]
    grid: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    exact: bool = True
    rows: int = 50


def drafted(model: Model, drafter: Callable[[], Any], rule: Any = EXACT) -> System:
    """A drafter and an acceptance rule in this project's loop; a prefill is a pass like any other."""

    def system(batch: Batch) -> BatchRun:
        sources = [ids[seen.bool()].tolist() for ids, seen in zip(batch.ids, batch.mask, strict=True)]
        return passes_of(decode(model, sources, (drafter, rule), MAX_NEW))

    return system


def passes_of(decoded: Any) -> BatchRun:
    """`decodes.decode`'s result, with passes for calls: a prefill commits one token."""
    counts = zip(decoded.rows, decoded.tokens, decoded.calls, strict=True)
    return BatchRun(decoded.rows, [calls + len(row) - tokens for row, tokens, calls in counts])


def bleu(study: Study, rows: list[list[int]], references: list[str]) -> common.Interval:
    """BLEU of texts, and its interval."""
    texts = [study.tokenizer.decode(row).strip() for row in rows]
    return bleu_interval(np.array(bleu_statistics(texts, references)))


def entries(study: Study, heads: Loaded, drafters: Mapping[str, Loaded], lm: Path) -> dict[str, Entry]:
    """All systems by name; greedy decoding comes first and gives the lengths.

    heads, drafters: the verifier with heads, and with each drafter.
    """
    base, slots = heads.target, {"slots": tuple(sorted({k - 1 for k in study.arguments.k}))}
    scorer, calibrated = fst.NgramModel.load(lm), calibrated_scorer(lm)
    pj, pgj, hgj = (partial(make, base, MAX_NEW) for make in (whole, blocks, hybrid))

    def by_heads(name: str, rule: Any = EXACT, arcs: int = 16) -> Callable[..., System]:
        def make(slots: int, alpha: float | None = None) -> System:
            lattices = heads.lattice_source(arcs, slots)
            drafter = drafter_named(name, lattices, calibrated if "calibrated" in name else scorer, alpha)
            return drafted(base, lambda: drafter, rule)

        return make

    def by_masks(name: str, model: Loaded, arcs: int = 1) -> Callable[..., System]:
        def make(masks: int, alpha: float | None = None, bar: tuple[int, float] | None = None) -> System:
            rule = EXACT if bar is None else TopBeta(*bar)
            weighed = None if alpha is None else as_scorer(scorer, alpha)
            return drafted(base, lambda: drafter_named(name, model.lattice_source(arcs, masks), weighed), rule)

        return make

    alpha, sizes = {"alpha": ALPHAS}, {"b": JACOBI_BLOCKS}
    systems = {
        GREEDY: Entry(STOCK, lambda: stock(base, MAX_NEW)),
        "beam 5": Entry(STOCK, lambda: stock(base, MAX_NEW, 5), exact=False),
        "prompt lookup": Entry(
            STOCK, lambda n: stock(base, MAX_NEW, prompt_lookup_num_tokens=n), {"n": (1, 2, 4)}, rows=1
        ),
        "greedy, this loop": Entry(STOCK, lambda: drafted(base, NoDrafter)),
        "PJ": Entry(SANTILLI, pj),
        "PGJ": Entry(SANTILLI, lambda b: pgj(b), sizes),
        "HGJ": Entry(SANTILLI, lambda b: hgj(b), sizes),
        "vanilla": Entry(STERN, by_heads("vanilla", arcs=1), slots),
        "vanilla, top-2": Entry(STERN, by_heads("vanilla", TopK(2), 1), slots, exact=False),
        **{f"{p}-best, 4-gram": Entry(KIM, by_heads(f"{p}-best"), alpha | slots) for p in (1, 16)},
        **{f"{nodes}-node tree": Entry(HEADS, by_heads(f"{nodes}-tree:0-gram"), slots) for nodes in NODES},
        **{f"{nodes}-node tree, 4-gram": Entry(HEADS, by_heads(f"{nodes}-tree"), alpha | slots) for nodes in NODES},
        **{f"{nodes}-node tree, calibrated": Entry(HEADS, by_heads(f"{nodes}-calibrated"), slots) for nodes in NODES},
    }
    for name, model in drafters.items():
        most = model.lattice_source().num_slots
        masks = {"masks": tuple(size for size in BLOCKS if size <= most) or (most,)}
        systems[f"GAD, {name}"] = Entry(XIA, by_masks("vanilla", model), masks)
        systems[f"GAD++, {name}"] = Entry(XIA, by_masks("vanilla", model), masks | {"bar": BARS}, exact=False)
    for nodes in NODES:  # trees over the last drafter's lattices
        systems[f"{nodes}-node tree, {name}"] = Entry(GAD, by_masks(f"{nodes}-tree:0-gram", model, 16), masks)
        systems[f"{nodes}-node tree, 4-gram, {name}"] = Entry(GAD, by_masks(f"{nodes}-tree", model, 16), alpha | masks)
    return systems


def tuned(study: Study, entry: Entry, greedy: System, fill: int) -> dict[str, Any]:
    """Settings of a system, and the tokens a pass of all that were tried, on validation sources."""
    chosen, tried = {option: values[-1] for option, values in entry.grid.items()}, dict[str, dict[str, float]]()
    for option, values in entry.grid.items():
        efficiencies, gain = dict[Any, float](), dict[Any, float]()
        while new := [value for value in values if value not in efficiencies]:
            systems = {GREEDY: greedy} | {str(value): entry.make(**chosen | {option: value}) for value in new}
            measured = compare(systems, study.held_out, fill, pad_left=False, batch_size=entry.rows, warm_ups=0)
            runs = {value: measured[str(value)] for value in new}
            efficiencies |= {value: sum(map(len, run.tokens)) / sum(run.passes) for value, run in runs.items()}
            if option == "alpha":
                values = widened(efficiencies)
            if option == "bar":
                wanted, *others = (bleu(study, each.tokens, study.held_out_references)[0] for each in measured.values())
                gain = {value: score - wanted for value, score in zip(new, others, strict=True)}
        chosen[option] = best(option, efficiencies, gain)
        tried[option] = {str(value): each for value, each in efficiencies.items()}
    return {"chosen": chosen, "tokens a pass": tried}


def best(option: str, efficiencies: Mapping[Any, float], gain: Mapping[Any, float]) -> Any:
    """The value to take.  gain: of BLEU over greedy decoding's."""
    if option == "alpha":
        return most(efficiencies)
    if option == "bar":
        return max((bar for bar in efficiencies if gain[bar] >= 0), key=lambda bar: efficiencies[bar], default=BARS[0])
    return fewest(efficiencies)


def spelled(chosen: Mapping[str, Any]) -> str:
    """Settings, as the table has them."""
    names = {
        "alpha": "α = {:g}",
        "slots": "heads: {}",
        "masks": "masks: {}",
        "b": "b = {}",
        "n": "n = {}",
        "bar": "β = {0[0]}, τ = {0[1]:g}",
    }
    return ", ".join(names[option].format(value) for option, value in chosen.items())


def measure(study: Study) -> None:
    """Make what is missing, tune, let all systems translate in turns, and write the CSV files."""
    args, own = study.arguments, study.work / "together"
    heads, verifier = study.model("distilled", max(args.k)), taught(args)
    drafters = {name: load(verifier, drafter=run_of(args, name, verifier), weights=TORCH) for name in args.runs}
    chosen = entries(study, heads, drafters, study.calibrated("distilled", max(args.k)))
    base, greedy = heads.target, chosen[GREEDY].make()
    fill, settings = GenerationSettings(base).fill_id, dict[str, dict[str, Any]]()
    for name, entry in chosen.items():
        note = own / "tuned" / f"{common.slug(name)}.json"
        settings[name] = common.stored(note, lambda entry=entry: tuned(study, entry, greedy, fill))["chosen"]
    systems = {name: entry.make(**settings[name]) for name, entry in chosen.items()}
    results = Results(own / "decodes.csv", [*systems], "test")
    lenient = [name for name, entry in chosen.items() if not entry.exact]
    runs = in_turns(base, systems, study.sources, results, lenient, time.process_time)
    hindsight = OracleDrafter(heads.lattice_source(), runs[GREEDY].tokens)  # by numbers of rows: all are one batch
    oracle = passes_of(decode(base, study.sources, (lambda: hindsight, EXACT), MAX_NEW, len(study.sources)))
    if oracle.tokens != runs[GREEDY].tokens:
        raise ValueError(f"{ORACLE}: expected greedy decoding's texts, got others")
    counts = counted(runs | {ORACLE: SystemRun(ORACLE, oracle.tokens, [], oracle.passes)})
    common.write_csv(args.results / COUNTS, counts, digits=1)
    quality = {name: bleu(study, runs[name].tokens, study.references) for name in (GREEDY, *lenient)}
    rows: list[dict[str, Any]] = []
    for name, entry in [*chosen.items(), (ORACLE, Entry(KIM, lambda: greedy))]:
        row = {"of": entry.of, "system": name, "setting": spelled(settings.get(name, {})), "exact": int(entry.exact)}
        rows.append(row | common.with_ends("BLEU", quality[GREEDY if entry.exact else name]))
    common.write_csv(args.results / QUALITY, rows)


def counted(runs: Mapping[str, SystemRun]) -> list[dict[str, Any]]:
    """Tokens, passes and milliseconds, a line a sentence each, a column a system."""
    rows = list[dict[str, Any]]()
    for text in range(len(runs[GREEDY].tokens)):
        tokens = {name: len(each.tokens[text]) for name, each in runs.items()}
        passes = {name: each.passes[text] for name, each in runs.items()}
        ms = {name: 1e3 * each.seconds[text] if each.seconds else "" for name, each in runs.items()}
        cells: dict[str, dict[str, Any]] = {"tokens": tokens, "passes": passes, "ms": ms}
        rows += [{"text": text, "what": what} | each for what, each in cells.items()]
    return rows


def lines_of(counts: Iterable[Mapping[str, str]], quality: Iterable[Mapping[str, str]]) -> list[dict[str, Any]]:
    """The table's lines, from the CSV files' rows: ratios of sums over all sentences, with intervals."""
    own, lines = common.grouped(counts, "what"), list[dict[str, Any]]()
    (greedy,) = common.columns(own["ms"], GREEDY)
    for row in quality:
        tokens, passes, ms = (common.columns(own[what], row["system"])[0] for what in ("tokens", "passes", "ms"))
        line: dict[str, Any] = {**row, "passes": passes.mean(), "tokens a second": 1e3 * tokens.sum() / ms.sum()}
        for name, above, below in (("tokens a pass", tokens, passes), ("over greedy", greedy, ms)):
            line |= common.with_ends(name, common.pooled(above, below))
        lines.append(line)
    return sorted(lines, key=lambda line: GROUPS.index(line["of"]))


def draw(results: Path) -> None:
    """The table on standard output, and the figure, from the CSV files alone."""
    lines = lines_of(common.read_csv(results / COUNTS), common.read_csv(results / QUALITY))
    cells = []
    for line in lines:
        exact, timed = int(line["exact"]) and line["system"] != GREEDY, np.isfinite(line["over greedy"])
        bleu = f"{float(line['BLEU']):.2f}" if exact else common.spread(line, "BLEU")
        clock = [f"{line['tokens a second']:.0f}", common.spread(line, "over greedy")] if timed else ["", ""]
        about = [line["of"], line["system"], line["setting"], bleu]
        cells.append([*about, float(line["passes"]), common.spread(line, "tokens a pass"), *clock])
    head = ("of", "system", "setting", "BLEU", "passes", "tokens a pass", "tokens a second", "over greedy")
    common.table("", head, cells)
    save_figure(results / "together.png", figure(lines))


@rc_context(STYLE)
def figure(lines: list[dict[str, Any]]) -> Figure:
    """Tokens a pass and speed of every system, with intervals; hollow: other texts than greedy decoding's."""
    drawn = Figure((9.6, 0.27 * len(lines) + 0.9), layout="constrained")
    panels, heights = drawn.subplots(1, 2, sharey=True), np.arange(len(lines))[::-1]
    colours = dict(zip(GROUPS, (each.light for each in (FAINT, *SERIES)), strict=True))
    titles = {"tokens a pass": "tokens a pass", "over greedy": "speed over greedy generate()"}
    for axes, (what, title) in zip(panels, titles.items(), strict=True):
        for height, line in zip(heights, lines, strict=True):
            value, low, high = common.interval_of(line, what)
            style = {"color": colours[line["of"]], "marker": "o", "linewidth": 1.4}
            style |= {} if int(line["exact"]) else {"markerfacecolor": "white"}
            axes.errorbar([value], [height], xerr=[[value - low], [high - value]], **style)
        axes.axvline(1, color=INK.light, linewidth=0.8)
        axes.set(title=title, ylim=(-0.7, len(lines) - 0.3))
    panels[0].set_yticks(heights, [f"{line['of']}: {line['system']}" for line in lines], fontsize=8.5)
    for label, line in zip(panels[0].get_yticklabels(), lines, strict=True):
        label.set_color(colours[line["of"]])
    return drawn


def main() -> None:
    parser = common.options(__doc__)
    translator_options(parser, required=False)
    drafter_options(parser, ["paper", "all changes"])  # draft trees are of the last one's lattices
    study_options(parser)
    arguments = parser.parse_args()
    common.set_up()
    if has_work(arguments):
        common.claim(arguments.work, arguments, MADE_WITH)
        common.claim(arguments.work / "together", arguments, "test limit runs k head_updates width tuned calibrated")
        measure(Study(arguments))
    draw(arguments.results)


if __name__ == "__main__":
    common.run(main)
