"""Pictures: small models as DOT text, as SVG where Graphviz is installed; lattices as SVG without it.

    print(fst.drawing.model_dot(lm))                             # paste it into any viewer of DOT
    Path("model.svg").write_text(fst.drawing.svg(fst.drawing.model_dot(lm)))
    Path("lattice.svg").write_text(fst.drawing.lattice_svg(tokens, log_probs))

Histories are boxes named by their tokens; failure arcs are dashed. Weights are natural logs with two decimals.
pywrapfst's ``draw`` has numbers for states, costs for weights and no style for an arc, so that failure arcs look like
words.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

import numpy as np
import numpy.typing as npt

from fst.lattices import slots_of
from fst.model import NgramModel
from fst.printable import printable

MOST_ARCS = 500
"""Larger pictures are refused."""

SECONDS_FOR_GRAPHVIZ = 60

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

    Args:
        tokens, log_probs: ``[slots, k]``; -1 pads.
        symbols: the word of every id.
        right: what the base model writes: the arcs of its tokens are green and bold.
        draft: a draft, whose arcs are marked with a diamond.
        most: arcs of each slot to draw, at most; a right or drafted one that is not among the best replaces the last
            one drawn.
        after: ``[slots, k]``, the arcs' weights after rescoring (`fst.arc_posteriors`), which then rank them and are
            shown after the original ones.
    """
    if most < 1:
        raise ValueError(f"expected at least 1 arc of each slot to draw, got {most}")
    name = symbols if callable(symbols) else _namer(symbols)
    ids, before = np.asarray(tokens), np.asarray(log_probs, dtype=np.float64)
    weights = before if after is None else np.asarray(after, dtype=np.float64)
    slots = []
    for slot, arcs in enumerate(slots_of(tokens, log_probs)):
        wanted = [sequence[slot] if slot < len(sequence) else None for sequence in (right, draft)]
        weight_of = dict(zip(ids[slot].tolist(), weights[slot].tolist(), strict=True))
        later = {} if after is None else weight_of
        ranked = [
            _Arc(token, name(token), log_prob, later.get(token), rank, token == wanted[0], token == wanted[1])
            for rank, (token, log_prob) in enumerate(sorted(arcs, key=lambda arc: (-weight_of[arc[0]], arc[0])))
        ]
        extra = [arc for arc in ranked[most:] if arc.right or arc.drafted]
        room = most - len(extra)
        slots.append([*(arc for arc in ranked[:most] if arc.right or arc.drafted or arc.rank < room), *extra])
    _limit(sum(map(len, slots)))
    slot_width = SLOT_WIDTH if after is None else SLOT_WIDTH + 44
    height = 2 * MARGIN + ROW_HEIGHT * max(map(len, slots), default=1)
    width = 2 * (MARGIN + RADIUS) + slot_width * len(slots)
    middle = height / 2
    lines = []
    for slot, drawn in enumerate(slots):
        left = MARGIN + RADIUS + slot_width * slot
        top = middle - ROW_HEIGHT * (len(drawn) - 1) / 2 + 5
        for row, arc in enumerate(drawn):
            lines.append(_svg_arc(arc, left, left + slot_width, middle, top + ROW_HEIGHT * row))
    for state in range(len(slots) + 1):
        x = MARGIN + RADIUS + slot_width * state
        rings = [RADIUS, RADIUS - 3] if state == len(slots) else [RADIUS]
        style = f"fill:none;stroke:{_INK};stroke-width:1.3"
        lines += [f'<circle cx="{x}" cy="{middle:g}" r="{r}" style="{style}"/>' for r in rings]
        style = f"fill:{_INK};font-size:10px;text-anchor:middle"
        lines.append(f'<text x="{x}" y="{middle + 3.5:g}" style="{style}">{state}</text>')
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'role="img" aria-label="lattice of {len(slots)} slots" style="font-family:system-ui,sans-serif">'
        f"{''.join(lines)}</svg>"
    )


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


def model_dot(model: NgramModel) -> str:
    """DOT text of an n-gram model: its histories, n-grams, failure arcs (dashed) and final weights."""
    _limit(len(model.arcs))
    name = _namer(model.symbols)
    unk_label = model.unk_label
    histories = {model.unigram_state: "ε"}
    if model.start_state != model.unigram_state:
        histories[model.start_state] = "<s>"
    arcs = []
    queue = list(histories)
    for state in queue:
        begin, count = (int(model.states[name][state]) for name in ("pos", "narcs"))
        for label, _, cost, target in model.arcs[begin : begin + count].tolist():
            word = "<unk>" if label == unk_label else name(label - 1)
            if label == 0:
                arcs.append(_arc(state, target, f"{-cost:.2f}", "style=dashed"))
                continue
            if target not in histories:
                histories[target] = word if state == model.unigram_state else f"{histories[state]} {word}"
                queue.append(target)
            arcs.append(_arc(state, target, f"{word} {-cost:.2f}"))
    nodes = []
    for state, history in histories.items():
        final = float(model.states["final"][state])
        ends = model.core.has_end and np.isfinite(final)
        label = _quoted(f"{history}\n</s> {-final:.2f}" if ends else history)
        nodes.append(f"{state} [label={label}{', peripheries=2' if ends else ''}]")
    return _graph(nodes + arcs)


def svg(dot: str) -> str:
    """Lay out DOT text with Graphviz; ValueError with the remedy where its program ``dot`` is missing or fails."""
    program = shutil.which("dot")
    if program is None:
        remedy = "install it (apt-get install graphviz) or keep the DOT text"
        raise ValueError(f"expected Graphviz's program dot on the PATH, found none; {remedy}")
    try:
        command, seconds = [program, "-Tsvg"], SECONDS_FOR_GRAPHVIZ
        done = subprocess.run(command, input=dot, capture_output=True, encoding="utf-8", timeout=seconds, check=True)
    except subprocess.TimeoutExpired:
        raise ValueError(f"expected a layout within {SECONDS_FOR_GRAPHVIZ} seconds; draw something smaller") from None
    except subprocess.CalledProcessError as error:
        raise ValueError(f"expected DOT text, but Graphviz says: {' '.join(error.stderr.split())}") from None
    return done.stdout


def _limit(arcs: int) -> None:
    if arcs > MOST_ARCS:
        remedy = "prune the model or shorten the lattice"
        raise ValueError(f"expected at most {MOST_ARCS} arcs to draw, got {arcs}; {remedy}")


def _namer(symbols: Sequence[str] | None) -> Callable[[int], str]:
    def name(token: int) -> str:
        return symbols[token] if symbols is not None and token < len(symbols) and symbols[token] else str(token)

    return name


def _quoted(text: str) -> str:
    escaped = printable(text).replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


def _arc(source: int, target: int, label: str, *attributes: str) -> str:
    return f"{source} -> {target} [{', '.join((f'label={_quoted(label)}', *attributes))}]"


def _graph(lines: list[str]) -> str:
    body = "".join(f"  {line}\n" for line in lines)
    return f"digraph {{\n  rankdir=LR\n  node [shape=box, style=rounded]\n{body}}}\n"
