"""Pictures of draft trees and tables of drafts for notebooks: all text escaped, sizes bounded, nothing loaded.

What is drawn is a ``SausageLattice``, a ``DraftTree`` or ``Drafts``; these draw themselves by this module, so it
imports none of them.
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
"""What a picture or a table shows, at most: of a lattice, of a tree, of drafts, of a word in letters."""

_COLUMN, _ROW, _MARGIN = 118, 26, 14
_INK, _FAINT, _RIGHT = "var(--ink,#1c2024)", "var(--faint,#60666c)", "var(--c3,#00835e)"


def visible(text: str) -> str:
    """Text in one line of printable letters: what cannot be seen is marked."""
    marked = text.translate({ord(" "): "␣", ord("▁"): "␣", ord("\n"): "⏎", ord("\t"): "⇥"})
    return "".join(letter if letter.isprintable() else "·" for letter in marked)


def shortened(text: str) -> str:
    """A word as a picture has room for it, escaped."""
    seen = visible(text)
    return escape(seen if len(seen) <= LONGEST else seen[: LONGEST - 1] + "…")


def lattice_picture(lattice: Any, word: Word = str) -> str:
    """SVG of a lattice's first slots and best arcs (`fst.drawing.lattice_svg`); a line below says what was left out."""
    slots = slice(MOST_SLOTS)
    svg = lattice_svg(
        lattice.tokens[slots], lattice.log_probs[slots], lambda token: visible(word(token)), most=MOST_ARCS
    )
    left_out = []
    if lattice.k > MOST_ARCS:
        left_out.append(f"the {MOST_ARCS} best of {lattice.k} arcs")
    if lattice.slots > MOST_SLOTS:
        left_out.append(f"the first {MOST_SLOTS} of {lattice.slots} slots")
    return _noted(svg, ", ".join(left_out))


def tree_picture(tree: Any, word: Word = str, accepted: Sequence[int] = ()) -> str:
    """SVG of a tree from its root at the left, each node with its token's text and, where it is known, its probability.

    Args:
        word: a token -> its text.
        accepted: nodes that the model kept, drawn green and bold.
    """
    shown = tree.first(MOST_NODES)
    rows = _rows(shown.parents.tolist())
    depths = shown.depths.tolist()
    width = 2 * _MARGIN + 20 + _COLUMN * max(depths, default=0)
    height = 2 * _MARGIN + _ROW * (max(rows, default=0) + 1)
    kept = set(accepted)
    texts = [word(token) for token in shown.tokens.tolist()]
    widths = [
        min(_COLUMN - 24, 10 + 6.6 * min(len(text), LONGEST) + 20 * (shown.log_probs is not None)) for text in texts
    ]

    def at(node: int) -> tuple[float, float]:
        """Where a node's text begins, on its line."""
        if node < 0:
            return _MARGIN, _MARGIN + _ROW * (rows[0] if rows else 0) + _ROW / 2
        return _MARGIN + 28 + _COLUMN * (depths[node] - 1), _MARGIN + _ROW * rows[node] + _ROW / 2

    lines = []
    for node, parent in enumerate(shown.parents.tolist()):
        (x, y), (from_x, from_y) = at(node), at(parent)
        begin = from_x + (8 if parent < 0 else widths[parent])
        colour, bold, thick = (_RIGHT, ";font-weight:700", 2.2) if node in kept else (_INK, "", 1)
        bend = max(begin, x - 22)
        path = f"M{begin:g},{from_y:g} H{bend:g} C{bend + 10:g},{from_y:g} {x - 14:g},{y:g} {x - 4:g},{y:g}"
        text, token = texts[node], int(shown.tokens[node])
        chance = "" if shown.log_probs is None else f"{float(np.exp(shown.log_probs[node])):.2f}"
        title = f"node {node}, token {token} {visible(text)!r}" + (
            f", probability of the prefix {chance}" if chance else ""
        )
        small = f' <tspan style="fill:{_FAINT};font-size:9px;font-weight:400">{chance}</tspan>' if chance else ""
        lines.append(
            f'<g><title>{escape(title)}</title><path d="{path}"'
            f' style="fill:none;stroke:{colour if node in kept else _FAINT};stroke-width:{thick}"/><text x="{x:g}"'
            f' y="{y + 4:g}" style="font-size:11px;fill:{colour}{bold}">{shortened(text)}{small}</text></g>'
        )
    x, y = at(-1)
    lines.append(f'<circle cx="{x + 4:g}" cy="{y:g}" r="4" style="fill:{_INK}"/>')
    svg = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" width="{width:g}"'
        f' height="{height:g}" role="img" aria-label="draft tree of {len(tree)} nodes"'
        f' style="font-family:system-ui,sans-serif">{"".join(lines)}</svg>'
    )
    return _noted(svg, f"the first {MOST_NODES} of {len(tree)} nodes" if len(tree) > MOST_NODES else "")


def drafts_table(drafts: Any, word: Word = str) -> str:
    """HTML table of the best drafts and their scores."""
    body = "".join(
        f"<tr><td>{rank}</td><td>{score:.3f}</td>"
        f"<td>{escape(' '.join(visible(word(token)) for token in tokens[: 4 * LONGEST]))}</td></tr>"
        for rank, (tokens, score) in enumerate(
            zip(drafts.tokens[:MOST_DRAFTS].tolist(), drafts.scores.tolist(), strict=False), 1
        )
    )
    rest = f"<p>the best {MOST_DRAFTS} of {len(drafts)} drafts</p>" if len(drafts) > MOST_DRAFTS else ""
    return (
        f"<table><thead><tr><th>rank</th><th>score</th><th>draft</th></tr></thead><tbody>{body}</tbody></table>{rest}"
    )


def _rows(parents: Sequence[int]) -> list[int]:
    """The line of each node: a node's first child stands on its own line, later ones below all that is under the
    earlier."""
    children: dict[int, list[int]] = {}
    for node, parent in enumerate(parents):
        children.setdefault(parent, []).append(node)
    rows = [0] * len(parents)
    below, waiting = 0, [(child, place > 0) for place, child in enumerate(children.get(-1, []))][::-1]
    while waiting:
        node, new_line = waiting.pop()
        below += new_line
        rows[node] = below
        waiting += [(child, place > 0) for place, child in enumerate(children.get(node, []))][::-1]
    return rows


def _noted(svg: str, note: str) -> str:
    """The picture with a line below it, in the picture itself."""
    if not note:
        return svg
    head, _, rest = svg.partition(">")
    width, height = (head.partition(f' {name}="')[2].partition('"')[0] for name in ("width", "height"))
    wider, higher = max(float(width), 260), float(height) + 18
    for old, new in (
        (f"0 0 {width} {height}", f"0 0 {wider:g} {higher:g}"),
        (f' width="{width}"', f' width="{wider:g}"'),
    ):
        head = head.replace(old, new)
    head = head.replace(f' height="{height}"', f' height="{higher:g}"')
    line = f'<text x="{_MARGIN}" y="{higher - 6:g}" style="font-size:10px;fill:{_FAINT}">{escape(note)}</text>'
    return f"{head}>{rest.removesuffix('</svg>')}{line}</svg>"
