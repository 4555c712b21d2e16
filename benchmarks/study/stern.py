"""Blockwise parallel decoding of a small translator (Stern 2018, tables 1 and 4, figure 4).

    python -m benchmarks.study.stern --work WORK --train multi30k-train.jsonl --validation multi30k-val.jsonl \
        --test multi30k-test_2016_flickr.jsonl                     # from scratch; the same command resumes
    python -m benchmarks.study.stern                              # tables and figure again, from results/*.csv
    python -m benchmarks.study.stern --sweep ...                  # learning rates and updates of fine-tuning

*Regular*: the teacher of `gad_recipe.py`, frozen, and heads that learn human translations.  *Distilled*: the teacher
trained further on its own beam search's text, frozen, and heads that learn that text.  *Fine-tuned* and *both*: the
same, base model and heads together by the joint loss, in which each of k predictions counts alike, once for every k;
heads start as the frozen model's.  *Both, ours*: the base model's loss counts as much as those of all heads together.
Frozen heads do not depend on each other, so those of one run serve every k.  Exact acceptance must write
`generate()`'s texts; the program stops where it does not.  WORK may hold teacher, verifier and their text already,
copied from `gad_recipe.py`'s.
"""

from __future__ import annotations

import argparse
import shutil
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import islice, product
from pathlib import Path
from typing import Any

import torch
from matplotlib import rc_context
from matplotlib.figure import Figure
from tokenizers import Tokenizer

from benchmarks import common, decodes
from benchmarks.gad_recipe import cut, read, taught, teacher_of, translator_options
from latticebpd import BlockwiseLM, Drafter, Exact, Loaded, MinimumBlock, NoDrafter, TopK, drafter_named, load
from latticebpd.drafters.heads.blockwise import load_blockwise, new_heads
from latticebpd.lattices.texts import Texts
from latticebpd.models.weight_kinds import TORCH
from latticebpd.report.theme import SERIES, STYLE
from latticebpd.scoring.calibration import calibration_path
from latticebpd.scoring.rescoring import calibrated_scorer
from lm_training.data.pairs import encode_pairs, read_pairs, save_tokenizer
from lm_training.data.sequences import load_texts
from lm_training.families.heads import train_heads
from lm_training.families.translators import load_translator
from lm_training.training.training_options import HeadTraining

MAX_NEW = 96
RULES: dict[str, Any] = {
    "exact": Exact(), "top-2": TopK(2), "top-3": TopK(3), "at least 2": MinimumBlock(2), "at least 3": MinimumBlock(3),
}  # fmt: skip
OURS = "both, ours"
SETTINGS = ("regular", "distilled", "fine-tuned", "both", OURS)
"""As table 1 has them, and one more; they are made in the order of the next line."""
BASES = {"regular": teacher_of, "fine-tuned": teacher_of, "distilled": taught, "both": taught, OURS: taught}
STARTS = {"fine-tuned": "regular", "both": "distilled", OURS: "distilled"}
"""The setting whose heads a fine-tuned one starts from."""
OBJECTIVES = {"fine-tuned": "joint", "both": "joint", OURS: "position"}
ALPHAS = (0.25, 0.5, 1.0, 2.0)
"""Widened while the best is at an end."""
NODES = (8, 16)
TABLE, SPEED, SWEEP = "stern.csv", "stern-speed.csv", "stern-sweep.csv"
BASE_RATE = 3e-4
"""Peak rate of a fine-tuned base model; its heads' is 1e-3."""
SWEPT = ((3e-5, 100), (3e-4, 100), (3e-5, 400), (1e-4, 400), (3e-4, 400), (1e-3, 400))
"""Rates and updates of *both* at the largest k: what does the joint loss cost because of them?"""
PAPER = {
    "regular": {2: (25.81, 1.51), 4: (25.84, 1.73), 6: (26.08, 1.76), 8: (25.82, 1.76), 10: (25.69, 1.74)},
    "distilled": {2: (26.52, 1.55), 4: (26.31, 1.85), 6: (26.26, 1.90), 8: (26.25, 1.91), 10: (26.34, 1.90)},
    "fine-tuned": {2: (25.74, 1.78), 4: (25.05, 2.69), 6: (24.69, 2.98), 8: (24.27, 3.01), 10: (23.51, 2.87)},
    "both": {2: (26.58, 1.88), 4: (26.36, 3.27), 6: (26.18, 4.18), 8: (26.11, 4.69), 10: (25.60, 4.95)},
}
"""BLEU and mean accepted block size by k."""


class Study:
    """Texts, references and the directory of everything; models are made when they are first asked for."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.arguments, self.work = arguments, arguments.work
        self.tokenizer = Tokenizer.from_file(str(teacher_of(arguments) / "tokenizer.json"))
        self.sources, self.references = read(arguments, self.tokenizer, arguments.test, arguments.limit)
        self.held_out, self.held_out_references = read(arguments, self.tokenizer, arguments.validation, arguments.tuned)
        self.decoded = decodes.Decodes(self.work / "decodes", self.sources, MAX_NEW)

    def data(self, setting: str) -> list[Texts]:
        """Text to learn, and held-out text: the teacher's own, or human translations of the same sources."""
        args = self.arguments
        if BASES[setting] is taught:
            return [load_texts(self.work / name, 0) for name in ("written", "written-val")]
        files = (args.train, args.written), (args.validation, None)
        pairs = (islice(read_pairs([path], args.source, args.target), limit) for path, limit in files)
        return [encode_pairs(each, self.tokenizer) for each in pairs]

    def heads(self, setting: str, k: int, rate: float = BASE_RATE, updates: int | None = None) -> Path:
        """The directory of a setting's model with heads, made if they are missing; frozen ones in one run for all k.

        rate, updates: of a fine-tuned base model, where they are not those of the table.
        """
        frozen, args = setting not in STARTS, self.arguments
        directory = self.work / (f"heads-{setting}" if frozen else f"heads-{common.slug(setting)}-{k}")
        if not frozen and (rate, updates or args.tuning_updates) != (BASE_RATE, args.tuning_updates):
            directory = directory.with_name(f"{directory.name}-{rate:g}-{updates or args.tuning_updates}")

        def make() -> None:
            base = load_translator(BASES[setting](args))
            start = None if frozen else load_blockwise(self.heads(STARTS[setting], k)).heads
            torch.manual_seed(0)
            if start is None:
                heads, steps = new_heads(base, "feed-forward", max(args.k), args.width), args.head_updates
                chosen: dict[str, Any] = {"learning_rate": 2e-3}
            else:
                heads, steps = decodes.fewer_heads(start, k), updates or args.tuning_updates
                chosen = {"fine_tune": True, "base_learning_rate": rate, "objective": OBJECTIVES[setting]}
            save_tokenizer(self.tokenizer, directory)
            chosen |= {"warmup_steps": 20, "validation_every": steps, "serving_prompts": 0}
            train_heads(BlockwiseLM(base, heads), *self.data(setting), directory, HeadTraining(steps=steps, **chosen))

        common.stage(directory / "latticebpd/heads.json", make)
        return directory

    def model(self, setting: str, k: int, rate: float = BASE_RATE, updates: int | None = None) -> Loaded:
        """The model with heads of a setting; arguments as for `heads`."""
        return load(self.heads(setting, k, rate, updates), weights=TORCH)

    def ngram(self) -> Path:
        """A Katz 4-gram of the distilled text, made if it is missing."""
        lm, texts, teacher = (self.work / name for name in ("written.fst", "written", "teacher"))
        settings = ("--tokenizer", teacher / "tokenizer.json", "--order 4 --min-count 1 -o", lm)
        return common.stage(lm, lambda: common.latticebpd("lm", "train", texts, *settings))

    def calibrated(self, setting: str, k: int) -> Path:
        """The 4-gram, and next to it a calibration from lattices of a setting's heads, of validation sources."""
        directory, count = self.work / f"calibrated-{common.slug(setting)}-{k}", self.arguments.calibrated
        lm, lattices = directory / "written.fst", directory / "lattices"

        def make() -> None:
            heads = self.heads(setting, k)
            directory.mkdir(exist_ok=True)
            shutil.copyfile(self.ngram(), lm)
            prompts = ("--prompts", self.work / "written-val-sources.npz", f"--limit {count}")
            sizes = f"--context {MAX_NEW + 8} --max-new-tokens {MAX_NEW} -o"
            common.latticebpd("lattices", *prompts, "--model", heads, sizes, lattices)
            common.latticebpd("calibrate", lattices, "--lm", lm, f"--examples {count} --write")

        common.stage(calibration_path(lm), make)
        return lm

    def greedy(self, name: str, model: Any) -> list[list[int]]:
        """`generate()`'s texts."""
        path = self.work / "decodes" / f"generate-{common.slug(name)}.json"
        return common.stored(path, lambda: decodes.decode(model, self.sources, {}, MAX_NEW).rows)

    def row(self, setting: str, k: int, rule: str, decoded: decodes.Decoded) -> dict[str, Any]:
        texts = [self.tokenizer.decode(row).strip() for row in decoded.rows]
        return {"setting": setting, "k": k, "rule": rule} | decodes.counts_row(decoded, texts, self.references)


def measure(study: Study) -> None:
    """Every setting, block size and rule; the CSV file grows by a setting at a time."""
    args, rows = study.arguments, []
    for setting in BASES:
        frozen = setting not in STARTS
        if frozen:
            base = load(BASES[setting](args), weights=TORCH).target
            rows.append(study.row(setting, 1, "greedy", study.decoded(f"{setting}-1", base, NoDrafter, Exact())))
        for k in args.k if frozen else args.tuned_k:
            model = study.model(setting, k)
            wanted = study.greedy(setting if frozen else f"{setting}-{k}", model.target)
            for rule, acceptance in RULES.items():
                if (rule != "exact" and frozen) or (rule.startswith("at least") and k < int(rule[-1])):
                    continue
                drafter, name = decodes.vanilla(model, k), f"{setting}-{k}-{rule}"
                decoded = study.decoded(name, model.target, drafter, acceptance, wanted)
                rows.append(study.row(setting, k, rule, decoded))
        if BASES[setting] is taught:
            rows += trees(study, setting, wanted)
        common.write_csv(args.results / TABLE, rows)
    common.write_csv(args.results / SPEED, speeds(study))


def sweep(study: Study) -> None:
    """*Both* at the largest k with other rates and updates, and its frozen start."""
    k, rows = max(study.arguments.tuned_k), []
    for rate, updates in ((0.0, 0), *SWEPT):
        model = study.model("both", k, rate, updates) if updates else study.model(STARTS["both"], k)
        name = f"sweep-{rate:g}-{updates}"
        wanted = study.greedy(name, model.target)
        decoded = study.decoded(name, model.target, decodes.vanilla(model, k), Exact(), wanted)
        rows.append({"rate": f"{rate:g}", "updates": updates} | study.row("both", k, "exact", decoded))
        common.write_csv(study.arguments.results / SWEEP, rows)


def swept(rows: Sequence[Mapping[str, str]]) -> list[list[str]]:
    """Rates and updates, then BLEU and mean accepted block size with their intervals, from `sweep`'s rows."""
    return [[row["rate"], row["updates"], *quality(decodes.measures_of(row))] for row in rows]


def quality(row: Mapping[str, float]) -> list[str]:
    """BLEU and mean accepted block size, with their intervals."""
    return [common.spread(row, name) for name in ("BLEU", "accepted")]


def measures(rows: Sequence[Mapping[str, str]]) -> dict[tuple[str, int, str], dict[str, Any]]:
    """Of every setting, k and rule: mean accepted block size and BLEU, with intervals over sentences."""
    return {(row["setting"], int(row["k"]), row["rule"]): decodes.measures_of(row) for row in rows}


def trees(study: Study, setting: str, wanted: list[list[int]]) -> list[dict[str, Any]]:
    """Trees of the largest k's heads: alone, with a 4-gram of the distilled text at a tuned weight, calibrated."""
    k = max(study.arguments.tuned_k if setting in STARTS else study.arguments.k)
    model, rows, lm = study.model(setting, k), [], study.ngram()
    lattices, calibrated = model.lattice_source(), calibrated_scorer(study.calibrated(setting, k))

    def tuned(nodes: int) -> dict[str, Any]:
        efficiencies, alphas = dict[float, float](), ALPHAS
        while new := [alpha for alpha in alphas if alpha not in efficiencies]:
            for alpha in new:
                system = partial(drafter_named, f"{nodes}-tree", lattices, lm, alpha), Exact()
                run = decodes.decode(model.target, study.held_out, system, MAX_NEW)
                efficiencies[alpha] = sum(run.tokens) / sum(run.calls)
            alphas = decodes.widened(efficiencies)
        return {"alpha": decodes.most(efficiencies), "tokens a call": efficiencies}

    for nodes in NODES:
        note = study.work / "decodes" / f"alpha-{common.slug(setting)}-{nodes}.json"
        alpha = common.stored(note, partial(tuned, nodes))["alpha"]
        drafters: dict[str, Callable[[], Drafter]] = {
            "0-gram": partial(drafter_named, f"{nodes}-tree:0-gram", lattices),
            "4-gram": partial(drafter_named, f"{nodes}-tree", lattices, lm, alpha),
            "calibrated": partial(drafter_named, f"{nodes}-calibrated", lattices, calibrated),
        }
        for name, drafter in drafters.items():
            decoded = study.decoded(f"{setting}-{k}-{nodes}-tree-{name}", model.target, drafter, Exact(), wanted)
            rows.append(study.row(setting, k, f"{nodes}-node tree, {name}", decoded))
    return rows


def speeds(study: Study) -> list[dict[str, Any]]:
    """CPU time a token over greedy decoding's by the same loop, one sentence at a time, systems in turns (figure 4)."""
    path, args = study.work / "decodes" / "speeds.json", study.arguments
    systems: dict[str, Any] = {"greedy": (load(taught(args), weights=TORCH).target, (NoDrafter, Exact()))}
    for setting, sizes in (("distilled", args.k), ("both", args.tuned_k), (OURS, args.tuned_k)):
        for k in sizes:
            model = study.model(setting, k)
            systems[f"{setting}, k = {k}"] = model.target, (decodes.vanilla(model, k), Exact())
    return decodes.speed_rows(path, systems, study.sources[: args.timed], MAX_NEW)


def draw(results: Path) -> None:
    """Table 1's form on standard output, and the figure, from the CSV files alone."""
    cell = measures(common.read_csv(results / TABLE))
    sizes = sorted({k for _, k, _ in cell})
    columns = [each for each in product(SETTINGS, RULES) if any((each[0], k, each[1]) in cell for k in sizes)]
    lines = []
    for k in sizes:
        rows = [cell.get((setting, k, rule if k > 1 else "greedy")) for setting, rule in columns]
        cells = [f"{row['BLEU']:.2f} / {row['accepted']:.2f}" if row is not None else "" for row in rows]
        lines.append([k, *cells])
    common.table("BLEU / mean accepted block size", ["k", *map(", ".join, columns)], lines)
    shown = {key: row for key, row in cell.items() if "tree" in key[2] or key[2] in ("exact", "greedy")}
    head = ("setting", "k", "drafts", "BLEU", "mean accepted block size")
    common.table("", head, [[*key, *quality(row)] for key, row in shown.items()])
    if (results / SPEED).exists():
        decodes.speed_table(common.read_csv(results / SPEED))
    decodes.save_figure(results / "stern.png", figure(cell, sizes))


@rc_context(STYLE)
def figure(cell: Mapping[tuple[str, int, str], Mapping[str, float]], sizes: Sequence[int]) -> Figure:
    """Mean accepted block size by k, BLEU by k; the paper's dotted."""
    drawn = Figure((7.4, 3.8), layout="constrained")
    accepted, bleu = drawn.subplots(1, 2)
    for number, setting in enumerate(SETTINGS):
        points = {k: cell[setting, k, "exact"] for k in sizes if (setting, k, "exact") in cell}
        if points:
            values = (common.interval_of(row, "accepted") for row in points.values())
            decodes.draw_band(accepted, [*points], values, setting, number)
            theirs = {k: pair[1] for k, pair in PAPER.get(setting, {}).items()}
            accepted.plot([*theirs], [*theirs.values()], ":", color=SERIES[number].light, linewidth=1.1)
            bleu.plot([*points], [row["BLEU"] for row in points.values()], label=setting, **decodes.style_of(number))
    accepted.set(title="dotted: the paper's", ylabel="mean accepted block size")
    bleu.set(title="BLEU")
    for axes in (accepted, bleu):
        axes.set(xlabel="block size k", xticks=sizes)
    accepted.legend(fontsize=8)
    return drawn


def study_options(parser: argparse.ArgumentParser) -> None:
    """What a `Study` needs of its heads, of what is tuned, and where results go."""
    parser.add_argument("--results", type=Path, default=decodes.RESULTS, help="directory of CSV files and figure")
    parser.add_argument("--k", type=int, nargs="+", default=[2, 4, 6, 8, 10], help="block sizes, head 1 included")
    parser.add_argument("--head-updates", type=int, default=600, help="of heads on a frozen model, 32 sentences each")
    parser.add_argument("--width", type=int, default=256, help="of a head's hidden layer")
    parser.add_argument("--tuned", type=int, default=100, help="validation sentences that systems are tuned on")
    about = "validation sources that calibrated trees' weights are fitted to"
    parser.add_argument("--calibrated", type=int, default=400, help=about)


def has_work(arguments: argparse.Namespace) -> bool:
    """Whether there is more to do than to show results; ValueError where texts for it are missing."""
    if arguments.work is not None and None in (arguments.train, arguments.validation, arguments.test):
        raise ValueError("expected --train, --validation and --test with --work")
    return arguments.work is not None


def main() -> None:
    parser = common.options(__doc__)
    translator_options(parser, required=False)
    parser.set_defaults(teacher_updates=1800, verifier_updates=400, written=12000)
    study_options(parser)
    about = "those with a fine-tuned base model"
    parser.add_argument("--tuned-k", type=int, nargs="+", default=[2, 4, 6, 8, 10], help=about)
    parser.add_argument("--sweep", action="store_true", help="fine-tune with other rates and updates instead")
    parser.add_argument("--held-out", type=int, default=400, help="number of validation sentences translated anew")
    parser.add_argument("--tuning-updates", type=int, default=400, help="of base model and heads together, for every k")
    parser.add_argument("--timed", type=int, default=60, help="test sentences that are timed")
    arguments = parser.parse_args()
    common.set_up()
    if has_work(arguments):
        names = vars(arguments).keys() - {"work", "results", "tuned_k", "sweep"}
        common.claim(arguments.work, arguments, " ".join(sorted(names)))
        fewer = arguments.work / "validation.jsonl"
        common.stage(fewer, lambda: cut(arguments.validation, fewer, arguments.held_out))
        arguments.validation, arguments.updates = fewer, arguments.teacher_updates
        study = Study(arguments)
        sweep(study) if arguments.sweep else measure(study)
    if arguments.sweep:
        head = ("base model's rate", "updates", "BLEU", "mean accepted block size")
        print(common.markdown(head, swept(common.read_csv(arguments.results / SWEEP))))
    else:
        draw(arguments.results)


if __name__ == "__main__":
    common.run(main)
