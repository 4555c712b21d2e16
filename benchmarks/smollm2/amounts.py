"""Heads of SmolLM2-135M-Instruct that learn from more and more of its text: what is rescoring worth at each strength?

    python -m benchmarks.smollm2.more_text --data DIR --work WORK --join           # further texts -> WORK/more.npz
    python -m benchmarks.smollm2.amounts --data DIR --work WORK -o amounts.csv     # all of it; resumes
    python -m benchmarks.smollm2.amounts --table benchmarks/smollm2/results/amounts.csv

New heads, feed-forward and conditioned ones, learn from the first 303, 909, 2,727, 8,182 and 16,364 of the model's own
answers, each part in a random order, and so does a 4-gram model.  Each set is rescored by the 4-gram of its texts and
by an earlier one of the package, of the first 8,182 and people's text, the last set also by one of all answers, each
with weights and a calibration of its own (`drafters.py`).  Replayed are the answers to 130 questions.  Rows of slots
count right tokens, and positions.

Heads with a shared hidden layer (Stern's), heads without a shortlist, and block drafters (DFlash's kind) of one to
three layers, bidirectional and causal, learn from the first 2,727 answers, blocks from their prompts too, two of them
also from 909 and 8,182; all are rescored in the same way.  The last heads of both kinds learn on, in twice the updates.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from functools import partial
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.figure import Figure

import fst
from benchmarks import common
from benchmarks.common import latticebpd, read_csv, slug, stage, table, write_csv
from benchmarks.decodes import draw_band
from benchmarks.smollm2 import drafters, trees
from benchmarks.smollm2.make import HERE, MODEL, SHORTLIST, estimate, own_text, save_corpus, train_heads
from latticebpd.lattices.texts import Texts
from latticebpd.report.theme import STYLE

AMOUNTS = {"51k": (303, 300), "157k": (909, 900), "482k": (2727, 1200), "1445k": (8182, 2000), "2955k": (16364, 2600)}
"""Texts, and updates of 10 texts, by the tokens that heads learn."""
NODES, CONDITIONED, OWN, ALL = (16, 64), " conditioned", ", own 4-gram", ", 4-gram of 7.0M"
"""Ends of names: of heads that also read the chosen token; of systems with a 4-gram of the same text, and of all."""
HEADS = {kind: tuple(f"{amount}{kind}" for amount in AMOUNTS) for kind in ("", CONDITIONED)}
LAST = tuple(names[-1] for names in HEADS.values())
LONGER = {name: f"{name}, 5200 updates" for name in LAST}
BY_UPDATES = tuple(name for pair in LONGER.items() for name in pair)
"""The last heads, and those that learn on."""
SHARED, EVERY = "482k shared layer", "482k all tokens"
KINDS = {"": "feed-forward", " all tokens": "feed-forward", CONDITIONED: "conditioned"}
KINDS[" shared layer"] = "stern --intermediate-size 142"
"""By ends of names. The shared layer, 8 x 142 wide, and its outputs have the parameters of eight heads of 640."""
LAYERS = ("1 layer", "2 layers", "3 layers")
BIDIRECTIONAL, CAUSAL = (tuple(f"482k {mask} block, {n}" for n in LAYERS) for mask in ("bidirectional", "causal"))
BY_LAYERS = {n: tuple(f"{each} bidirectional block, {n}" for each in [*AMOUNTS][1:4]) for n in LAYERS[::2]}
"""Blocks by the amount of text."""
BLOCKS = tuple(dict.fromkeys((*BIDIRECTIONAL, *CAUSAL, *chain(*BY_LAYERS.values()))))
FAMILIES = {f"{KINDS[end]} heads": (*names, LONGER[names[-1]]) for end, names in HEADS.items()}
FAMILIES |= {f"blocks, {n}": names for n, names in BY_LAYERS.items()}
FAMILIES |= {"blocks, more updates": drafters.BLOCKS, "the package's heads": ("heads", drafters.LATER)}
"""Drafters of a kind, by strength; the last two are of `drafters.py`."""
COMPARED = {SHARED: "482k", EVERY: "482k", **dict(zip(CAUSAL, BIDIRECTIONAL, strict=True))}
COMPARED |= {two: one for one, two in pairwise(BIDIRECTIONAL)}
"""A shared layer and all tokens, over separate layers and a shortlist; blocks over another mask or a layer less."""
OF_ONE_TEXT = ("482k", f"482k{CONDITIONED}", SHARED, EVERY, *BIDIRECTIONAL, *CAUSAL)
"""Drafters that learn from the same texts."""
PAIRS = (
    ("1-best, 4-gram", "1-best"), ("16-best, 4-gram", "16-best"), ("16 tree, 4-gram", "16 tree"),
    ("64 tree, 4-gram", "64 tree"), ("16 calibrated, no text", "16 drafter calibrated"),
    ("64 calibrated, no text", "64 drafter calibrated"),
)  # fmt: skip
"""With a 4-gram, and without."""
WITH_OWN = tuple((f"{one}{OWN}", other) for one, other in PAIRS)
OTHERS = (("16 tree", "walk"), ("16 calibrated", "16 calibrated, no text"))
GAINS = (*PAIRS, *WITH_OWN, *OTHERS)
STEPS = {
    "exact search": OTHERS[0], "4-gram": PAIRS[2], "4-gram, calibrated": PAIRS[4],
    "text so far": OTHERS[1], "own 4-gram": WITH_OWN[2], "own 4-gram, calibrated": WITH_OWN[4],
}  # fmt: skip
"""Of trees of 16 nodes."""
SYSTEMS = ("walk", *(each for pair in PAIRS for each in pair[::-1]), "16 calibrated", "64 calibrated", "oracle")
Names = Sequence[str]
SLOTS = {f"slot {slot}, among {k}": (slot, k) for slot in (1, 2, 3, 4, 8) for k in (1, 16, 64)}


def amount(name: str) -> str:
    """The amount of text that a drafter's name begins with."""
    return slug(name).partition("-")[0]


# ---------------------------------------------------------------- heads and n-gram models
def parts(work: Path, data: Path) -> list[Path]:
    """Texts that amount to each number of them, one file after the other, with hidden states next to them."""
    written = Texts.load(own_text(work, data, [work / "more.npz"])[0])
    draw, first, ends = np.random.default_rng(0), drafters.WRITTEN, [count for count, _ in AMOUNTS.values()]
    order = [*draw.permutation(first).tolist(), *(first + draw.permutation(len(written) - first)).tolist()]
    paths = [work / "amounts" / f"texts-{end}.npz" for end in ends]
    for path, (begin, end) in zip(paths, pairwise((0, *ends)), strict=True):
        stage(path, partial(written.chosen(order[begin:end]).save, path))
    latticebpd("train hidden", work / "held-out.npz", *paths, f"--model {MODEL} --shard-texts 64 --batch-tokens 2048")
    return paths


def heads(work: Path, texts: Sequence[Path], name: str) -> Path:
    """Heads in a folder with the package's model, whose 4-bit weights they draft for."""
    own, _, longer = name.partition(", ")
    listed = "" if name == EVERY else f" {SHORTLIST}"
    run, trained = (work / "amounts" / f"{slug(each)}-heads" for each in (own, name))
    if longer and not trained.exists():
        heads(work, texts, own)
        drafters.copied(run, trained)
    steps = longer.removesuffix(" updates") or AMOUNTS[amount(name)][1]
    more = f"--kind {KINDS[own.removeprefix(amount(name))]} --steps {steps} --batch-size 10{listed}"
    return drafters.linked(work / "amounts" / slug(name), train_heads(texts, work / "held-out.npz", more, trained))


def block(work: Path, texts: Sequence[Path], name: str) -> Path:
    """A block drafter, after a fifth of the heads' updates, of 12 texts with 32 anchors in each."""
    home, (_, mask, _, layers, _) = work / "amounts" / "blocks", name.split()
    training = drafters.block_training(work, home / texts[-1].name, lambda: Texts.joined([*map(Texts.load, texts)]))
    more = f"{drafters.BLOCK} --{mask} --num-layers {layers} --batch-size 12 --accumulate 3"
    latticebpd(*training, more, f"--steps {AMOUNTS[amount(name)][1] // 5} -o", home / slug(name))
    return home / slug(name)


def drafter(work: Path, texts: Sequence[Path], name: str) -> tuple[object, ...]:
    """A trained drafter as options of `latticebpd lattices`."""
    if name in BLOCKS:
        return f"--model {MODEL} --drafter-model", block(work, texts, name)
    return "--model", heads(work, texts, name)


def ngram_model(texts: Sequence[Path]) -> Path:
    """The 4-gram of the texts; 4-grams that occur once are left out."""
    return estimate(save_corpus(texts), texts[-1].with_suffix(".fst"), "--min-count 1,1,1,2")


def replay(work: Path, name: str, texts: Sequence[Path], output: Path) -> None:
    fit, asked = drafters.lattices_of(work, name, *drafter(work, texts, name), "-k 64")
    models = {"": drafters.release(work, drafters.FIRST) / "lm.fst", OWN: ngram_model(texts)}
    if name in LAST:
        models[ALL] = ngram_model([work / "train.npz"])
    systems = dict[str, Any]()
    for end, path in models.items():
        rescored = {one for one, _ in PAIRS} if end else {*SYSTEMS}
        calibrations = [kind for kind in drafters.KINDS[4:] if f"{NODES[0]} {kind}" in rescored]
        fitted = drafters.strategies(fit, fst.NgramModel.load(path), NODES, calibrations)
        systems |= {f"{system}{end}": each for system, each in fitted.items() if system in rescored}
    rows, answers = list[dict[str, Any]](), [*trees.answers(asked)]
    for number, lattices in enumerate(trees.narrowed(answer.lattices) for answer in answers):
        for system, (slot, k) in SLOTS.items():
            wanted = lattices.continuation[:, slot - 1 : slot]
            right = (lattices.tokens[:, slot - 1, :k] == wanted) & (wanted >= 0)
            counts = (name, number, system, int(right.sum()), int((wanted >= 0).sum()), k)
            rows.append(dict(zip(("drafter", *trees.COLUMNS), counts, strict=True)))
    write_csv(output, [*drafters.replayed(name, answers, systems), *rows])


def measured(args: argparse.Namespace) -> list[dict[str, str]]:
    texts, rows = parts(args.work, args.data), list[dict[str, str]]()
    stage(args.work / drafters.QUESTIONS, partial(drafters.questions, args.work, args.data))
    for name in (*HEADS[""], *HEADS[CONDITIONED], SHARED, EVERY, *BLOCKS, *LONGER.values()):
        file, own = args.work / "replays" / f"{slug(name)}.csv", texts[: [*AMOUNTS].index(amount(name)) + 1]
        rows += read_csv(stage(file, partial(replay, args.work, name, own, file)))
    return rows


# ---------------------------------------------------------------- tables
def change(names: Names, ones: Sequence[np.ndarray], others: Sequence[np.ndarray] = ()) -> str:
    """What three times the text change in tokens per call, or in the gain over others in percentage points: the slope
    of a straight line through the drafters' amounts of text.  names: of the drafters, whose counts these are."""

    def efficiencies(counts: Sequence[np.ndarray], drawn: np.ndarray) -> np.ndarray:
        sums = [each[drawn].sum(axis=-2) for each in counts]
        return np.stack([each[..., 0] / each[..., 1] for each in sums], axis=-1)

    def measure(drawn: np.ndarray) -> np.ndarray:
        values, at = efficiencies(ones, drawn), np.log([int(amount(each)[:-1]) for each in names]) / np.log(3)
        if others:
            values = 100 * (values / efficiencies(others, drawn) - 1)
        return values @ (at - at.mean()) / (len(at) * at.var())

    return "{:+.{p}f} ({:+.{p}f} to {:+.{p}f})".format(*common.interval(measure, len(ones[0])), p=1 if others else 3)


def by_drafter(counts: drafters.Counts, names: Names, system: str) -> list[np.ndarray]:
    return [counts[name, system] for name in names]


def joined(*tables: Iterable[list[str]]) -> list[list[str]]:
    """Tables whose lines have the same first cells, next to each other."""
    return [[lines[0][0], *chain(*(line[1:] for line in lines))] for lines in zip(*tables, strict=True)]


def trend(names: Names, *counts: Sequence[np.ndarray]) -> list[str]:
    """What three times the text change, where drafters differ by it."""
    return [change(names, *counts)] if len({*map(amount, names)}) > 1 else []


def system_lines(counts: drafters.Counts, names: Names, systems: Iterable[str]) -> list[list[str]]:
    """Tokens per call, or how often slots are right, with each drafter."""
    rows = [(system, by_drafter(counts, names, system)) for system in systems]
    return [[system, *(trees.efficiency(each)[0] for each in ones), *trend(names, ones)] for system, ones in rows]


def gain_lines(counts: drafters.Counts, names: Names) -> list[list[str]]:
    """What a step gains with each drafter."""
    pairs = {f"{one} over {other}": [by_drafter(counts, names, each) for each in (one, other)] for one, other in GAINS}
    return [[name, *map(trees.gain, *pair), *trend(names, *pair)] for name, pair in pairs.items()]


def drafter_lines(counts: drafters.Counts, names: Names, others: Names, systems: Iterable[str]) -> list[list[str]]:
    """What each drafter gains over another."""
    pairs = {system: [by_drafter(counts, own, system) for own in (names, others)] for system in systems}
    return [[name, *map(trees.gain, *pair), *trend(names, *pair)] for name, pair in pairs.items()]


def update_lines(counts: drafters.Counts, systems: Sequence[str]) -> list[list[str]]:
    """The last heads of both kinds, then after more updates, and what those gain."""
    gains = drafter_lines(counts, [*LONGER.values()], [*LONGER], systems)
    return joined(system_lines(counts, BY_UPDATES, systems), gains)


def text_lines(counts: drafters.Counts) -> list[list[str]]:
    """What a 4-gram of the heads' text gains, and one of all text, with the last heads of both kinds."""
    own = [(name, end) for name in LAST for end in (OWN, ALL)]
    return [
        [f"{one} over {other}", *(trees.gain(counts[name, one + end], counts[name, other]) for name, end in own)]
        for one, other in PAIRS
    ]


@rc_context(STYLE)
def figure(counts: drafters.Counts) -> Figure:
    """What each step gains with trees of 16 nodes, by how far a drafter walks."""
    drawn = Figure(figsize=(13, 7), layout="constrained")
    for (step, (one, other)), axes in zip(STEPS.items(), drawn.subplots(2, 3, sharex=True).flat, strict=True):
        for number, (family, names) in enumerate(FAMILIES.items()):
            cells = [[counts[name, each] for each in ("walk", one, other)] for name in names if (name, one) in counts]
            if cells:
                at = [walk[:, 0].sum() / walk[:, 1].sum() for walk, *_ in cells]
                draw_band(axes, at, [100 * np.array(trees.gained(*pair)) for _, *pair in cells], family, number)
        axes.set(title=step, ylabel="gain, %", xlabel="tokens per call of a walk")
        axes.set_ylim(bottom=min(0, axes.get_ylim()[0]))
    drawn.axes[0].legend(fontsize=8, loc="lower right")
    return drawn


def main() -> None:
    parser = common.options(__doc__, whole=True)
    parser.add_argument("--data", type=Path, help="folder of the sources that prompts.py names, and of Spec-Bench")
    parser.add_argument("--work", type=Path, help="folder of all results, with more.npz of more_text.py in it")
    counts, head = drafters.counted(common.recorded(parser, measured)), (*AMOUNTS, "three times the text")
    (forward, conditioned), right = HEADS.values(), (*SYSTEMS, *SLOTS)
    texts = [f"{kind}{end}" for kind in [*FAMILIES][:2] for end in (OWN, ALL)]
    table("tokens per call", ("system", *head), system_lines(counts, forward, SYSTEMS))
    table("gains; their change in percentage points", ("pair", *head), gain_lines(counts, forward))
    table("gains with more text", ("pair", *texts), text_lines(counts))
    table("share of right tokens", ("slot", *head), system_lines(counts, forward, SLOTS))
    table("conditioned heads", ("system", *head), system_lines(counts, conditioned, right))
    table("their gain over feed-forward ones", ("system", *head), drafter_lines(counts, conditioned, forward, right))
    table("gains with them", ("pair", *head), gain_lines(counts, conditioned))
    table("drafters of the same texts", ("system", *OF_ONE_TEXT), system_lines(counts, OF_ONE_TEXT, right))
    table("gains with them", ("pair", *OF_ONE_TEXT), gain_lines(counts, OF_ONE_TEXT))
    table("more updates", ("system", *BY_UPDATES, *(f"gain, {name}" for name in LAST)), update_lines(counts, right))
    table("gains with them", ("pair", *BY_UPDATES), gain_lines(counts, BY_UPDATES))
    blocks = [f"{each}, {n}" for n in BY_LAYERS for each in (*[*AMOUNTS][1:4], head[-1])]
    table("blocks", ("system", *blocks), joined(*(system_lines(counts, each, right) for each in BY_LAYERS.values())))
    table("gains with them", ("pair", *blocks), joined(*(gain_lines(counts, each) for each in BY_LAYERS.values())))
    compared, pairs = ([*COMPARED], [*COMPARED.values()]), [" over ".join(pair) for pair in COMPARED.items()]
    table("layers, masks", ("system", *pairs), drafter_lines(counts, *compared, right))
    args = parser.parse_args()
    counts |= drafters.counted(read_csv(HERE / "results/drafters.csv"))
    figure(counts).savefig((args.table or args.output).with_suffix(".png"), dpi=150)


if __name__ == "__main__":
    main()
