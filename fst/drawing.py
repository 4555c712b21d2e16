"""Pictures of small models and lattices: DOT text, and SVG where Graphviz is installed.

    print(fst.drawing.model_dot(lm))                             # paste it into any viewer of DOT
    Path("lattice.svg").write_text(fst.drawing.svg(fst.drawing.lattice_dot(tokens, log_probs)))

Histories are boxes named by their tokens; failure arcs are dashed. Weights are natural logs with two decimals.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from fst.lattices import slots_of
from fst.model import NgramModel

MOST_ARCS = 500
"""No picture with more arcs is worth drawing."""

SECONDS_FOR_GRAPHVIZ = 60


def lattice_dot(tokens: npt.ArrayLike, log_probs: npt.ArrayLike, symbols: Sequence[str] | None = None) -> str:
    """DOT text of a sausage lattice, ``tokens`` and ``log_probs`` ``[slots, k]``; ``symbols`` gives the word of every id."""
    slots = slots_of(tokens, log_probs)
    _limit(sum(map(len, slots)))
    name = _namer(symbols)
    lines = [_node(slot, str(slot), final=slot == len(slots)) for slot in range(len(slots) + 1)]
    for slot, arcs in enumerate(slots):
        for token, log_prob in sorted(arcs, key=lambda arc: (-arc[1], arc[0])):
            lines.append(_arc(slot, slot + 1, f"{name(token)} {log_prob:.2f}"))
    return _graph(lines)


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
        record = model.states[state]
        for label, _, cost, target in model.arcs[int(record["pos"]) : int(record["pos"]) + int(record["narcs"])].tolist():
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
        ends = np.isfinite(final)
        nodes.append(_node(state, f"{history}\n</s> {-final:.2f}" if ends else history, final=bool(ends)))
    return _graph(nodes + arcs)


def svg(dot: str) -> str:
    """Lay out DOT text with Graphviz; ValueError with the remedy where its program ``dot`` is missing or fails."""
    program = shutil.which("dot")
    if program is None:
        raise ValueError(
            "expected Graphviz's program dot on the PATH, found none; install it (apt-get install graphviz) or keep the DOT text"
        )
    try:
        done = subprocess.run(
            [program, "-Tsvg"], input=dot, capture_output=True, text=True, encoding="utf-8", timeout=SECONDS_FOR_GRAPHVIZ, check=True
        )
    except subprocess.TimeoutExpired:
        raise ValueError(f"expected a layout within {SECONDS_FOR_GRAPHVIZ} seconds; draw something smaller") from None
    except subprocess.CalledProcessError as error:
        raise ValueError(f"expected DOT text, but Graphviz says: {' '.join(error.stderr.split())}") from None
    return done.stdout


def _limit(arcs: int) -> None:
    if arcs > MOST_ARCS:
        raise ValueError(f"expected at most {MOST_ARCS} arcs to draw, got {arcs}; prune the model or shorten the lattice")


def _namer(symbols: Sequence[str] | None) -> Callable[[int], str]:
    def name(token: int) -> str:
        return symbols[token] if symbols is not None and token < len(symbols) and symbols[token] else str(token)

    return name


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


def _node(state: int, label: str, final: bool) -> str:
    return f"{state} [label={_quoted(label)}{', peripheries=2' if final else ''}]"


def _arc(source: int, target: int, label: str, *attributes: str) -> str:
    return f"{source} -> {target} [{', '.join((f'label={_quoted(label)}', *attributes))}]"


def _graph(lines: list[str]) -> str:
    body = "".join(f"  {line}\n" for line in lines)
    return f"digraph {{\n  rankdir=LR\n  node [shape=box, style=rounded]\n{body}}}\n"
