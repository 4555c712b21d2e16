"""Decodes, lattices and trees in notebooks, with the words of a tokenizer."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from latticebpd.decoding.decode_html import decode_html
from latticebpd.decoding.loop import Generated, Step
from latticebpd.lattices.drafts import Drafts, DraftTree
from latticebpd.lattices.pictures import Word, drafts_table, lattice_picture, tree_picture
from latticebpd.lattices.sausage import SausageLattice
from latticebpd.lattices.token_text import piece


@dataclass(frozen=True)
class Shown:
    """A picture or a table for notebooks; ``html`` is HTML, or SVG, which is valid inside HTML."""

    html: str = field(repr=False)

    def _repr_svg_(self) -> str | None:
        return self.html if self.html.startswith("<svg") else None

    def _repr_html_(self) -> str | None:
        return None if self.html.startswith("<svg") else self.html


def show(thing: Any, tokenizer: Any = None) -> Shown:
    """A lattice, a tree, drafts, a step or a decode for notebooks; ValueError for anything else.

    tokenizer: of ``transformers``; without one, tokens are numbers.
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
    kind = type(thing).__name__
    raise ValueError(f"expected a lattice, a draft tree, drafts, a step or a decode to show, got {kind}")
