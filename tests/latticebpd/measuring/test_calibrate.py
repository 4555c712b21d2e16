"""Weights are fitted to what the base model went on with, stored, used, and their examples left out."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import fst
from fst import FEATURES
from latticebpd.drafters.cost_curve import CostCurve
from latticebpd.drafters.default_systems import lattice_shape
from latticebpd.lattices.lattice_set import LatticeSet
from latticebpd.lattices.texts import Texts
from latticebpd.measuring import blocks, lattice_files, needed_slots
from latticebpd.measuring.calibrate import (
    NEVER,
    Observations,
    _fitted,
    _observations,
    calibrate,
    calibrate_texts,
    following,
)  # fmt: skip
from latticebpd.scoring.calibrated import TextIndexes
from latticebpd.scoring.calibration import Calibration, TreeSize, calibration_path, stored_calibration
from latticebpd.scoring.rescoring import is_calibrated, text_scorer
from tests.helpers.commands import Run
from tests.helpers.drafters import LM
from tests.helpers.lattices import run_system

VOCAB, SLOTS, K = 23, 3, 5


def repetitive(texts: int, seed: int = 0, length: int = 60) -> LatticeSet:
    """Texts that quote themselves, by heads that often know the next token: sometimes at the top, sometimes below,
    sometimes not."""
    rng = np.random.default_rng(seed)
    tokens, log_probs, following, contexts, sequence = [], [], [], [], []
    for number in range(texts):
        text = rng.integers(0, VOCAB, 10).tolist()
        while len(text) < length + SLOTS:
            begin = int(rng.integers(0, len(text)))
            text += text[begin : begin + 8] if rng.random() < 0.7 else rng.integers(0, VOCAB, 3).tolist()
        for position in range(1, length):
            context = np.full(length, -1, np.int32)
            context[length - position :] = text[:position]
            rows = np.stack([rng.permutation(VOCAB)[:K] for _ in range(SLOTS)])
            for slot in range(SLOTS):
                right = text[position + slot]
                if right not in rows[slot] and rng.random() < 0.6:
                    rows[slot, int(rng.integers(0, 3))] = right
            tokens.append(rows)
            log_probs.append(np.log([[0.4, 0.2, 0.1, 0.1, 0.05]] * SLOTS))
            following.append(text[position : position + SLOTS])
            contexts.append(context)
            sequence.append(number)
    arrays = (
        np.array(tokens, np.int32),
        np.array(log_probs, np.float32),
        np.array(following, np.int32),
        np.array(contexts),
    )
    return LatticeSet(*arrays, sequence=np.array(sequence))


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("calibrating") / "lattices.npz"
    repetitive(12).save(path)
    return path


@pytest.fixture(scope="module")
def fitted(file: Path) -> Calibration:
    return calibrate([file], LM, examples=6)[0]


def test_the_text_is_worth_something_and_noise_is_not(file: Path, fitted: Calibration) -> None:
    weights = dict(zip(FEATURES, fitted.table[0], strict=True))
    assert weights["match_3"] > weights["seen"] + 1  # the texts quote themselves, the model is random
    assert abs(weights["ngram"]) < 0.3
    without, _ = calibrate([file], LM, examples=6, features=("log_prob", "ngram", "outside", "mass"))
    assert max(fitted.nats) < min(without.nats) - 0.2
    table = without.table
    assert (table[:, FEATURES.index("not_drafted")] == NEVER).all()
    assert (table[:, [FEATURES.index(name) for name in ("seen", "match_1", "share_1")]] == 0).all()
    assert calibrate([file], LM, examples=6)[0] == fitted
    assert (fitted.further, len(fitted.weights), len(without.weights)) == (
        True,
        SLOTS + 1,
        SLOTS,
    )  # without copies nothing lies behind


def test_lattices_are_read_once(file: Path, monkeypatch: pytest.MonkeyPatch, fitted: Calibration) -> None:
    read: list[Path] = []

    def counted(path: Path) -> Iterator[LatticeSet]:
        read.append(path)
        return opened(path)

    opened = lattice_files._blocks_of
    monkeypatch.setattr(lattice_files, "_blocks_of", counted)
    assert calibrate([file], LM, examples=6)[0] == fitted
    assert read == [file]


def test_predictions_are_reliable(tmp_path: Path) -> None:
    """On texts of the other half: of the tokens given a probability, about that share was right."""
    file = tmp_path / "lattices.npz"
    repetitive(40).save(file)
    _, predictions = calibrate([file], LM, examples=40)
    enough = predictions.count > 100
    assert enough.sum() >= 8
    np.testing.assert_allclose(predictions.observed[enough], predictions.predicted[enough], atol=0.12)
    lattices = next(blocks([file]))
    assert (lattices.continuation >= 0).all()
    assert (
        predictions.count.sum() > 0.7 * len(lattices) * SLOTS * K
    )  # arcs of all slots that can be reached, and copies


def test_a_rare_feature_is_predicted_as_often_right_as_it_is() -> None:
    """One position in fifty repeats a long match, which is right in 19 cases of 20."""
    positions, rare, right = 4000, 80, 76
    match, outside = FEATURES.index("match_10"), FEATURES.index("outside")
    features = np.zeros((positions, 2, len(FEATURES)), np.float32)
    features[:, 0, FEATURES.index("log_prob")], features[:, 1, outside] = -1.0, 1.0
    features[:rare, 0, match] = 1.0
    labels = [int(row >= right) for row in range(rare)] + [int(row % 2) for row in range(positions - rare)]
    observed = Observations.of([*zip(features, labels, strict=True)], copies=True)
    weights = _fitted(observed, torch.ones(len(FEATURES)))
    assert float(observed.log_probs(weights)[:rare, 0].exp().mean()) == pytest.approx(right / rare, abs=0.02)


def single_text(tokens: list[list[list[int]]], text: list[int], sequence: int = 0) -> LatticeSet:
    """Lattices ``[positions][slots][2]`` of a text, from its second token on."""
    slots = len(tokens[0])
    contexts = np.full((len(tokens), len(text)), -1, np.int32)
    for row in range(len(tokens)):
        contexts[row, len(text) - row - 1 :] = text[: row + 1]
    following = [(text[row + 1 :] + [-1] * slots)[:slots] for row in range(len(tokens))]
    log_probs = np.zeros(np.shape(tokens), np.float32) + np.log([[[0.6, 0.3]]]).astype(np.float32)
    arrays = np.array(tokens, np.int32), log_probs, np.array(following, np.int32), contexts
    return LatticeSet(*arrays, sequence=np.full(len(tokens), sequence))


def test_nats_are_those_of_texts_that_the_weights_were_not_fitted_to(tmp_path: Path) -> None:
    """Two texts: in one the best arc is always right, in the other none is, so that the weights of either are wrong
    about the other."""
    text = np.random.default_rng(0).permutation(100).tolist()
    single_text([[[token, 200]] for token in text[1:]], text).save(tmp_path / "right.npz")
    single_text([[[200, 201]] for _ in text[1:]], text, 1).save(tmp_path / "wrong.npz")
    files = [tmp_path / "right.npz", tmp_path / "wrong.npz"]
    calibration, reliability = calibrate(files, None, features=("log_prob", "outside"))
    assert calibration.nats[0] > 2
    assert reliability.observed[reliability.predicted > 0.9].max() < 0.01
    same = [replace(next(blocks([files[0]])), sequence=np.full(99, number)) for number in range(2)]
    for number, lattices in enumerate(same):
        lattices.save(tmp_path / f"same{number}.npz")
    assert calibrate(sorted(tmp_path.glob("same*")), None, features=("log_prob", "outside"))[0].nats[0] < 0.1


def test_slots_after_the_text_left_the_lattice_are_not_observed() -> None:
    text = list(range(10))
    lattices, index = single_text([[[1, 50], [51, 52], [3, 53]]], text), TextIndexes(fst.TextIndex)
    assert [right for _, right in _observations(lattices, 0, None, index)] == [0, 2]  # of two arcs and none of them


def test_sixteen_positions_after_the_lattice_are_observed() -> None:
    text = list(range(40))
    lattices = single_text([[[token, 50], [token + 1, 51], [token + 2, 52]] for token in text[1:-2]], text)
    assert following(lattices, 0).tolist() == text[1 : 1 + 3 + 16]
    assert following(lattices, 30).tolist() == text[31:]


def test_half_a_percent_of_tokens_per_call_is_worth_a_slot() -> None:
    assert needed_slots.fewest({1: 2.97, 2: 2.99, 3: 3.0}) == 2
    assert needed_slots.fewest({1: 2.97, 2: 2.98, 3: 3.0}) == 3


def test_calibrated_trees_accept_more(file: Path, fitted: Calibration, tmp_path: Path) -> None:
    lm = tmp_path / "lm.fst"
    LM.save(lm)
    fitted.save(f"{lm}.calibration.json")
    lattices = next(blocks([file]))
    rest = lattices.take(~np.isin(lattices.sequence, fitted.examples))
    plain, calibrated = (run_system(name, rest, lm) for name in ("8-tree:0-gram", "8-calibrated"))
    assert calibrated.lengths.mean() > plain.lengths.mean() + 0.3
    assert (calibrated.nodes == 8).all()
    assert run_system("8-calibrated", rest, lm, threads=2).lengths.tolist() == calibrated.lengths.tolist()


def test_slots_that_bring_nothing_are_not_needed(
    file: Path, fitted: Calibration, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Heads that know nothing behind the first slot: one is enough; heads that always know: all are needed."""
    monkeypatch.setattr(needed_slots, "LOSS", 0.05)  # six short texts cannot tell less
    lattices = next(blocks([file]))
    useless, telling = (
        lattices.tokens.copy(),
        (lattices.continuation[:, :, None] + np.arange(K, dtype=np.int32)) % VOCAB,
    )
    useless[:, 1:] = VOCAB + np.arange(K)  # tokens that never come
    for tokens, expected in ((useless, 1), (telling, SLOTS)):
        file = tmp_path / f"{expected}.npz"
        replace(lattices, tokens=tokens).save(file)
        calibration = needed_slots.with_needed_slots(calibrate([file], LM, examples=6)[0], [file], LM)
        assert calibration.slots == expected
        assert tuple(each.nodes for each in calibration.trees) == needed_slots.SIZES
        tokens_per_call, slots = zip(*((each.tokens, each.slots) for each in calibration.trees), strict=True)
        assert sorted(tokens_per_call) == list(tokens_per_call)
        assert max(slots) == expected
        assert all(each.slots <= each.nodes for each in calibration.trees)
        path = tmp_path / "stored.json"
        calibration.save(path)
        assert Calibration.load(path) == calibration
    single = replace(fitted, unit="lattice")
    assert needed_slots.with_needed_slots(single, [file], LM) is single


def test_decodes_ask_for_the_slots_that_are_needed(fitted: Calibration, tmp_path: Path) -> None:
    lm = tmp_path / "lm.fst"
    LM.save(lm)
    for slots in (None, 2):
        replace(fitted, slots=slots).save(calibration_path(lm))
        assert lattice_shape(None, None, "16-calibrated", lm) == (K, slots)
        assert lattice_shape(3, 1, "16-calibrated", lm) == (3, 1)
        assert lattice_shape(None, None, "copies+1-calibrated", lm) == (K, None if slots is None else 1)
        assert lattice_shape(None, None, "16-tree", lm) == (16, None)
        replace(fitted, slots=slots, k=48).save(calibration_path(lm))
        assert [lattice_shape(None, 1, f"{nodes}-calibrated", lm)[0] for nodes in (2, 16, 30, 64)] == [16, 16, 30, 48]
    with pytest.raises(ValueError, match="slots >= 1"):
        replace(fitted, slots=0)


def test_trees_that_are_cut_by_costs_need_the_slots_of_the_size_that_pays(fitted: Calibration, tmp_path: Path) -> None:
    lm = tmp_path / "lm.fst"
    LM.save(lm)
    trees = tuple(TreeSize(*each) for each in ((1, 1.6, 1), (2, 2.0, 2), (8, 3.0, 4), (64, 4.0, 6)))
    replace(fitted, slots=6, k=48, trees=trees).save(calibration_path(lm))
    flat = CostCurve((1,), (1, 65), ((1.0, 1.001),))  # a token more costs nothing: the largest tree pays
    steep = CostCurve((1,), (1, 2, 3, 9, 65), ((1.0, 1.1, 1.2, 2.4, 20.0),), packed=True)
    for costs, shape in (
        (None, (48, 6)),
        (flat, (48, 6)),
        (steep, (16, 2)),
        (replace(steep, drafting=(2.0,)), (16, 4)),  # what a draft costs is paid off by more tokens
        (replace(steep, drafting=(0.5,), accepted=0.5), (16, 2)),
    ):
        assert lattice_shape(None, None, "64-calibrated", lm, costs) == shape
    assert lattice_shape(None, None, "1-calibrated", lm, flat) == (16, 1)
    assert lattice_shape(32, 3, "64-calibrated", lm, steep) == (32, 3)
    replace(fitted, slots=6, k=48).save(calibration_path(lm))  # of a version that did not measure sizes
    assert lattice_shape(None, None, "64-calibrated", lm, steep) == (48, 6)
    with pytest.raises(ValueError, match="nodes, tokens per call and slots >= 1"):
        TreeSize(2, 0.5, 1)


def test_command_stores_it_and_its_examples_are_left_out(run: Run, file: Path, tmp_path: Path) -> None:
    lm, plot = tmp_path / "lm.fst", tmp_path / "reliability.png"
    LM.save(lm)
    status, printed, _ = run("calibrate", file, "--lm", lm, "--examples", 4, "--json")
    assert (status, stored_calibration(lm)) == (0, None)
    calibration_path(lm).write_text("of another version")
    record = json.loads(printed)
    assert (len(record["weights"]), record["further"]) == (SLOTS + 1, True)
    assert sum(record["reliability"]["count"]) > 0
    status, printed, err = run("calibrate", file, "--lm", lm, "--examples", 4, "--write", "--plot", plot)
    assert status == 0
    assert "nats" in printed
    assert (
        "calibration of 3 slots and of prompt lookup after them, on 4 texts, stored; trees need the first"
        in " ".join(err.split())
    )
    assert plot.stat().st_size > 1000
    stored = stored_calibration(lm)
    assert stored is not None
    assert np.allclose(stored.table, record["weights"])
    status, printed, err = run("compare", file, "--lm", lm, "-s", "8-calibrated", "--json")
    assert (status, "4 texts that lm's weights were fitted to are left out" in " ".join(err.split())) == (
        0,
        True,
    )
    assert json.loads(printed)["lattices"] == 8 * 59


def own_texts(texts: int) -> Texts:
    lattices = repetitive(texts)
    sequence = np.asarray(lattices.sequence)
    rows = [lattices.context_of(int(np.flatnonzero(sequence == number)[-1])) for number in range(texts)]
    return Texts.of_rows(rows, [10] * texts)


def test_texts_alone_calibrate_trees_for_models_without_heads() -> None:
    texts = own_texts(40)
    alone, reliability = calibrate_texts(texts, None, positions=10_000)
    ruled, _ = calibrate_texts(texts, LM, positions=100)
    assert (alone.without_lattices, alone.proposals, len(alone.weights)) == (True, 0, 1)
    assert ruled.proposals > 0
    assert alone.examples == tuple(range(40))
    assert alone.nats[0] < 1.2  # of 23 tokens
    often = reliability.count > 500
    assert often.sum() >= 3
    np.testing.assert_allclose(reliability.predicted[often], reliability.observed[often], atol=0.06)


def test_command_calibrates_the_texts_that_distill_writes(run: Run, tmp_path: Path, file: Path) -> None:
    lm, texts = tmp_path / "lm.fst", tmp_path / "texts.npz"
    LM.save(lm)
    own_texts(12).save(texts)
    status, _, err = run("calibrate", texts, "--lm", lm, "--write")
    assert status == 0, err
    assert "calibration of trees without heads, on 12 texts, stored" in " ".join(err.split())
    scorer = text_scorer(lm)
    assert scorer.calibration == stored_calibration(lm)
    assert not is_calibrated(lm)  # for lattices
    status, _, err = run("calibrate", texts, file, "--lm", lm)
    assert (status, "expected lattices or texts, got both kinds" in err) == (2, True)


def test_too_little_is_refused(run: Run, file: Path, tmp_path: Path) -> None:
    lm = tmp_path / "lm.fst"
    LM.save(lm)
    repetitive(1).save(tmp_path / "one.npz")
    status, _, err = run("calibrate", tmp_path / "one.npz", "--lm", lm)
    assert (status, "expected at least two texts to calibrate on, got 1" in " ".join(err.split())) == (
        2,
        True,
    )
    with pytest.raises(ValueError, match="features among"):
        calibrate([file], LM, features=("log_prob", "luck"))
