"""The weight of a language model: the best one is found, stored with the model, and its examples are left out."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest

import fst
from latticebpd import NeuralRescorer, SausageLattice, draft_tree, rescore
from latticebpd.analysis import blocks
from latticebpd.analysis.systems import run_system
from latticebpd.analysis.tuning import Tuning, draw_examples, lattices_fingerprint, tune, without
from latticebpd.lattices.lattice_set import LatticeSet
from latticebpd.scoring.rescoring import alpha_path
from tests.helpers.commands import Run
from tests.helpers.tiny_families import VOCABULARY, tiny

SLOTS = 2
RECORD = Tuning(0.9, "1-best", (0.9, 2.0), (1.5, 1.25), "text", (0, 2), 7, "sha256:00")


def unigrams(log_probs: list[float]) -> fst.NgramModel:
    tokens = np.arange(len(log_probs), dtype=np.int32)[:, None]
    return fst.NgramModel.from_table(fst.NgramTable([tokens], [np.array(log_probs)], [np.zeros(len(log_probs))]))


def between_half_and_two(texts: int, positions: int = 5) -> tuple[LatticeSet, fst.NgramModel]:
    """Lattices whose right token, 1, wins just for weights from 0.5 to 2: by the heads token 0 is best, by the model token 2.

    Scores are -1 - 5 alpha, -2 - 3 alpha and -6 - alpha.
    """
    n = texts * positions
    lattices = LatticeSet(
        tokens=np.tile(np.arange(3, dtype=np.int32), (n, SLOTS, 1)),
        log_probs=np.tile(np.array([-1.0, -2.0, -6.0], np.float32), (n, SLOTS, 1)),
        continuation=np.ones((n, SLOTS), np.int32),
        context=np.arange(n, dtype=np.int32)[:, None] % 3,
        sequence=np.repeat(np.arange(texts), positions),
    )
    return lattices, unigrams([-5.0, -3.0, -1.0])


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    """Two files of four texts each."""
    lattices, lm = between_half_and_two(8)
    paths = [tmp_path / "a.npz", tmp_path / "b.npz"]
    for path, rows in zip(paths, (slice(0, 20), slice(20, 40)), strict=True):
        part = lattices.take(np.arange(40)[rows])
        assert part.sequence is not None
        replace(part, sequence=part.sequence - part.sequence[0]).save(path)
    lm.save(tmp_path / "lm.fst")
    return paths


def test_weight_that_is_right_by_construction_is_found(files: list[Path]) -> None:
    _, lm = between_half_and_two(1)
    found, swept = tune(files, lm, "1-best", (0.1, 0.4, 1.0, 3.0), examples=3, seed=1)
    assert found.alpha == 1.0
    assert found.block_efficiency == (1.0, 1.0, 1.0 + SLOTS, 1.0)
    assert swept.counts.sum(axis=1).tolist() == [3 * 5] * 4
    assert (found.unit, len(found.examples), found.seed, found.system) == ("text", 3, 1, "1-best")
    assert found.lattices == lattices_fingerprint(files) != lattices_fingerprint(files[::-1])


def test_of_equally_good_weights_the_least_is_taken(files: list[Path]) -> None:
    _, lm = between_half_and_two(1)
    assert tune(files, lm, "1-best", (1.5, 3.0, 0.75, 1.0))[0].alpha == 0.75


def test_examples_and_the_rest_are_all_lattices_and_share_none(files: list[Path]) -> None:
    _, examples = draw_examples(files, 3, seed=4)
    assert examples == draw_examples(files, 3, seed=4)[1] != draw_examples(files, 3, seed=5)[1]
    record = replace(RECORD, examples=examples)
    rest = [number for block in without(blocks(files), record) for number in block.sequence.tolist()]  # type: ignore[union-attr]
    assert sorted(set(rest)) == sorted(set(range(8)) - set(examples))
    assert len(rest) == 5 * 5
    assert draw_examples(files, 100, 0)[1] == tuple(range(8))
    assert not list(without(blocks(files), replace(RECORD, examples=tuple(range(8)))))


def test_lattices_are_examples_where_files_do_not_tell_texts(tmp_path: Path) -> None:
    lattices, lm = between_half_and_two(4)
    anonymous = replace(lattices, sequence=None)
    anonymous.save(tmp_path / "a.npz")
    found, swept = tune([tmp_path / "a.npz"], lm, "4-tree", examples=6)
    assert (found.unit, len(found.examples), int(swept.counts[0].sum())) == ("lattice", 6, 6)
    assert sum(len(block) for block in without(blocks([tmp_path / "a.npz"]), found)) == len(lattices) - 6
    lattices.save(tmp_path / "b.npz")
    with pytest.raises(ValueError, match="all number their texts, or none"):
        tune([tmp_path / "a.npz", tmp_path / "b.npz"], lm)


def test_neural_weights_are_measured_as_the_rescorer_drafts(tmp_path: Path) -> None:
    """More lattices than are rescored at a time; a rescorer that reads contexts."""
    rng = np.random.default_rng(0)
    n, rescorer = 70, NeuralRescorer(tiny("gpt2", seed=4))
    lattices = LatticeSet(
        np.stack([np.stack([rng.permutation(VOCABULARY)[:3] for _ in range(SLOTS)]) for _ in range(n)]).astype(np.int32),
        rng.normal(-2, 1, (n, SLOTS, 3)).astype(np.float32),
        rng.integers(0, VOCABULARY, (n, SLOTS)).astype(np.int32),
        rng.integers(0, VOCABULARY, (n, 4)).astype(np.int32),
    )
    lattices.save(tmp_path / "a.npz")
    found, _ = tune([tmp_path / "a.npz"], rescorer, "6-tree", (0.0, 1.0, 4.0), examples=n)
    expected = [run_system("6-tree", lattices, rescorer, alpha).lengths.mean() + 1 for alpha in (0.0, 1.0, 4.0)]
    np.testing.assert_allclose(found.block_efficiency, expected, atol=1e-6)
    assert len(set(found.block_efficiency)) > 1


def test_weight_of_an_ngram_model_is_stored_beside_it_and_taken_from_there(files: list[Path], tmp_path: Path) -> None:
    lattice, context = SausageLattice([[0, 1, 2]], [[-1.0, -2.0, -6.0]]), [0]
    path = tmp_path / "lm.fst"
    assert Tuning.of(path) is None
    assert rescore(lattice, path, p=1, context=context).tokens.tolist() == [[1]]  # weight 1
    for alpha, best in ((0.1, 0), (3.0, 2)):
        stored = replace(RECORD, alpha=alpha)
        stored.store(path)
        assert Tuning.of(path) == stored
        assert rescore(lattice, path, p=1, context=context).tokens.tolist() == [[best]]
        assert draft_tree(lattice, path, 1, context=context).tokens.tolist() == [best]
        assert rescore(lattice, path, p=1, alpha=1.0, context=context).tokens.tolist() == [[1]]


def test_weight_of_a_neural_rescorer_is_stored_in_its_settings(tmp_path: Path) -> None:
    NeuralRescorer(tiny("llama"), tokenizer_fingerprint="sha256:ab").save_pretrained(tmp_path)
    assert Tuning.of(tmp_path) is None
    RECORD.store(tmp_path)
    assert Tuning.of(tmp_path) == RECORD
    again = NeuralRescorer.from_pretrained(tmp_path)
    assert (again.alpha, again.tokenizer_fingerprint) == (0.9, "sha256:ab")
    again.save_pretrained(tmp_path / "copy")
    assert Tuning.of(tmp_path / "copy") == RECORD


@pytest.mark.parametrize("text", ["", "[1]", '{"alpha": 1}', json.dumps({**asdict(RECORD), "unit": "word"})])
def test_damaged_record_is_named(tmp_path: Path, text: str) -> None:
    alpha_path(tmp_path / "lm.fst").write_text(text)
    with pytest.raises(ValueError, match=r"lm\.fst\.alpha\.json: .*tune the weight again"):
        Tuning.of(tmp_path / "lm.fst")


def test_command_prints_the_table_and_stores_the_weight(run: Run, files: list[Path], tmp_path: Path) -> None:
    lm = tmp_path / "lm.fst"
    status, printed, _ = run("tune", *files, "--lm", lm, "--system", "1-best", "--grid", "0.1,1,3", "--examples", 2, "--json")
    record = Tuning.from_json(json.loads(printed))
    assert (status, record.alpha, record.alphas, len(record.examples)) == (0, 1.0, (0.1, 1.0, 3.0), 2)
    assert Tuning.of(lm) is None
    status, printed, told = run("tune", *files, "--lm", lm, "--system", "1-best", "--examples", 2, "--write")
    assert status == 0
    assert "2 texts, 10 lattices" in printed
    assert "alpha 0.75 stored" in " ".join(told.split())
    stored = Tuning.of(lm)
    assert stored is not None
    assert (stored.alpha, stored.lattices) == (0.75, lattices_fingerprint(files))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--grid", "a,b"), "expected --grid as weights"),
        (("--grid", "-1"), "expected weights >= 0"),
        (("--system", "best"), "expected vanilla, oracle, P-best or N-tree"),
    ],
)
def test_bad_options_are_refused(run: Run, files: list[Path], tmp_path: Path, options: tuple[str, ...], message: str) -> None:
    status, _, told = run("tune", *files, "--lm", tmp_path / "lm.fst", *options)
    assert status == 2
    assert message in told
