"""A page of decodes call by call: lattices before and after rescoring, draft trees, verdicts, why drafts ended."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from markupsafe import Markup

from fst.drawing import lattice_svg
from fst.files import PathLike, write_text
from latticebpd.lattices.drafts import ROOT
from latticebpd.lattices.pictures import Word
from latticebpd.lattices.token_text import piece
from latticebpd.measuring.call_records import Call, End
from latticebpd.report.page import render_page

Decode = Callable[[list[int]], str]
"""Tokens from the text's first new one on -> text."""


@dataclass(frozen=True, eq=False)
class TracedDecode:
    """One decode on the page.

    title: its heading. prompt: the text before, or an encoder–decoder's source. written: the new tokens, the prefill's
    included. calls: of ``latticebpd.measuring.call_records.read_calls``.
    """

    title: str
    prompt: str
    written: Sequence[int]
    calls: Sequence[Call]


def trace_page(
    title: str, subtitle: str, decodes: Sequence[TracedDecode], decode: Decode, word: Word, most: int = 5
) -> str:
    """The page as HTML: no script, nothing loaded.

    decode, word: how tokens become text, in a row and one by one. most: arcs of each slot to draw, at most.
    """

    def visible(token: int) -> str:
        return word(token).replace("\n", "⏎").replace("\t", "⇥").replace(" ", "␣").replace("▁", "␣")

    shown = [_decode(each, decode, visible, most) for each in decodes]
    return render_page("trace", title, subtitle, decodes=shown, word=visible)


def write_trace(path: PathLike, title: str, subtitle: str, decodes: Sequence[TracedDecode], tokenizer: Any) -> None:
    """Write the page atomically; ``tokenizer``: of ``transformers``."""
    write_text(path, trace_page(title, subtitle, decodes, tokenizer.decode, lambda token: piece(tokenizer, token)))


def _decode(decoded: TracedDecode, decode: Decode, word: Word, most: int) -> dict[str, Any]:
    """What the template shows of a decode."""
    written, calls = list(decoded.written), decoded.calls
    first = calls[0].start if calls else len(written)
    pieces, tokens = _pieces(written, decode), len(written) - first
    ends = Counter(call.end for call in calls)
    return {
        "title": decoded.title,
        "prompt": decoded.prompt,
        "first": "".join(pieces[:first]),
        "before": first,
        "tokens": tokens,
        "block_efficiency": tokens / len(calls) if calls else float("nan"),
        "verified": sum(len(call.step.tree) for call in calls) / len(calls) if calls else float("nan"),
        "ends": [(end.value, ends[end]) for end in End if ends[end]],
        "calls": [
            (call, _committed(call, pieces), _lattice(call, written, word, most), _nodes(call, ROOT, word))
            for call in calls
        ],
    }


def _pieces(tokens: list[int], decode: Decode) -> list[str]:
    """What each token adds to the text; a token that ends inside a character adds nothing, the next one all of it."""
    pieces, shown = [], ""
    for length in range(1, len(tokens) + 1):
        text = decode(tokens[:length]).rstrip("\ufffd")
        pieces.append(text[len(shown) :])
        shown += pieces[-1]
    return pieces


def _committed(call: Call, pieces: list[str]) -> list[tuple[str, str]]:
    """Text and state of every token that a call committed."""
    accepted = len(call.step.accepted)
    return [
        (pieces[call.start + depth], call.positions[depth].state if depth < accepted else "own")
        for depth in range(len(call.step.committed))
    ]


def _lattice(call: Call, written: list[int], word: Word, most: int) -> Markup:
    """The drawing of a call's lattice, whose names of arcs are already escaped; empty where there is none."""
    if (lattice := call.step.tree.lattice) is None:
        return Markup("")
    draft = [each.drafted for each in call.positions if each.drafted is not None]
    return Markup(lattice_svg(lattice.tokens, lattice.log_probs, word, written[call.start :], draft, most, call.after))


def _nodes(call: Call, parent: int, word: Word) -> list[dict[str, Any]]:
    """The drafted nodes below one, each with those below it."""
    tree, accepted = call.step.tree, call.step.accepted
    end = accepted[-1] if accepted else ROOT
    nodes = []
    for node in tree.children(parent).tolist():
        state = "refused" if parent == end else "void"
        if node in accepted:
            state = call.positions[accepted.index(node)].state
        p = None if tree.log_probs is None else float(np.exp(tree.log_probs[node]))
        nodes.append({"word": word(int(tree.tokens[node])), "state": state, "p": p, "below": _nodes(call, node, word)})
    return nodes
