"""What drafter and verifier said, call by call (Xia 2022, table 11), as text and as a page to look at.

Each exchange has two lines, D and V: what was drafted behind the text so far, and what the verifier itself would have
written at each of these places.  Up to the first place where a draft does not stay, the *bifurcation*, the draft is
kept; there the verifier's token takes its place, and everything behind it is void.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

import torch
from transformers import PreTrainedModel

from latticebpd.decoding.loop import Generated
from latticebpd.lattices.drafts import ROOT, DraftTree


@dataclass(frozen=True)
class Exchange:
    """One draft and its verification.

    settled: the text before, without the decoder's start token.
    drafted: what was drafted, of a tree the path that was accepted and the likeliest one below it.
    verified: ``len(drafted) + 1`` tokens: the verifier's best at each drafted place and at the one behind.
    accepted: how many drafted tokens the verifier let stay.
    committed: what the text goes on with: those and the verifier's own token, up to the text's end.
    """

    settled: list[int]
    drafted: list[int]
    verified: list[int]
    accepted: int
    committed: list[int]

    @property
    def lenient(self) -> list[int]:
        """The places of drafted tokens that stayed without being the verifier's best (GAD++)."""
        return [place for place in range(self.accepted) if self.drafted[place] != self.verified[place]]


@torch.inference_mode()
def exchanges(verifier: PreTrainedModel, source: Sequence[int], out: Generated, row: int = 0) -> list[Exchange]:
    """The exchanges of one row of a traced decode; the verifier reads each draft once more.

    Args:
        source: the row's source tokens.

    Raises:
        ValueError: the decode was not traced.
    """
    if out.trace is None:
        raise ValueError("expected a decode with a trace, got one without; pass trace=True")
    model: Any = verifier
    encoded = model.get_encoder()(input_ids=torch.tensor([list(source)], device=verifier.device))
    start = out.sequences[row, : out.prompt_length].tolist()
    text = [int(out.sequences[row, out.prompt_length])]  # the prefill's
    found = []
    for step in out.trace:
        if step.row != row:
            continue
        drafted = step.tree.tokens[_shown_path(step.tree, step.accepted)].tolist()
        read = torch.tensor([[*start, *text, *drafted]], device=verifier.device)
        logits = model(encoder_outputs=encoded, decoder_input_ids=read).logits[0, -len(drafted) - 1 :]
        found.append(Exchange(list(text), drafted, logits.argmax(dim=-1).tolist(), len(step.accepted), step.committed))
        text += step.committed
    return found


def _shown_path(tree: DraftTree, accepted: list[int]) -> list[int]:
    path, node = list(accepted), accepted[-1] if accepted else ROOT
    while len(below := tree.children(node)):
        node = int(below[0] if tree.log_probs is None else below[tree.log_probs[below].argmax()])
        path.append(node)
    return path


Decode = Callable[[list[int]], str]
"""Tokens from the text's first on -> text."""

Piece = tuple[str, str]
"""A token's text and what became of it: settled, kept, lenient, refused, own (the verifier's, in its place) or void."""


def pieces(exchange: Exchange, decode: Decode) -> tuple[list[Piece], list[Piece]]:
    """The lines D and V; the text before is one piece."""
    drafted, verified = exchange.drafted, exchange.verified
    before = decode(exchange.settled)
    draft, verdict = [(before, "settled")], [(before, "settled")]
    for place in range(len(drafted) + 1):
        context = [*exchange.settled, *drafted[:place]]
        length = len(decode(context))
        if place >= len(exchange.committed):  # behind the bifurcation, or the text's end
            states, said = ("void", "void"), verified[place]
        elif place == exchange.accepted:
            states, said = ("refused", "own"), verified[place]
        else:  # a drafted token that stays in spite of the verifier is what the verifier reads on from
            stays = "lenient" if place in exchange.lenient else "kept"
            states, said = (stays, stays), drafted[place]
        if place < len(drafted):
            draft.append((decode([*context, drafted[place]])[length:], states[0]))
        verdict.append((decode([*context, said])[length:], states[1]))
    return draft, verdict


_MARKS = {"settled": ("", ""), "kept": ("", ""), "lenient": ("{", "}"), "refused": ("[", "]"), "own": ("<", ">"), "void": ("~", "~")}


def trace_text(found: Sequence[Exchange], decode: Decode) -> str:
    """Two lines an exchange; ``|`` ends the text before.  [refused], <the verifier's own>, {kept by GAD++}, ~void~."""
    lines = []
    for exchange in found:
        for name, line in zip("DV", pieces(exchange, decode), strict=True):
            marked = [_MARKS[state][0] + text.strip() + _MARKS[state][1] for text, state in line[1:]]
            lines.append(f"{name}  {line[0][0].strip()} | {' '.join(marked)}")
    return "\n".join(lines)


_STYLE = """
:root { color-scheme: light dark; --page: #fbfaf7; --ink: #1d1f21; --soft: #6d7278; --line: #dcd8cf; --kept: #d8ebf7; --refused: #ffd9b8;
  --own: #005b9a; --lenient: #cfc3ee; }
@media (prefers-color-scheme: dark) { :root { --page: #17191c; --ink: #e6e4df; --soft: #989ea6; --line: #34383d; --kept: #17405c;
  --refused: #74400f; --own: #7cc4f5; --lenient: #4a3a86; } }
body { background: var(--page); color: var(--ink); font: 16px/1.55 system-ui, sans-serif; }
body { margin: 0 auto; max-width: 72rem; padding: 2rem 1rem; }
h1 { font-size: 1.5rem; margin: 0 0 .5rem; }
h2 { font-size: 1.05rem; margin: 2.5rem 0 .25rem; }
p { color: var(--soft); margin: .25rem 0; }
.scroll { border-top: 1px solid var(--line); margin-top: .75rem; overflow-x: auto; }
table { border-collapse: collapse; }
td, th { padding: .2rem .75rem .2rem 0; text-align: left; vertical-align: baseline; white-space: nowrap; }
th { color: var(--soft); font-weight: 400; }
tr.verdict td, tr.verdict th { border-bottom: 1px solid var(--line); padding-bottom: .5rem; }
span { border-radius: .2rem; padding: .05rem 0; white-space: pre; }
.settled { color: var(--soft); }
.kept { background: var(--kept); }
.lenient { background: var(--lenient); }
.refused { background: var(--refused); text-decoration: underline wavy; }
.own { color: var(--own); font-weight: 700; }
.void { color: var(--soft); text-decoration: line-through; }
"""

_LEGEND = [
    ("settled", "text so far"), ("kept", "drafted and kept"), ("lenient", "kept though not the verifier's best (GAD++)"),
    ("refused", "refused: the bifurcation"), ("own", "the verifier's own token"), ("void", "void"),
]  # fmt: skip


@dataclass(frozen=True)
class Example:
    """One translation on the page."""

    title: str
    source: str
    exchanges: Sequence[Exchange]


def trace_html(title: str, examples: Sequence[Example], decode: Decode) -> str:
    """A self-contained page."""
    legend = " &nbsp; ".join(f'<span class="{state}">{escape(name)}</span>' for state, name in _LEGEND)
    parts = [
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head><body>",
        f'<h1>{escape(title)}</h1><p>D: what was drafted. V: what was verified. One pair a call.</p><p class="legend">{legend}</p>',
    ]
    for example in examples:
        calls, tokens = len(example.exchanges), sum(len(exchange.committed) for exchange in example.exchanges)
        cost = f"{tokens} tokens in {calls} {'call' if calls == 1 else 'calls'}"
        parts.append(f"<h2>{escape(example.title)}</h2><p>{escape(example.source)}</p><p>{cost}</p>")
        parts.append('<div class="scroll" tabindex="0"><table>')
        for number, exchange in enumerate(example.exchanges, 1):
            for name, line in zip("DV", pieces(exchange, decode), strict=True):
                spans = "".join(f'<span class="{state}">{escape(text)}</span>' for text, state in line)
                kind = ' class="verdict"' if name == "V" else ""
                parts.append(f"<tr{kind}><th>{number if name == 'D' else ''}</th><th>{name}</th><td>{spans}</td></tr>")
        parts.append("</table></div>")
    return "\n".join([*parts, "</body></html>"]) + "\n"
