"""Heads of SmolLM2-135M-Instruct that learn from more and more of its text: what is rescoring worth at each strength?

    python -m benchmarks.smollm2.more_text --data DIR --work WORK --join           # further texts -> WORK/more.npz
    python -m benchmarks.smollm2.amounts --data DIR --work WORK -o amounts.csv     # all of it; resumes
    python -m benchmarks.smollm2.amounts --table benchmarks/smollm2/results/amounts.csv

New heads, feed-forward and conditioned ones, learn from the first 303, 909, 2,727, 8,182 and 16,364 of the model's own
answers, each part in a random order, and so does a 4-gram model.  Each set is rescored by the 4-gram of its texts and
by an earlier one of the package, of the first 8,182 and people's text, the last set also by one of all answers, each
with weights and a calibration of its own (`drafters.py`).  Replayed are the answers to 130 questions.  Rows of slots
count right tokens, and positions.

Heads with a shared hidden layer (Stern's), heads that draft all tokens instead of a shortlist, and block drafters
(DFlash's kind) of one to three layers, bidirectional and causal, learn from the first 2,727 answers, blocks from their
prompts too, and are rescored in the same way.  The last heads of both kinds also learn on, in twice the updates.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from functools import partial
from itertools import pairwise
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
from benchmarks.smollm2.make import END, MODEL, SHORTLIST, own_text, train_heads
from latticebpd.lattices.texts import Texts
from latticebpd.report.theme import STYLE
from latticebpd.target.catalogue import resolved

AMOUNTS = {"51k": (303, 300), "157k": (909, 900), "482k": (2727, 1200), "1445k": (8182, 2000), "2955k": (16364, 2600)}
"""Texts, and updates of 10 texts, by the tokens that heads learn."""
TOKENS = [1e3 * int(amount[:-1]) for amount in AMOUNTS]
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
BLOCKS = (*BIDIRECTIONAL, *CAUSAL)
COMPARED = {SHARED: "482k", EVERY: "482k", **dict(zip(CAUSAL, BIDIRECTIONAL, strict=True))}
COMPARED |= {two: one for one, two in pairwise(BIDIRECTIONAL)}
"""A shared layer and all tokens, over separate layers and a shortlist; blocks over another mask or a layer less."""
OF_ONE_TEXT = ("482k", f"482k{CONDITIONED}", SHARED, EVERY, *BLOCKS)
"""Drafters that learn from the same texts."""
PAIRS = (
    ("1-best, 4-gram", "1-best"), ("16-best, 4-gram", "16-best"), ("16 tree, 4-gram", "16 tree"),
    ("64 tree, 4-gram", "64 tree"), ("16 calibrated, no text", "16 drafter calibrated"),
    ("64 calibrated, no text", "64 drafter calibrated"),
)  # fmt: skip
"""With a 4-gram, and without."""
OTHERS = (("16 tree", "walk"), ("16 calibrated", "16 calibrated, no text"))
GAINS = (*PAIRS, *((f"{one}{OWN}", other) for one, other in PAIRS), *OTHERS)
SYSTEMS = ("walk", *(each for pair in PAIRS for each in pair[::-1]), "16 calibrated", "64 calibrated", "oracle")
SLOTS = {f"slot {slot}, among {k}": (slot, k) for slot in (1, 2, 3, 4, 8) for k in (1, 16, 64)}


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
    (own, _, longer), amount = name.partition(", "), slug(name).partition("-")[0]
    listed = "" if name == EVERY else f" {SHORTLIST}"
    run, trained = (work / "amounts" / f"{slug(each)}-heads" for each in (own, name))
    if longer and not trained.exists():
        heads(work, texts, own)
        drafters.copied(run, trained)
    steps = longer.removesuffix(" updates") or AMOUNTS[amount][1]
    more = f"--kind {KINDS[own.removeprefix(amount)]} --steps {steps} --batch-size 10{listed}"
    return drafters.linked(work / "amounts" / slug(name), train_heads(texts, work / "held-out.npz", more, trained))


def block(work: Path, texts: Sequence[Path], name: str) -> Path:
    """A block drafter, after 240 updates of 12 texts with 32 anchors in each."""
    home, (_, mask, _, layers, _) = work / "amounts" / "blocks", name.split()
    training = drafters.block_training(work, home / texts[-1].name, lambda: Texts.joined([*map(Texts.load, texts)]))
    more = f"{drafters.BLOCK} --{mask} --num-layers {layers} --batch-size 12 --accumulate 3 --steps 240 -o"
    latticebpd(*training, more, home / slug(name))
    return home / slug(name)


def drafter(work: Path, texts: Sequence[Path], name: str) -> tuple[object, ...]:
    """A trained drafter as options of `latticebpd lattices`."""
    if name in BLOCKS:
        return f"--model {MODEL} --drafter-model", block(work, texts, name)
    return "--model", heads(work, texts, name)


def ngram_model(texts: Sequence[Path]) -> Path:
    """The 4-gram of the texts; 4-grams that occur once are left out."""
    corpus, model = texts[-1].with_suffix(".npy"), texts[-1].with_suffix(".fst")
    stage(corpus, lambda: np.save(corpus, Texts.joined([*map(Texts.load, texts)]).corpus(END, 3).astype(np.uint16)))
    tokenizer = ("--tokenizer", Path(resolved(MODEL)) / "tokenizer.json")
    options = f"--order 4 --end-of-text {END} --min-count 1,1,1,2 -o"
    return stage(model, partial(latticebpd, "lm train", corpus, *tokenizer, options, model))


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
        file, amount = args.work / "replays" / f"{slug(name)}.csv", slug(name).partition("-")[0]
        own = texts[: [*AMOUNTS].index(amount) + 1]
        rows += read_csv(stage(file, partial(replay, args.work, name, own, file)))
    return rows


# ---------------------------------------------------------------- tables
def change(ones: Sequence[np.ndarray], others: Sequence[np.ndarray] = ()) -> str:
    """What three times the text change in tokens per call, or in the gain over others in percentage points: the slope
    of a straight line through the amounts, of each of which there are counts."""

    def efficiencies(counts: Sequence[np.ndarray], drawn: np.ndarray) -> np.ndarray:
        sums = [each[drawn].sum(axis=-2) for each in counts]
        return np.stack([each[..., 0] / each[..., 1] for each in sums], axis=-1)

    def measure(drawn: np.ndarray) -> np.ndarray:
        values, at = efficiencies(ones, drawn), np.log(TOKENS) / np.log(3)
        if others:
            values = 100 * (values / efficiencies(others, drawn) - 1)
        return values @ (at - at.mean()) / (len(at) * at.var())

    return "{:+.{p}f} ({:+.{p}f} to {:+.{p}f})".format(*common.interval(measure, len(ones[0])), p=1 if others else 3)


def by_drafter(counts: drafters.Counts, names: Sequence[str], system: str) -> list[np.ndarray]:
    return [counts[name, system] for name in names]


def trend(names: Sequence[str], *counts: Sequence[np.ndarray]) -> list[str]:
    """What three times the text change, where drafters differ by it."""
    return [change(*counts)] if names in HEADS.values() else []


def system_lines(counts: drafters.Counts, names: Sequence[str], systems: Iterable[str]) -> list[list[str]]:
    """Tokens per call, or how often slots are right, with each drafter."""
    rows = [(system, by_drafter(counts, names, system)) for system in systems]
    return [[system, *(trees.efficiency(each)[0] for each in ones), *trend(names, ones)] for system, ones in rows]


def gain_lines(counts: drafters.Counts, names: Sequence[str]) -> list[list[str]]:
    """What a step gains with each drafter."""
    pairs = {f"{one} over {other}": [by_drafter(counts, names, each) for each in (one, other)] for one, other in GAINS}
    return [[name, *map(trees.gain, *pair), *trend(names, *pair)] for name, pair in pairs.items()]


def drafter_lines(
    counts: drafters.Counts, names: Sequence[str], others: Sequence[str], systems: Iterable[str]
) -> list[list[str]]:
    """What each drafter gains over another."""
    pairs = {system: [by_drafter(counts, own, system) for own in (names, others)] for system in systems}
    return [[name, *map(trees.gain, *pair), *trend(names, *pair)] for name, pair in pairs.items()]


def update_lines(counts: drafters.Counts, systems: Sequence[str]) -> list[list[str]]:
    """The last heads of both kinds, then after more updates, and what those gain."""
    gains = drafter_lines(counts, [*LONGER.values()], [*LONGER], systems)
    return [one + gain[1:] for one, gain in zip(system_lines(counts, BY_UPDATES, systems), gains, strict=True)]


def text_lines(counts: drafters.Counts) -> list[list[str]]:
    """What a 4-gram of the heads' text gains, and one of all text, with the last heads of both kinds."""
    own = [(name, end) for name in LAST for end in (OWN, ALL)]
    return [
        [f"{one} over {other}", *(trees.gain(counts[name, one + end], counts[name, other]) for name, end in own)]
        for one, other in PAIRS
    ]


@rc_context(STYLE)
def figure(counts: drafters.Counts) -> Figure:
    """What rescoring gains by the amount of text, with the package's 4-gram and with that of the same text."""
    drawn = Figure(figsize=(10, 6.8), layout="constrained")
    panels = [(kind, own) for kind in ("", CONDITIONED) for own in ("", OWN)]
    for (kind, own), axes in zip(panels, drawn.subplots(2, 2, sharex=True, sharey=True).flat, strict=True):
        for number, (one, other) in enumerate((*PAIRS[:3], PAIRS[4])):
            pair = (by_drafter(counts, HEADS[kind], each) for each in (one + own, other))
            percent = [100 * np.array(trees.gained(*each)) for each in zip(*pair, strict=True)]
            draw_band(axes, TOKENS, percent, f"{one} over {other}", number)
        title = f"{kind.strip() or 'feed-forward'} heads, " + (own[2:] or "the package's 4-gram")
        axes.set(xscale="log", title=title, ylabel="" if own else "gain, %")
    for axes in drawn.axes[2:]:
        axes.set(xlabel="tokens that heads learn")
    drawn.axes[3].legend(fontsize=8, loc="upper left")
    return drawn


def main() -> None:
    parser = common.options(__doc__, whole=True)
    parser.add_argument("--data", type=Path, help="folder of the sources that prompts.py names, and of Spec-Bench")
    parser.add_argument("--work", type=Path, help="folder of all results, with more.npz of more_text.py in it")
    counts, head = drafters.counted(common.recorded(parser, measured)), (*AMOUNTS, "three times the text")
    (forward, conditioned), right = HEADS.values(), (*SYSTEMS, *SLOTS)
    texts = [f"{kind} heads{end}" for kind in ("feed-forward", "conditioned") for end in (OWN, ALL)]
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
    compared, pairs = ([*COMPARED], [*COMPARED.values()]), [" over ".join(pair) for pair in COMPARED.items()]
    table("layers, masks", ("system", *pairs), drafter_lines(counts, *compared, right))
    args = parser.parse_args()
    figure(counts).savefig((args.table or args.output).with_suffix(".png"), dpi=150)


if __name__ == "__main__":
    main()
