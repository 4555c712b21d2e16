"""Heads of SmolLM2-135M-Instruct that learn from more and more of its text: what is rescoring worth at each strength?

    python -m benchmarks.smollm2.more_text --data DIR --work WORK --join           # further texts -> WORK/more.npz
    python -m benchmarks.smollm2.amounts --data DIR --work WORK -o amounts.csv     # all of it; resumes
    python -m benchmarks.smollm2.amounts --table benchmarks/smollm2/results/amounts.csv

New heads, feed-forward and conditioned ones, learn from the first 303, 909, 2,727, 8,182 and 16,364 of the model's own
answers, each part in a random order, and so does a 4-gram model.  Each set is rescored by the 4-gram of its texts and
by an earlier one of the package, of the first 8,182 and people's text; weights and calibrations are its own
(`drafters.py`).  Replayed are the answers to 130 questions.  Rows of slots count right tokens, and positions.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
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
from benchmarks.smollm2.make import END, MODEL, own_text, train_heads
from latticebpd.lattices.texts import Texts
from latticebpd.report.theme import STYLE
from latticebpd.target.catalogue import resolved

AMOUNTS = {"51k": (303, 300), "157k": (909, 900), "482k": (2727, 1200), "1445k": (8182, 2000), "2955k": (16364, 2600)}
"""Texts, and updates of 10 texts, by the tokens that heads learn."""
TOKENS = [1e3 * int(amount[:-1]) for amount in AMOUNTS]
CONDITIONED, OWN, NODES = " conditioned", ", own 4-gram", (16, 64)
"""The first ends the names of heads that also read the token that the model has chosen."""
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
    trained = work / "amounts" / f"{slug(name)}-heads"
    amount, _, kind = name.partition(" ")
    more = f"--kind {kind or 'feed-forward'} --steps {AMOUNTS[amount][1]} --batch-size 10"
    return drafters.linked(work / "amounts" / slug(name), train_heads(texts, work / "held-out.npz", more, trained))


def ngram_model(texts: Sequence[Path]) -> Path:
    """The 4-gram of the texts; 4-grams that occur once are left out."""
    corpus, model = texts[-1].with_suffix(".npy"), texts[-1].with_suffix(".fst")
    stage(corpus, lambda: np.save(corpus, Texts.joined([*map(Texts.load, texts)]).corpus(END, 3).astype(np.uint16)))
    tokenizer = ("--tokenizer", Path(resolved(MODEL)) / "tokenizer.json")
    options = f"--order 4 --end-of-text {END} --min-count 1,1,1,2 -o"
    return stage(model, partial(latticebpd, "lm train", corpus, *tokenizer, options, model))


def replay(work: Path, name: str, texts: Sequence[Path], output: Path) -> None:
    fit, asked = drafters.lattices_of(work, name, "--model", heads(work, texts, name), "-k 64")
    earlier = drafters.release(work, drafters.FIRST)
    lm, own = map(fst.NgramModel.load, (earlier / "lm.fst", ngram_model(texts)))
    rescored = {one for one, _ in PAIRS}
    systems = {system: each for system, each in drafters.strategies(fit, lm, NODES).items() if system in SYSTEMS}
    systems |= {
        f"{system}{OWN}": each for system, each in drafters.strategies(fit, own, NODES).items() if system in rescored
    }
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
    for name in (f"{amount}{kind}" for kind in ("", CONDITIONED) for amount in AMOUNTS):
        file, own = args.work / "replays" / f"{slug(name)}.csv", texts[: [*AMOUNTS].index(name.split()[0]) + 1]
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


def by_amount(counts: drafters.Counts, system: str, kind: str = "") -> list[np.ndarray]:
    return [counts[f"{amount}{kind}", system] for amount in AMOUNTS]


def system_lines(counts: drafters.Counts, systems: Sequence[str], kind: str = "") -> list[list[str]]:
    """Tokens per call, or how often slots are right, with each set of heads; what three times the text add."""
    rows = [(each, by_amount(counts, each, kind)) for each in systems]
    return [[name, *(trees.efficiency(each)[0] for each in ones), change(ones)] for name, ones in rows]


def gain_lines(counts: drafters.Counts, kind: str = "") -> list[list[str]]:
    """What a step gains with each set of heads, and how three times the text change that."""
    rows = [(f"{one} over {other}", *(by_amount(counts, each, kind) for each in (one, other))) for one, other in GAINS]
    return [[name, *map(trees.gain, ones, others), change(ones, others)] for name, ones, others in rows]


def kind_lines(counts: drafters.Counts, systems: Sequence[str]) -> list[list[str]]:
    """What conditioned heads gain over feed-forward ones, and how three times the text change that."""
    rows = [(each, by_amount(counts, each, CONDITIONED), by_amount(counts, each)) for each in systems]
    return [[name, *map(trees.gain, ones, others), change(ones, others)] for name, ones, others in rows]


@rc_context(STYLE)
def figure(counts: drafters.Counts) -> Figure:
    """What rescoring gains by the amount of text, with the package's 4-gram and with that of the same text."""
    drawn = Figure(figsize=(10, 6.8), layout="constrained")
    panels = [(kind, own) for kind in ("", CONDITIONED) for own in ("", OWN)]
    for (kind, own), axes in zip(panels, drawn.subplots(2, 2, sharex=True, sharey=True).flat, strict=True):
        for number, (one, other) in enumerate((*PAIRS[:3], PAIRS[4])):
            rows = zip(by_amount(counts, one + own, kind), by_amount(counts, other, kind), strict=True)
            gains = [100 * np.array(trees.gained(*each)) for each in rows]
            draw_band(axes, TOKENS, gains, f"{one} over {other}", number)
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
    table("tokens per call", ("system", *head), system_lines(counts, SYSTEMS))
    table("gains; their change in percentage points", ("pair", *head), gain_lines(counts))
    table("share of right tokens", ("slot", *head), system_lines(counts, [*SLOTS]))
    table("conditioned heads", ("system", *head), system_lines(counts, (*SYSTEMS, *SLOTS), CONDITIONED))
    table("their gain over feed-forward ones", ("system", *head), kind_lines(counts, (*SYSTEMS, *SLOTS)))
    table("gains with them", ("pair", *head), gain_lines(counts, CONDITIONED))
    args = parser.parse_args()
    figure(counts).savefig((args.table or args.output).with_suffix(".png"), dpi=150)


if __name__ == "__main__":
    main()
