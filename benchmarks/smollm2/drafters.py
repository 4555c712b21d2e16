"""Block drafters of SmolLM2-135M-Instruct at several strengths, and learned lattices on the strongest: trained, walked
and searched.

    python -m benchmarks.smollm2.more_text --data DIR --work WORK --join               # further texts -> WORK/more.npz
    python -m benchmarks.smollm2.drafters --data DIR --work WORK -o results.csv        # all of it; resumes
    python -m benchmarks.smollm2.drafters --data DIR --work WORK selector reranker     # of these drafters only
    python -m benchmarks.smollm2.drafters --data DIR --work WORK --clock -o drafters.speed.csv  # times; quiet
    python -m benchmarks.smollm2.drafters --table benchmarks/smollm2/results/drafters.csv

One block drafter (DFlash's kind) is trained further and further, each time to a learning rate of zero; a bigram
(DSpark), a selector (DFlash 2) and a reranker (LiLiCorr) are each taught to the last, frozen, so that all draft from
the same marginals.  The package's heads are compared with them.  Weights are tuned and calibrations fitted on held-out
answers, for every drafter its own; the answers to the questions, the model's own greedy text, are replayed: a
walk makes the calls of a decode with the same arcs and rounding.

Systems: the *walk* is the best arc after the one before, where lattices have transitions, else the best of every slot;
of n nodes the *beam* (SGLang's, cut to n), the first n nodes of the p best *paths*, the best *tree*; calibrated, from
the drafter's probabilities only, with the n-gram model (*no text*), and with the text so far and its copies.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import tarfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import torch

import fst
from benchmarks import common
from benchmarks.bench_rescoring import microseconds
from benchmarks.common import columns, grouped, latticebpd, pooled, read_csv, slug, stage, table, write_csv
from benchmarks.question_sets import question_set
from benchmarks.smollm2 import trees
from benchmarks.smollm2.make import HERE, MODEL, own_text
from fst.files import temporary_beside, write_text
from latticebpd import DraftTree, LatticeDrafter, Loaded, NoDrafter, load
from latticebpd.drafters.block.block_checkpoints import load_block_drafter, save_block_drafter
from latticebpd.drafters.lattice_drafter import OracleDrafter
from latticebpd.drafters.saved_top_k import SavedTopK
from latticebpd.drafters.strategies import BeamTree, BestTree, GreedyChain, NBestPaths
from latticebpd.lattices.texts import Texts
from latticebpd.measuring import blocks
from latticebpd.measuring.calibrate import calibrate
from latticebpd.measuring.questions import read_questions
from latticebpd.measuring.tuning import tune
from latticebpd.models.catalogue import resolved
from latticebpd.scoring.calibrated import CalibratedScorer
from latticebpd.scoring.calibration import calibration_path
from latticebpd.scoring.ngram import NgramScorer
from latticebpd.scoring.rescoring import calibrated_scorer

ROOT, QUESTIONS = HERE.parents[1], "questions.jsonl"
TEXTS, WRITTEN, FITTED = 6000, 8182, 80
"""Training texts, drawn from the texts that were written first; held-out answers that weights are fitted to."""
STEPS = (60, 240, 600)
"""Updates of the block drafter, each time as a whole run."""
LAYERS, SLOTS = "2,15,28", 8
BLOCK = (
    f"--no-sample-from-anchor --layers {LAYERS} --block-size {SLOTS + 1} --num-kv-heads 9 --intermediate-size 768 "
    f"--shortlist {MODEL} --anchors 32"
)
STATES = f"--model {MODEL} --whole --layers {LAYERS} --shard-texts 64 --batch-tokens 2048"
TRAINING = "--warmup-steps 10 --validation-every 60 --validation-sequences 32 --checkpoint-every 20"
LEARNED = {
    "bigram": "--steps 250 --learning-rate 5e-3 --bigram-rank 64",
    "selector": "--steps 260 --learning-rate 5e-3 --selector --selector-rank 64",
    "reranker": "--steps 120 --reranker --reranker-size 128 --reranker-heads 4 --candidates 16",
}
"""Equally long: five minutes of a core."""
TAUGHT = "--batch-size 16 --anchors 16 --accumulate 4"
HEADS, TIED, FIRST = "heads, 16 arcs", "transitions", "b5c7ca2"
LATER, OWN = "heads, 7.0M tokens", ", own 4-gram"
RELEASES = {**dict.fromkeys(("heads", HEADS, TIED), FIRST), LATER: "0969ad8"}
"""Commits whose package had such heads. The 4-gram of the first rescores all, that of the later also its heads."""
BLOCKS = tuple(f"block, {steps} updates" for steps in STEPS)
LADDER = ("heads", LATER, LATER + OWN, *BLOCKS)
"""Drafters by strength, 64 arcs a slot."""
LATTICES = (HEADS, TIED, "block", *LEARNED)
"""The heads' and the last block drafter's lattices and learned ones, 16 arcs a slot."""
OVER = {TIED: HEADS} | dict.fromkeys(LEARNED, "block")
"""What learned lattices are taught on."""
SIZES = (8, 16, 32, 64, 128)
PATHS = ("walk", "1-best", "1-best, 4-gram", "16-best", "16-best, 4-gram", "oracle")
KINDS = ("beam", "paths", "tree", "tree, 4-gram", "drafter calibrated", "calibrated, no text", "calibrated")
TIMED_SYSTEMS, TIMED_COUNT, NEW_TOKENS = ("2-calibrated", "16-calibrated"), 26, 96
SEARCH_KINDS = ("tree", "tree, 4-gram", "calibrated")
SEARCHED, SEARCHES = 64, ("drafter", "system", "lattice", "us")
CLOCKED = ("drafter", "system", "text", "tokens", "calls", "ms", "drafting ms")
AFTER = ("first choices", "others")
BRANCHES = ("drafter", "text", "after", "nodes", "predicted", "right")
GAINS = (
    ("tree", "walk"), ("tree", "beam"), ("tree", "paths"), ("tree, 4-gram", "tree"), ("drafter calibrated", "tree"),
    ("calibrated, no text", "drafter calibrated"), ("calibrated", "calibrated, no text"),
)  # fmt: skip


# ---------------------------------------------------------------- drafters and their lattices
def questions(work: Path, data: Path) -> None:
    """The development set of Spec-Bench's questions, in the file's order."""
    path = data / "spec_bench/question.jsonl"
    asked = {question.question_id for question in question_set("development", read_questions(path))}
    rows = [row for row in common.read_lines(path) if row["question_id"] in asked]
    write_text(work / QUESTIONS, "".join(f"{json.dumps(row)}\n" for row in rows))


def block_training(work: Path, data: Path, texts: Callable[[], Texts]) -> tuple[object, ...]:
    """The command that trains block drafters on texts, which are saved with their states, and held-out ones, too."""
    held = data.with_name("held-out.npz")
    stage(data, lambda: texts().save(data))
    stage(held, lambda: Texts.load(work / held.name).save(held))
    latticebpd("train hidden", data, held, STATES)
    return "train block-drafter", data, "--validation", held, f"--model {MODEL}", TRAINING


def train(work: Path, source: Path) -> None:
    """States, the block drafter after each number of updates, and what is taught to the last."""
    home, written = work / "blocks", Texts.load(own_text(work, source, [work / "more.npz"])[0])
    drawn = np.random.default_rng(0).permutation(WRITTEN)[:TEXTS].tolist()
    training = (*block_training(work, home / "train.npz", lambda: written.chosen(drawn)), "--precision bfloat16")
    for name, steps in zip(BLOCKS, STEPS, strict=True):
        finished = drafter(work, name)
        if not finished.exists():
            more = f"{BLOCK} --num-layers 3 --batch-size 24 --accumulate 6 --steps {steps} -o"
            latticebpd(*training, more, home / "block")
            copied(home / "block", finished, "training-*")
    for name, head in LEARNED.items():
        latticebpd(*training, TAUGHT, head, "--head-on", drafter(work, "block"), "-o", drafter(work, name))


def drafter(work: Path, name: str) -> Path:
    return work / "blocks" / slug(BLOCKS[-1] if name == "block" else name)


def copied(run: Path, output: Path, *ignored: str) -> None:
    """Copy a folder; the copy appears once it is complete."""
    temporary = temporary_beside(output)
    shutil.copytree(run, temporary, ignore=shutil.ignore_patterns(*ignored)).rename(output)


def linked(home: Path, files: Path) -> Path:
    """A folder with the model and the package's files for it, or those of another folder in their stead."""
    own, model = home / "latticebpd", Path(resolved(MODEL))
    own.mkdir(parents=True, exist_ok=True)
    heads = (*files.glob("heads.*"), *(files / own.name).glob("*"), *(model / own.name).glob("*"))
    rest = (*files.glob("lm.*"), *(file for file in model.iterdir() if file.name != own.name))
    for file, link in (*((file, own / file.name) for file in heads), *((file, home / file.name) for file in rest)):
        if not link.exists():
            link.symlink_to(file)
    return home


def release(work: Path, commit: str) -> Path:
    """A folder of the model with the heads and the n-gram model that a commit's package has for it."""
    files, assets = work / "releases" / commit, f"latticebpd/assets/{MODEL}"
    if not files.exists():
        packed = subprocess.check_output(("git", "archive", commit, assets), cwd=ROOT)
        unpacked = temporary_beside(files)
        with tarfile.open(fileobj=BytesIO(packed)) as file:
            file.extractall(unpacked, filter="data")
        unpacked.rename(files)
    return linked(work / "releases" / f"{commit}-model", files / assets)


def lattices(work: Path, name: str) -> tuple[Path, Path]:
    """A drafter's lattices of held-out answers and of the answers to the questions."""
    arcs, name = f"-k {16 if name in LATTICES else 64}", name.removesuffix(OWN)
    if name in RELEASES:
        own = ("--model", release(work, RELEASES[name]), "--bigram" if name == TIED else "--no-bigram")
    else:
        own = (f"--model {MODEL} --drafter-model", drafter(work, name))
    return lattices_of(work, name, *own, arcs)


def lattices_of(work: Path, name: str, *model: object) -> tuple[Path, Path]:
    """The same, of a model and drafter that options of `latticebpd lattices` say."""
    directories = tuple(work / "lattices" / f"{slug(name)}-{part}" for part in ("held-out", "questions"))
    sizes = (*model, "--shard-size 10")
    held = f"--teacher-force --max-new-tokens 256 --context 1024 --limit {FITTED} -o"
    latticebpd("lattices --prompts", work / "held-out.npz", *sizes, held, directories[0])
    latticebpd("lattices --prompts", work / QUESTIONS, *sizes, "--context 2048 -o", directories[1])
    return directories[0], directories[1]


# ---------------------------------------------------------------- replays
@dataclass(frozen=True)
class PathNodes:
    """The first ``num_nodes`` nodes of the best paths, best path first."""

    num_nodes: int

    def draft(self, lattices: Any, contexts: Any) -> list[DraftTree]:
        trees = NBestPaths(NgramScorer(None), self.num_nodes).draft(lattices, contexts)
        return [tree.first(self.num_nodes) for tree in trees]


def strategies(
    fit: Path, lm: fst.NgramModel, sizes: Sequence[int] = SIZES, calibrations: Sequence[str] = KINDS[4:]
) -> dict[str, Any]:
    """Every system of a drafter at its own weights; sizes: nodes of trees; calibrations: those that are fitted."""
    first = trees.VARIANTS["less both"]  # the features of these pages' first rows
    features = {
        "drafter calibrated": trees.VARIANTS["heads alone"],
        "calibrated, no text": tuple(each for each in first if each in trees.VARIANTS["+ its orders"]),
        "calibrated": first,
    }
    fitted = {name: calibrate([fit], lm, FITTED, trees.POSITIONS, 0, features[name])[0] for name in calibrations}
    scorers, plain = {name: CalibratedScorer(NgramScorer(lm), each) for name, each in fitted.items()}, NgramScorer(None)
    tuned = ("1-best", "16-best", *(f"{n}-tree" for n in sizes))
    weight = {name: tune([fit], lm, name, examples=FITTED // 2)[0].alpha for name in tuned}
    nats = np.mean(fitted[calibrations[-1]].nats)
    common.err.print(f"{fit.name}: {nats:.3f} nats a token, weights {weight}", style="dim")
    systems: dict[str, Any] = {"walk": GreedyChain()}
    for paths in (1, 16):
        systems[f"{paths}-best"] = NBestPaths(plain, paths)
        systems[f"{paths}-best, 4-gram"] = NBestPaths(NgramScorer(lm, weight[f"{paths}-best"]), paths)
    for size in sizes:
        systems[f"{size} beam"] = BeamTree(-(-size // SLOTS), size)
        systems[f"{size} paths"] = PathNodes(size)
        systems[f"{size} tree"] = BestTree(plain, size)
        systems[f"{size} tree, 4-gram"] = BestTree(NgramScorer(lm, weight[f"{size}-tree"]), size)
        systems |= {f"{size} {name}": BestTree(scorer, size) for name, scorer in scorers.items()}
    return systems


def children_after(answer: trees.Answer, strategy: Any) -> np.ndarray:
    """``[2, (nodes, predicted, right)]``: of the children of right nodes, how many there are, the sum of their
    probabilities, and how many are right: after first choices only, and after others."""
    counts = np.zeros((2, 3))
    for at, tree, _ in trees.calls_of(answer, LatticeDrafter(SavedTopK(answer.lattices), strategy)):
        lattice, right, others = tree.lattice, {-1: 0}, {-1: False}  # right nodes' depths; whether others are before
        for node, (token, parent) in enumerate(zip(tree.tokens.tolist(), tree.parents.tolist(), strict=True)):
            depth = right.get(parent)
            if depth is None or at + depth >= len(answer.tokens):
                continue
            is_right = token == answer.tokens[at + depth]
            if depth:
                probability = np.exp(tree.log_probs[node] - tree.log_probs[parent])
                counts[int(others[parent])] += 1, probability, is_right
            if is_right:
                best = lattice.tokens[depth, lattice.log_probs[depth].argmax()] if depth < lattice.slots else -1
                right[node], others[node] = depth + 1, others[parent] or token != best
    return counts


def branches(replays: Path) -> Path:
    """The file of what is right after right nodes, next to that of the replays."""
    return replays.with_suffix(".branches.csv")


def replay(work: Path, name: str, output: Path) -> None:
    commit = RELEASES[name.removesuffix(OWN)] if name.endswith(OWN) else FIRST
    (fit, asked), lm = lattices(work, name), fst.NgramModel.load(release(work, commit) / "lm.fst")
    systems, texts = strategies(fit, lm), list(trees.answers(asked))
    rows = [
        dict(zip(BRANCHES, (name, number, place, *row), strict=True))
        for number, answer in enumerate(texts)
        for place, row in zip(AFTER, children_after(answer, systems["64 calibrated, no text"]).tolist(), strict=True)
    ]
    write_csv(branches(output), rows)
    write_csv(output, replayed(name, texts, systems))


def replayed(name: str, texts: Sequence[trees.Answer], strategies: Mapping[str, Any]) -> list[dict[str, Any]]:
    """A drafter's replays by every strategy, and the oracle's."""

    def systems(answer: trees.Answer) -> dict[str, LatticeDrafter]:
        source = SavedTopK(answer.lattices)
        every = {system: LatticeDrafter(source, each) for system, each in strategies.items()}
        return {**every, "oracle": OracleDrafter(source, answer.tokens[answer.prompt_length :])}

    return trees.replayed("drafter", [(name, texts, systems)])


# ---------------------------------------------------------------- times
def calibrated(work: Path, name: str, lm: Path) -> Path:
    """The n-gram model and next to it a drafter's calibration."""
    own = work / "calibrated" / slug(name) / lm.name
    if not calibration_path(own).exists():
        own.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(lm, own)
        latticebpd("calibrate", lattices(work, name)[0], "--lm", own, f"--examples {FITTED} --write")
    return own


def timed(drafting: Any) -> list[float]:
    """The seconds that each of a drafter's calls will take."""
    seconds = list[float]()

    def propose(states: Any, draft: Any = drafting.propose) -> Any:
        begun = time.perf_counter()
        trees = draft(states)
        seconds.append(time.perf_counter() - begun)
        return trees

    drafting.propose = propose
    return seconds


def clock(work: Path, lm: Path) -> list[dict[str, Any]]:
    """Wall-clock milliseconds of answers, and of drafting within them; drafters and systems in turns."""
    common.set_up()
    home = release(work, FIRST)
    systems: dict[tuple[str, str], tuple[Loaded, Callable[[], Any]]] = {}
    for name in LATTICES:
        own = None if name in (HEADS, TIED) else drafter(work, name)
        loaded = load(home, calibrated(work, name, lm), drafter=own, weights="gguf", bigram=name != HEADS)
        systems.setdefault(("greedy", ""), (loaded, NoDrafter))
        for system in TIMED_SYSTEMS:
            systems[name, system] = (loaded, partial(loaded.drafter, system))
    rows, asked = list[dict[str, Any]](), question_set("development", read_questions(work / QUESTIONS), TIMED_COUNT)
    for number in (0, *range(len(asked))):  # the first question warms up
        texts = []
        for (name, system), (loaded, make) in systems.items():
            drafting, prompt = make(), loaded.prompts.prompt(asked[number].turns[:1])
            seconds, begun = timed(drafting), time.perf_counter()
            out = loaded.generate(prompt, drafting, max_new_tokens=NEW_TOKENS)
            taken = 1e3 * (time.perf_counter() - begun)
            texts.append(np.asarray(out.sequences).tolist())
            counts = (name, system, number, len(texts[-1][0]) - len(prompt), out.num_calls, taken, 1e3 * sum(seconds))
            rows.append(dict(zip(CLOCKED, counts, strict=True)))
        if any(each != texts[0] for each in texts):
            raise ValueError(f"question {number}: expected one text of all systems, got several")
    return rows[len(systems) :]


def searches(work: Path, lm: Path) -> list[dict[str, Any]]:
    """Microseconds of the search for trees of ``SEARCHED`` nodes in stored lattices, one by one."""
    model, rows = fst.NgramModel.load(lm), list[dict[str, Any]]()
    for name in LATTICES:
        stored = next(iter(blocks([lattices(work, name)[1]]))).take(np.arange(60))
        scorers = (NgramScorer(None), NgramScorer(model), calibrated_scorer(calibrated(work, name, lm)))
        for kind, scorer in zip(SEARCH_KINDS, scorers, strict=True):
            strategy, texts = BestTree(scorer, SEARCHED), [stored.context_of(row) for row in range(len(stored))]
            times = microseconds(lambda row: strategy.draft([stored[row]], [texts[row]]), len(stored))  # noqa: B023
            rows += [dict(zip(SEARCHES, (name, kind, row, each), strict=True)) for row, each in enumerate(times)]
    return rows


# ---------------------------------------------------------------- tables
CLOCK_HEAD = ("drafter", *(f"{system}: {what}" for system in TIMED_SYSTEMS for what in ("tokens/s", "ms of drafting")))


def clock_lines(rows: Sequence[Mapping[str, str]]) -> list[list[str]]:
    """By drafter: tokens a second and milliseconds of drafting a call of every system."""
    lines = []
    for name, own in grouped(rows, "drafter").items():
        line = [name]
        for each in grouped(own, "system").values():
            tokens, calls, taken, drafting = columns(each, *CLOCKED[3:])
            speed = common.with_interval(*pooled(1e3 * tokens, taken), places=0)
            line += [speed, f"{drafting.sum() / calls.sum():.1f}" if drafting.any() else ""]
        lines.append([*line, *[""] * (len(CLOCK_HEAD) - len(line))])
    return lines


def search_lines(rows: Sequence[Mapping[str, str]]) -> list[list[str]]:
    """By drafter: the median of the microseconds of each kind of tree."""
    return [
        [name, *(f"{np.median(columns(each, 'us')):.0f}" for each in grouped(own, "system").values())]
        for name, own in grouped(rows, "drafter").items()
    ]


Counts = dict[tuple[str, str], np.ndarray]
"""``[texts, (tokens, calls, verified)]`` by drafter and system."""


def counted(rows: Iterable[Mapping[str, str]]) -> Counts:
    counts = trees.counts_of(rows, "drafter", "system").items()
    return {(name, system): np.array([*each.values()]) for (name, system), each in counts}


def path_lines(counts: Counts, drafters: Sequence[str]) -> list[list[str]]:
    """Tokens per call of one path, of sixteen and of the oracle, by drafter."""
    return [[name, *(trees.efficiency(counts[name, each])[0] for each in PATHS)] for name in drafters]


def tree_lines(counts: Counts, drafters: Sequence[str]) -> list[list[str]]:
    """Tokens per call by drafter, kind and verified tokens."""
    pairs = ((name, kind) for name in drafters for kind in KINDS)
    return [[*pair, *(trees.efficiency(counts[pair[0], f"{size} {pair[1]}"])[0] for size in SIZES)] for pair in pairs]


def gain_lines(counts: Counts, size: int, drafters: Sequence[str]) -> list[list[str]]:
    """What each step gains on trees of ``size`` nodes, by drafter."""
    return [[name, *(trees.gain(*pair_of(counts, name, size, pair)) for pair in GAINS)] for name in drafters]


def learned_lines(counts: Counts) -> list[list[str]]:
    """What learned lattices gain over marginals, system by system, and marginals with the 4-gram over them."""
    systems = ("walk", *(f"16 {kind}" for kind in KINDS[2:]))
    lines = [[each, *(trees.gain(counts[one, each], counts[OVER[one], each]) for one in OVER)] for each in systems]
    own, other = "16 calibrated, no text", "16 drafter calibrated"
    return [*lines, ["4-gram", *(trees.gain(counts[OVER[one], own], counts[one, other]) for one in OVER)]]


def branch_lines(rows: Sequence[Mapping[str, str]]) -> list[list[str]]:
    """How many nodes after right ones are right, and that over what the calibrated tree predicts, by drafter."""
    lines = []
    for name, every in grouped(rows, "drafter").items():
        line = [name]
        for own in grouped(every, "after").values():
            nodes, predicted, right = columns(own, *BRANCHES[3:])
            line += [f"{right.sum() / nodes.sum():.1%}", common.with_interval(*pooled(right, predicted), places=3)]
        lines.append(line)
    return lines


def pair_of(counts: Counts, name: str, size: int, pair: tuple[str, str]) -> list[np.ndarray]:
    return [counts[name, each if each == "walk" else f"{size} {each}"] for each in pair]


def show(path: Path) -> None:
    counts, head = counted(read_csv(path)), ("drafter", "system", *map(str, SIZES))
    pairs = [f"{one} over {other}" for one, other in GAINS]
    for name, drafters in (("64 arcs per slot", LADDER), ("16 arcs per slot", LATTICES)):
        table(f"tokens per call, {name}, one path and sixteen", ("drafter", *PATHS), path_lines(counts, drafters))
        table(f"trees, {name}, by verified tokens", head, tree_lines(counts, drafters))
        for size in (16, 64):
            table(f"gains at {size} nodes, {name}", ("drafter", *pairs), gain_lines(counts, size, drafters))
    table("learned lattices over marginals", ("system", *OVER), learned_lines(counts))
    head = ("drafter", *(f"after {place}: {what}" for place in AFTER for what in ("right", "of predicted")))
    table("children of right nodes, 64 calibrated nodes, no text", head, branch_lines(read_csv(branches(path))))


def main() -> None:
    parser = common.options(__doc__, whole=True)
    parser.add_argument("--data", type=Path, help="folder of the sources that prompts.py names, and of Spec-Bench")
    parser.add_argument("--work", type=Path, help="folder of all results, with more.npz of more_text.py in it")
    parser.add_argument("drafters", nargs="*", help="drafters whose lattices are replayed; all by default")
    parser.add_argument("--store", action="store_true", help="write the block drafter to block/, in float16")
    parser.add_argument("-o", "--output", type=Path, help="CSV file of the replays of all of them")
    parser.add_argument("--clock", action="store_true", help="measure times instead, into the CSV file")
    parser.add_argument("--table", type=Path, help="print the tables of such a CSV file")
    args = parser.parse_args()
    if args.table is not None:
        show(args.table)
        return
    if None in (args.data, args.work) or (args.clock and args.output is None):
        parser.error("expected --data and --work, and -o with --clock; or --table")
    train(args.work, args.data)
    stage(args.work / QUESTIONS, partial(questions, args.work, args.data))
    path = release(args.work, FIRST) / "lm.fst"
    if args.clock:
        searched = args.output.with_name("drafters.search.csv")
        write_csv(args.output, clock(args.work, path), digits=1)
        write_csv(searched, searches(args.work, path), digits=1)
        table("", CLOCK_HEAD, clock_lines(read_csv(args.output)))
        table("", ("drafter", *(f"µs, {kind}" for kind in SEARCH_KINDS)), search_lines(read_csv(searched)))
        return
    if args.store:
        save_block_drafter(load_block_drafter(drafter(args.work, "block"), torch.float16), HERE / "block")
    names = args.drafters or (*LADDER, *LATTICES)
    files = {name: args.work / "replays" / f"{slug(name)}.csv" for name in names}
    parts = [stage(file, partial(replay, args.work, name, file)) for name, file in files.items()]
    if args.output is not None:
        for file, own in ((args.output, parts), (branches(args.output), map(branches, parts))):
            write_csv(file, [row for part in own for row in read_csv(part)])
        show(args.output)


if __name__ == "__main__":
    main()
