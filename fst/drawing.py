"""Pictures of lattices as SVG: ``Path("lattice.svg").write_text(fst.drawing.lattice_svg(tokens, log_probs))``.

Models are drawn by pynini (``NgramModel.to_fst`` and its ``draw``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

import numpy as np
import numpy.typing as npt

from fst.lattices import slots_of
from fst.printable import expect, printable

MOST_ARCS = 500
"""Larger pictures are refused."""

SLOT_WIDTH, ROW_HEIGHT, RADIUS, MARGIN = 156, 30, 11, 22
LONGEST_NAME = 12


def lattice_svg(
    tokens: npt.ArrayLike,
    log_probs: npt.ArrayLike,
    symbols: Sequence[str] | Callable[[int], str] | None = None,
    right: Sequence[int] = (),
    draft: Sequence[int] = (),
    most: int = 5,
    after: npt.ArrayLike | None = None,
) -> str:
    """SVG of a sausage lattice in a row, without transitions; each slot's best arcs from above (Kim 2024, figure 4).

    Colours are CSS variables (``--ink``, ``--faint``, ``--c2``, ``--c3``) where the page around defines them, else
    fit for white.

    tokens, log_probs: ``[slots, k]``; -1 pads.
    right: what the base model writes: the arcs of its tokens are green and bold.
    draft: a draft, whose arcs are marked with a diamond.
    most: arcs of each slot to draw, at most; a right or drafted one that is not among the best replaces the last one
        drawn.
    after: ``[slots, k]``, the arcs' weights after rescoring (`fst.arc_posteriors`), which then rank them and are shown
        after the original ones.
    """
    expect(most >= 1, "at least 1 arc of each slot to draw", most)
    ids, before = np.asarray(tokens), np.asarray(log_probs, dtype=np.float64)
    weights = before if after is None else np.asarray(after, dtype=np.float64)
    slots = []
    for slot, arcs in enumerate(slots_of(tokens, log_probs)):
        wanted = [sequence[slot] if slot < len(sequence) else None for sequence in (right, draft)]
        weight_of = dict(zip(ids[slot].tolist(), weights[slot].tolist(), strict=True))
        later = {} if after is None else weight_of
        ranked = [
            _Arc(token, _word(symbols, token), log_prob, later.get(token), rank, token == wanted[0], token == wanted[1])
            for rank, (token, log_prob) in enumerate(sorted(arcs, key=lambda arc: (-weight_of[arc[0]], arc[0])))
        ]
        extra = [arc for arc in ranked[most:] if arc.right or arc.drafted]
        room = most - len(extra)
        slots.append([*(arc for arc in ranked[:most] if arc.right or arc.drafted or arc.rank < room), *extra])
    total = sum(map(len, slots))
    expect(total <= MOST_ARCS, f"at most {MOST_ARCS} arcs to draw", total, "shorten the lattice")
    slot_width = SLOT_WIDTH if after is None else SLOT_WIDTH + 44
    height = 2 * MARGIN + ROW_HEIGHT * max(map(len, slots), default=1)
    width = 2 * (MARGIN + RADIUS) + slot_width * len(slots)
    middle = height / 2
    lines = []
    for slot, drawn in enumerate(slots):
        left = MARGIN + RADIUS + slot_width * slot
        top = middle - ROW_HEIGHT * (len(drawn) - 1) / 2 + 5
        right_end = left + slot_width
        lines += [_svg_arc(arc, left, right_end, middle, top + ROW_HEIGHT * row) for row, arc in enumerate(drawn)]
    for state in range(len(slots) + 1):
        x = MARGIN + RADIUS + slot_width * state
        rings = [RADIUS, RADIUS - 3] if state == len(slots) else [RADIUS]
        style = f"fill:none;stroke:{_INK};stroke-width:1.3"
        lines += [f'<circle cx="{x}" cy="{middle:g}" r="{r}" style="{style}"/>' for r in rings]
        style = f"fill:{_INK};font-size:10px;text-anchor:middle"
        lines.append(f'<text x="{x}" y="{middle + 3.5:g}" style="{style}">{state}</text>')
    size = f'viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
    about = f'role="img" aria-label="lattice of {len(slots)} slots" style="font-family:system-ui,sans-serif"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size} {about}>{"".join(lines)}</svg>'


_INK, _FAINT, _DRAFT, _RIGHT = "var(--ink,#1c2024)", "var(--faint,#60666c)", "var(--c2,#c45100)", "var(--c3,#00835e)"


@dataclass(frozen=True)
class _Arc:
    """An arc as it is drawn.  rank: among its slot's, from 0, by the weight after rescoring where there is one."""

    token: int
    word: str
    log_prob: float
    after: float | None
    rank: int
    right: bool
    drafted: bool


def _svg_arc(arc: _Arc, left: float, right: float, middle: float, y: float) -> str:
    """One arc from the state at ``left`` to that at ``right``: a line at height ``y`` that bends to both states."""
    begin, end = left + RADIUS, right - RADIUS
    path = f"M{begin:g},{middle:g} C{begin + 12:g},{middle:g} {begin + 6:g},{y:g} {begin + 22:g},{y:g} H{end - 22:g} "
    path += f"C{end - 6:g},{y:g} {end - 12:g},{middle:g} {end:g},{middle:g}"
    colour, thickness = (_RIGHT, 2.4) if arc.right else (_FAINT, 1)
    word = printable(arc.word)
    shown = word if len(word) <= LONGEST_NAME else word[: LONGEST_NAME - 1] + "…"
    shown = escape(shown.replace("\n", "⏎").replace("\t", "⇥").replace(" ", "␣"))
    mark = f'<tspan style="fill:{_DRAFT}">◆ </tspan>' if arc.drafted else ""
    bold = ";font-weight:700" if arc.right else ""
    title = f"token {arc.token} {arc.word!r}, log-probability {arc.log_prob:.3f}"
    weight = f"{arc.log_prob:.2f}"
    if arc.after is not None:
        title += f", {arc.after:.3f} after rescoring"
        weight += f" → {arc.after:.2f}" if arc.after > -np.inf else " → –"
    return (
        f"<g><title>{escape(title)}, rank {arc.rank + 1}</title>"
        f'<path d="{path}" style="fill:none;stroke:{colour};stroke-width:{thickness}"/>'
        f'<text x="{(begin + end) / 2:g}" y="{y - 4:g}" '
        f'style="font-size:11px;text-anchor:middle;fill:{_RIGHT if arc.right else _INK}{bold}">'
        f'{mark}{shown} <tspan style="fill:{_FAINT};font-size:9.5px;font-weight:400">{weight}</tspan></text></g>'
    )


def _word(symbols: Sequence[str] | Callable[[int], str] | None, token: int) -> str:
    if callable(symbols):
        return symbols(token)
    return symbols[token] if symbols is not None and token < len(symbols) and symbols[token] else str(token)
