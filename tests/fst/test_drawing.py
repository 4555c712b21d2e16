"""Pictures of lattices."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import numpy as np
import pytest

from fst import drawing


def texts(svg: str) -> list[str]:
    return [
        "".join(element.itertext()) for element in ElementTree.fromstring(svg).iter("{http://www.w3.org/2000/svg}text")
    ]


def test_best_arcs_come_first_and_right_and_drafted_ones_are_marked() -> None:
    words = ["zero", "one", "two", "<three>", "a b", "a very long word", "six"]
    tokens, log_probs = [[1, 2, 3], [4, 5, -1]], [[-2.0, -0.5, -1.0], [-0.25, -3.0, 0.0]]
    picture = drawing.lattice_svg(tokens, log_probs, words, right=[1, 5], draft=[2, 5], most=2)
    # Best arcs first; the right one that is not among them takes the last place; states are numbered.
    assert texts(picture) == ["◆ two -0.50", "one -2.00", "a␣b -0.25", "◆ a␣very␣long… -3.00", "0", "1", "2"]
    arcs = list(ElementTree.fromstring(picture).iter("{http://www.w3.org/2000/svg}path"))
    assert ["--c3" in arc.attrib["style"] for arc in arcs] == [False, True, False, True]
    titles = [element.text for element in ElementTree.fromstring(picture).iter("{http://www.w3.org/2000/svg}title")]
    assert titles[1] == "token 1 'one', log-probability -2.000, rank 3"
    assert "&lt;three&gt;" in drawing.lattice_svg(tokens, log_probs, lambda token: words[token])
    assert texts(drawing.lattice_svg([[7]], [[0.0]])) == ["7 0.00", "0", "1"]


def test_control_characters_of_words_are_escapes_in_pictures() -> None:
    words = ["\x1b[2J", "a\x00\uffff", "\r\x9b\u202e"]
    picture = drawing.lattice_svg([[0, 1, 2]], [[-0.5, -1.0, -2.0]], words)
    assert texts(picture)[:3] == ["\\x1b[2J -0.50", "a\\x00\\uffff -1.00", "\\r\\x9b\\u202e -2.00"]


def test_weights_after_rescoring_rank_the_arcs_and_stand_behind_those_before() -> None:
    words = ["zero", "one", "two", "three"]
    picture = drawing.lattice_svg(
        [[1, 2, 3]], [[-0.25, -2.0, -3.0]], words, right=[2], after=[[-np.inf, -0.125, -1.5]], most=3
    )
    assert texts(picture)[:3] == ["two -2.00 → -0.12", "three -3.00 → -1.50", "one -0.25 → –"]
    titles = [element.text for element in ElementTree.fromstring(picture).iter("{http://www.w3.org/2000/svg}title")]
    assert titles[0] == "token 2 'two', log-probability -2.000, -0.125 after rescoring, rank 1"


def test_arcs_stay_within_the_picture() -> None:
    rng = np.random.default_rng(0)
    tokens = np.stack([rng.permutation(40)[:16] for _ in range(9)])
    root = ElementTree.fromstring(drawing.lattice_svg(tokens, rng.normal(size=(9, 16)), most=16))
    width, height = float(root.attrib["width"]), float(root.attrib["height"])
    paths = list(root.iter("{http://www.w3.org/2000/svg}path"))
    assert len(paths) == 9 * 16
    for path in paths:
        numbers = [float(number) for number in re.findall(r"-?[0-9.]+", path.attrib["d"])]
        assert min(numbers) >= 0
        assert max(numbers) <= max(width, height)
    for element in root.iter("{http://www.w3.org/2000/svg}text"):
        assert 0 <= float(element.attrib["x"]) <= width
        assert 10 <= float(element.attrib["y"]) <= height


def test_large_pictures_are_refused() -> None:
    with pytest.raises(ValueError, match="at most 500 arcs to draw, got 600"):
        drawing.lattice_svg(np.arange(600).reshape(2, 300), np.zeros((2, 300)), most=300)
    with pytest.raises(ValueError, match="at least 1 arc"):
        drawing.lattice_svg([[1]], [[0.0]], most=0)
