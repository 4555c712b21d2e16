"""Costs of passes: read between the sizes measured, stored, measured; trees are cut where that promises the most tokens a second."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
import torch

from latticebpd import DraftTree, SausageLattice
from latticebpd.analysis.profiling import profile
from latticebpd.drafting.costs import CostCurve
from latticebpd.drafting.strategies import Sized, Tree, best_size
from latticebpd.scoring.ngram import NgramScorer
from tests.helpers.commands import Run
from tests.helpers.tiny_families import tiny

CURVE = CostCurve((1, 4), (1, 5, 9), ((1.0, 1.2, 2.0), (2.0, 3.0, 6.0)), {"model": "none"})


def test_costs_between_and_beyond_the_sizes_measured() -> None:
    columns = np.array([1, 3, 5, 7, 9, 18])
    np.testing.assert_allclose(CURVE.of(1, columns), [1, 1.1, 1.2, 1.6, 2, 4])
    np.testing.assert_allclose(CURVE.of(4, columns), [2, 2.5, 3, 4.5, 6, 12])
    np.testing.assert_allclose(CURVE.of(2, np.array([1, 9])), [1 + 1 / 3, 2 + 4 / 3])
    np.testing.assert_allclose(CURVE.of(8, np.array([1])), [4])


def test_the_size_is_the_best_of_all() -> None:
    rng = np.random.default_rng(0)
    sizes = set()
    for _ in range(200):
        rows = int(rng.integers(1, 5))
        curve = CostCurve((1,), (1, 4, 16, 40), (tuple(np.sort(rng.uniform(1, 6, 4)).tolist()),))
        trees = [np.sort(np.log(rng.uniform(0, rng.choice([0.1, 1.0]), int(rng.integers(0, 40)))))[::-1] for _ in range(rows)]
        promised = [
            (rows + sum(float(np.exp(tree[:size]).sum()) for tree in trees)) / float(curve.of(rows, np.array([size + 1]))[0])
            for size in range(max(map(len, trees)) + 1)
        ]
        found = best_size(list(trees), curve)
        assert promised[found] == pytest.approx(max(promised))
        sizes.add(found)
    assert len(sizes) > 10
    assert 0 in sizes  # where drafting does not pay, nothing is drafted
    with pytest.raises(ValueError, match="probabilities"):
        best_size([None], CURVE)


def test_trees_are_cut_and_texts_stay() -> None:
    lattice = SausageLattice([[3, 7, 9], [4, 8, 2]], np.log([[0.7, 0.2, 0.1], [0.8, 0.1, 0.1]]))
    whole = Tree(NgramScorer(None), 9)
    (full,) = whole.draft([lattice], [[1]])
    (cut,) = Sized(whole, CURVE).draft([lattice], [[1]])
    size = best_size([full.log_probs], CURVE)
    assert 0 < size < len(full)
    assert cut == full.first(size)
    assert full.first(99) is full
    assert full.first(0).tokens.tolist() == DraftTree.empty().tokens.tolist() == []


def test_a_decode_with_costs_is_the_same_text(run: Run, tmp_path: Path) -> None:
    CURVE.save(tmp_path / "costs.json")
    arguments = ("generate", "The history of the city", "--max-new-tokens", 24, "--json")
    texts = {}
    for name, options in (("plain", ()), ("cut", ("--costs", tmp_path / "costs.json"))):
        status, printed, _ = run(*arguments, "--system", "32-tree", *options)
        assert status == 0
        texts[name] = json.loads(printed)
    assert texts["plain"]["text"] == texts["cut"]["text"]
    assert texts["cut"]["verified_tokens"] < texts["plain"]["verified_tokens"]
    status, _, told = run(*arguments, "--system", "16-best", "--costs", tmp_path / "costs.json")
    assert (status, "expected N-tree or N-calibrated with costs" in told) == (2, True)


def test_costs_come_back_and_damaged_ones_are_named(tmp_path: Path) -> None:
    path = tmp_path / "costs.json"
    CURVE.save(path)
    assert CostCurve.load(path) == CURVE
    record = {"format_version": 1, **asdict(CURVE)}
    odd = {"seconds": [[1.0, 1.0, float("nan")]] * 2}
    for change in ({"format_version": 2}, {"rows": [4, 1]}, {"columns": [0, 5, 9]}, odd, {"seconds": 3}, {"x": 1}):
        path.write_text(json.dumps({**record, **change}))
        with pytest.raises(ValueError, match=r"costs\.json: expected costs as `latticebpd profile` writes them"):
            CostCurve.load(path)


def test_passes_are_measured(run: Run, tmp_path: Path) -> None:
    passes = []
    found = profile(tiny("llama", 0), (1, 4), (1, 2), context=6, rounds=2, on_pass=lambda: passes.append(1))
    assert (found.rows, found.columns, len(passes)) == ((1, 2), (1, 4), 12)
    assert found.about["threads"] == str(torch.get_num_threads())
    status, printed, _ = run("profile", "--columns", "1,3", "--rounds", 1, "--context", 8, "-o", tmp_path / "costs.json", "--json")
    assert (status, json.loads(printed)["columns"]) == (0, [1, 3])
    assert CostCurve.load(tmp_path / "costs.json").columns == (1, 3)
    status, _, told = run("profile", "--columns", "0,3")
    assert (status, "expected --columns as numbers from 1" in told) == (2, True)
    with pytest.raises(ValueError, match="decoder-only"):
        profile(tiny("t5", 0))
