"""Pictures of lattices and draft trees and tables of drafts for notebooks: text escaped, sizes bounded.

`SausageLattice`, `DraftTree` and `Drafts` draw themselves with this module, so it does not import them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape
from typing import Any

import numpy as np

from fst.drawing import lattice_svg

Word = Callable[[int], str]
"""A token -> its text."""

MOST_SLOTS, MOST_ARCS, MOST_NODES, MOST_DRAFTS, LONGEST = 12, 8, 64, 10, 12
"""The most that is shown of a lattice, of a tree, of drafts, and of a word (letters)."""

_COLUMN, _ROW, _MARGIN = 136, 26, 14
_CELL = 1000
"""What every notebook's cell has room for, in pixels."""
_INK, _FAINT, _GREEN = "var(--ink,#1c2024)", "var(--faint,#60666c)", "var(--c3,#00835e)"


def visible(text: str) -> str:
    """Text in one line of printable letters: invisible ones are marked."""
    marked = text.translate({ord(" "): "␣", ord("▁"): "␣", ord("\n"): "⏎", ord("\t"): "⇥"})
    return "".join(letter if letter.isprintable() else "·" for letter in marked)


def shortened(text: str) -> str:
    """A word of at most ``LONGEST`` letters, escaped."""
    text = visible(text)
    return escape(text if len(text) <= LONGEST else text[: LONGEST - 1] + "…")


def lattice_picture(lattice: Any, word: Word = str) -> str:
    """SVG of a lattice's first slots and best arcs (`fst.drawing.lattice_svg`), and a note of what is left out."""
    slots = slice(MOST_SLOTS)
    svg = lattice_svg(lattice.tokens[slots], lattice.log_probs[slots], lambda t: visible(word(t)), most=MOST_ARCS)
    notes = [f"the {MOST_ARCS} best of {lattice.k} arcs"] if lattice.k > MOST_ARCS else []
    notes += [f"the first {MOST_SLOTS} of {lattice.slots} slots"] if lattice.slots > MOST_SLOTS else []
    return _for_notebook(svg, ", ".join(notes))


def tree_picture(tree: Any, word: Word = str, accepted: Sequence[int] = ()) -> str:
    """SVG of a tree, root at the left, each node with its token's text and, if known, its probability.

    accepted: the nodes that the target model accepted, drawn green and bold.
    """
    shown = tree.first(MOST_NODES)
    parents, depths, rows = shown.parents.tolist(), shown.depths.tolist(), _rows(shown.parents.tolist())
    width = 2 * _MARGIN + 20 + _COLUMN * max(depths, default=0)
    height = 2 * _MARGIN + _ROW * (max(rows, default=0) + 1)
    texts = [word(token) for token in shown.tokens.tolist()]
    room = 0 if shown.log_probs is None else 20
    widths = [min(_COLUMN - 24, 10 + 6.6 * min(len(text), LONGEST) + room) for text in texts]

    def origin(node: int) -> tuple[float, float]:
        """Where a node's text begins, on its line."""
        if node < 0:
            return _MARGIN, _MARGIN + _ROW * (rows[0] if rows else 0) + _ROW / 2
        return _MARGIN + 28 + _COLUMN * (depths[node] - 1), _MARGIN + _ROW * rows[node] + _ROW / 2

    parts = []
    for node, parent in enumerate(parents):
        (x, y), (parent_x, parent_y) = origin(node), origin(parent)
        begin = parent_x + (8 if parent < 0 else widths[parent])
        is_accepted = node in accepted
        colour, bold, thick = (_GREEN, ";font-weight:700", 2.2) if is_accepted else (_INK, "", 1)
        bend = max(begin, x - 22)
        path = f"M{begin:g},{parent_y:g} H{bend:g} C{bend + 10:g},{parent_y:g} {x - 14:g},{y:g} {x - 4:g},{y:g}"
        title, small = f"node {node}, token {int(shown.tokens[node])} {visible(texts[node])!r}", ""
        if shown.log_probs is not None:
            probability = f"{float(np.exp(shown.log_probs[node])):.2f}"
            title += f", probability of the prefix {probability}"
            small = f' <tspan style="fill:{_FAINT};font-size:9px;font-weight:400">{probability}</tspan>'
        parts.append(
            f'<g><title>{escape(title)}</title><path d="{path}"'
            f' style="fill:none;stroke:{colour if is_accepted else _FAINT};stroke-width:{thick}"/><text x="{x:g}"'
            f' y="{y + 4:g}" style="font-size:11px;fill:{colour}{bold}">{shortened(texts[node])}{small}</text></g>'
        )
    x, y = origin(-1)
    parts.append(f'<circle cx="{x + 4:g}" cy="{y:g}" r="4" style="fill:{_INK}"/>')
    size = f'viewBox="0 0 {width:g} {height:g}" width="{width:g}" height="{height:g}"'
    about = f'role="img" aria-label="draft tree of {len(tree)} nodes" style="font-family:system-ui,sans-serif"'
    svg = f'<svg xmlns="http://www.w3.org/2000/svg" {size} {about}>{"".join(parts)}</svg>'
    return _for_notebook(svg, f"the first {MOST_NODES} of {len(tree)} nodes" if len(tree) > MOST_NODES else "")


def drafts_table(drafts: Any, word: Word = str) -> str:
    """HTML table of the best drafts and their scores."""
    body = ""
    for rank, (tokens, score) in enumerate(zip(drafts.tokens[:MOST_DRAFTS].tolist(), drafts.scores, strict=False), 1):
        text = escape(" ".join(visible(word(token)) for token in tokens[: 4 * LONGEST]))
        body += f'<tr><td>{rank}</td><td>{score:.3f}</td><td style="text-align:left">{text}</td></tr>'
    note = f"<p>the best {MOST_DRAFTS} of {len(drafts)} drafts</p>" if len(drafts) > MOST_DRAFTS else ""
    head = '<tr><th>rank</th><th>score</th><th style="text-align:left">draft</th></tr>'
    return f"<table><thead>{head}</thead><tbody>{body}</tbody></table>{note}"


def _rows(parents: Sequence[int]) -> list[int]:
    """The line of each node: a first child is on its parent's line, later ones below the subtrees before them."""
    children: dict[int, list[int]] = {}
    for node, parent in enumerate(parents):
        children.setdefault(parent, []).append(node)
    rows, row = [0] * len(parents), 0
    stack = children.get(-1, [])[::-1]
    while stack:
        node = stack.pop()
        row += node != children[parents[node]][0]
        rows[node] = row
        stack += children.get(node, [])[::-1]
    return rows


def _for_notebook(svg: str, note: str) -> str:
    """The picture with a line of text below it, in the picture itself; a wide one shrinks to its cell, which Jupyter
    would otherwise let it overflow."""
    head, _, rest = svg.partition(">")
    own = [head.partition(f' {name}="')[2].partition('"')[0] for name in ("width", "height")]
    width, height = map(float, own)
    if note:
        width, height = max(width, 260), height + 18
        line = f'<text x="{_MARGIN}" y="{height - 6:g}" style="font-size:10px;fill:{_FAINT}">{escape(note)}</text>'
        rest = f"{rest.removesuffix('</svg>')}{line}</svg>"
    shown = f'width="{width:g}" height="{height:g}"'
    if width > _CELL:
        shown, head = 'width="100%"', head.replace(' style="', f' style="max-width:{width:g}px;')
    before = 'viewBox="0 0 {0} {1}" width="{0}" height="{1}"'.format(*own)
    return head.replace(before, f'viewBox="0 0 {width:g} {height:g}" {shown}') + f">{rest}"
