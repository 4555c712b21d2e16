"""The pictures of the pages of concepts, from one small example: ``python -m docs.site`` after a change.

Three heads predict what follows "I"; a bigram model knows which words go together. What the pictures show is computed.
"""

from __future__ import annotations

import re
from html import escape
from pathlib import Path

import numpy as np

import fst
from docs.draw import arrow, box, svg
from latticebpd import Drafts, DraftTree, SausageLattice, draft_tree, rescore
from latticebpd.drafters.cost_curve import CostCurve
from latticebpd.lattices.pictures import lattice_picture, tree_picture
from latticebpd.report.theme import css_colours

FOLDER = Path(__file__).parents[1] / "concepts"
WORDS = ["I", "am", "will", "was", "be", "writing", "very", "to", "having", "glad"]
SLOTS = (
    {"am": 0.5, "will": 0.35, "was": 0.1},
    {"be": 0.45, "writing": 0.35, "very": 0.15},
    {"to": 0.5, "having": 0.3, "glad": 0.15},
)
"""The best tokens of each head, and their probabilities."""
BIGRAMS = {
    "I": {"am": 0.4, "will": 0.3, "was": 0.2}, "am": {"writing": 0.4, "very": 0.3}, "will": {"be": 0.6},
    "was": {"very": 0.4, "writing": 0.2}, "be": {"having": 0.3, "very": 0.2}, "writing": {"to": 0.7},
    "very": {"glad": 0.5},
}  # fmt: skip
PASSES = {1: 15.0, 3: 15.3, 9: 33.8}
"""Milliseconds of passes over so many tokens: Qwen2.5-Coder 0.5B on one core, `benchmarks/qwen/speed.md`."""
ACCEPTED = ["am", "writing", "to"]


def example_lattice() -> SausageLattice:
    tokens = [[WORDS.index(word) for word in slot] for slot in SLOTS]
    return SausageLattice(tokens, np.log([list(slot.values()) for slot in SLOTS]))


def example_bigrams() -> fst.NgramModel:
    """Words that a word was not seen before share the rest of its probability."""
    rows = sorted((WORDS.index(a), WORDS.index(b), p) for a, after in BIGRAMS.items() for b, p in after.items())
    after = [BIGRAMS.get(word, {}) for word in WORDS]
    rest = [np.log((1 - sum(each.values())) / (1 - len(each) / len(WORDS))) for each in after]
    unigrams, bigrams = np.arange(len(WORDS))[:, None], np.array([row[:2] for row in rows])
    table = fst.NgramTable(
        [unigrams.astype(np.int32), bigrams.astype(np.int32)],
        [np.full(len(WORDS), -np.log(len(WORDS))), np.log([row[2] for row in rows])],
        [np.array(rest), np.zeros(len(rows))],
    )
    return fst.NgramModel.from_table(table)


def example_tree(num_nodes: int) -> DraftTree:
    return draft_tree(example_lattice(), example_bigrams(), num_nodes=num_nodes, context=[0])


def embedded(picture: str, x: int, y: int, scale: float = 1.3) -> tuple[str, int, int]:
    """A picture of a notebook within another one, larger than there, its width and its height."""
    width, height = (round(scale * float(value)) for value in re.findall(r'(?:width|height)="([\d.]+)"', picture)[:2])
    size = f'x="{x}" y="{y}" width="{width}" height="{height}"'
    return re.sub(r' width="[\d.]+" height="[\d.]+"', f" {size}", picture, count=1), width, height


def framed(width: int, height: int, label: str, *parts: str) -> str:
    return svg(width, height, label, [f"<style>{css_colours()}</style>", *parts])


def text(x: float, y: float, words: str, kind: str = "") -> str:
    return f'<text class="{kind}" x="{x:g}" y="{y:g}">{escape(words)}</text>'


def bars(x: int, y: int, title: str, rows: dict[str, float], kind: str, indent: int = 125, length: int = 140) -> str:
    """Words and their probabilities, one below the other; bars begin at ``indent``, that of 1 is ``length`` long."""
    parts = [text(x, y, title, "b")]
    for i, (words, share) in enumerate(rows.items()):
        line = y + 30 + 28 * i
        parts.append(text(x, line, words))
        parts.append(
            f'<rect class="{kind}" x="{x + indent}" y="{line - 13}" width="{max(length * share, 1):.1f}" height="17"/>'
        )
        parts.append(text(x + indent + 8 + length * share, line, f"{share:.0%}", "faint"))
    return "".join(parts)


def sausage_lattice() -> str:
    picture, width, height = embedded(lattice_picture(example_lattice(), WORDS.__getitem__), 20, 44)
    return framed(width + 40, height + 64, "A sausage lattice of three slots, three arcs each",
                  text(20, 30, "I … three slots, three tokens each: 27 drafts", "b"), picture)  # fmt: skip


def shares(drafts: Drafts, most: int = 5) -> dict[str, float]:
    """The best drafts, and their shares of the probability of all."""
    all_of_them = np.exp(drafts.scores - drafts.scores.max())
    words = (" ".join(WORDS[token] for token in path) for path in drafts.tokens[:most])
    return dict(zip(words, (all_of_them / all_of_them.sum()).tolist(), strict=False))


def rescoring() -> str:
    lattice, lm = example_lattice(), example_bigrams()
    heads, both = (rescore(lattice, each, p=27, alpha=1.0, context=[0]) for each in (None, lm))
    return framed(620, 210, "The five best drafts of the heads alone, and with the bigram model",
                  bars(24, 34, "The heads alone", shares(heads), "room"),
                  bars(324, 34, "Heads and bigram model", shares(both), "end"))  # fmt: skip


def draft_tree_picture() -> str:
    picture, width, height = embedded(tree_picture(example_tree(8), WORDS.__getitem__), 20, 40)
    return framed(width + 60, height + 58, "A draft tree of eight nodes",
                  text(20, 30, "The eight most probable prefixes", "b"), picture)  # fmt: skip


def verification() -> str:
    tree = example_tree(8)
    words = [WORDS[token] for token in tree.tokens]
    accepted = [
        node for node in range(len(tree)) if [words[each] for each in tree.path(node)] == ACCEPTED[: tree.depths[node]]
    ]
    picture, width, height = embedded(tree_picture(tree, WORDS.__getitem__, accepted), 20, 40, scale=1.1)
    left, top, cell = 110, height + 190, 26
    parts = [text(20, height + 110, "Who attends to whom in the pass", "b")]
    for row, name in enumerate(words):
        y = top + cell * row
        parts.append(f'<text class="faint" text-anchor="end" x="{left - 8}" y="{y + 17}">{name}</text>')
        x = left + cell * row + 17
        parts.append(f'<text class="faint" transform="translate({x} {top - 8}) rotate(-60)">{name}</text>')
        for column in range(len(words)):
            kind = "end" if tree.ancestors[row, column] else "box"
            parts.append(
                f'<rect class="{kind}" x="{left + cell * column}" y="{y}" width="{cell - 2}" height="{cell - 2}"/>'
            )
    parts.append(text(20, height + 56, "green: the target writes the same", "faint"))
    return framed(width + 40, top + cell * len(words) + 24,
                  "The draft tree with its accepted nodes, and the attention mask of the pass",
                  text(20, 30, "Draft tree", "b"), picture, *parts)  # fmt: skip


def calibration() -> str:
    """Two tokens and everything else, by heads, n-gram model and the text, with weights 0.8, 0.5 and 1.5."""
    features = np.array(
        [[np.log(0.45), np.log(0.05), 0.0], [np.log(0.35), np.log(0.4), 1.0], [np.log(0.05), np.log(0.2), 0.0]]
    )
    scores = np.exp(features @ [0.8, 0.5, 1.5])
    shown = dict(zip(("be", "writing", "anything else"), scores / scores.sum(), strict=True))
    return framed(
        640, 250, "Three sources of evidence, weighted by slot, give probabilities",
        box(20, 24, 180, 54, "room", "heads", "be 0.45 · writing 0.35"),
        box(20, 96, 180, 54, "room", "n-gram model", "be 0.05 · writing 0.40"),
        box(20, 168, 180, 54, "room", "the text so far", "“am writing” occurs in it"),
        box(246, 90, 106, 66, "mid", "weights", "one set a slot"),
        arrow("M200 51H222V112H244"), arrow("M200 123H244"), arrow("M200 195H222V134H244"), arrow("M352 123H380"),
        bars(392, 72, "Calibrated probability", shown, "end", 104, 96),
    )  # fmt: skip


def cost() -> str:
    """Tokens a second of the example's trees of every size."""
    most = 12
    expected = 1 + np.cumsum([0, *np.exp(example_tree(most).log_probs)])
    curve = CostCurve((1,), tuple(PASSES), (tuple(value / 1000 for value in PASSES.values()),))
    speeds = expected / curve.of(1, np.arange(1, most + 2))
    best = int(np.argmax(speeds))
    left, bottom, step, height = 64, 250, 44, 200
    points = [(left + step * n, bottom - height * speed / 160) for n, speed in enumerate(speeds)]
    path = "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in points)
    parts = [f'<path class="line" d="M{left} {bottom - height - 16}V{bottom}H{left + step * most + 20}"/>']
    for speed in (0, 40, 80, 120, 160):
        y = bottom - height * speed / 160
        parts.append(f'<text class="faint" text-anchor="end" x="{left - 8}" y="{y + 4:g}">{speed}</text>')
    for n, (x, y) in enumerate(points):
        kind = "end" if n == best else "room"
        parts.append(f'<circle class="{kind}" cx="{x:g}" cy="{y:.1f}" r="{7 if n == best else 4}"/>')
        parts.append(f'<text class="faint m" x="{x:g}" y="{bottom + 20}">{n}</text>')
    x, y = points[best]
    parts.append(text(x - 60, y - 16, f"best: {best} nodes, {speeds[best]:.0f} tokens/s", "b"))
    parts += [text(20, 26, "tokens a second", "faint"), text(250, bottom + 42, "nodes of the draft tree", "faint")]
    line = f'<path class="line" d="{path}"/>'
    return framed(640, 300, "Tokens a second of trees of 0 to 12 nodes", line, *parts)


PICTURES = {
    "sausage-lattice": sausage_lattice, "rescoring": rescoring, "draft-tree": draft_tree_picture,
    "verification": verification, "calibration": calibration, "cost": cost,
}  # fmt: skip


def write() -> None:
    FOLDER.mkdir(exist_ok=True)
    for name, draw in PICTURES.items():
        (FOLDER / f"{name}.svg").write_text(draw(), encoding="utf-8")
