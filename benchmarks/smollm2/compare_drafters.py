"""Parallel drafters put through lattices: what rescoring without training recovers of what learned ties between
positions recover.

    python -m benchmarks.smollm2.compare_drafters --drafter block HELD ASKED --drafter bigram HELD-2 ASKED-2 \\
        --lm lm.fst -o results.csv                     # compare_drafters.md has the commands that make the lattices
    python -m benchmarks.smollm2.compare_drafters --table benchmarks/smollm2/results/drafters.csv

Every drafter has a name, lattices of held-out answers, on half of which its weights are tuned and its calibration
fitted, and lattices that are walked.  The answers are the model's own greedy text, so that a walk makes the calls of
a decode.  Systems: *chain* is the best token of every slot after the one before, where lattices have transitions
(DSpark), else the best token of every slot (DFlash); *tree* is the best-first tree of the drafter's probabilities,
transitions among them (DDTree, JetSpec); then with the n-gram model; then calibrated, from drafter and n-gram model
alone (*no text*), and with the text so far and its copies.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np

import fst
from benchmarks.common import err, options, table
from benchmarks.smollm2.trees import (
    ALL,
    POSITIONS,
    VARIANTS,
    Answer,
    Following,
    answers,
    counts_of,
    efficiency,
    gain,
    save_replays,
    systems_of_lattices,
)
from latticebpd import LatticeDrafter
from latticebpd.drafters.strategies import BestTree, GreedyChain, NBestPaths, Strategy, Vanilla
from latticebpd.lattices.shards import texts_of
from latticebpd.measuring.calibrate import calibrate
from latticebpd.measuring.examples import draw_examples
from latticebpd.measuring.tuning import tune
from latticebpd.scoring.calibrated import CalibratedScorer
from latticebpd.scoring.ngram import NgramScorer

SIZES = (8, 16, 32, 64, 128)
PATHS = ("best of every slot", "chain", "1-best, n-gram", "16-best", "16-best, n-gram", "oracle")
KINDS = ("tree", "tree, n-gram", "calibrated, no text", "calibrated")


def strategies(fit: Path, lm: fst.NgramModel) -> dict[str, Strategy]:
    """Every system of a drafter at its own weights."""
    half = sum(1 for _ in texts_of([fit])) // 2
    examples = len(draw_examples([fit], half, 0)[1])
    features = {"calibrated, no text": VARIANTS["+ its orders"], "calibrated": VARIANTS[ALL]}
    fitted = {name: calibrate([fit], lm, examples, POSITIONS, 0, of)[0] for name, of in features.items()}
    scorers, plain = {name: CalibratedScorer(NgramScorer(lm), each) for name, each in fitted.items()}, NgramScorer(None)
    weight = {
        name: tune([fit], lm, name, examples=examples)[0].alpha
        for name in ("1-best", "16-best", *(f"{n}-tree" for n in SIZES))
    }
    err.print(f"{fit.name}: {np.mean(fitted['calibrated'].nats):.3f} nats a token, weights {weight}", style="dim")
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
    parser = options(__doc__, whole=True)
    about = "name and two directories of lattices"
    parser.add_argument("--drafter", nargs=3, action="append", default=[], metavar=("NAME", "FIT", "WALK"), help=about)
    parser.add_argument("--lm", type=Path)
    parser.add_argument("-o", "--output", type=Path, help="CSV file of all replays")
    parser.add_argument("--table", type=Path, help="print the tables of such a CSV file, and replay nothing")
    given = parser.parse_args()
    if given.table is None:
        if None in (given.lm, given.output) or not given.drafter:
            parser.error("expected --drafter, --lm and -o, or --table")
        lm = fst.NgramModel.load(given.lm)

        def systems(made: dict[str, Strategy], answer: Answer) -> dict[str, LatticeDrafter]:
            return systems_of_lattices({**made, "oracle": Following(answer)}, answer)

        parts = (
            (name, answers(Path(walked)), partial(systems, strategies(Path(fit), lm)))
            for name, fit, walked in given.drafter
        )
        save_replays(given.output, "drafter", parts)
    show(given.table or given.output)


def show(path: Path) -> None:
    """The tables of a CSV file: tokens a call, and what the n-gram model and calibration gain."""
    rows = counts_of(path, "drafter", "system")
    texts = sorted(set.intersection(*map(set, rows.values())))
    found = {key: np.array([each[text] for text in texts]) for key, each in rows.items()}
    drafters = list(dict.fromkeys(drafter for drafter, _ in found))
    paths = [[name, *("{} ({})".format(*efficiency(found[name, system])) for system in PATHS)] for name in drafters]
    table(f"tokens per call, {len(texts)} answers", ("drafter", *PATHS), paths)
    trees, gains = [], []
    for name in drafters:
        for kind in KINDS:
            cells = [found[name, f"{size} {kind}"] for size in SIZES]
            trees.append([name, kind, *(efficiency(each)[0] for each in cells)])
            over = (gain(each, found[name, f"{size} tree"]) for size, each in zip(SIZES, cells, strict=True))
            gains.append([name, kind, *over])
    table("tokens per call by verified tokens", ("drafter", "system", *map(str, SIZES)), trees)
    gains = [row for row in gains if row[1] != "tree"]
    table("gain over the drafter's tree", ("drafter", "system", *map(str, SIZES)), gains)


if __name__ == "__main__":
    main()
