"""The scorer of calibrated trees: texts that grow are read once, records are stored beside the model, names reach
it."""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict, replace
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import fst
from latticebpd import SausageLattice
from latticebpd.drafters import bundled
from latticebpd.drafters.default_systems import default_system
from latticebpd.drafters.heads.head_family import HeadLattices
from latticebpd.drafters.strategies import BestTree
from latticebpd.drafters.system_names import strategy_named
from latticebpd.lattices.lattice_set import LatticeSet
from latticebpd.scoring.calibrated import CalibratedScorer, TextIndexes
from latticebpd.scoring.calibration import Calibration, calibration_path, stored_calibration
from latticebpd.scoring.ngram import NgramScorer
from latticebpd.scoring.rescoring import as_scorer, calibrated_scorer, fitted_records, is_calibrated
from tests.helpers.blockwise_models import tiny_model
from tests.helpers.commands import Run
from tests.helpers.drafters import LM, WEIGHTS


def lattice(seed: int, slots: int = 3, k: int = 4, tied: bool = False) -> SausageLattice:
    rng = np.random.default_rng(seed)
    tokens = np.stack([rng.permutation(23)[:k] for _ in range(slots)]).astype(np.int32)
    log_probs = np.log(rng.dirichlet(np.ones(k + 1), slots)[:, :k])
    return SausageLattice(tokens, log_probs, rng.normal(0, 1, (slots - 1, k, k)) if tied else None)


def test_trees_are_the_cores_whatever_else_is_asked_before() -> None:
    """Texts that grow, share a beginning, come back shorter or are equal: each tree is that of a fresh scorer."""
    rng = np.random.default_rng(0)
    common = rng.integers(0, 23, 30).tolist()
    texts = [common[:10], common[:10], common[:20], [*common[:12], 3, 3], common, common[:5], [], [7], common]
    scorer = CalibratedScorer(NgramScorer(LM), WEIGHTS)
    for round_ in range(3):
        contexts = [[*text, *common[:round_]] for text in texts]
        lattices = [lattice(round_ * 100 + row, k=3 + row % 2, tied=row % 3 == 0) for row in range(len(texts))]
        trees = scorer.trees(lattices, contexts, 12)
        for each, context, tree in zip(lattices, contexts, trees, strict=True):
            index = fst.TextIndex()
            index.extend(context)
            histories, transitions = (
                np.array([context[-8:]], np.int64),
                None if each.transitions is None else each.transitions[None],
            )
            tokens, parents, log_probs, _ = fst.calibrated_tree_batch(
                each.tokens[None],
                each.log_probs[None],
                LM,
                [index],
                WEIGHTS.table,
                12,
                histories,
                further=11,
                transitions=transitions,
            )
            assert tree.tokens.tolist() == tokens[0].tolist()
            assert tree.parents.tolist() == parents[0].tolist()
            assert tree.log_probs is not None
            np.testing.assert_allclose(tree.log_probs, log_probs[0])


def test_a_tree_of_few_nodes_needs_no_more_slots() -> None:
    """Why `lattice_shape` asks for none: with copies after the lattice too, and their weights."""
    scorer, text = CalibratedScorer(NgramScorer(LM), replace(WEIGHTS, further=True)), [3, 5, 7, 3, 5]
    deepest = 0
    for seed, nodes in product(range(20), (1, 2, 3, 5)):
        full = lattice(seed, slots=6)
        (tree,) = scorer.trees([full], [text], nodes)
        (cut,) = scorer.trees([full.first_slots(nodes)], [text], nodes)
        assert (tree.tokens.tolist(), tree.parents.tolist()) == (cut.tokens.tolist(), cut.parents.tolist())
        np.testing.assert_array_equal(tree.log_probs, cut.log_probs)
        deepest = max(deepest, int(tree.depths.max()))
    assert deepest > 2


def test_stored_lattices_have_their_transitions() -> None:
    lattices, text = [lattice(seed, tied=True) for seed in range(6)], np.array([[3, 5, 3, 5]] * 6)
    tokens, log_probs = np.stack([each.tokens for each in lattices]), np.stack([each.log_probs for each in lattices])
    plain = LatticeSet(tokens, log_probs, tokens[:, :, 0], text)
    tied = replace(plain, transitions=np.stack([each.transitions for each in lattices]))
    scorer = CalibratedScorer(NgramScorer(LM), WEIGHTS)
    nodes, parents = scorer.tree_arrays(tied, 9)
    index = fst.TextIndex()
    index.extend(text[0])
    for row in range(6):
        at = slice(row, row + 1)
        assert tied.transitions is not None
        wanted = fst.calibrated_tree_batch(
            tokens[at], log_probs[at], LM, [index], WEIGHTS.table[:-1], 9, text[at], transitions=tied.transitions[at]
        )
        assert (nodes[row].tolist(), parents[row].tolist()) == (wanted[0][0].tolist(), wanted[1][0].tolist())
    assert not np.array_equal(nodes, scorer.tree_arrays(plain, 9)[0])


def test_a_growing_text_is_read_once() -> None:
    indexes = TextIndexes(fst.TextIndex)
    text = np.arange(50) % 7
    (first,) = indexes.of([text[:20]])
    (again,) = indexes.of([text])
    assert again is first
    assert len(first) == 50
    one, other = indexes.of([text, text])  # equal texts of one batch grow apart later
    assert (one is first, other is first) == (True, False)


def test_texts_of_one_batch_are_kept_however_many_they_are() -> None:
    indexes, texts = TextIndexes(fst.TextIndex, most=1), [np.array([1, 2]), np.array([3, 4])]
    first = indexes.of(texts)
    assert [again is index for again, index in zip(indexes.of(texts), first, strict=True)] == [True, True]


def test_few_texts_are_kept() -> None:
    indexes = TextIndexes(fst.TextIndex, most=3)
    for start in range(10):
        indexes.of([np.array([start, start + 1])])
    assert len(indexes._known) == 3
    assert len(indexes.of([np.array([number]) for number in range(5)])) == 5  # a larger batch is served all the same


@pytest.fixture
def stored(tmp_path: Path) -> Path:
    LM.save(tmp_path / "lm.fst")
    WEIGHTS.save(calibration_path(tmp_path / "lm.fst"))
    return tmp_path / "lm.fst"


def test_records_come_back_and_are_used(stored: Path) -> None:
    assert stored_calibration(stored) == WEIGHTS
    assert is_calibrated(stored)
    strategy = strategy_named("9-calibrated", stored)
    assert isinstance(strategy, BestTree)
    assert isinstance(strategy.scorer, CalibratedScorer)
    assert (strategy.num_nodes, strategy.scorer.calibration) == (9, WEIGHTS)
    assert fitted_records(stored) == (WEIGHTS,)
    assert isinstance(as_scorer(stored), NgramScorer)  # trees and paths by other names stay as they are


def test_a_rewritten_calibration_is_read_again(stored: Path) -> None:
    assert is_calibrated(stored)
    calibration_path(stored).unlink()
    assert not is_calibrated(stored)


def test_without_a_calibration_the_name_is_refused(tmp_path: Path) -> None:
    LM.save(tmp_path / "plain.fst")
    for lm in (tmp_path / "plain.fst", LM, None):
        assert not is_calibrated(lm)
        with pytest.raises(ValueError, match="latticebpd calibrate"):
            calibrated_scorer(lm)
    with pytest.raises(ValueError, match="latticebpd calibrate"):
        strategy_named("9-calibrated:0-gram", tmp_path / "plain.fst")


def test_a_weight_is_refused(stored: Path) -> None:
    with pytest.raises(ValueError, match="without a weight"):
        strategy_named("9-calibrated", stored, alpha=0.5)


@pytest.mark.parametrize(
    "text",
    [
        "", "[]", "{}", "\xff", "[" * 100_000,
        *(json.dumps({"format_version": 2, "features": list(fst.FEATURES), **asdict(WEIGHTS), **change}) for change in (
            {"format_version": 1}, {"features": ["log_prob"]}, {"weights": []}, {"weights": [[1.0]]},
            {"weights": [["a"] * len(fst.FEATURES)]},
            {"weights": [[float("nan")] * len(fst.FEATURES)]}, {"weights": [[1e9] * len(fst.FEATURES)]},
            {"unit": "word"},
            {"examples": ["a"]}, {"examples": 3}, {"more": 1},
            {"further": 1}, {"weights": [[0.0] * len(fst.FEATURES)]},
        )),
    ],
)  # fmt: skip
def test_damaged_records_are_named(stored: Path, text: str) -> None:
    calibration_path(stored).write_text(text, encoding="latin-1")
    with pytest.raises(ValueError, match=r"lm\.fst\.calibration\.json: expected a calibration, .*latticebpd calibrate"):
        Calibration.load(calibration_path(stored))
    shutil.copy(stored, stored.with_name("other.fst"))
    assert stored_calibration(stored.with_name("other.fst")) is None


def test_commands_take_calibrated_trees_by_default(stored: Path) -> None:
    heads = HeadLattices(tiny_model())
    assert default_system(heads, stored) == "16-calibrated"
    assert default_system(heads, stored, alpha=0.5) == "copies+16-tree"  # whoever gives a weight wants it used
    assert default_system(heads, LM) == "copies+16-tree"
    by_cost = [default_system(heads, lm, by_cost=True) for lm in (stored, LM)]
    assert by_cost == ["64-calibrated", "64-tree"]  # trees that can be cut
    blocks: Any = SimpleNamespace(uses_target_calibration=False, default_system=lambda rescored: "{n}-tree")
    own = [default_system(blocks, lm, lm_from_caller=True) for lm in (stored, LM, None)]
    assert own == ["16-calibrated", "16-tree", "16-tree"]
    assert default_system(blocks, stored, lm_from_caller=True, alpha=0.5) == "16-tree"
    assert default_system(blocks, stored) == "16-tree"  # the calibration next to the target is for its heads


def test_generate_drafts_calibrated_trees_and_shows_them(run: Run, tmp_path: Path) -> None:
    """The text is greedy's; the page holds copies, which no slot has."""
    lm = tmp_path / "lm.fst"
    shutil.copy(bundled.LM, lm)
    weights = np.zeros((2, len(fst.FEATURES)))
    weights[:, [fst.FEATURES.index(name) for name in ("log_prob", "ngram", "match_1", "match_2", "match_10")]] = (
        1,
        0.5,
        1,
        3,
        5,
    )
    replace(WEIGHTS, weights=tuple(map(tuple, weights.tolist())), k=16).save(calibration_path(lm))
    arguments = ("generate", "The history of the city and the history of the", "--max-new-tokens", 32, "--json")
    texts = {}
    for name, options in (
        ("calibrated", ("--lm", lm, "--trace", tmp_path / "page.html")),
        ("greedy", ("--system", "greedy")),
    ):
        status, printed, err = run(*arguments, *options)
        assert status == 0, err
        texts[name] = json.loads(printed)
    assert texts["calibrated"]["text"] == texts["greedy"]["text"]
    assert texts["calibrated"]["block_efficiency"] > 1.5
    assert "16-calibrated" in (tmp_path / "page.html").read_text(encoding="utf-8")
