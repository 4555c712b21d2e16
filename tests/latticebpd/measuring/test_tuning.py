"""The weight of a language model: the best one is found, stored with the model, and its examples are left out."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest

import fst
from latticebpd import NeuralRescorer, SausageLattice, draft_tree, rescore
from latticebpd.lattices.json_files import from_record
from latticebpd.lattices.lattice_set import LatticeSet
from latticebpd.measuring import blocks
from latticebpd.measuring.examples import draw_examples, exclude_examples, lattices_fingerprint
from latticebpd.measuring.lattice_files import text_numbers
from latticebpd.measuring.tuning import WIDENINGS, tune
from latticebpd.scoring.rescoring import as_scorer
from latticebpd.scoring.weights import Tuning, alpha_path, store_tunings, stored_tunings, weight_for
from tests.helpers.commands import Run
from tests.helpers.lattices import run_system
from tests.helpers.tiny_families import VOCABULARY, tiny

SLOTS = 2
RECORD = Tuning(0.9, "1-best", (0.9, 2.0), (1.5, 1.25), "text", (0, 2), 7, "sha256:00")
TREES = replace(RECORD, alpha=5.0, system="64-tree", alphas=(0.9, 5.0), block_efficiency=(1.5, 2.0), by="decode")


def unigrams(log_probs: list[float]) -> fst.NgramModel:
    tokens = np.arange(len(log_probs), dtype=np.int32)[:, None]
    return fst.NgramModel.from_table(fst.NgramTable([tokens], [np.array(log_probs)], [np.zeros(len(log_probs))]))


def between_half_and_two(texts: int, positions: int = 5) -> tuple[LatticeSet, fst.NgramModel]:
    """Lattices whose right token, 1, wins just for weights from 0.5 to 2: by the heads token 0 is best, by the model
    token 2.

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
    tuning, swept = tune(files, lm, "1-best", (0.1, 0.4, 1.0, 3.0), examples=3, seed=1)
    assert tuning.alpha == 1.0
    assert tuning.block_efficiency == (1.0, 1.0, 5 / 2, 1.0)  # of five positions the first and the fourth are visited
    assert swept.counts.sum(axis=1).tolist() == [3 * 5] * 4
    assert (tuning.unit, len(tuning.examples), tuning.seed, tuning.system, tuning.by) == (
        "text",
        3,
        1,
        "1-best",
        "decode",
    )
    assert tuning.lattices == lattices_fingerprint(files) != lattices_fingerprint(files[::-1])


def test_texts_are_numbered_as_they_are_read(files: list[Path]) -> None:
    three = [*files, files[0]]
    count, texts = text_numbers(three)
    assert texts is not None
    assert (count, texts.tolist()) == (60, [number for number in range(12) for _ in range(5)])
    assert texts.tolist() == [number for block in blocks(three) for number in block.sequence.tolist()]


def test_of_equally_good_weights_the_least_is_taken(files: list[Path]) -> None:
    _, lm = between_half_and_two(1)
    assert tune(files, lm, "1-best", (1.5, 3.0, 0.75, 1.0))[0].alpha == 0.75


def test_examples_and_the_rest_are_all_lattices_and_share_none(files: list[Path]) -> None:
    _, examples = draw_examples(files, 3, seed=4)
    assert examples == draw_examples(files, 3, seed=4)[1] != draw_examples(files, 3, seed=5)[1]
    record = replace(RECORD, examples=examples)
    rest = [number for block in exclude_examples(blocks(files), [record]) for number in block.sequence.tolist()]
    assert sorted(set(rest)) == sorted(set(range(8)) - set(examples))
    assert len(rest) == 5 * 5
    assert draw_examples(files, 100, 0)[1] == tuple(range(8))
    both = [record, replace(RECORD, unit="lattice", examples=(39,))]  # numbered through the whole files
    assert sum(map(len, exclude_examples(blocks(files), both))) == (25 if 7 in examples else 24)
    assert list(exclude_examples([], [])) == []
    with pytest.raises(ValueError, match="besides those"):
        list(exclude_examples(blocks(files), [replace(RECORD, examples=tuple(range(8)))]))


def test_lattices_are_examples_where_files_do_not_tell_texts(tmp_path: Path) -> None:
    lattices, lm = between_half_and_two(4)
    anonymous = replace(lattices, sequence=None)
    anonymous.save(tmp_path / "a.npz")
    tuning, swept = tune([tmp_path / "a.npz"], lm, "4-tree", examples=6)
    assert (tuning.unit, len(tuning.examples), int(swept.counts[0].sum()), tuning.by) == ("lattice", 6, 6, "position")
    assert sum(len(block) for block in exclude_examples(blocks([tmp_path / "a.npz"]), [tuning])) == len(lattices) - 6
    lattices.save(tmp_path / "b.npz")
    with pytest.raises(ValueError, match="all number their texts, or none"):
        tune([tmp_path / "a.npz", tmp_path / "b.npz"], lm)


def test_neural_weights_are_measured_as_the_rescorer_drafts(tmp_path: Path) -> None:
    """More lattices than are rescored at a time; a rescorer that reads contexts."""
    rng = np.random.default_rng(0)
    n, rescorer = 70, NeuralRescorer(tiny("gpt2", seed=4))
    lattices = LatticeSet(
        np.stack([np.stack([rng.permutation(VOCABULARY)[:3] for _ in range(SLOTS)]) for _ in range(n)]).astype(
            np.int32
        ),
        rng.normal(-2, 1, (n, SLOTS, 3)).astype(np.float32),
        rng.integers(0, VOCABULARY, (n, SLOTS)).astype(np.int32),
        rng.integers(0, VOCABULARY, (n, 4)).astype(np.int32),
    )
    lattices.save(tmp_path / "a.npz")
    tuning, _ = tune([tmp_path / "a.npz"], rescorer, "6-tree", (0.0, 1.0, 4.0), examples=n)
    expected = [run_system("6-tree", lattices, rescorer, alpha).lengths.mean() + 1 for alpha in tuning.alphas]
    np.testing.assert_allclose(tuning.block_efficiency, expected, atol=1e-6)
    assert len(set(tuning.block_efficiency)) > 1


def test_weight_of_an_ngram_model_is_stored_beside_it_and_taken_from_there(files: list[Path], tmp_path: Path) -> None:
    lattice, context = SausageLattice([[0, 1, 2]], [[-1.0, -2.0, -6.0]]), [0]
    path = tmp_path / "lm.fst"
    assert stored_tunings(path) == ()
    assert rescore(lattice, path, p=1, context=context).tokens.tolist() == [[1]]  # weight 1
    for alpha, best in ((0.1, 0), (3.0, 2)):
        stored = replace(RECORD, alpha=alpha)
        store_tunings(path, [stored])
        assert stored_tunings(path) == (stored,)
        assert rescore(lattice, path, p=1, context=context).tokens.tolist() == [[best]]
        assert draft_tree(lattice, path, 1, context=context).tokens.tolist() == [best]
        assert rescore(lattice, path, p=1, alpha=1.0, context=context).tokens.tolist() == [[1]]


def test_weight_of_a_neural_rescorer_is_stored_in_its_settings(tmp_path: Path) -> None:
    NeuralRescorer(tiny("llama"), tokenizer_fingerprint="sha256:ab").save_pretrained(tmp_path)
    assert stored_tunings(tmp_path) == ()
    store_tunings(tmp_path, [RECORD, TREES])
    assert stored_tunings(tmp_path) == (RECORD, TREES)
    again = NeuralRescorer.from_pretrained(tmp_path)
    assert (again.alpha, again.tokenizer_fingerprint) == (0.9, "sha256:ab")
    again.save_pretrained(tmp_path / "copy")
    assert stored_tunings(tmp_path / "copy") == (RECORD, TREES)
    assert (
        as_scorer(tmp_path).alpha,
        as_scorer(tmp_path, system="9-tree").alpha,
        as_scorer(tmp_path, 3.0, "9-tree").alpha,
    ) == (
        0.9,
        5.0,
        3.0,
    )


@pytest.mark.parametrize(
    "text",
    ["", "[1]", "[]", '{"alpha": 1}', '{"format_version": 2, "tunings": []}', '{"format_version": 3, "tunings": [{}]}',
     *(json.dumps({**asdict(RECORD), name: value}) for name, value in
       (("unit", "word"), ("by", "guess"), ("alpha", -1), ("alpha", float("nan")), ("system", 3)))],
)  # fmt: skip
def test_damaged_record_is_named(tmp_path: Path, text: str) -> None:
    alpha_path(tmp_path / "lm.fst").write_text(text)
    with pytest.raises(ValueError, match=r"lm\.fst\.alpha\.json: .*tune the weight again"):
        stored_tunings(tmp_path / "lm.fst")


def test_command_prints_the_table_and_stores_the_weight(run: Run, files: list[Path], tmp_path: Path) -> None:
    lm = tmp_path / "lm.fst"
    status, printed, _ = run(
        "tune", *files, "--lm", lm, "--system", "1-best", "--grid", "0.1,1,3", "--examples", 2, "--json"
    )
    (record,) = (from_record(Tuning, each) for each in json.loads(printed))
    assert (status, record.alpha, record.alphas, len(record.examples)) == (0, 1.0, (0.1, 1.0, 3.0), 2)
    assert stored_tunings(lm) == ()
    status, printed, err = run("tune", *files, "--lm", lm, "-s", "1-best", "-s", "4-tree", "--examples", 2, "--write")
    assert status == 0
    assert "1-best on 2 texts" in printed
    assert "by decode" in printed
    assert "alpha 0.75 for 1-best, alpha" in " ".join(err.split())
    stored, trees = stored_tunings(lm)
    assert (stored.alpha, stored.system, stored.lattices) == (0.75, "1-best", lattices_fingerprint(files))
    assert trees.system == "4-tree"
    status, _, err = run("tune", *files, "--lm", lm, "-s", "1-best", "--grid", "1,1.5", "--examples", 2, "--write")
    assert (status, stored_tunings(lm)[1:]) == (0, (trees,))  # the other system's weight stays


def one_slot(path: Path, lead: list[float], lm: list[float]) -> fst.NgramModel:
    """Lattices of two tokens; by the heads the right one, 1, leads by ``lead``, and a model of both tokens'
    log-probabilities."""
    n = len(lead)
    log_probs = np.stack([np.zeros(n), np.array(lead)], axis=1).astype(np.float32)[:, None]
    tokens = np.tile(np.arange(2, dtype=np.int32), (n, 1, 1))
    LatticeSet(tokens, log_probs, np.ones((n, 1), np.int32), np.zeros((n, 1), np.int32)).save(path)
    return unigrams(lm)


def test_best_weight_at_the_edge_of_the_grid_widens_it(tmp_path: Path) -> None:
    """The model prefers the right token by 1, so a weight above 2**n mends the n-th position; or the wrong one."""
    path = tmp_path / "a.npz"
    lm = one_slot(path, [-(2.0**n) for n in range(6)], [-2.0, -1.0])
    tuning, _ = tune([path], lm, "1-best", (3.0, 1.5))
    assert tuning.alphas == (1.5, 3.0, 6.0, 12.0, 24.0, 48.0, 96.0, 192.0)
    assert (tuning.alpha, tuning.at_edge, tuning.block_efficiency[5]) == (48.0, False, 2.0)
    lm = one_slot(path, [-(2.0**n) for n in range(12)], [-2.0, -1.0])
    tuning, _ = tune([path], lm, "1-best", (1.5, 3.0))
    assert (len(tuning.alphas), tuning.alpha, tuning.at_edge) == (2 + 2 * WIDENINGS, 3.0 * 4**WIDENINGS, True)
    lm = one_slot(path, [2.0**-n for n in range(6)], [-1.0, -2.0])
    tuning, _ = tune([path], lm, "1-best", (0.75, 1.5))
    assert (tuning.alphas[0], tuning.at_edge, tuning.block_efficiency[0]) == (0.75 / 64, False, 2.0)


def test_a_grid_does_not_grow_where_all_weights_are_alike(files: list[Path]) -> None:
    _, lm = between_half_and_two(1)
    tuning, _ = tune(files, lm, "1-best", (2.5, 3.0))
    assert (tuning.alphas, tuning.at_edge) == ((2.5, 3.0), False)


def test_tuning_at_the_edge_or_by_position_is_reported(run: Run, tmp_path: Path) -> None:
    one_slot(tmp_path / "a.npz", [-(2.0**n) for n in range(12)], [-2.0, -1.0]).save(tmp_path / "lm.fst")
    status, _, err = run("tune", tmp_path / "a.npz", "--lm", tmp_path / "lm.fst", "-s", "1-best", "--grid", "1.5,3")
    assert status == 0
    assert "alpha 768 is the last that was tried" in " ".join(err.split())
    assert "tuned by position, since the files do not tell their texts" in " ".join(err.split())


def test_a_weight_is_that_of_the_system_or_of_the_one_most_like_it() -> None:
    small = replace(TREES, alpha=2.0, system="8-tree")
    tunings = (RECORD, TREES, small)
    wanted = {"1-best": 0.9, "16-best": 0.9, "64-tree": 5.0, "32-tree": 5.0, "16-tree": 2.0, "vanilla": 0.9, None: 0.9}
    assert {system: weight_for(tunings, system) for system in wanted} == wanted
    assert weight_for((), "64-tree") is None


def test_a_record_of_an_earlier_version_is_read(tmp_path: Path) -> None:
    """One JSON object, one system, one weight; in a rescorer's settings under ``tuning``."""
    old = {name: value for name, value in asdict(RECORD).items() if name != "by"}
    alpha_path(tmp_path / "lm.fst").write_text(json.dumps(old))
    assert stored_tunings(tmp_path / "lm.fst") == (RECORD,)
    NeuralRescorer(tiny("llama")).save_pretrained(tmp_path / "neural")
    settings = {"format_version": 1, "alpha": 0.9, "tokenizer_fingerprint": None, "tuning": old}
    (tmp_path / "neural" / "rescorer.json").write_text(json.dumps(settings))
    assert stored_tunings(tmp_path / "neural") == (RECORD,)
    assert NeuralRescorer.from_pretrained(tmp_path / "neural").alpha == 0.9


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--grid", "a,b"), "expected --grid as weights"),
        (("--grid", "-1"), "expected weights >= 0"),
        (("--system", "best"), "expected vanilla, chain, oracle, P-best or N-tree"),
        (("--system", "vanilla"), "expected --system P-best or N-tree"),
    ],
)
def test_bad_options_are_refused(
    run: Run, files: list[Path], tmp_path: Path, options: tuple[str, ...], message: str
) -> None:
    status, _, err = run("tune", *files, "--lm", tmp_path / "lm.fst", *options)
    assert status == 2
    assert message in err
