"""Directories of shards and files of texts: claimed once, resumed, and never believed beyond what lies on disk."""

from __future__ import annotations

import json
import time
import zipfile
from pathlib import Path

import numpy as np
import pytest

from latticebpd.lattices.shards import SETTINGS, ShardDirectory, lattice_directory, parse_part, shard_files
from latticebpd.lattices.texts import Texts


def texts() -> Texts:
    return Texts.of_rows([[1, 2, 3], [4, 5], [6]], [1, 2, 1])


def test_a_number_of_shards_beyond_all_files_costs_nothing(tmp_path: Path) -> None:
    texts().save(tmp_path / "shard-00000.npz")
    texts().save(tmp_path / "shard-00002.npz")
    (tmp_path / SETTINGS).write_text(json.dumps({"num_shards": 10**15}))
    started = time.process_time()
    with pytest.raises(
        ValueError, match=r"of 1000000000000000 shards are missing, first shard-00001\.npz; run the same"
    ):
        shard_files(tmp_path)
    assert time.process_time() - started < 1


@pytest.mark.parametrize(
    "content", ["", "{", "[]", "{}", '{"num_shards": 0}', '{"num_shards": 2.0}', '{"num_shards": true}', "[" * 10**5]
)
def test_settings_that_cannot_be_read_are_named(tmp_path: Path, content: str) -> None:
    (tmp_path / SETTINGS).write_text(content)
    with pytest.raises(ValueError, match=r"lattices\.json: expected settings as `latticebpd lattices` writes them"):
        shard_files(tmp_path)


def test_a_claimed_directory_is_taken_up_by_the_same_settings_alone(tmp_path: Path) -> None:
    directory = lattice_directory(tmp_path / "deep" / "down")
    directory.claim({"num_shards": 2, "k": (1, 2)})
    directory.claim({"num_shards": 2, "k": [1, 2]})
    for settings in ({"num_shards": 2, "k": [1]}, {"num_shards": 2}, {"num_shards": 2, "k": [1, 2], "new": 1}):
        with pytest.raises(ValueError, match=r"holds lattices made with (k|new) .*; choose another directory"):
            directory.claim(settings)


def test_only_shards_of_a_directory_of_ours_are_made_anew(tmp_path: Path) -> None:
    directory = ShardDirectory(tmp_path, "mine.json", "latticebpd mine", "things")
    texts().save(directory.file(0))
    with pytest.raises(ValueError, match=r"found shard-00000\.npz; choose another"):
        directory.renew()  # it may be anybody's
    assert directory.file(0).exists()
    directory.record({"num_shards": 1})
    directory.renew()
    assert [path.name for path in tmp_path.iterdir()] == ["mine.json"]
    with pytest.raises(ValueError, match="expected settings"):
        directory.files()  # not whole any more
    (tmp_path / "shard-notes.npz").touch()
    with pytest.raises(ValueError, match=r"found shard-notes\.npz"):
        directory.renew()


@pytest.mark.parametrize(
    ("rank", "text", "expected"), [(None, None, (0, 1)), (("2", "4"), None, (2, 4)), (("2", "4"), "0/3", (0, 3))]
)
def test_part_is_the_given_one_or_torchruns(
    rank: tuple[str, str] | None, text: str | None, expected: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in zip(("RANK", "WORLD_SIZE"), rank or (), strict=False):
        monkeypatch.setenv(name, value)
    assert parse_part(text) == expected


@pytest.mark.parametrize("text", ["3", "2/2", "a/b", "1/", "-1/2", "1/²", "0/0"])
def test_parts_that_are_none_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="expected --part as i/n with 0 <= i < n"):
        parse_part(text)


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize("dtype", [np.uint16, np.uint32, np.int32])
def test_files_of_texts_of_either_making_are_read(tmp_path: Path, compressed: bool, dtype: type) -> None:
    """What `lattices` wrote was compressed, what `distill` wrote was not."""
    text = texts()
    save = np.savez_compressed if compressed else np.savez
    save(
        tmp_path / "t.npz",
        tokens=text.tokens.astype(dtype),
        starts=text.starts,
        prompt_lengths=text.prompt_lengths.astype(np.int64),
    )
    again = Texts.load(tmp_path / "t.npz")
    assert list(again.items()) == list(text.items())
    assert again.fingerprint() == text.fingerprint()


def test_fingerprints_tell_texts_apart() -> None:
    others = [Texts.of_rows([[1, 2, 3], [4, 5], [7]], [1, 2, 1]), Texts.of_rows([[1, 2, 3], [4, 5], [6]], [2, 2, 1])]
    others += [Texts.of_rows([[1, 2], [3, 4, 5], [6]], [1, 2, 1]), texts().prompts(), texts().chosen([1, 0, 2])]
    assert len({text.fingerprint() for text in (texts(), *others)}) == 6


def test_a_small_file_that_would_fill_the_memory_is_refused(tmp_path: Path) -> None:
    np.savez_compressed(
        tmp_path / "t.npz",
        tokens=np.zeros(1 << 27, np.uint8),
        starts=np.array([0, 1 << 27]),
        prompt_lengths=np.array([1]),
    )
    with pytest.raises(ValueError, match=r"t\.npz: expected texts .* would unpack to"):
        Texts.load(tmp_path / "t.npz")


def refusal(path: Path) -> str | None:
    """What is said against a file; None if it can be read."""
    try:
        Texts.load(path)
    except ValueError as error:
        return str(error)
    return None


def test_headers_that_lie_are_refused(tmp_path: Path) -> None:
    texts().save(tmp_path / "t.npz")
    full = (tmp_path / "t.npz").read_bytes()
    header = full.index(b"{'descr'")
    for position in range(header - 10, header + 60):
        for byte in (b"\x00", b"(", b"\xff", b"9"):
            with zipfile.ZipFile(tmp_path / "t.npz") as archive:
                members = {name: archive.read(name) for name in archive.namelist()}
            damaged = bytearray(members["tokens.npy"])
            damaged[position - (header - 10)] = byte[0]
            with zipfile.ZipFile(tmp_path / "d.npz", "w") as archive:
                for name, content in members.items():
                    archive.writestr(name, bytes(damaged) if name == "tokens.npy" else content)
            said = refusal(tmp_path / "d.npz")  # nothing, where the byte is one of the padding, say
            assert said is None or said.startswith(f"{tmp_path / 'd.npz'}: expected texts")


@pytest.mark.parametrize("flag", [0x1, 0x40])
def test_encrypted_members_are_refused(tmp_path: Path, flag: int) -> None:
    texts().save(tmp_path / "t.npz")
    content = bytearray((tmp_path / "t.npz").read_bytes())
    for mark, offset in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        begin = content.find(mark)
        while begin >= 0:
            content[begin + offset] |= flag
            begin = content.find(mark, begin + 4)
    (tmp_path / "t.npz").write_bytes(bytes(content))
    with pytest.raises(ValueError, match=r"t\.npz: expected texts"):
        Texts.load(tmp_path / "t.npz")
