"""What notebooks show: well formed, escaped, of bounded size, in words where there is a tokenizer."""

from __future__ import annotations

from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
import torch

from latticebpd import Drafts, DraftTree, Generated, SausageLattice, Step, show
from latticebpd.decoding.showing import decode_html
from latticebpd.lattices.pictures import MOST_ARCS, MOST_NODES, MOST_SLOTS, drafts_table, lattice_picture, tree_picture
from tests.helpers.tokenizers import letters

SVG = "{http://www.w3.org/2000/svg}"
HOSTILE = "</text><script>alert(1)</script>&\x00\x1b\n"


def hostile(token: int) -> str:
    return f"{token}{HOSTILE}"


def lattice(slots: int, k: int) -> SausageLattice:
    rng = np.random.default_rng(0)
    tokens = np.stack([rng.permutation(5 * k)[:k] for _ in range(slots)])
    return SausageLattice(tokens, np.log(rng.dirichlet(np.ones(k), slots)))


def large_tree(nodes: int) -> DraftTree:
    rng = np.random.default_rng(1)
    parents = np.array([rng.integers(-1, node) if node else -1 for node in range(nodes)])
    return DraftTree(np.arange(nodes), parents, np.linspace(0, -5, nodes))


def words(svg: str) -> str:
    """All text of a picture, which must be XML without a script."""
    root = ElementTree.fromstring(svg)
    assert not list(root.iter(f"{SVG}script"))
    width, height = str(root.get("viewBox")).split()[2:]
    size = ("100%", None) if float(width) > 1000 else (width, height)  # a wide one shrinks to its cell
    assert (root.get("width"), root.get("height")) == size
    return " ".join("".join(text.itertext()) for text in root.iter(f"{SVG}text"))


def decode(rows: int = 1, length: int = 6, trace: bool = True) -> Generated:
    tree = DraftTree(np.array([1, 2, 3]), np.array([-1, 0, 0]))
    steps = [Step(0, row, tree, [0, 1], list(range(1, 1 + length))) for row in range(rows)]
    sequences = torch.tensor([[5, 6, 0, *range(1, 1 + length)]] * rows)
    return Generated(
        sequences,
        2,
        np.array([0, 0, 1]),
        rows,
        rows,
        rows * (1 + length),
        3 * rows,
        (True,) * rows,
        steps if trace else None,
    )


def test_lattice_draws_its_best_arcs_and_says_what_it_left_out() -> None:
    assert "best" not in words(lattice(2, 3)._repr_svg_())
    drawn = words(lattice(40, 60)._repr_svg_())
    assert f"the {MOST_ARCS} best of 60 arcs, the first {MOST_SLOTS} of 40 slots" in drawn
    assert "-inf" not in drawn


def test_tree_draws_every_node_once_with_its_probability() -> None:
    tree = DraftTree(np.array([7, 8, 9, 7]), np.array([-1, 0, 0, 2]), np.log([0.9, 0.5, 0.25, 0.127]))
    assert words(tree._repr_svg_()).split() == ["7", "0.90", "8", "0.50", "9", "0.25", "7", "0.13"]
    assert words(DraftTree.empty()._repr_svg_()) == ""
    assert f"the first {MOST_NODES} of 300 nodes" in words(large_tree(300)._repr_svg_())


def test_nodes_do_not_stand_on_each_other() -> None:
    root = ElementTree.fromstring(tree_picture(large_tree(MOST_NODES)))
    places = [(text.get("x"), text.get("y")) for text in root.iter(f"{SVG}text")]
    assert len(places) == len(set(places)) == MOST_NODES


def test_accepted_nodes_are_bold() -> None:
    tree = DraftTree(np.array([7, 8]), np.array([-1, 0]))
    assert tree_picture(tree, accepted=[0]).count("font-weight:700") == 1
    assert show(Step(0, 0, tree, [0, 1], [7, 8, 9])).html.count("font-weight:700") == 2


@pytest.mark.parametrize(
    "html",
    [
        lattice_picture(lattice(3, 4), hostile),
        tree_picture(large_tree(9), hostile),
        drafts_table(Drafts(np.array([[1, 2], [3, 4]]), np.array([-1.0, -2.0])), hostile),
        decode_html(decode(), lambda tokens: HOSTILE + "<b>" * len(tokens)),
        decode_html(decode()),
    ],
    ids=["lattice", "tree", "drafts", "decode", "decode without words"],
)
def test_all_text_is_escaped(html: str) -> None:
    assert "<script" not in html
    assert "<b>" not in html
    assert "\x00" not in html
    assert "\x1b" not in html
    ElementTree.fromstring(f"<div>{html}</div>")  # every element that is opened is closed


@pytest.mark.parametrize(
    "thing",
    [
        lattice(200, 500),
        large_tree(5000),
        Drafts(np.arange(400_000).reshape(1000, 400), np.zeros(1000)),
        decode(300, 3000),
        decode(9, 9000, False),
    ],
    ids=["lattice", "tree", "drafts", "decode", "decode without a trace"],
)
def test_sizes_are_bounded(thing: Any) -> None:
    assert 500 < len(show(thing).html) < 60_000
    shown = thing._repr_svg_() if hasattr(thing, "_repr_svg_") else thing._repr_html_()
    assert (show(thing)._repr_svg_() or show(thing)._repr_html_()) == shown
    assert (show(thing)._repr_svg_() is None) != (show(thing)._repr_html_() is None)


def test_decode_shows_the_blocks_that_calls_committed() -> None:
    shown = decode_html(decode(), letters().decode)
    text = "".join(ElementTree.fromstring(shown).itertext())
    assert text == "fg┃a┃bcdefg7 tokens in 1 call, 2.00 tokens per call"
    assert "┃" not in decode_html(decode(trace=False), letters().decode)
    assert "the first 4 of 9 texts" in decode_html(decode(9))


def test_words_are_those_of_the_tokenizer() -> None:
    tree = DraftTree(np.array([0, 1]), np.array([-1, 0]))
    assert words(show(tree, letters()).html).split() == ["a", "b"]
    assert words(show(tree).html).split() == ["0", "1"]
    with pytest.raises(ValueError, match="to show, got int"):
        show(3)
