"""LatticeSet and lattice files."""

from __future__ import annotations

import re
import struct
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from latticebpd import LatticeSet
from latticebpd.measuring import blocks
from tests.helpers.lattices import num_paths


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
    with_context = replace(
        plain,
        sequence=np.array([0, 0, 1]),
        entropy=np.ones((3, 3), np.float32),
        fingerprint="v",
        origin="model, its text",
    )
    transitions = np.random.default_rng(1).normal(size=(3, 1, 4, 4))
    transitions[1, 0, 2, 3] = -np.inf
    tied = [replace(plain, transitions=transitions.astype(dtype)) for dtype in (np.float16, np.float32)]
    for lattices in (plain, with_context, *tied):
        for compressed in (False, True):
            lattices.save(tmp_path / "l.npz", compressed)
            (streamed,) = blocks([tmp_path / "l.npz"])
            for again in (LatticeSet.load(tmp_path / "l.npz"), streamed):
                for name in (*LatticeSet.ARRAYS, *LatticeSet.OPTIONAL):
                    np.testing.assert_array_equal(getattr(again, name), getattr(lattices, name))
                    assert getattr(getattr(again, name), "dtype", None) == getattr(
                        getattr(lattices, name), "dtype", None
                    )
                assert (again.fingerprint, again.origin) == (lattices.fingerprint, lattices.origin)
    assert [path.name for path in tmp_path.iterdir()] == ["l.npz"]


def test_lattices_of_a_set_carry_its_transitions(tmp_path: Path) -> None:
    transitions = np.random.default_rng(1).normal(size=(3, 1, 4, 4)).astype(np.float16)
    lattices = replace(_lattice_set(), transitions=transitions)
    for index in range(3):
        np.testing.assert_array_equal(lattices[index].transitions, transitions[index].astype(np.float32))
    np.testing.assert_array_equal(lattices.take(np.array([2, 0])).transitions, transitions[[2, 0]])
    assert LatticeSet.joined([lattices.take(np.array([0])), lattices.take(np.array([1, 2]))]) == lattices
    assert lattices != _lattice_set()
    lattices.save(tmp_path / "l.npz")
    assert LatticeSet.joined(list(blocks([tmp_path / "l.npz"]))) == lattices


def test_large_lattices_are_read_in_smaller_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lattices = replace(_lattice_set(7), transitions=np.zeros((7, 1, 4, 4), np.float32))
    lattices.save(tmp_path / "l.npz")
    row = sum(getattr(lattices, name)[0].nbytes for name in (*LatticeSet.ARRAYS, "transitions"))
    monkeypatch.setattr("latticebpd.measuring.lattice_files.LARGEST_BLOCK", 3 * row)
    parts = list(blocks([tmp_path / "l.npz"]))
    assert [len(block) for block in parts] == [3, 3, 1]
    assert LatticeSet.joined(parts) == lattices


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
            "log_probs: expected log-probabilities of at most 1e.30, got nan in lattice 1, slot 0, arc 2",
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
        (
            "transitions",
            np.zeros((3, 1, 4, 3), np.float32),
            r"expected transitions \[n, slots - 1, k, k\] \(3, 1, 4, 4\), got \(3, 1, 4, 3\)",
        ),
        ("transitions", np.zeros((3, 1, 4, 4), "U3"), "expected real transitions, got <U3"),
        (
            "transitions",
            np.pad([[[[np.nan]]]], ((1, 1), (0, 0), (1, 2), (2, 1))),
            "lattice 1, slot 1, arc 2 after arc 1: expected a transition of at most 1e.30, got nan",
        ),
        ("transitions", np.full((3, 1, 4, 4), np.inf, np.float16), "lattice 0, slot 1, arc 0 after arc 0: .* got inf"),
    ],
)
def test_bad_arrays_are_refused_by_file_and_name(tmp_path: Path, name: str, array: np.ndarray, message: str) -> None:
    good = _lattice_set()
    arrays = {field: getattr(good, field) for field in LatticeSet.ARRAYS}
    np.savez(tmp_path / "l.npz", **{**arrays, name: array})
    for read in (LatticeSet.load, lambda path: list(blocks([path]))):
        with pytest.raises(ValueError, match=rf"l\.npz: expected a lattice file: .*{message}"):
            read(tmp_path / "l.npz")


def _zip_of(path: Path, members: dict[str, bytes], compression: int = zipfile.ZIP_STORED) -> None:
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, data in members.items():
            archive.writestr(name, data)


def _members(path: Path) -> dict[str, bytes]:
    _lattice_set().save(path)
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def _array_file(header: bytes, data: bytes) -> bytes:
    padded = header + b" " * (-(len(header) + 11) % 64) + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(padded)) + padded + data


def _read(path: Path) -> list[LatticeSet]:
    return [LatticeSet.load(path)]


def _stream(path: Path) -> list[LatticeSet]:
    return list(blocks([path]))


@pytest.mark.parametrize("read", [_read, _stream])
@pytest.mark.parametrize(
    "header",
    [
        b"{'descr': '<i4', 'fortran_order': False, 'shape': (3, 2, 4",
        b"{'descr': '<i4', 'fortran_order': False, 'shape': (3, 2, 4), }" + b"'" * 3,
        b"(" * 60,
        b"[" * 4000,
        b"{'descr': '<i4', 'fortran_order': False, 'shape': (300000000000, 2, 4), }",
        b"{'descr': '<i4', 'fortran_order': False, 'shape': (3, 0, 4), }",
        b"{'descr': '<i4', 'fortran_order': False, 'shape': (-3, 2, 4), }",
        b"{'descr': '<i4', 'fortran_order': False, 'shape': (10**30, 2, 4), }",
        b"{'descr': '|O', 'fortran_order': False, 'shape': (3, 2, 4), }",
        b"\xff\xfe{}",
    ],
)
def test_damaged_headers_are_one_line_by_file(tmp_path: Path, header: bytes, read: Callable[[Path], object]) -> None:
    members = _members(tmp_path / "l.npz")
    members["tokens.npy"] = _array_file(header, members["tokens.npy"][128:])
    _zip_of(tmp_path / "l.npz", members)
    with pytest.raises(ValueError, match=r"l\.npz: expected a lattice file: .+"):
        read(tmp_path / "l.npz")


@pytest.mark.parametrize("read", [_read, _stream])
@pytest.mark.parametrize("compression", [zipfile.ZIP_LZMA, zipfile.ZIP_BZIP2])
def test_foreign_compression_is_one_line_by_file(
    tmp_path: Path, compression: int, read: Callable[[Path], object]
) -> None:
    members = _members(tmp_path / "l.npz")
    _zip_of(tmp_path / "l.npz", members, compression)
    with pytest.raises(ValueError, match=r"l\.npz: .* encrypted, or packed otherwise than numpy does"):
        read(tmp_path / "l.npz")


@pytest.mark.parametrize("read", [_read, _stream])
def test_encrypted_members_are_one_line_by_file(tmp_path: Path, read: Callable[[Path], object]) -> None:
    _lattice_set().save(tmp_path / "l.npz")
    data = bytearray((tmp_path / "l.npz").read_bytes())
    for entry in re.finditer(b"PK\x01\x02", bytes(data)):
        data[entry.start() + 8] |= 1
    (tmp_path / "l.npz").write_bytes(data)
    with pytest.raises(ValueError, match=r"l\.npz: .* encrypted"):
        read(tmp_path / "l.npz")


@pytest.mark.parametrize("read", [_read, _stream])
def test_small_file_that_would_fill_the_memory_is_refused(tmp_path: Path, read: Callable[[Path], object]) -> None:
    members = _members(tmp_path / "l.npz")
    header = b"{'descr': '<i4', 'fortran_order': False, 'shape': (500000, 2, 20), }"
    members["tokens.npy"] = _array_file(header, bytes(80_000_000))
    _zip_of(tmp_path / "l.npz", members, zipfile.ZIP_DEFLATED)
    with pytest.raises(ValueError, match=r"l\.npz: .* would unpack to"):
        read(tmp_path / "l.npz")


def test_sets_are_values() -> None:
    lattices, twin = _lattice_set(), _lattice_set()
    assert lattices == twin
    assert len({lattices, twin}) == 1
    assert lattices != replace(twin, log_probs=twin.log_probs - 1)
    assert lattices != replace(twin, sequence=np.zeros(3, int))


def test_masked_arcs_are_kept_as_minus_infinity() -> None:
    masked = replace(_lattice_set(), log_probs=_changed("log_probs", np.finfo(np.float32).min))
    assert masked.log_probs[1, 0, 2] == -np.inf
    assert masked == replace(_lattice_set(), log_probs=_changed("log_probs", -np.inf))
    assert masked.log_probs.dtype == np.float32
    with pytest.raises(ValueError, match=r"at most 1e\+30, got \S+e\+30 in lattice 1, slot 0, arc 2"):
        replace(_lattice_set(), log_probs=_changed("log_probs", 9e30))


def test_arrays_of_several_lengths_are_refused(tmp_path: Path) -> None:
    good = _lattice_set()
    arrays = {field: getattr(good, field) for field in LatticeSet.ARRAYS}
    np.savez(tmp_path / "l.npz", **{**arrays, "context": arrays["context"][:2]})
    with pytest.raises(
        ValueError, match="expected arrays of one length, got tokens 3, log_probs 3, continuation 3, context 2"
    ):
        list(blocks([tmp_path / "l.npz"]))


def test_impossible_arcs_are_no_error() -> None:
    lattices = replace(_lattice_set(), log_probs=_changed("log_probs", -np.inf))
    assert num_paths(lattices[1]) == 12


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
    full = (tmp_path / "l.npz").read_bytes()
    broken = tmp_path / "broken.npz"
    for length in range(0, len(full) - 1, 37):
        broken.write_bytes(full[:length])
        with pytest.raises(ValueError, match=r"broken\.npz: expected a lattice file"):
            LatticeSet.load(broken)


def test_bit_flips_in_a_lattice_file_load_or_raise_value_error(tmp_path: Path) -> None:
    _lattice_set().save(tmp_path / "l.npz")
    full = bytearray((tmp_path / "l.npz").read_bytes())
    rng = np.random.default_rng(3)
    refused = 0
    for _ in range(200):
        damaged = bytearray(full)
        damaged[rng.integers(len(full))] ^= 1 << rng.integers(8)
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
    with pytest.raises(ValueError, match="expected a lattice file"):
        LatticeSet.load(tmp_path / "l.npz")


def test_invalid_member_is_named_by_its_index() -> None:
    lattices = _lattice_set()
    lattices.tokens[1, 0] = 2
    with pytest.raises(ValueError, match="lattice 1: slot 0: expected distinct tokens"):
        lattices[1]


def test_unsigned_arrays_of_a_file_are_read_as_the_numbers_they_hold(tmp_path: Path) -> None:
    """Of unsigned numbers -1 is none, which streams and bounds count from."""
    tokens, log_probs = np.array([[[1, 2]], [[3, 4]]], np.uint16), np.zeros((2, 1, 2), np.float32)
    continuation, context = np.array([[1], [3]], np.uint8), np.array([[5], [6]], np.uint64)
    np.savez(
        tmp_path / "l.npz", tokens=tokens, log_probs=log_probs, continuation=continuation, context=context,
        sequence=np.array([0, 1], np.uint16), vocab_size=np.array(7),
    )  # fmt: skip
    (block,) = blocks([tmp_path / "l.npz"])
    full = LatticeSet.load(tmp_path / "l.npz")
    for part in (block, full):
        assert part.sequence is not None
        assert part.sequence.tolist() == [0, 1]
        assert part.tokens.tolist() == tokens.tolist()
        assert part.context_of(1) == [6]
    with pytest.raises(ValueError, match="sequence: expected numbers of texts"):
        LatticeSet(tokens, log_probs, continuation, context, sequence=np.array([0, 2**64 - 1], np.uint64))


def test_arrays_of_any_layout_are_read_a_block_at_a_time(tmp_path: Path) -> None:
    lattices = _lattice_set()
    turned = replace(lattices, log_probs=np.asfortranarray(lattices.log_probs))
    turned.save(tmp_path / "turned.npz")
    (block,) = blocks([tmp_path / "turned.npz"])
    assert np.array_equal(block.log_probs, lattices.log_probs)
