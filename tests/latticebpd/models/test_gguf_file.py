"""GGUF files read as the `gguf` package reads them; damaged ones refused in one line before memory is taken."""

from __future__ import annotations

import struct
import tracemalloc
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from gguf.constants import GGML_QUANT_SIZES
from hypothesis import given, settings
from hypothesis import strategies as st

from latticebpd.models.gguf.gguf_file import BLOCKS, GgmlType, GgufFile
from tests.helpers.gguf_files import array, content, field, header, string

Kind = gguf.GGUFValueType
SCALARS = {
    "u8": (255, Kind.UINT8), "i8": (-128, Kind.INT8), "u16": (65_535, Kind.UINT16), "i16": (-5, Kind.INT16),
    "u32": (2**32 - 1, Kind.UINT32), "i32": (-7, Kind.INT32), "u64": (2**63, Kind.UINT64), "i64": (-9, Kind.INT64),
    "f32": (0.1, Kind.FLOAT32), "f64": (0.1, Kind.FLOAT64), "yes": (True, Kind.BOOL), "text": ("Ġé\n", Kind.STRING),
}  # fmt: skip
ARRAYS: dict[str, list[Any]] = {
    "tokens": ["a", "", "Ġthe", "日本"] * 9, "ints": [3, 1, -1], "floats": [0.5, -1e9], "flags": [True, False, True],
}  # fmt: skip


def write(path: Path) -> Path:
    writer = gguf.GGUFWriter(path, "llama")
    for name, (value, kind) in SCALARS.items():
        writer.add_key_value(name, value, kind)
    for name, values in ARRAYS.items():
        writer.add_array(name, values)
    generator = np.random.default_rng(0)
    writer.add_tensor("norm.weight", generator.standard_normal(5).astype(np.float32))
    writer.add_tensor("half", generator.standard_normal((2, 3, 4)).astype(np.float16))
    for kind, (_, size) in GGML_QUANT_SIZES.items():
        if kind.name.startswith(("Q", "IQ", "TQ")):
            writer.add_tensor(kind.name, generator.integers(0, 256, (3, 2 * size), np.uint8), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("gguf") / "small.gguf")


def test_types_and_their_blocks_are_those_of_the_gguf_package() -> None:
    ours = {kind.name: (int(kind), *BLOCKS[kind]) for kind in GgmlType}
    assert ours == {kind.name: (int(kind), *sizes) for kind, sizes in GGML_QUANT_SIZES.items()}


def test_fields_shapes_and_bytes_are_those_of_the_gguf_package(small: Path) -> None:
    file, reference = GgufFile.open(small), gguf.GGUFReader(small)
    expected = {name: field.contents() for name, field in reference.fields.items() if not name.startswith("GGUF.")}
    assert expected.keys() >= SCALARS.keys() | ARRAYS.keys()
    assert {name: list(value) if name in ARRAYS else value for name, value in file.fields.items()} == expected
    assert file.fields["yes"] is True
    assert list(file.tensors) == [tensor.name for tensor in reference.tensors]
    for tensor in reference.tensors:
        ours = file.tensors[tensor.name]
        assert (ours.name, int(ours.type)) == (tensor.name, int(tensor.tensor_type))
        assert ours.shape == tuple(tensor.shape.tolist()[::-1])
        assert ours.data.dtype == np.uint8
        assert ours.data.tobytes() == tensor.data.tobytes()
        assert not ours.data.flags.owndata
        assert not ours.data.flags.writeable


def test_version_2_reads_alike(small: Path, tmp_path: Path) -> None:
    data = small.read_bytes()
    (tmp_path / "v2.gguf").write_bytes(data[:4] + struct.pack("<I", 2) + data[8:])
    assert GgufFile.open(tmp_path / "v2.gguf").tensors.keys() == GgufFile.open(small).tensors.keys()


NESTED = array(9, 1, b"") * 4_000
HOSTILE = {
    "an empty file": (b"", "expected a GGUF file, got another or none"),
    "another file": (b"PK\3\4" + bytes(99), "expected a GGUF file, got another or none"),
    "nothing after the magic": (b"GGUF", "expected 4 bytes at offset 4, got a file of 4"),
    "version 1": (b"GGUF" + struct.pack("<IQQ", 1, 0, 0), "expected GGUF version 2 or 3, little endian, got 1"),
    "big endian": (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "version 2 or 3, little endian, got 50331648"),
    "tensors without end": (b"GGUF" + struct.pack("<IQQ", 3, 2**60, 0), f"at most 0 tensors .* got {2**60}"),
    "fields without end": (b"GGUF" + struct.pack("<IQQ", 3, 0, 2**60), f"at most 0 fields .* got {2**60}"),
    "a key beyond the file": (content([struct.pack("<Q", 2**60)], []), f"a string of at most .* got {2**60}"),
    "a key too long": (content([field("k" * 70_000, 7, b"\1")], []), "at most 65535 bytes at offset 24, got 70000"),
    "a key that is no text": (content([struct.pack("<Q", 2) + b"\xff\xfe"], []), "a string in UTF-8 at offset 24"),
    "a key twice": (content([field("k", 7, b"\1")] * 2, []), "expected one field of each name, got 'k'"),
    "an unknown type of value": (content([field("k", 13, b"")], []), "one array of them as 'k', got type 13"),
    "a string beyond the file": (content([field("k", 8, struct.pack("<Q", 2**63))], []), f"got {2**63}"),
    "numbers without end": (content([field("k", 9, array(12, 2**61, b""))], []), f"expected {2**64} bytes at offset"),
    "strings without end": (content([field("k", 9, array(8, 2**60, b""))], []), f"strings of 'k' .* got {2**60}"),
    "arrays of arrays": (content([field("k", 9, array(9, 2**60, NESTED))], []), "array of them as 'k', got type 9"),
    "alignment 0": (content([field("general.alignment", 4, bytes(4))], []), "as a power of two, got 0"),
    "alignment 24": (content([field("general.alignment", 0, b"\x18")], []), "as a power of two, got 24"),
    "alignment in words": (content([field("general.alignment", 8, string("32"))], []), "a power of two, got '32'"),
    "a vast alignment": (
        content([field("general.alignment", 10, struct.pack("<Q", 2**63))], [header()]), f"'w' at {2**63}, got a file",
    ),
    "no dimension": (content([], [header(sizes=())]), "expected 1 to 4 dimensions of tensor 'w', got 0"),
    "too many dimensions": (content([], [header(dimensions=2**31)]), f"dimensions of tensor 'w', got {2**31}"),
    "a size of 0": (content([], [header(sizes=(32, 0))]), r"from 1 on, .* got \(0, 32\)"),
    "a product beyond 2^64": (
        content([], [header(sizes=(2**63, 2**63, 2**63))]), "expected 8336[0-9]{53} bytes of 'w' at .* got a file of",
    ),
    "an unknown type": (content([], [header(kind=99)]), "expected a known type of tensor 'w', got 99"),
    "a removed type": (content([], [header(kind=4)]), "expected a known type of tensor 'w', got 4"),
    "half a block": (content([], [header(sizes=(48,))]), r"a row's a multiple of 32 \(Q8_0\), got \(48,\)"),
    "an offset off the alignment": (content([], [header(offset=33)]), "'w' that is a multiple of 32, got 33"),
    "an offset beyond the file": (content([], [header(offset=2**63)]), f"34 bytes of 'w' at {2**63 + 64}, got a file"),
    "data cut off": (content([], [header()], data=33), "expected 34 bytes of 'w' at 64, got a file of 97"),
    "tensors that overlap": (
        content([], [header("v"), header()]), "that do not overlap, the next from offset 34 on, got 0",
    ),
    "a name twice": (content([], [header(), header(offset=64)], data=99), "one tensor of each name, got 'w'"),
    "a name of lines": (content([], [header("a\nb", kind=99)]), r"of tensor 'a\\nb', got 99"),
}  # fmt: skip


@pytest.mark.parametrize("what", HOSTILE)
def test_hostile_files_are_refused_in_one_line_before_memory_is_taken(what: str, tmp_path: Path) -> None:
    data, message = HOSTILE[what]
    path = tmp_path / "hostile.gguf"
    path.write_bytes(data)
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match=message) as error:
            GgufFile.open(path)
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()
    assert str(error.value).startswith(f"{path}: expected ")
    assert len(str(error.value).splitlines()) == 1


def test_a_header_made_by_hand_is_read(tmp_path: Path) -> None:
    """What the hostile ones are made from is sound."""
    (tmp_path / "w.gguf").write_bytes(content([field("k", 7, b"\2")], [header(), header("v", offset=64)], data=98))
    file = GgufFile.open(tmp_path / "w.gguf")
    assert file.fields == {"k": True}
    assert [len(tensor.data) for tensor in file.tensors.values()] == [34, 34]


def test_tensors_may_lie_in_another_order_than_their_headers(tmp_path: Path) -> None:
    whole = content([], [header("w", offset=64), header("v")], data=98)
    (tmp_path / "w.gguf").write_bytes(whole[:-98] + bytes(64) + bytes([1]) * 34)
    tensors = GgufFile.open(tmp_path / "w.gguf").tensors
    assert [(name, set(tensor.data.tolist())) for name, tensor in tensors.items()] == [("w", {1}), ("v", {0})]


def test_a_folder_and_no_file_are_refused(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "none.gguf"):
        with pytest.raises(ValueError, match=f"{path}: expected a GGUF file, got another or none"):
            GgufFile.open(path)


@settings(max_examples=400, deadline=None)
@given(st.data())
def test_changed_bytes_are_read_or_refused_in_one_line(
    small: Path, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    content = bytearray(small.read_bytes())
    head = 3_500  # the fields and the headers of tensors
    for at, byte in data.draw(st.lists(st.tuples(st.integers(0, head), st.integers(0, 255)), min_size=1, max_size=4)):
        content[at] = byte
    content = content[: data.draw(st.one_of(st.just(len(content)), st.integers(0, len(content))))]
    path = tmp_path_factory.getbasetemp() / "changed.gguf"
    path.write_bytes(content)
    refusal = f"{path}: expected something"
    try:
        file = GgufFile.open(path)
    except ValueError as error:
        refusal = str(error)
    else:
        assert sum(len(tensor.data) for tensor in file.tensors.values()) < len(content)
    assert refusal.startswith(f"{path}: expected ")
    assert len(refusal.splitlines()) == 1
