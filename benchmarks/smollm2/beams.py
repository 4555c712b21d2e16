"""Why can an exact tree lose to a beam of as many nodes? Replays of both, by learned and by calibrated probabilities.

    python -m benchmarks.smollm2.beams --data DIR --work WORK -o benchmarks/smollm2/results/beams.csv
    python -m benchmarks.smollm2.beams --table benchmarks/smollm2/results/beams.csv

Lattices are those of heads with transitions in `drafters.py`, made where WORK lacks them.  *Calibrated*: each slot has
a temperature and a share for tokens that the lattice lacks, fitted to held-out answers.  *Expected* is the sum of the
nodes' probabilities, and so how many of them a call should accept if these are true.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import fst
from benchmarks.common import columns, grouped, options, pooled, read_csv, stage, stamped, table, write_csv
from benchmarks.smollm2 import trees
from benchmarks.smollm2.drafters import FIRST, FITTED, QUESTIONS, SLOTS, TIED, lattices, questions, release
from benchmarks.smollm2.make import own_text
from latticebpd import DraftTree, LatticeDrafter
from latticebpd.drafters.saved_top_k import SavedTopK
from latticebpd.drafters.strategies import BeamTree, BestTree
from latticebpd.measuring.calibrate import calibrate
from latticebpd.scoring.calibrated import CalibratedScorer
from latticebpd.scoring.ngram import NgramScorer

SIZES = (16, 64, 128)
CANDIDATES = 4096
"""The best prefixes, of which a calibrated beam takes its nodes."""
HEAD = ("probabilities", "nodes", "tree", "accepted / expected", "beam", "accepted / expected", "tree over beam")
ROWS = ("probabilities", "nodes", "kind", *trees.COLUMNS[:1], *trees.COLUMNS[2:], "expected")


@dataclass(frozen=True)
class BeamOfTree:
    """A beam by the probabilities of another strategy's tree: at every depth the ``width`` best nodes whose parents are
    kept, and of these the ``num_nodes`` best."""

    whole: Any
    width: int
    num_nodes: int

    def draft(self, lattices: Any, contexts: Any) -> list[DraftTree]:
        return [self._beam(tree) for tree in self.whole.draft(lattices, contexts)]

    def _beam(self, tree: DraftTree) -> DraftTree:
        kept, depths, taken = dict[int, int](), dict[int, int](), dict[int, int]()
        for node, parent in enumerate(tree.parents.tolist()):  # the best first, a parent before its children
            if parent >= 0 and parent not in kept:
                continue
            depth = depths.get(parent, -1) + 1
            if taken.get(depth, 0) < self.width:
                taken[depth] = taken.get(depth, 0) + 1
                kept[node], depths[node] = len(kept), depth
        nodes = list(kept)[: self.num_nodes]
        parents = np.array([kept.get(parent, -1) for parent in tree.parents[nodes].tolist()], np.int64)
        assert tree.log_probs is not None
        return DraftTree(tree.tokens[nodes], parents, tree.log_probs[nodes], tree.lattice)


def strategies(fit: Path, lm: fst.NgramModel) -> dict[tuple[str, int, str], Any]:
    """Trees and beams, by probabilities, size and kind."""
    calibration, _ = calibrate([fit], lm, FITTED, trees.POSITIONS, 0, trees.VARIANTS["heads alone"])
    scorer, every = CalibratedScorer(NgramScorer(lm), calibration), dict[tuple[str, int, str], Any]()
    for size in SIZES:
        width = -(-size // SLOTS)
        every["learned", size, "tree"] = BestTree(NgramScorer(None), size)
        every["learned", size, "beam"] = BeamTree(width, size)
        every["calibrated", size, "tree"] = BestTree(scorer, size)
        every["calibrated", size, "beam"] = BeamOfTree(BestTree(scorer, CANDIDATES), width, size)
    return every


def replay(answer: trees.Answer, strategy: Any) -> tuple[int, int, int, float]:
    """Tokens, calls and verified tokens of a decode after its prefill, and how many nodes it expects to be accepted."""
    drafter, expected = LatticeDrafter(SavedTopK(answer.lattices), strategy), 0.0
    for _, tree, _ in trees.calls_of(answer, drafter):
        assert tree.log_probs is not None
        expected += float(np.exp(tree.log_probs).sum())
    return *trees.walk(answer, drafter), expected


def measured(fit: Path, asked: Path, lm: fst.NgramModel) -> list[dict[str, Any]]:
    systems = strategies(fit, lm)
    return [
        dict(zip(ROWS, (*key, number, *replay(answer, strategy)), strict=True))
        for number, answer in enumerate(trees.answers(asked))
        for key, strategy in systems.items()
    ]


def lines_of(rows: Sequence[Mapping[str, str]]) -> list[list[str]]:
    """By probabilities and nodes: tokens per call of tree and beam, accepted over expected nodes of both, the gain."""
    lines, counted = [], {
        key: columns(own, "tokens", "calls", "expected")
        for key, own in grouped(rows, "probabilities", "nodes", "kind").items()
    }  # fmt: skip
    for probabilities, nodes in dict.fromkeys(key[:2] for key in counted):
        both = [counted[probabilities, nodes, kind] for kind in ("tree", "beam")]
        cells = [
            cell
            for tokens, calls, expected in both
            for cell in (
                f"{tokens.sum() / calls.sum():.3f}", f"{(tokens.sum() - calls.sum()) / expected.sum():.2f}",
            )
        ]  # fmt: skip
        (tokens, calls, _), (others, their_calls, _) = both
        gain = "{:+.1%} ({:+.1%} to {:+.1%})".format(*pooled(tokens, calls, (others, their_calls)))
        lines.append([probabilities, nodes, *cells, gain])
    return lines


def main() -> None:
    parser = options(__doc__, whole=True)
    parser.add_argument("--data", type=Path, help="folder of the sources that prompts.py names, and of Spec-Bench")
    parser.add_argument("--work", type=Path, help="the folder of drafters.py, or a new one")
    parser.add_argument("-o", "--output", type=Path, help="CSV file of the replays")
    parser.add_argument("--table", type=Path, help="print the table of such a file, and replay nothing")
    args = parser.parse_args()
    if args.table is None:
        if None in (args.data, args.work, args.output):
            parser.error("expected --data, --work and -o, or --table")
        own_text(args.work, args.data)
        stage(args.work / QUESTIONS, partial(questions, args.work, args.data))
        home = release(args.work, FIRST)
        rows = measured(*lattices(args.work, TIED), fst.NgramModel.load(home / "lm.fst"))
        write_csv(args.output, stamped(rows, home))
    table("", HEAD, lines_of(read_csv(args.table or args.output)))


if __name__ == "__main__":
    main()
