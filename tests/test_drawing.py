"""Pictures of models and lattices."""

from __future__ import annotations

import re
import shutil

import numpy as np
import pytest

import fst
from fst import drawing


def small_model() -> fst.NgramModel:
    ngrams = [np.array([[fst.EOS], [fst.BOS], [0], [1]], np.int32), np.array([[fst.BOS, 0], [0, 1]], np.int32)]
    log_probs = [np.array([-1.0, -1000.0, -0.5, -2.0]), np.array([-0.25, -0.125])]
    return fst.NgramModel.from_table(fst.NgramTable(ngrams, log_probs, [np.array([0, -0.5, -0.75, 0]), np.zeros(2)], ['"quoted"', "b\\"]))


def test_lattice_is_drawn_best_arcs_first() -> None:
    text = drawing.lattice_dot([[5, 7], [6, -1]], [[-1.0, -0.5], [0.0, 0.0]])
    assert re.findall(r"(\d+) -> (\d+) \[label=(\".*\")", text) == [
        ("0", "1", '"7 -0.50"'),
        ("0", "1", '"5 -1.00"'),
        ("1", "2", '"6 0.00"'),
    ]
    assert '2 [label="2", peripheries=2]' in text


def test_model_is_drawn_with_its_histories_and_dashed_failure_arcs() -> None:
    text = drawing.model_dot(small_model())
    assert 'label="<s>"' in text
    assert 'label="ε\\n</s> -1.00", peripheries=2' in text
    assert text.count("style=dashed") == 2
    assert '[label="\\"quoted\\" -0.25"]' in text
    assert '[label="b\\\\ -0.12"]' in text


def test_graphviz_lays_the_pictures_out() -> None:
    if shutil.which("dot") is None:
        with pytest.raises(ValueError, match="apt-get install graphviz"):
            drawing.svg("digraph {}")
        pytest.skip("Graphviz is not installed")
    for text in (drawing.model_dot(small_model()), drawing.lattice_dot([[1]], [[0.0]])):
        assert "<svg" in drawing.svg(text)
    with pytest.raises(ValueError, match="Graphviz says"):
        drawing.svg("no graph")


def test_missing_graphviz_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(ValueError, match="apt-get install graphviz"):
        drawing.svg("digraph {}")


def test_large_pictures_are_refused() -> None:
    with pytest.raises(ValueError, match="at most 500 arcs to draw, got 600"):
        drawing.lattice_dot(np.arange(600).reshape(2, 300), np.zeros((2, 300)))
