"""What each part of a calibrated draft tree adds: systems replayed over answers that nothing was fitted to.

    latticebpd lattices --prompts WORK/held-out.npz --model WORK/heads --weights torch --teacher-force \\
        --max-new-tokens 256 --context 1024 -k 32 -o HELD
    latticebpd lattices --prompts question.jsonl --model WORK/heads --weights torch --max-new-tokens 128 \\
        --context 2048 -k 32 -o ASKED
    python -m benchmarks.smollm2.trees --fit HELD --walk ASKED --lm WORK/lm.fst -o results.csv
    python -m benchmarks.smollm2.trees --fit HELD --lm WORK/lm.fst --constants         # of copies + tree
    python -m benchmarks.smollm2.trees --table benchmarks/smollm2/results/trees.csv

Weights are those that `tune` has stored with the n-gram model; calibrations are fitted on half of HELD's texts, and the
constants of copies + tree, whose defaults are the best ones, are tuned on the same.  Replayed are its other half and
all of ASKED.  The answers are the model's own greedy text, so a replay makes nearly the calls of a decode.  Every
text and system is one line of the CSV file. Intervals: 95 %, texts resampled 2,000 times, the same ones for both
systems of a pair.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

import fst
from benchmarks.common import Interval, err, options, pooled, read_csv, stamped, table, write_csv
from fst import FEATURES
from latticebpd import DraftTree, LatticeDrafter, LatticeSet, MixtureDrafter, PromptNgramDrafter, SausageLattice, State
from latticebpd.drafters.lattice_drafter import OracleDrafter
from latticebpd.drafters.saved_top_k import SavedTopK
from latticebpd.drafters.strategies import BestTree, NBestPaths, Vanilla
from latticebpd.lattices.sausage import PADDING, permuted
from latticebpd.lattices.shards import texts_of
from latticebpd.measuring import blocks
from latticebpd.measuring.calibrate import calibrate
from latticebpd.measuring.examples import draw_examples
from latticebpd.measuring.replay import accept_length
from latticebpd.scoring.calibrated import CalibratedScorer
from latticebpd.scoring.ngram import NgramScorer
from latticebpd.scoring.rescoring import as_scorer

SIZES, POSITIONS = (8, 16, 32, 64), 20_000
"""Nodes of trees; positions that calibrations are fitted to."""
ALL = "+ copies: calibrated"
OTHERS = ("{}-tree", "copies+{}-tree", "{} less n-gram model", "{} calibrated, heads' slots", "{} less both")
PAIRS = (
    ("16-best", "16-best:0-gram"),
    *((f"{size}-tree", f"{size}-tree:0-gram") for size in SIZES),
    *((f"{size} + its orders", f"{size}-tree") for size in SIZES),
    *((f"{size} {ALL}", other.format(size)) for size in SIZES for other in OTHERS),
)
"""Systems whose difference is shown, with its interval."""
COLUMNS = ("text", "system", "tokens", "calls", "verified")
HEADS = ("log_prob", "outside", "mass")
NGRAM, ORDERS = ("ngram", "ngram_prob"), ("bigram", "trigram", "longer_ngram")


def without(*names: str) -> tuple[str, ...]:
    """All features but these, in slots with long matches too."""
    return tuple(name for name in FEATURES if name.removeprefix("matched_") not in names)


VARIANTS = {
    "heads alone": HEADS,
    "+ n-gram model": HEADS + NGRAM,
    "+ its orders": HEADS + NGRAM + ORDERS,
    "+ the text so far": without("not_drafted"),
    ALL: FEATURES,
    "less n-gram model": without(*NGRAM, *ORDERS),
    "less its orders": without(*ORDERS),
    "less heads": without("log_prob", "mass"),
    "less weights of matches": tuple(name for name in FEATURES if not name.startswith("matched_")),
    "less both": tuple(name for name in without("ngram_prob", "share_prob") if not name.startswith("matched_")),
}
"""Features that may have a weight: each part added in turn, then each taken away in turn."""
CONSTANTS = {
    "sure": (0.4, 0.6, 0.8, 0.9, 1.01),
    "keep": (0.75, 0.8, 0.85, 0.9),
    "longer": (1.5, 2.0, 3.0, 4.5),
    "novelty": (3.0, 6.0, 12.0, 24.0, 48.0),
    "max_ngram": (4, 6, 8, 10, 12),
}
"""Values that are tried of `MixtureDrafter`'s and `PromptNgramDrafter`'s constants, one constant at a time."""


@dataclass(frozen=True, eq=False)
class Answer:
    """One text: its tokens, how many are the prompt, and the lattice at every position."""

    tokens: list[int]
    prompt_length: int
    lattices: LatticeSet


@dataclass(frozen=True, eq=False)
class Static:
    """A tree of ranks that is the same at every step (Medusa): the best ``num_nodes`` by the ranks' mean accuracies."""

    tokens: np.ndarray  # [nodes] ranks
    parents: np.ndarray

    @classmethod
    def of(cls, accuracies: np.ndarray, num_nodes: int) -> Static:
        """accuracies: ``[slots, k]`` how often the rank is right."""
        ranks = np.tile(np.arange(accuracies.shape[1]), (len(accuracies), 1))
        # Each rank keeps its own accuracy: one more arc takes what is missing to 1.
        left = np.maximum(1 - accuracies.sum(axis=1, keepdims=True), 1e-6)
        weights = np.log(np.concatenate([np.maximum(accuracies, 1e-9), left], axis=1))
        arcs = np.concatenate([ranks, ranks[:, :1] + accuracies.shape[1]], axis=1)
        tokens, parents, _ = fst.best_first_tree(arcs, weights, None, 8 * num_nodes)
        kept: list[int] = []
        for node, (token, parent) in enumerate(zip(tokens.tolist(), parents.tolist(), strict=True)):
            if token < accuracies.shape[1] and (parent < 0 or parent in kept) and len(kept) < num_nodes:
                kept.append(node)
        index = {node: number for number, node in enumerate(kept)} | {-1: -1}
        return cls(tokens[kept], np.array([index[int(parents[node])] for node in kept]))

    def draft(self, lattices: Sequence[SausageLattice], contexts: Sequence[Any]) -> list[DraftTree]:
        trees, depths = [], np.zeros(len(self.tokens), int)
        for node, parent in enumerate(self.parents.tolist()):
            depths[node] = 0 if parent < 0 else depths[parent] + 1
        for each in lattices:
            order = np.argsort(-each.log_probs, axis=1, kind="stable")
            trees.append(DraftTree(each.tokens[depths, order[depths, self.tokens]], self.parents, None, each))
        return trees


def answers(path: Path, kept: set[int] | None = None) -> Iterator[Answer]:
    """The texts of a directory of lattices: all, or those numbered ``kept``."""
    texts = list(texts_of([path]))
    parts: dict[int, list[LatticeSet]] = {}
    for block in blocks([path]):
        assert block.sequence is not None
        for number in np.unique(block.sequence).tolist():
            if kept is None or number in kept:
                parts.setdefault(number, []).append(block.take(block.sequence == number))
    for number, lattices in sorted(parts.items()):
        tokens, prompt_length = texts[number]
        joined = LatticeSet.joined(lattices)
        # Without contexts, `SavedTopK` takes lattices by the length of the text.
        in_order = np.full((len(joined), 1), PADDING, np.int32)
        yield Answer(list(tokens), prompt_length, replace(joined, context=in_order))


def calls_of(answer: Answer, drafter: Any) -> Iterator[tuple[int, DraftTree, int]]:
    """The calls of a decode after its prefill: the tokens before each, its tree and how many nodes are accepted."""
    at, end = answer.prompt_length + 1, answer.prompt_length + 1 + len(answer.lattices)
    while at < min(end, len(answer.tokens)):
        (tree,) = drafter.propose([State(0, answer.tokens[:at], answer.prompt_length, None, len(answer.tokens) - at)])
        accepted = accept_length(tree, answer.tokens[at:-1])
        yield at, tree, accepted
        at += accepted + 1


def walk(answer: Answer, drafter: Any) -> tuple[int, int, int]:
    """Tokens committed, calls and verified tokens of a decode after its prefill."""
    calls = verified = 0
    first = after = answer.prompt_length + 1
    for at, tree, accepted in calls_of(answer, drafter):
        calls, verified, after = calls + 1, verified + len(tree), at + accepted + 1
    return min(after, len(answer.tokens)) - first, calls, verified


def narrowed(lattices: LatticeSet, k: int | None = None) -> LatticeSet:
    """The same lattices with their ``k`` best arcs, the best first."""
    order = np.argsort(-lattices.log_probs, axis=2, kind="stable")[:, :, :k]
    tokens, log_probs = (np.take_along_axis(each, order, axis=2) for each in (lattices.tokens, lattices.log_probs))
    ties = None if lattices.transitions is None else permuted(lattices.transitions, order)
    return replace(lattices, tokens=tokens, log_probs=log_probs, transitions=ties)


def rank_accuracies(path: Path, kept: set[int]) -> np.ndarray:
    """``[slots, k]`` how often the arc of a rank is right."""
    lattices = narrowed(LatticeSet.joined([answer.lattices for answer in answers(path, kept)]))
    hits = lattices.tokens == lattices.continuation[:, :, None]
    known = (lattices.continuation >= 0).sum(axis=0)
    accuracies: np.ndarray = hits.sum(axis=0) / np.maximum(known, 1)[:, None]
    return accuracies


def systems_of(fit: Path, examples: set[int], path: Path) -> Any:
    """What makes every system of an answer, at its weight that is stored with the n-gram model and calibrations of its
    own."""
    fitted, plain, count, lm = {}, NgramScorer(None), len(examples), fst.NgramModel.load(path)
    for name, features in VARIANTS.items():
        fitted[name], _ = calibrate([fit], lm, count, POSITIONS, 0, features)
        err.print(f"{name}: {np.mean(fitted[name].nats):.3f} nats a token", style="dim")
    names = ("1-best", "16-best", *(f"{n}-tree" for n in SIZES))
    tuned = {name: as_scorer(path, system=name) for name in names}
    accuracies = rank_accuracies(fit, examples)
    statics = {size: Static.of(accuracies, size) for size in SIZES}
    scorers = {name: CalibratedScorer(NgramScorer(lm), each) for name, each in fitted.items()}
    no_further = replace(fitted[ALL], weights=fitted[ALL].weights[:-1], further=False)
    inside = CalibratedScorer(NgramScorer(lm), no_further)

    def systems(answer: Answer) -> dict[str, Any]:
        source, cut = SavedTopK(answer.lattices), SavedTopK(narrowed(answer.lattices, 16))

        def drafter(strategy: Any, of: SavedTopK = source) -> LatticeDrafter:
            return LatticeDrafter(of, strategy)

        named: dict[str, Any] = {
            "vanilla": drafter(Vanilla()),
            "1-best": drafter(NBestPaths(tuned["1-best"], 1)),
            "16-best:0-gram": drafter(NBestPaths(plain, 16)),
            "16-best": drafter(NBestPaths(tuned["16-best"], 16)),
            "oracle": OracleDrafter(source, answer.tokens[answer.prompt_length :]),
        }
        for size in SIZES:
            tree, copies = BestTree(tuned[f"{size}-tree"], size), {"block_size": size, "num_nodes": size}
            named[f"static {size}"] = drafter(statics[size])
            named[f"{size}-tree:0-gram"] = drafter(BestTree(plain, size))
            named[f"{size}-tree"] = drafter(tree)
            named[f"{size}-tree, k = 16"] = drafter(tree, cut)
            named[f"{size}-copies"] = PromptNgramDrafter(**copies)
            named[f"copies+{size}-tree"] = MixtureDrafter(PromptNgramDrafter(**copies), drafter(tree), num_nodes=size)
            named |= {f"{size} {name}": drafter(BestTree(scorer, size)) for name, scorer in scorers.items()}
            named[f"{size} calibrated, heads' slots"] = drafter(BestTree(inside, size))
            named[f"{size} calibrated, k = 16"] = drafter(BestTree(scorers[ALL], size), cut)
        return named

    return systems


def best_constants(texts: Sequence[Answer], lm: Path, nodes: int = 16) -> dict[str, float]:
    """The constants of copies + tree that bring the most tokens per call: each in turn, until none is better."""
    scorer, efficiencies = as_scorer(lm, system=f"{nodes}-tree"), dict[tuple[float, ...], float]()

    def measured(values: Mapping[str, Any]) -> float:
        if (key := tuple(values.values())) not in efficiencies:
            of_copies = {name: value for name, value in values.items() if name != "sure"}
            counts = np.zeros(3)
            for answer in texts:
                copies = PromptNgramDrafter(block_size=nodes, num_nodes=nodes, **of_copies)
                tree = LatticeDrafter(SavedTopK(answer.lattices), BestTree(scorer, nodes))
                counts += walk(answer, MixtureDrafter(copies, tree, nodes, values["sure"]))
            efficiencies[key] = counts[0] / counts[1]
            err.print(f"{values}: {efficiencies[key]:.4f} tokens per call", style="dim")
        return efficiencies[key]

    best: dict[str, float] = {name: tried[0] for name, tried in CONSTANTS.items()}
    while True:
        before = dict(best)
        for name, tried in CONSTANTS.items():
            best = max(({**best, name: value} for value in tried), key=measured)
        if best == before:
            return best


def replayed(column: str, parts: Iterable[tuple[str, Iterable[Answer], Any]]) -> list[dict[str, Any]]:
    """A row for every text and system.

    parts: a name for ``column``, texts, and what makes the systems of a text.
    """
    return [
        dict(zip((column, *COLUMNS), (part, number, name, *walk(answer, drafter)), strict=True))
        for part, texts, systems in parts
        for number, answer in enumerate(texts)
        for name, drafter in (systems(answer).items() if len(answer.lattices) else ())
    ]


def main() -> None:
    parser = options(__doc__, whole=True)
    parser.add_argument("--table", type=Path, help="print the tables of such a CSV file, and replay nothing")
    parser.add_argument("--fit", type=Path, help="lattices of held-out answers, with whole contexts")
    parser.add_argument("--walk", type=Path, action="append", default=[], help="further lattices to replay")
    parser.add_argument("--lm", type=Path)
    parser.add_argument("-o", "--output", type=Path, help="CSV file of all replays")
    parser.add_argument("--constants", action="store_true", help="tune those of copies + tree, and replay nothing")
    args = parser.parse_args()
    if args.table is None:
        if None in (args.fit, args.lm) or (args.output is None and not args.constants):
            parser.error("expected --fit, --lm and -o or --constants, or --table")
        count = sum(1 for _ in texts_of([args.fit]))
        examples = set(draw_examples([args.fit], count // 2, 0)[1])
        if args.constants:
            print(best_constants([*answers(args.fit, examples)], args.lm))
            return
        systems = systems_of(args.fit, examples, args.lm)
        walked = [(args.fit, set(range(count)) - examples), *((path, None) for path in args.walk)]
        rows = replayed("texts", ((path.name, answers(path, kept), systems) for path, kept in walked))
        write_csv(args.output, stamped(rows, args.lm.parent))
    show(args.table or args.output)


def counts_of(rows: Iterable[Mapping[str, str]], *keys: str) -> dict[tuple[str, ...], dict[int, np.ndarray]]:
    """``[(tokens, calls, verified)]`` by the columns ``keys``, and by text."""
    counts: dict[tuple[str, ...], dict[int, np.ndarray]] = {}
    for row in rows:
        walked = np.array([int(row[name]) for name in COLUMNS[2:]])
        counts.setdefault(tuple(row[key] for key in keys), {})[int(row["text"])] = walked
    return counts


def show(path: Path) -> None:
    """The tables of a CSV file."""
    arrays = {key: np.array([*each.values()]) for key, each in counts_of(read_csv(path), "texts", "system").items()}
    for data in dict.fromkeys(data for data, _ in arrays):
        counts, rows = {name: each for (of, name), each in arrays.items() if of == data}, []
        for name, each in counts.items():
            size = next((part for part in name.replace("+", " ").replace("-", " ").split() if part.isdecimal()), "")
            tree = f"{size}-tree"
            over = gain(each, counts[tree]) if tree in counts and name != tree else ""
            rows.append([name, *efficiency(each), f"{each[:, 2].sum() / each[:, 1].sum():.1f}", over])
        head = ("system", "tokens/call", "95 %", "verified", "over the tree of its size")
        table(f"{data}, {len(counts['vanilla'])} answers", head, rows)
        pairs = [pair for pair in PAIRS if counts.keys() >= {*pair}]
        gains = [[f"{one} over {other}", gain(counts[one], counts[other])] for one, other in pairs]
        table("", ("pair", "gain"), gains)


def efficiency(counts: np.ndarray) -> list[str]:
    """Of ``[texts, (tokens, calls, verified)]`` tokens per call, and the interval."""
    value, low, high = pooled(counts[:, 0], counts[:, 1])
    return [f"{value:.3f}", f"{low:.2f}–{high:.2f}"]


def gained(one: np.ndarray, other: np.ndarray) -> Interval:
    """Of ``[texts, (tokens, calls, verified)]`` over another system's, as a share."""
    return pooled(one[:, 0], one[:, 1], (other[:, 0], other[:, 1]))


def gain(one: np.ndarray, other: np.ndarray) -> str:
    return "{:+.1%} ({:+.1%} to {:+.1%})".format(*gained(one, other))


if __name__ == "__main__":
    main()
