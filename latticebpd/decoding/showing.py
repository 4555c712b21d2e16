"""Decodes, lattices and trees as notebooks show them, with the words of a tokenizer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Any

from latticebpd.decoding.jacobi.pieces import piece
from latticebpd.decoding.loop import Generated, Step
from latticebpd.lattices.drafts import Drafts, DraftTree
from latticebpd.lattices.pictures import Word, drafts_table, lattice_picture, tree_picture, visible
from latticebpd.lattices.sausage import SausageLattice

MOST_ROWS, MOST_TOKENS = 4, 400
"""Of a decode, what is shown at most: rows, and tokens of each."""

_COLOURS = ("#00835e", "#1f6feb")


@dataclass(frozen=True)
class Shown:
    """A picture or a table; notebooks draw it.

    html: a table or a text as HTML, or a picture as SVG, which pages of HTML take as it is.
    """

    html: str = field(repr=False)

    def _repr_svg_(self) -> str | None:
        return self.html if self.html.startswith("<svg") else None

    def _repr_html_(self) -> str | None:
        return None if self.html.startswith("<svg") else self.html


def show(thing: Any, tokenizer: Any = None) -> Shown:
    """A lattice, a tree, drafts, a step or a decode with the words of a tokenizer, for notebooks.

    Args:
        thing: what is shown; without a tokenizer, tokens are numbers.
        tokenizer: of ``transformers``.

    Raises:
        ValueError: something else.
    """
    word: Word = str if tokenizer is None else lambda token: piece(tokenizer, token)
    if isinstance(thing, SausageLattice):
        return Shown(lattice_picture(thing, word))
    if isinstance(thing, DraftTree):
        return Shown(tree_picture(thing, word))
    if isinstance(thing, Step):
        return Shown(tree_picture(thing.tree, word, thing.accepted))
    if isinstance(thing, Drafts):
        return Shown(drafts_table(thing, word))
    if isinstance(thing, Generated):
        return Shown(decode_html(thing, None if tokenizer is None else tokenizer.decode))
    raise ValueError(f"expected a lattice, a draft tree, drafts, a step or a decode to show, got {type(thing).__name__}")


def decode_html(found: Generated, decode: Callable[[list[int]], str] | None = None) -> str:
    """HTML of the texts; where the decode has a trace, each bar begins what one call of the model committed.

    Args:
        decode: tokens -> text; None shows their numbers.
    """
    rows = []
    for row in range(min(MOST_ROWS, len(found.sequences))):
        prompt = found.sequences[row, : found.prompt_length].tolist()
        new = found.sequences[row, found.prompt_length :].tolist()
        blocks = found.blocks(row) if found.trace is not None else [new]
        rows.append(f'<p style="white-space:pre-wrap"><span style="opacity:.6">{_text(decode, prompt)}</span>{_blocks(decode, blocks)}</p>')
    more = f"<p>the first {MOST_ROWS} of {len(found.sequences)} texts</p>" if len(found.sequences) > MOST_ROWS else ""
    calls = f"{found.num_tokens} tokens in {found.num_calls} call{'s' * (found.num_calls != 1)}"
    mean = f", {found.block_efficiency:.2f} tokens per call" if found.num_calls else ""
    return f"<div>{''.join(rows)}{more}<p><small>{calls}{mean}</small></p></div>"


def _blocks(decode: Callable[[list[int]], str] | None, blocks: Sequence[Sequence[int]]) -> str:
    parts: list[str] = []
    so_far: list[int] = []
    shown = ""
    for number, block in enumerate(blocks):
        if len(so_far) == MOST_TOKENS:
            parts.append(" …")
            break
        block = block[: MOST_TOKENS - len(so_far)]
        so_far += block
        if decode is None:
            new = " " + " ".join(map(str, block))
        else:  # whole prefixes, because a block may end inside a letter
            text = decode(so_far)
            text = text.rstrip("\ufffd") if number + 1 < len(blocks) else text
            new, shown = text[len(shown) :], text
        bar = '<span style="opacity:.4">┃</span>' if len(blocks) > 1 else ""
        parts.append(f'{bar}<span style="color:{_COLOURS[number % 2]}">{_safe(new)}</span>')
    return "".join(parts)


def _text(decode: Callable[[list[int]], str] | None, tokens: list[int]) -> str:
    cut = tokens[-MOST_TOKENS:]
    return ("… " if len(cut) < len(tokens) else "") + _safe(" ".join(map(str, cut)) if decode is None else decode(cut))


def _safe(text: str) -> str:
    """Escaped, line breaks kept, other control characters marked."""
    return "\n".join("\t".join(visible(part).replace("␣", " ") for part in line.split("\t")) for line in escape(text).split("\n"))
