"""SausageLattice, oracle_path and lattice files."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from latticebpd import LatticeSet, SausageLattice, oracle_path
from latticebpd.analysis import blocks
from latticebpd.lattices.lattice import top_k


def test_from_logits_normalises_and_sorts_best_first() -> None:
    lattice = SausageLattice.from_logits(np.log([[0.1, 0.6, 0.3], [0.5, 0.2, 0.3]]), k=2)
    assert lattice.tokens.tolist() == [[1, 2], [0, 2]]
    np.testing.assert_allclose(np.exp(lattice.log_probs), [[0.6, 0.3], [0.5, 0.3]], rtol=1e-6)


def test_from_logits_takes_torch_and_numpy_alike() -> None:
    logits = torch.randn(4, 50, generator=torch.Generator().manual_seed(1))
    ours, theirs = SausageLattice.from_logits(logits, k=7), SausageLattice.from_logits(logits.numpy(), k=7)
    assert ours.tokens.tolist() == theirs.tokens.tolist()
    reference = torch.log_softmax(logits.double(), -1).gather(1, torch.from_numpy(ours.tokens).long())
    np.testing.assert_allclose(ours.log_probs, reference, atol=1e-6)


def test_from_logits_accepts_half_precision() -> None:
    assert SausageLattice.from_logits(torch.zeros(2, 4, dtype=torch.bfloat16), k=4).tokens.tolist() == [[0, 1, 2, 3]] * 2


@given(st.lists(st.lists(st.integers(-2, 2), min_size=5, max_size=5), min_size=1, max_size=4), st.integers(1, 5))
def test_top_k_breaks_ties_towards_the_lower_index(rows: list[list[int]], k: int) -> None:
    expected = [sorted(range(5), key=lambda i: (-row[i], i))[:k] for row in rows]
    assert top_k(np.array(rows, dtype=np.float64), k).tolist() == expected


@pytest.mark.parametrize(
    ("tokens", "log_probs", "message"),
    [
        ([[1, 2]], [[0.0]], r"one shape \[slots, k\], got \(1, 2\) and \(1, 1\)"),
        ([1, 2], [0.0, 0.0], r"\[slots, k\], got \(2,\)"),
        ([[1.0, 2.0]], [[0.0, 0.0]], "expected integer tokens, got float64"),
        ([[1, 2]], [["a", "b"]], "expected real log_probs"),
        ([[1, 2], [3, 3]], [[0.0, 0.0]] * 2, "slot 1: expected distinct tokens, got token 3 twice"),
        ([[1, -2]], [[0.0, 0.0]], r"slot 0: expected token ids >= 0 .* got \[1, -2\]"),
        ([[1, 2**31]], [[0.0, 0.0]], "slot 0: expected token ids >= 0 .* fit 32 bits"),
        ([[1, 2]], [[0.0, math.nan]], "slot 0, arc 1: expected a log-probability below .inf, got nan"),
        ([[1, 2]], [[math.inf, 0.0]], "slot 0, arc 0: .* got inf"),
        ([[1, 2], [-1, -1]], [[0.0, 0.0]] * 2, "slot 1: expected at least one arc"),
        ([[1, 2]], [[-math.inf, -math.inf]], "slot 0: expected at least one arc"),
    ],
)
def test_malformed_lattice_is_refused_by_name(tokens: list[object], log_probs: list[object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        SausageLattice(np.array(tokens), np.array(log_probs))


def test_padding_may_carry_any_weight_and_counts_no_paths() -> None:
    lattice = SausageLattice([[4, -1], [5, 6], [7, 8]], [[-1.0, math.nan], [-1.0, -2.0], [0.0, -math.inf]])
    assert lattice.num_paths == 1 * 2 * 1
    np.testing.assert_allclose(lattice.kept_log_mass, [-1.0, math.log(math.exp(-1) + math.exp(-2)), 0.0], rtol=1e-6)


def test_number_of_paths_is_exact_beyond_64_bits() -> None:
    lattice = SausageLattice(np.tile(np.arange(16), (40, 1)), np.zeros((40, 16)))
    assert lattice.num_paths == 16**40


@given(st.data())
def test_oracle_path_has_the_longest_matching_prefix_of_all_paths(data: st.DataObject) -> None:
    slots, k = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 3))
    rows = [data.draw(st.permutations(range(4))) for _ in range(slots)]
    lattice = SausageLattice(np.array([row[:k] for row in rows]), np.zeros((slots, k)))
    continuation = data.draw(st.lists(st.integers(0, 3), max_size=slots + 1))

    def matched(path: tuple[int, ...]) -> int:
        return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(path, continuation, strict=False)))

    best = max(matched(path) for path in itertools.product(*lattice.tokens.tolist()))
    found = tuple(oracle_path(lattice, continuation).tolist())
    assert matched(found) == best
    assert all(token in slot for token, slot in zip(found, lattice.tokens.tolist(), strict=True))


def test_lattice_round_trips_through_openfst() -> None:
    lattice = SausageLattice([[4, -1, 7], [5, 6, 0]], [[-1.5, 0.0, -1.0], [-0.25, -2.0, -4.0]])
    automaton = lattice.to_fst()
    assert automaton.num_states() == 3
    again = SausageLattice.from_fst(automaton)
    assert again.tokens.tolist() == [[7, 4, -1], [5, 6, 0]]
    np.testing.assert_array_equal(again.log_probs, [[-1.0, -1.5, -np.inf], [-0.25, -2.0, -4.0]])


def test_automaton_of_another_topology_is_refused() -> None:
    automaton = SausageLattice([[4, 7], [5, 6]], np.zeros((2, 2))).to_fst()
    automaton.add_arc(0, automaton.arcs(1).__next__())  # from the first state straight to the last
    with pytest.raises(ValueError, match="expected a linear acceptor"):
        SausageLattice.from_fst(automaton)


def _lattice_set(n: int = 3) -> LatticeSet:
    rng = np.random.default_rng(0)
    tokens = np.tile(np.arange(4, dtype=np.int32), (n, 2, 1))
    return LatticeSet(
        tokens,
        rng.normal(size=(n, 2, 4)).astype(np.float32),
        rng.integers(0, 4, (n, 2), dtype=np.int32),
        np.full((n, 5), -1, dtype=np.int32),
    )


def test_lattice_file_round_trips(tmp_path: Path) -> None:
    plain = _lattice_set()
    told = replace(plain, sequence=np.array([0, 0, 1]), entropy=np.ones((3, 3), np.float32), fingerprint="v", origin="model, its text")
    for lattices in (plain, told):
        for compressed in (False, True):
            lattices.save(tmp_path / "l.npz", compressed)
            (streamed,) = blocks([tmp_path / "l.npz"])
            for again in (LatticeSet.load(tmp_path / "l.npz"), streamed):
                for name in (*LatticeSet.ARRAYS, *LatticeSet.OPTIONAL):
                    np.testing.assert_array_equal(getattr(again, name), getattr(lattices, name))
                assert (again.fingerprint, again.origin) == (lattices.fingerprint, lattices.origin)
    assert [path.name for path in tmp_path.iterdir()] == ["l.npz"]


def _changed(name: str, value: object, at: tuple[int, ...] = (1, 0, 2)) -> np.ndarray:
    array: np.ndarray = getattr(_lattice_set(), name).copy()
    array[at] = value
    return array


@pytest.mark.parametrize(
    ("name", "array", "message"),
    [
        (
            "log_probs",
            _changed("log_probs", np.nan),
            "log_probs: expected log-probabilities below .inf, got nan in lattice 1, slot 0, arc 2",
        ),
        ("log_probs", _changed("log_probs", np.inf), "log_probs: .* got inf in lattice 1, slot 0, arc 2"),
        ("log_probs", np.zeros((3, 2, 4), np.int32), "log_probs: expected float values, got int32"),
        ("log_probs", np.zeros((3, 2, 4), "U3"), "log_probs: expected float values, got <U3"),
        ("tokens", np.zeros((3, 2, 4), np.float32), "tokens: expected integer values, got float32"),
        ("tokens", _changed("tokens", -7), "tokens: expected ids >= 0 .* got -7"),
        ("tokens", np.full((3, 2, 4), 2**40), "tokens: expected ids >= 0 .* that fit 32 bits"),
        ("tokens", np.zeros((3, 2, 0), np.int32), r"tokens \(3, 2, 0\)"),
        ("continuation", np.zeros((3, 3), np.int32), r"continuation \(3, 3\)"),
        ("context", np.zeros((3, 2), bool), "context: expected integer values, got bool"),
        ("sequence", np.zeros(3), r"sequence: expected integers \[n\], one for each of 3 lattices, got float64 \(3,\)"),
        ("sequence", np.zeros((3, 1), int), "sequence: expected integers"),
        ("entropy", np.ones((3, 2), np.float32), r"entropy: expected floats \[n, slots . 1\] \(3, 3\)"),
        ("entropy", np.full((3, 3), -1.0), "entropy: expected finite values >= 0"),
        ("entropy", np.full((3, 3), np.nan), "entropy: expected finite values >= 0"),
    ],
)
def test_bad_arrays_are_refused_by_file_and_name(tmp_path: Path, name: str, array: np.ndarray, message: str) -> None:
    good = _lattice_set()
    arrays = {field: getattr(good, field) for field in LatticeSet.ARRAYS}
    np.savez(tmp_path / "l.npz", **{**arrays, name: array})
    for read in (LatticeSet.load, lambda path: list(blocks([path]))):
        with pytest.raises(ValueError, match=rf"l\.npz: not a lattice file: .*{message}"):
            read(tmp_path / "l.npz")


def test_arrays_of_several_lengths_are_refused(tmp_path: Path) -> None:
    good = _lattice_set()
    arrays = {field: getattr(good, field) for field in LatticeSet.ARRAYS}
    np.savez(tmp_path / "l.npz", **{**arrays, "context": arrays["context"][:2]})
    with pytest.raises(ValueError, match="expected arrays of one length, got tokens 3, log_probs 3, continuation 3, context 2"):
        list(blocks([tmp_path / "l.npz"]))


def test_impossible_arcs_are_no_error() -> None:
    found = replace(_lattice_set(), log_probs=_changed("log_probs", -np.inf))
    assert found[1].num_paths == 12


def test_sets_of_one_shape_are_joined_in_order() -> None:
    parts = [_lattice_set(2), _lattice_set(3)]
    joined = LatticeSet.joined(parts)
    assert len(joined) == 5
    np.testing.assert_array_equal(joined.log_probs[2:], parts[1].log_probs)
    for bad in ([], [parts[0], replace(parts[1], context=np.zeros((3, 2), np.int32))]):
        with pytest.raises(ValueError, match="expected"):
            LatticeSet.joined(bad)


def test_damaged_lattice_file_is_a_value_error_at_every_length(tmp_path: Path) -> None:
    _lattice_set().save(tmp_path / "l.npz")
    whole = (tmp_path / "l.npz").read_bytes()
    broken = tmp_path / "broken.npz"
    for length in range(0, len(whole) - 1, 37):
        broken.write_bytes(whole[:length])
        with pytest.raises(ValueError, match=r"broken\.npz: not a lattice file"):
            LatticeSet.load(broken)


def test_bit_flips_in_a_lattice_file_load_or_raise_value_error(tmp_path: Path) -> None:
    _lattice_set().save(tmp_path / "l.npz")
    whole = bytearray((tmp_path / "l.npz").read_bytes())
    rng = np.random.default_rng(3)
    refused = 0
    for _ in range(200):
        damaged = bytearray(whole)
        damaged[rng.integers(len(whole))] ^= 1 << rng.integers(8)
        (tmp_path / "b.npz").write_bytes(damaged)
        try:
            LatticeSet.load(tmp_path / "b.npz")
        except ValueError:
            refused += 1
    assert refused > 50  # archives carry checksums: most damage is noticed


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"tokens": np.zeros((1, 2, 3), np.int32)}, "missing: log_probs, continuation, context"),
        (
            {
                "tokens": np.zeros((1, 2, 3), np.int32),
                "log_probs": np.zeros((1, 2, 2), np.float32),
                "continuation": np.zeros((1, 2), np.int32),
                "context": np.zeros((1, 2), np.int32),
            },
            r"log_probs \(1, 2, 2\)",
        ),
    ],
)
def test_lattice_file_with_wrong_arrays_names_them(tmp_path: Path, arrays: dict[str, np.ndarray], message: str) -> None:
    np.savez(tmp_path / "l.npz", **arrays)
    with pytest.raises(ValueError, match=message):
        LatticeSet.load(tmp_path / "l.npz")


def test_pickled_lattice_file_is_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "l.npz", tokens=np.array([{"a": 1}], dtype=object), log_probs=1, continuation=1, context=1)
    with pytest.raises(ValueError, match="not a lattice file"):
        LatticeSet.load(tmp_path / "l.npz")


def test_invalid_member_is_named_by_its_index() -> None:
    lattices = _lattice_set()
    lattices.tokens[1, 0] = 2
    with pytest.raises(ValueError, match="lattice 1: slot 0: expected distinct tokens"):
        lattices[1]
