"""Parallel drafters put through lattices: what rescoring without training recovers of what learned ties between positions recover.

    latticebpd lattices --prompts held-out.npz --model smollm2-135m --drafter-model BLOCK --teacher-force --context 1024 -k 32 -o HELD
    latticebpd lattices --prompts question.jsonl --model smollm2-135m --drafter-model BLOCK --context 2048 -k 32 -o ASKED
    python -m benchmarks.smollm2.compare_drafters --drafter block HELD ASKED --drafter bigram HELD-2 ASKED-2 --lm lm.fst -o results.csv
    python -m benchmarks.smollm2.compare_drafters --table benchmarks/smollm2/results/drafters.csv

Every drafter has a name, lattices of held-out answers, on half of which its weights are tuned and its calibration fitted, and lattices
that are walked.  The answers are the model's own greedy text, so that a walk makes the calls of a decode.  Systems: *chain* is the best
token of every slot behind the one before, where lattices have transitions (DSpark), else the best token of every slot (DFlash); *tree* is
the best-first tree of the drafter's probabilities, transitions among them (DDTree, JetSpec); then with the n-gram model; then
calibrated, from drafter and n-gram model alone (*no text*), and with the text so far and its copies.
"""

from __future__ import annotations

import argparse
import csv
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

import fst
from benchmarks.smollm2.intervals import interval
from benchmarks.smollm2.trees import ALL, VARIANTS, Following, answers, gain, walk
from latticebpd import LatticeDrafter
from latticebpd.drafters.lattice_sources import SavedTopK
from latticebpd.drafters.strategies import BestTree, GreedyChain, NBestPaths, Strategy, Vanilla
from latticebpd.lattices.shards import texts_of
from latticebpd.measuring.calibrate import calibrate
from latticebpd.measuring.tuning import draw_examples, tune
from latticebpd.scoring.calibrated import CalibratedScorer
from latticebpd.scoring.ngram import NgramScorer

SIZES = (8, 16, 32, 64, 128)
PATHS = ("best of every slot", "chain", "1-best, n-gram", "16-best", "16-best, n-gram", "oracle")
KINDS = ("tree", "tree, n-gram", "calibrated, no text", "calibrated")
out = Console(highlight=False, width=160)


def strategies(fit: Path, lm: fst.NgramModel, positions: int) -> dict[str, Strategy]:
    """Every system of a drafter at its own weights."""
    half = sum(1 for _ in texts_of([fit])) // 2
    examples = len(draw_examples([fit], half, 0)[1])
    features = {"calibrated, no text": VARIANTS["+ its orders"], "calibrated": VARIANTS[ALL]}
    fitted = {name: calibrate([fit], lm, examples, positions, 0, of)[0] for name, of in features.items()}
    scorers, plain = {name: CalibratedScorer(NgramScorer(lm), each) for name, each in fitted.items()}, NgramScorer(None)
    weight = {
        name: tune([fit], lm, name, examples=examples)[0].alpha
        for name in ("1-best", "16-best", *(f"{n}-tree" for n in SIZES))
    }
    out.print(f"{fit.name}: {np.mean(fitted['calibrated'].nats):.3f} nats a token, weights {weight}", style="dim")
    made: dict[str, Strategy] = {
        "best of every slot": Vanilla(),
        "chain": GreedyChain(),
        "1-best, n-gram": NBestPaths(NgramScorer(lm, weight["1-best"]), 1),
        "16-best": NBestPaths(plain, 16),
        "16-best, n-gram": NBestPaths(NgramScorer(lm, weight["16-best"]), 16),
    }
    for size in SIZES:
        made[f"{size} tree"] = BestTree(plain, size)
        made[f"{size} tree, n-gram"] = BestTree(NgramScorer(lm, weight[f"{size}-tree"]), size)
        made |= {f"{size} {name}": BestTree(scorer, size) for name, scorer in scorers.items()}
    return made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--drafter",
        nargs=3,
        action="append",
        default=[],
        metavar=("NAME", "FIT", "WALK"),
        help="name and two directories",
    )
    parser.add_argument("--lm", type=Path)
    parser.add_argument("--positions", type=int, default=4000, help="that calibrations are fitted to")
    parser.add_argument("-o", "--output", type=Path, help="CSV file of all walks")
    parser.add_argument("--table", type=Path, help="print the tables of such a CSV file, and walk nothing")
    arguments = parser.parse_args()
    if arguments.table is not None:
        show(arguments.table)
        return
    if None in (arguments.lm, arguments.output) or not arguments.drafter:
        parser.error("expected --drafter, --lm and -o, or --table")
    lm = fst.NgramModel.load(arguments.lm)
    with open(arguments.output, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(("drafter", "text", "system", "tokens", "calls", "verified"))
        for name, fit, walked in arguments.drafter:
            systems: dict[str, Any] = strategies(Path(fit), lm, arguments.positions)
            for number, answer in enumerate(answers(Path(walked))):
                if len(answer.lattices):
                    source = SavedTopK(answer.lattices)
                    for system, strategy in {**systems, "oracle": Following(answer)}.items():
                        writer.writerow((name, number, system, *walk(answer, LatticeDrafter(source, strategy))))
    show(arguments.output)


def show(path: Path) -> None:
    """The tables of a CSV file: tokens a call, and what the n-gram model and calibration gain."""
    rows: dict[tuple[str, str], dict[int, tuple[int, int, int]]] = {}
    with open(path, newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            walked = (int(row["tokens"]), int(row["calls"]), int(row["verified"]))
            rows.setdefault((row["drafter"], row["system"]), {})[int(row["text"])] = walked
    texts = sorted(set.intersection(*(set(each) for each in rows.values())))
    found = {key: np.array([each[text] for text in texts]) for key, each in rows.items()}
    drafters = list(dict.fromkeys(drafter for drafter, _ in found))
    made = Table("drafter", *PATHS, title=f"tokens per call, {len(texts)} answers", box=None)
    for drafter in drafters:
        cells = [found[drafter, system] for system in PATHS]
        made.add_row(drafter, *("{:.3f} ({:.2f}–{:.2f})".format(*interval(each[:, 0], each[:, 1])) for each in cells))
    out.print(made)
    made = Table("drafter", "system", *map(str, SIZES), title="tokens per call by verified tokens", box=None)
    for drafter in drafters:
        for kind in KINDS:
            cells = [found[drafter, f"{size} {kind}"] for size in SIZES]
            made.add_row(drafter, kind, *(f"{each[:, 0].sum() / each[:, 1].sum():.3f}" for each in cells))
    out.print(made)
    made = Table("drafter", "gain over its tree", *map(str, SIZES), box=None)
    for drafter in drafters:
        for kind in KINDS[1:]:
            made.add_row(
                drafter,
                kind,
                *(gain(found[drafter, f"{size} {kind}"], found[drafter, f"{size} tree"]) for size in SIZES),
            )
    out.print(made)


if __name__ == "__main__":
    main()
