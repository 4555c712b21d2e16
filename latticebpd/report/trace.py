"""A page that shows decodes call by call: the lattice before and after rescoring, the drafted tree, what stayed, why it
ended."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from markupsafe import Markup

from fst.drawing import lattice_svg
from latticebpd.lattices.drafts import ROOT
from latticebpd.lattices.token_text import piece
from latticebpd.measuring.call_records import Call, End
from latticebpd.report import page_templates

Decode = Callable[[list[int]], str]
"""Tokens from the text's first new one on -> text."""

Word = Callable[[int], str]
"""A token -> its text, for pictures."""


@dataclass(frozen=True, eq=False)
class TracedDecode:
    """One decode on the page.

    title: its heading. prompt: the text before, or an encoder–decoder's source. written: the new tokens, those that the
    prefill committed included. calls: of ``latticebpd.measuring.call_records.read_calls``.
    """

    title: str
    prompt: str
    written: Sequence[int]
    calls: Sequence[Call]


def trace_page(
    title: str, subtitle: str, decodes: Sequence[TracedDecode], decode: Decode, word: Word, most: int = 5
) -> str:
    """The page as HTML: no script, nothing loaded.

    Args:
        decodes: what is shown, in order.
        decode, word: how tokens become text, in a row and one by one.
        most: arcs of each slot to draw, at most.
    """

    def visible(token: int) -> str:
        return word(token).replace("\n", "⏎").replace("\t", "⇥").replace(" ", "␣").replace("▁", "␣")

    return page_templates.render(
        "trace", title, subtitle, decodes=[_decode(each, decode, visible, most) for each in decodes]
    )


def write_trace(
    path: str | os.PathLike[str], title: str, subtitle: str, decodes: Sequence[TracedDecode], tokenizer: Any
) -> None:
    """Write the page, whole or not at all; ``tokenizer``: of ``transformers``."""
    page_templates.write(
        path, trace_page(title, subtitle, decodes, tokenizer.decode, lambda token: piece(tokenizer, token))
    )


def _decode(decoded: TracedDecode, decode: Decode, word: Word, most: int) -> dict[str, Any]:
    written = list(decoded.written)
    first = decoded.calls[0].start if decoded.calls else len(written)
    pieces = _pieces(written, decode)
    ends = Counter(call.end for call in decoded.calls)
    calls = len(decoded.calls)
    return {
        "title": decoded.title,
        "prompt": decoded.prompt,
        "first": "".join(pieces[:first]),
        "before": first,
        "tokens": len(written) - first,
        "block_efficiency": (len(written) - first) / calls if calls else float("nan"),
        "verified": sum(len(call.step.tree) for call in decoded.calls) / calls if calls else float("nan"),
        "ends": [(end.value, ends[end]) for end in End if ends[end]],
        "calls": [_call(number, call, written, pieces, word, most) for number, call in enumerate(decoded.calls, 1)],
    }


def _pieces(tokens: list[int], decode: Decode) -> list[str]:
    """What each token adds to the text; one that ends inside a character adds nothing, and the next one all of it."""
    pieces, shown = [], ""
    for length in range(1, len(tokens) + 1):
        text = decode(tokens[:length]).rstrip("\ufffd")
        pieces.append(text[len(shown) :])
        shown += pieces[-1]
    return pieces


def _call(number: int, call: Call, written: list[int], pieces: list[str], word: Word, most: int) -> dict[str, Any]:
    committed = [
        (pieces[call.start + place], call.positions[place].state if place < len(call.step.accepted) else "own")
        for place in range(len(call.step.committed))
    ]
    tree, lattice = call.step.tree, call.step.tree.lattice
    svg = ""
    if lattice is not None:
        draft = [place.drafted for place in call.positions if place.drafted is not None]
        svg = lattice_svg(lattice.tokens, lattice.log_probs, word, written[call.start :], draft, most, call.after)
    return {
        "number": number,
        "committed": committed,
        "accepted": len(call.step.accepted),
        "drafted": len(tree),
        "length": len(call.positions) - 1,
        "end": call.end.value,
        "places": [
            {
                "state": place.state,
                "drafted": None if place.drafted is None else word(place.drafted),
                "best": None if place.choice is None else word(place.choice.best),
                "choice": place.choice,
            }
            for place in call.positions
        ],
        # Names of arcs are escaped where the picture is made.
        "lattice": Markup(svg),
        "tree": _nodes(call, ROOT, word),
    }


def _nodes(call: Call, parent: int, word: Word) -> list[dict[str, Any]]:
    """The drafted nodes below one, each with those below it."""
    tree, accepted = call.step.tree, call.step.accepted
    end = accepted[-1] if accepted else ROOT
    nodes = []
    for node in tree.children(parent).tolist():
        state = call.positions[accepted.index(node)].state if node in accepted else "refused" if parent == end else "void"
        probability = None if tree.log_probs is None else float(np.exp(tree.log_probs[node]))
        nodes.append(
            {"word": word(int(tree.tokens[node])), "state": state, "p": probability, "below": _nodes(call, node, word)}
        )
    return nodes
