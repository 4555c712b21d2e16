"""Blockwise parallel decoding of a small translator (Stern 2018, tables 1 and 4, figure 4).

    python -m benchmarks.study.stern --work WORK --train multi30k-train.jsonl --validation multi30k-val.jsonl \
        --test multi30k-test_2016_flickr.jsonl                     # from scratch; the same command goes on
    python -m benchmarks.study.stern                              # tables and figure again, from results/*.csv

*Regular*: the teacher of `gad_recipe.py`, frozen, and heads that learn people's translations.  *Distilled*: the teacher taught further
on its own beam search's text, frozen, and heads that learn that text.  *Fine-tuned* and *both*: the same, base model and heads learning
together by the joint loss, in which each of k predictions counts alike, once for every k; heads begin as the frozen model's.  *Both, ours*:
the base model's loss counts as much as those of all heads together.  Frozen heads do not depend on each other, so those of one
run serve every k.  Exact acceptance must write `generate()`'s texts; the program stops where it does not.  WORK may hold teacher,
verifier and their text already, copied from `gad_recipe.py`'s.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import sacrebleu
import torch
import transformers
from matplotlib import rc_context
from matplotlib.figure import Figure
from tokenizers import Tokenizer

from benchmarks.gad_recipe import cut, taught, teacher_of
from benchmarks.resuming import latticebpd, slug
from benchmarks.study.measuring import (
    RESULTS,
    Decoded,
    claim,
    decode,
    ended,
    fewer_heads,
    most,
    read_csv,
    speed_rows,
    speed_table,
    spread,
    stage,
    timed,
    widened,
    write_csv,
)
from fst.files import replacing
from latticebpd import BlockwiseLM, Exact, MinimumBlock, NoDrafter, TopK, TreeDrafter, VanillaDrafter, drafter_named
from latticebpd.drafters import HeadLattices
from latticebpd.drafters.heads.blockwise import new_heads
from latticebpd.lattices.texts import Texts
from latticebpd.report.theme import FAINT, MARKERS, SERIES, STYLE, png
from latticebpd.scoring.calibration import calibration_path
from latticebpd.scoring.rescoring import calibrated_scorer
from lm_training.data.loading import load_texts
from lm_training.data.pairs import encode_pairs, read_pairs, save_tokenizer
from lm_training.families.heads import train_heads
from lm_training.families.translators import load_translator
from lm_training.training.training_options import HeadTraining

MAX_NEW = 96
EXACT: dict[str, Any] = {"exact": Exact()}
LENIENT: dict[str, Any] = {
    "top-2": TopK(2),
    "top-3": TopK(3),
    "at least 2": MinimumBlock(2),
    "at least 3": MinimumBlock(3),
}
OURS = "both, ours"
SETTINGS = ("regular", "distilled", "fine-tuned", "both", OURS)
"""As table 1 has them, and one more; they are made in the order of the next line."""
BASES = {"regular": teacher_of, "fine-tuned": teacher_of, "distilled": taught, "both": taught, OURS: taught}
BEGUN = {"fine-tuned": "regular", "both": "distilled", OURS: "distilled"}
OBJECTIVES = {"fine-tuned": "joint", "both": "joint", OURS: "position"}
ALPHAS = (0.25, 0.5, 1.0, 2.0)
"""Widened while the best is at an end."""
NODES = (8, 16)
TABLE, SPEED = "stern.csv", "stern-speed.csv"
PAPER = {
    "regular": {2: (25.81, 1.51), 4: (25.84, 1.73), 6: (26.08, 1.76), 8: (25.82, 1.76), 10: (25.69, 1.74)},
    "distilled": {2: (26.52, 1.55), 4: (26.31, 1.85), 6: (26.26, 1.90), 8: (26.25, 1.91), 10: (26.34, 1.90)},
    "fine-tuned": {2: (25.74, 1.78), 4: (25.05, 2.69), 6: (24.69, 2.98), 8: (24.27, 3.01), 10: (23.51, 2.87)},
    "both": {2: (26.58, 1.88), 4: (26.36, 3.27), 6: (26.18, 4.18), 8: (26.11, 4.69), 10: (25.60, 4.95)},
}


class Study:
    """Texts, references and where everything is kept; models are made when they are first asked for."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.arguments, self.work = arguments, arguments.work
        self.tokenizer = Tokenizer.from_file(str(teacher_of(arguments) / "tokenizer.json"))
        self.sources, self.references = self.read(arguments.test, arguments.limit)
        self.held_out, self.held_out_references = self.read(arguments.validation, arguments.tuned)

    def read(self, path: Path, limit: int | None) -> tuple[list[list[int]], list[str]]:
        """Sources as tokens, references as text."""
        lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()][:limit]
        ids = [encoded.ids for encoded in self.tokenizer.encode_batch([line[self.arguments.source] for line in lines])]
        return ids, [line[self.arguments.target] for line in lines]

    def base(self, setting: str) -> Path:
        """Of the base model, made if it is not there."""
        return BASES[setting](self.arguments)

    def data(self, setting: str) -> list[Texts]:
        """What is learnt, and held-out text: the base model's teacher's own, or people's translations of the same sources."""
        given = self.arguments
        if BASES[setting] is taught:
            return [load_texts(self.work / name, 0) for name in ("written", "written-val")]
        chosen = ((given.train, given.written), (given.validation, None))
        return [
            encode_pairs(islice(read_pairs([path], given.source, given.target), limit), self.tokenizer)
            for path, limit in chosen
        ]

    def heads(self, setting: str, k: int) -> Path:
        """Where the heads of a setting are kept."""
        return self.work / (f"heads-{slug(setting)}-{k}" if setting in BEGUN else f"heads-{setting}")

    def model(self, setting: str, k: int) -> BlockwiseLM:
        """The heads of a setting, made if they are not there; frozen ones in one run for all k."""
        frozen, given, directory = setting not in BEGUN, self.arguments, self.heads(setting, k)

        def make() -> None:
            base = load_translator(self.base(setting))
            begun = None if frozen else self.model(BEGUN[setting], k).heads
            torch.manual_seed(0)
            heads = (
                new_heads(base, "feed-forward", max(given.k), given.width) if begun is None else fewer_heads(begun, k)
            )
            tuning = {"fine_tune": True, "base_learning_rate": 3e-4}
            chosen: dict[str, Any] = {"learning_rate": 2e-3} if frozen else tuning | {"objective": OBJECTIVES[setting]}
            steps = given.head_updates if frozen else given.tuning_updates
            save_tokenizer(self.tokenizer, directory)
            options = HeadTraining(steps=steps, warmup_steps=20, validation_every=steps, serving_prompts=0, **chosen)
            train_heads(BlockwiseLM(base, heads), *self.data(setting), directory, options)

        stage(directory / "heads.json", make)
        return BlockwiseLM.from_pretrained(directory)

    def ngram(self) -> Path:
        """A Katz 4-gram of the distilled text, made if it is not there."""
        lm = self.work / "written.fst"
        return stage(
            lm, lambda: latticebpd("lm", "train", self.work / "written.npy", "--order", 4, "--min-count", 1, "-o", lm)
        )

    def calibrated(self, setting: str, k: int) -> Path:
        """The 4-gram, with a calibration beside it that lattices of a setting's heads, of validation sources, gave."""
        directory, count = self.work / f"calibrated-{slug(setting)}-{k}", self.arguments.calibrated
        lm, lattices = directory / "written.fst", directory / "lattices"

        def make() -> None:
            self.model(setting, k)
            directory.mkdir(exist_ok=True)
            shutil.copyfile(self.ngram(), lm)
            prompts = ("--prompts", self.work / "written-val-sources.npz", "--limit", count)
            model = ("--model", self.heads(setting, k), "--context", MAX_NEW + 8, "--max-new-tokens", MAX_NEW)
            latticebpd("lattices", *prompts, *model, "-o", lattices)
            latticebpd("calibrate", lattices, "--lm", lm, "--examples", count, "--write")

        stage(calibration_path(lm), make)
        return lm

    def decoded(self, name: str, model: Any, drafter: Any, rule: Any) -> Decoded:
        path = self.work / "decodes" / f"{slug(name)}.json"
        stage(path, lambda: decode(model, self.sources, drafter(), rule, MAX_NEW).save(path))
        return Decoded.load(path)

    def greedy(self, name: str, model: Any) -> list[list[int]]:
        """`generate()`'s texts."""
        path = self.work / "decodes" / f"generate-{slug(name)}.json"
        stage(path, lambda: path.write_text(json.dumps(stock(model, self.sources))))
        rows: list[list[int]] = json.loads(path.read_text())
        return rows

    def bleu(self, rows: list[list[int]], references: list[str] | None = None) -> tuple[float, float, float]:
        """BLEU and its bootstrap interval of 95 %; of test sentences, where no other references are given."""
        texts = [self.tokenizer.decode(row).strip() for row in rows]
        score: Any = sacrebleu.BLEU().corpus_score(texts, [references or self.references], n_bootstrap=1000)
        return score.score, score._mean - score._ci, score._mean + score._ci

    def row(self, setting: str, k: int, rule: str, run: Decoded) -> dict[str, Any]:
        accepted = run.accepted if sum(run.calls) and rule != "greedy" else (1.0, 1.0, 1.0)
        named = {"accepted": accepted, "BLEU": self.bleu(run.rows)}
        ends = ("", " low", " high")
        return {"setting": setting, "k": k, "rule": rule} | {
            f"{name}{end}": value for name, values in named.items() for end, value in zip(ends, values, strict=True)
        }


def stock(model: Any, sources: list[list[int]], rows: int = 50, **options: Any) -> list[list[int]]:
    """What `transformers` writes."""
    found, pad, end = [], model.config.pad_token_id, model.config.eos_token_id
    for first in range(0, len(sources), rows):
        part = sources[first : first + rows]
        width = max(map(len, part))
        ids = torch.tensor([[*source, *[pad] * (width - len(source))] for source in part])
        mask = torch.tensor([[1] * len(source) + [0] * (width - len(source)) for source in part])
        out = model.generate(
            ids, attention_mask=mask, do_sample=False, max_new_tokens=MAX_NEW, **{"num_beams": 1, **options}
        )
        found += [ended(row, end) for row in out[:, 1:].tolist()]
    return found


def measure(study: Study) -> None:
    """Every setting, block size and rule; the CSV file grows by a setting at a time."""
    given, rows = study.arguments, []
    for setting in BASES:
        frozen = setting not in BEGUN
        if frozen:
            model = load_translator(study.base(setting)).eval()
            rows.append(study.row(setting, 1, "greedy", study.decoded(f"{setting}-1", model, NoDrafter, Exact())))
        for k in given.k if frozen else given.tuned_k:
            model = study.model(setting, k)
            wanted = study.greedy(setting if frozen else f"{setting}-{k}", model.base)
            for rule, acceptance in {**EXACT, **({} if frozen else LENIENT)}.items():
                if rule.startswith("at least") and k < int(rule[-1]):
                    continue
                run = study.decoded(
                    f"{setting}-{k}-{rule}", model, lambda model=model, k=k: VanillaDrafter(model, k - 1), acceptance
                )
                if rule == "exact" and run.rows != wanted:
                    raise ValueError(f"{setting}, k = {k}: expected generate()'s texts, got others")
                rows.append(study.row(setting, k, rule, run))
        if BASES[setting] is taught:
            rows += trees(study, setting, wanted)
        write_csv(given.results / TABLE, rows)
    write_csv(given.results / SPEED, speeds(study))


def trees(study: Study, setting: str, wanted: list[list[int]]) -> list[dict[str, Any]]:
    """Trees of the largest k's heads: alone, with a 4-gram of the distilled text (its weight tuned on validation sources), calibrated."""
    k = max(study.arguments.tuned_k if setting in BEGUN else study.arguments.k)
    model, rows, lm, calibrated = study.model(setting, k), [], study.ngram(), study.calibrated(setting, k)
    for nodes in NODES:
        note = study.work / "decodes" / f"alpha-{slug(setting)}-{nodes}.json"

        def tune(nodes: int = nodes, note: Path = note) -> None:
            found, alphas = dict[float, float](), ALPHAS
            while new := [alpha for alpha in alphas if alpha not in found]:
                for alpha in new:
                    run = decode(model, study.held_out, TreeDrafter(model, lm, nodes, alpha), Exact(), MAX_NEW)
                    found[alpha] = sum(run.tokens) / sum(run.calls)
                alphas = widened(found)
            with replacing(note) as temporary:
                temporary.write_text(json.dumps({"alpha": most(found), "tokens a call": found}), encoding="utf-8")

        alpha = json.loads(stage(note, tune).read_text())["alpha"]
        drafters = {
            "0-gram": lambda nodes=nodes: TreeDrafter(model, None, nodes),
            "4-gram": lambda nodes=nodes, alpha=alpha: TreeDrafter(model, lm, nodes, alpha),
            "calibrated": lambda nodes=nodes: drafter_named(
                f"{nodes}-calibrated", HeadLattices(model), calibrated_scorer(calibrated)
            ),
        }
        for name, drafter in drafters.items():
            run = study.decoded(f"{setting}-{k}-{nodes}-tree-{name}", model, drafter, Exact())
            if run.rows != wanted:
                raise ValueError(f"{setting}, tree of {nodes} nodes, {name}: expected generate()'s texts, got others")
            rows.append(study.row(setting, k, f"{nodes}-node tree, {name}", run))
    return rows


def speeds(study: Study) -> list[dict[str, Any]]:
    """Processor time a token over greedy decoding's by the same loop, one sentence at a time, systems in turns (figure 4)."""
    path, given = study.work / "decodes" / "speeds.json", study.arguments

    def clock() -> None:
        rule = Exact()
        systems: dict[str, Any] = {"greedy": (load_translator(study.base("distilled")).eval(), NoDrafter(), rule)}
        for setting, sizes in (("distilled", given.k), ("both", given.tuned_k), (OURS, given.tuned_k)):
            models = {k: study.model(setting, k) for k in sizes}
            systems |= {
                f"{setting}, k = {k}": (model, VanillaDrafter(model, k - 1), rule) for k, model in models.items()
            }
        timed(path, systems, study.sources[: given.timed], MAX_NEW)

    return speed_rows(stage(path, clock))


def draw(results: Path) -> None:
    """Table 1's form on standard output, and the figure, from the CSV files alone."""
    rows = read_csv(results / TABLE)
    cell = {(row["setting"], int(row["k"]), row["rule"]): row for row in rows}
    sizes = sorted({k for _, k, _ in cell})
    columns = [
        (setting, rule)
        for setting in SETTINGS
        for rule in ("exact", *LENIENT)
        if any((setting, k, rule) in cell for k in sizes)
    ]
    print(
        f"\nBLEU / mean accepted block size\n\n| k | {' | '.join(f'{setting}, {rule}' for setting, rule in columns)} |"
    )
    print("|---" * (len(columns) + 1) + "|")
    for k in sizes:
        found = [cell.get((setting, k, rule if k > 1 else "greedy")) for setting, rule in columns]
        print(f"| {k} | {' | '.join('' if row is None else both(row) for row in found)} |")
    print("\n| setting | k | drafts | BLEU | mean accepted block size |\n|---|---|---|---|---|")
    for row in rows:
        if "tree" in row["rule"] or row["rule"] in ("exact", "greedy"):
            print(
                f"| {row['setting']} | {row['k']} | {row['rule']} | {spread(row, 'BLEU')} | {spread(row, 'accepted')} |"
            )
    speed = read_csv(results / SPEED) if (results / SPEED).exists() else []
    if speed:
        speed_table(speed)
    with replacing(results / "stern.png") as temporary:
        temporary.write_bytes(png(figure(cell, sizes, speed)))


def both(row: dict[str, str]) -> str:
    return f"{float(row['BLEU']):.2f} / {float(row['accepted']):.2f}"


def figure(cell: dict[tuple[str, int, str], dict[str, str]], sizes: list[int], speed: list[dict[str, str]]) -> Figure:
    """Mean accepted block size by k, BLEU by k, speed by mean accepted block size; the paper's dotted."""
    with rc_context(STYLE):
        drawn = Figure((11 if speed else 7.4, 3.8), layout="constrained")
        panels = drawn.subplots(1, 3 if speed else 2)
        accepted, bleu = panels[:2]
        for number, setting in enumerate(SETTINGS):
            found = [cell[setting, k, "exact"] for k in sizes if (setting, k, "exact") in cell]
            if not found:
                continue
            own, style = [int(row["k"]) for row in found], {"color": SERIES[number].light, "marker": MARKERS[number]}
            for axes, what, place in ((accepted, "accepted", 1), (bleu, "BLEU", 0)):
                values, low, high = ([float(row[f"{what}{end}"]) for row in found] for end in ("", " low", " high"))
                axes.plot(own, values, label=setting, **style)
                if what == "accepted":
                    axes.fill_between(own, low, high, color=style["color"], alpha=0.15, linewidth=0)
                    theirs = PAPER.get(setting, {})
                    axes.plot(
                        [*theirs], [pair[place] for pair in theirs.values()], ":", color=style["color"], linewidth=1.1
                    )
        accepted.set(
            title="dotted: the paper's", xlabel="block size k", ylabel="mean accepted block size", xticks=sizes
        )
        bleu.set(title="BLEU", xlabel="block size k", xticks=sizes)
        accepted.legend(fontsize=8)
        if speed:
            draw_speed(panels[2], speed)
    return drawn


def draw_speed(clock: Any, speed: list[dict[str, str]]) -> None:
    """Speed by mean accepted block size (Figure 4)."""
    for number, setting in enumerate(SETTINGS):
        found = [row for row in speed if row["system"].startswith(f"{setting}, k = ")]
        if found:
            columns = ("accepted", "speedup", "speedup low", "speedup high")
            at, value, low, high = ([float(row[name]) for row in found] for name in columns)
            style = {"color": SERIES[number].light, "marker": MARKERS[number]}
            errors = [np.subtract(value, low), np.subtract(high, value)]
            clock.errorbar(at, value, yerr=errors, label=setting, linewidth=1.2, **style)
            small = {"xytext": (4, 4), "textcoords": "offset points", "fontsize": 7.5, "color": FAINT.light}
            for row, x, y in zip(found, at, value, strict=True):
                clock.annotate(row["system"].rpartition(", ")[2], (x, y), **small)
    clock.axhline(1, color=FAINT.light, linewidth=0.8)
    clock.set(title="speed", xlabel="mean accepted block size", ylabel="over greedy, processor time")
    clock.legend(fontsize=8, loc="lower right")


def study_options(parser: argparse.ArgumentParser) -> None:
    """What a `Study` is told of its heads, of what is tuned, and where results go."""
    parser.add_argument("--results", type=Path, default=RESULTS, help="directory of CSV files and figure")
    parser.add_argument("--k", type=int, nargs="+", default=[2, 4, 6, 8, 10], help="block sizes, head 1 included")
    parser.add_argument(
        "--head-updates", type=int, default=300, help="of heads on a frozen base model, 32 sentences each"
    )
    parser.add_argument("--width", type=int, default=256, help="of a head's hidden layer")
    parser.add_argument("--tuned", type=int, default=100, help="validation sentences that systems are tuned on")
    parser.add_argument(
        "--calibrated", type=int, default=400, help="validation sources that calibrated trees' weights are fitted to"
    )


def has_work(arguments: argparse.Namespace) -> bool:
    """Whether there is more to do than to show results; ValueError where texts for it are missing."""
    if arguments.work is not None and None in (arguments.train, arguments.validation, arguments.test):
        raise ValueError("expected --train, --validation and --test with --work")
    return arguments.work is not None


def options() -> argparse.ArgumentParser:
    about = (__doc__ or "").split("\n\n")[0]
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument(
        "--work", type=Path, help="directory of models and decodes; without it only tables and figure are made again"
    )
    for name, what in (("train", "to learn from"), ("validation", "to watch and tune with"), ("test", "to measure on")):
        parser.add_argument(f"--{name}", type=Path, help=f"JSONL, a sentence and its translation a line, {what}")
    study_options(parser)
    parser.set_defaults(head_updates=600)
    parser.add_argument(
        "--tuned-k", type=int, nargs="+", default=[2, 4, 6, 8, 10], help="those with a fine-tuned base model"
    )
    parser.add_argument("--teacher-updates", type=int, default=1800)
    parser.add_argument("--verifier-updates", type=int, default=400, help="of the teacher, further, on its own text")
    parser.add_argument(
        "--written", type=int, default=12000, help="so many training sentences are translated anew, and learnt by heads"
    )
    parser.add_argument("--held-out", type=int, default=400, help="so many validation sentences are translated anew")
    parser.add_argument("--tuning-updates", type=int, default=400, help="of base model and heads together, for every k")
    parser.add_argument("--batch-tokens", type=int, default=1600, help="of an update of teacher and verifier")
    parser.add_argument("--shape", default="base", help="of the translator, as for `latticebpd train translation`")
    parser.add_argument("--vocab-size", type=int, default=4096)
    parser.add_argument("--source", default="en")
    parser.add_argument("--target", default="de")
    parser.add_argument("--timed", type=int, default=60, help="test sentences that are timed")
    parser.add_argument("--limit", type=int, help="so many test sentences only")
    return parser


def main() -> None:
    arguments = options().parse_args()
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    torch.set_num_threads(1)
    if has_work(arguments):
        changing = ("work", "results", "tuned_k")
        claim(arguments.work, {name: str(value) for name, value in vars(arguments).items() if name not in changing})
        fewer = arguments.work / "validation.jsonl"
        stage(fewer, lambda: cut(arguments.validation, fewer, arguments.held_out))
        arguments.validation, arguments.updates = fewer, arguments.teacher_updates
        measure(Study(arguments))
    draw(arguments.results)


if __name__ == "__main__":
    try:
        main()
    except (ValueError, OSError) as error:
        sys.exit(f"stern: error: {error}")
    except subprocess.CalledProcessError as error:
        sys.exit(error.returncode)
