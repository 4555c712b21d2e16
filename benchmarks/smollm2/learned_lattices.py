"""Learned lattices (DFlash 2's selector, LiLiCorr's reranker) by their own walks and beams, and searched exactly.

    python -m benchmarks.smollm2.learned_lattices --work WORK [--texts 600 --steps 150 --head-steps 120]    # trains
    python -m benchmarks.smollm2.learned_lattices --work WORK --lm lm.fst -o results.csv                    # replays
    python -m benchmarks.smollm2.learned_lattices --table benchmarks/smollm2/results/learned.csv

WORK is a folder that `make.py` has filled with texts. One block drafter is trained on the first of them; a bigram
(DSpark), a selector and a reranker are then each taught to it alone, so that all draft from the same marginals. Of the
held-out answers one half tunes the n-gram model's weight, once for each drafter, by 16-node trees; the other half is
replayed. Systems of n nodes: the *beam* of SGLang cut to n, the first n nodes of the p best *paths*, the best *tree*.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import fst
from benchmarks.common import err, latticebpd, options, stage, table
from benchmarks.smollm2.make import MODEL
from benchmarks.smollm2.trees import Answer, answers, counts_of, efficiency, gain, save_replays, systems_of_lattices
from latticebpd import DraftTree
from latticebpd.drafters.strategies import BeamTree, BestTree, GreedyChain, NBestPaths
from latticebpd.lattices.shards import texts_of
from latticebpd.lattices.texts import Texts
from latticebpd.measuring import blocks
from latticebpd.measuring.examples import draw_examples
from latticebpd.measuring.tuning import tune
from latticebpd.scoring.ngram import NgramScorer

HEADS = {
    "block": None,
    "bigram": "--learning-rate 5e-3 --bigram-rank 64",
    "selector": "--learning-rate 5e-3 --selector --selector-rank 64",
    "reranker": "--reranker --reranker-size 128 --reranker-heads 4 --candidates 16",
}
LAYERS = "2,15,28"
SHAPE = (
    f"--no-sample-from-anchor --num-layers 2 --layers {LAYERS} --block-size 8 --num-kv-heads 9 --intermediate-size 768"
)
COMMON = "--batch-size 8 --anchors 16 --warmup-steps 10 --validation-sequences 32"
SIZES, SLOTS, K = (8, 16, 32, 64), 7, 16
KINDS = ("beam", "paths", "tree", "paths, 4-gram", "tree, 4-gram")
PAIRS = (("tree", "beam"), ("tree", "paths"), ("tree, 4-gram", "tree"))


def train(work: Path, texts: int, held: int, steps: int, head_steps: int) -> None:
    """Drafters, and lattices of held-out answers by each; what is there stays."""
    home = work / "learned"
    home.mkdir(exist_ok=True)
    files = {name: home / f"{name}.npz" for name in ("train", "held-out")}
    for name, count in (("train", texts), ("held-out", held)):
        given = Texts.load(work / f"{name}.npz")
        stage(files[name], partial(given.chosen(range(min(count, len(given)))).save, files[name]))
    target = f"--model {MODEL}"
    latticebpd("train", "hidden", *files.values(), f"{target} --whole --layers {LAYERS} --shard-texts 64")
    for name, head in HEADS.items():
        common = ("train", "block-drafter", files["train"], "--validation", files["held-out"], f"{target} {COMMON}")
        if head is None:
            latticebpd(*common, SHAPE, f"--shortlist {MODEL} --steps {steps}", "-o", home / name)
        else:
            latticebpd(*common, head, f"--steps {head_steps} --head-on", home / "block", "-o", home / name)
        lattices = home / f"{name}-lattices"
        drafter = ("--drafter-model", home / name, f"--teacher-force --context 1024 -k {K} -o")
        latticebpd("lattices", "--prompts", files["held-out"], target, *drafter, lattices)


@dataclass(frozen=True)
class PathNodes:
    """The first ``num_nodes`` nodes of the best paths, best path first."""

    scorer: NgramScorer
    num_nodes: int

    def draft(self, lattices: Any, contexts: Any) -> list[DraftTree]:
        trees = NBestPaths(self.scorer, self.num_nodes).draft(lattices, contexts)
        return [tree.first(self.num_nodes) for tree in trees]


def systems_of(fit: Path, lm: fst.NgramModel, examples: int) -> dict[str, Any]:
    plain, alpha = NgramScorer(None), tune([fit], lm, "16-tree", examples=examples)[0].alpha
    mixed = NgramScorer(lm, alpha)
    stated, right = first_slot(fit)
    err.print(f"{fit.name}: weight of the 4-gram {alpha:g}; first slot {stated:.2f}, right {right:.2f}", style="dim")
    made: dict[str, Any] = {"walk": GreedyChain(), "best path": NBestPaths(plain, 1)}
    made["best path, 4-gram"] = NBestPaths(mixed, 1)
    for size in SIZES:
        made[f"{size} beam"] = BeamTree(-(-size // SLOTS), size)
        for name, scorer in (("", plain), (", 4-gram", mixed)):
            made[f"{size} paths{name}"] = PathNodes(scorer, size)
            made[f"{size} tree{name}"] = BestTree(scorer, size)
    return made


def first_slot(path: Path) -> tuple[float, float]:
    """The mean probability of the first slot's best arc among its arcs, and how often it is right."""
    stated, right = [], []
    for block in blocks([path]):
        weights = block.log_probs[:, 0].astype(np.float64)
        best = weights.argmax(axis=1)
        stated.append(np.exp(_normalised(weights)).max(axis=1))
        right.append(block.tokens[np.arange(len(block)), 0, best] == block.continuation[:, 0])
    return float(np.concatenate(stated).mean()), float(np.concatenate(right).mean())


def replay(work: Path, lm: fst.NgramModel, output: Path) -> None:
    def parts() -> Iterator[tuple[str, Iterator[Answer], Any]]:
        for name in HEADS:
            path = work / "learned" / f"{name}-lattices"
            count = sum(1 for _ in texts_of([path]))
            examples = set(draw_examples([path], count // 2, 0)[1])
            systems = partial(systems_of_lattices, systems_of(path, lm, len(examples)))
            yield name, answers(path, set(range(count)) - examples), systems

    save_replays(output, "drafter", parts())


def show(path: Path) -> None:
    """Tokens per call, and what exact search and the n-gram model gain."""
    found = {key: np.array([*each.values()]) for key, each in counts_of(path, "drafter", "system").items()}
    singles = ("walk", "best path", "best path, 4-gram")
    lines = [[name, *("{} ({})".format(*efficiency(found[name, each])) for each in singles)] for name in HEADS]
    table(f"tokens per call, {len(found['block', 'walk'])} answers, one path", ("drafter", *singles), lines)
    sizes = tuple(map(str, SIZES))
    lines = [
        [name, kind, *(efficiency(found[name, f"{size} {kind}"])[0] for size in SIZES)]
        for name in HEADS
        for kind in KINDS
    ]
    table("by verified tokens", ("drafter", "system", *sizes), lines)
    lines = [
        [name, f"{one} over {other}", *(gain(found[name, f"{n} {one}"], found[name, f"{n} {other}"]) for n in SIZES)]
        for name in HEADS
        for one, other in PAIRS
    ]
    for name in HEADS:
        walks = (gain(found[name, f"{n} tree"], found[name, "walk"]) for n in SIZES)
        lines.append([name, "tree over walk", *walks])
        if name != "block":
            over = (gain(found[name, f"{n} tree"], found["block", f"{n} tree"]) for n in SIZES)
            lines.append([name, "tree over the block's tree", *over])
            four = (gain(found[name, f"{n} tree, 4-gram"], found["block", f"{n} tree, 4-gram"]) for n in SIZES)
            lines.append([name, "4-gram tree over the block's", *four])
    table("gain, 95 % intervals", ("drafter", "pair", *sizes), lines)


def _normalised(scores: np.ndarray) -> np.ndarray:
    normalised: np.ndarray = scores - np.logaddexp.reduce(scores, axis=-1, keepdims=True)
    return normalised


def main() -> None:
    parser = options(__doc__, whole=True)
    parser.add_argument("--work", type=Path, help="folder with train.npz and held-out.npz")
    parser.add_argument("--texts", type=int, default=600, help="training texts")
    parser.add_argument("--held-out", type=int, default=80, help="held-out texts")
    parser.add_argument("--steps", type=int, default=150, help="updates of the block drafter")
    parser.add_argument("--head-steps", type=int, default=120, help="updates of each head")
    parser.add_argument("--lm", type=Path)
    parser.add_argument("-o", "--output", type=Path, help="CSV file of all replays")
    parser.add_argument("--table", type=Path, help="print the tables of such a CSV file")
    given = parser.parse_args()
    if given.table is not None:
        show(given.table)
    elif given.work is None or (given.lm is None) != (given.output is None):
        parser.error("expected --work, perhaps with --lm and -o, or --table")
    elif given.lm is None:
        train(given.work, given.texts, given.held_out, given.steps, given.head_steps)
    else:
        replay(given.work, fst.NgramModel.load(given.lm), given.output)
        show(given.output)


if __name__ == "__main__":
    main()
