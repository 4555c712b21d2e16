"""Files appear whole or not at all; what cannot be written is found out first, and two do not write one thing."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import multiprocessing
import os
from pathlib import Path

import numpy as np
import pytest
from safetensors import SafetensorError

from fst.files import (
    LARGEST_RATIO,
    LARGEST_SMALL_FILE,
    FileStamp,
    locked,
    refuse_bomb,
    replacing,
    replacing_files,
    require_writable,
    save_array,
    write_text,
)
from tests.helpers.full_disk import room_for


@pytest.mark.parametrize("size", [1, 100, 5000, 100_000])
def test_an_array_that_lacks_room_for_a_byte_is_not_written(tmp_path: Path, size: int) -> None:
    """``numpy.save`` would cut it short without a word."""
    array = np.arange(1, 1 + size, dtype=np.uint16)
    save_array(tmp_path / "a.npy", array)
    assert np.array_equal(np.load(tmp_path / "a.npy"), array)
    with room_for((tmp_path / "a.npy").stat().st_size - 1), pytest.raises(OSError, match=r"b\.npy"):
        save_array(tmp_path / "b.npy", array)
    assert [path.name for path in tmp_path.iterdir()] == ["a.npy"]


def test_missing_folders_are_made_and_nothing_else_is_left(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "c.txt"
    require_writable(path, "file")
    assert not path.parent.parent.exists()  # nothing yet
    with replacing(path) as temporary:
        temporary.write_text("whole")
    assert [file.name for file in path.parent.iterdir()] == ["c.txt"]
    with contextlib.suppress(RuntimeError), replacing(path) as temporary:
        temporary.write_text("half")
        raise RuntimeError
    assert path.read_text() == "whole"
    assert [file.name for file in path.parent.iterdir()] == ["c.txt"]


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), "[Errno 28] No space left on device: '{path}'"),
        (
            OSError("324241 requested and 153536 written"),
            "could not be written whole, 324241 requested and 153536 written",
        ),
        (
            SafetensorError("Error while serializing: I/O error: File too large (os error 27)"),
            "[Errno 27] File too large: '{path}'",
        ),
        (
            OSError(errno.ENOENT, "No such file or directory", "other.txt"),
            "[Errno 2] No such file or directory: 'other.txt'",
        ),
    ],
)
def test_errors_name_the_file_that_was_asked_for(tmp_path: Path, error: Exception, message: str) -> None:
    path = tmp_path / "model.npz"
    with pytest.raises(OSError, match=r"Errno|written") as caught, replacing(path):
        raise error
    assert message.format(path=path) in str(caught.value)
    assert ".tmp" not in str(caught.value)
    with pytest.raises(IsADirectoryError) as caught, replacing(path) as temporary:  # noqa: PT012
        temporary.touch()
        path.mkdir()
    assert caught.value.filename == str(path)
    assert ".tmp" not in str(caught.value)


@pytest.mark.parametrize("name", ["/dev/null", "/proc/nothing/model.fst", "{tmp}/file.txt/model.fst"])
def test_what_cannot_be_written_is_refused_beforehand(tmp_path: Path, name: str) -> None:
    (tmp_path / "file.txt").write_text("x")
    with pytest.raises(ValueError, match="expected"):
        require_writable(name.format(tmp=tmp_path), "file", "folder")
    with pytest.raises(ValueError, match="got a folder"):
        require_writable(tmp_path, "file")
    with pytest.raises(ValueError, match="got a file"):
        require_writable(tmp_path / "file.txt", "folder")
    assert [path.name for path in tmp_path.iterdir()] == ["file.txt"]


def test_pipes_devices_and_folders_are_never_replaced(tmp_path: Path) -> None:
    """``/dev/full`` was, as root."""
    os.mkfifo(pipe := tmp_path / "pipe")
    (link := tmp_path / "link").symlink_to(pipe)
    ends = os.openpty()
    device = Path(os.ttyname(ends[1]))
    for path, kind in ((pipe, "pipe"), (link, "pipe"), (device, "device"), (tmp_path, "folder")):
        with pytest.raises(ValueError, match=f"expected to write a file of this name, got a {kind}"):
            write_text(path, "x")
        with pytest.raises(ValueError, match=f"got a {kind}"):
            require_writable(path, "file")
    with pytest.raises(ValueError, match="got a pipe"), replacing_files(tmp_path) as files:
        (files / "pipe").write_text("x")
    assert (pipe.is_fifo(), link.is_symlink(), device.is_char_device()) == (True, True, True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link", "pipe"]
    for end in ends:
        os.close(end)


def test_a_stamp_tells_files_of_one_name_apart(tmp_path: Path) -> None:
    """By inode, time or size alone; a file that was deleted is no other one."""
    path, other = tmp_path / "a", tmp_path / "b"
    for file in (path, other):
        file.write_bytes(b"12")
        os.utime(file, ns=(5, 5))
    stamp = FileStamp.of(path)
    stamp.check()
    path.rename(tmp_path / "first")
    stamp.check()
    other.rename(path)
    with pytest.raises(ValueError, match="a: expected the file that was loaded, got one that was changed since; load"):
        stamp.check()
    (tmp_path / "first").rename(path)
    stamp.check()
    for content, time in ((b"12", 6), (b"123", 5)):
        path.write_bytes(content)
        os.utime(path, ns=(5, time))
        with pytest.raises(ValueError, match="one that was changed since"):
            stamp.check()


def write(folder: Path, ready: object, leave: object) -> None:
    with replacing(folder / "a.txt") as file, replacing_files(folder / "b") as files:
        file.write_text("half")
        (files / "c").write_text("half")
        ready.set()
        leave.wait(30)


def test_what_killed_processes_leave_is_cleared_by_the_next_and_what_others_write_is_not(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    writers = []
    for _ in range(2):
        ready = context.Event()
        writers.append(context.Process(target=write, args=(tmp_path, ready, leave := context.Event())))
        writers[-1].start()
        assert ready.wait(30)
    writers[0].kill()
    writers[0].join()
    assert len(list(tmp_path.glob(".a.txt.*.tmp"))) == len(list((tmp_path / "b").glob(".*.tmp/c"))) == 2
    with replacing(tmp_path / "a.txt") as file, replacing_files(tmp_path / "b"):
        file.write_text("whole")
        (left,) = [path for path in tmp_path.glob(".a.txt.*.tmp") if path != file]
        assert str(writers[1].pid) in left.name
        assert len(list((tmp_path / "b").glob(".*.tmp/c"))) == 1
    leave.set()
    writers[1].join()
    assert writers[1].exitcode == 0
    assert sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*")) == ["a.txt", "b", "b/c"]


def hold(path: Path, ready: object, leave: object) -> None:
    with locked(path):
        ready.set()
        leave.wait(30)


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_second_process_is_refused_at_once_until_the_first_ends_however_it_ends(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "held"
    if kind == "folder":
        path.mkdir()
    context = multiprocessing.get_context("fork")
    ready, leave = context.Event(), context.Event()
    process = context.Process(target=hold, args=(path, ready, leave))
    process.start()
    assert ready.wait(30)
    with pytest.raises(ValueError, match="another process is writing it"), locked(path):
        pass
    process.kill()
    process.join()
    with locked(path):
        pass
    assert [file.name for file in tmp_path.iterdir()] == (["held"] if kind == "folder" else [])


def test_a_lock_file_that_its_last_holder_deletes_after_it_was_opened_locks_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, lock, flock = tmp_path / "held", tmp_path / ".held.lock", fcntl.flock
    deletions = iter([True, True, False])

    def deleted_before(handle: int, how: int) -> None:
        if next(deletions):
            lock.unlink()
        flock(handle, how)

    monkeypatch.setattr(fcntl, "flock", deleted_before)
    with pytest.raises(ValueError, match="another process is writing it"), locked(path):
        pass
    with locked(path, wait=True):  # taken anew
        assert lock.exists()
    assert next(deletions, None) is None


def test_only_large_contents_of_a_much_smaller_file_are_refused() -> None:
    for packed in (1, LARGEST_SMALL_FILE):
        most = max(LARGEST_SMALL_FILE, LARGEST_RATIO * packed)
        refuse_bomb(packed, most)
        with pytest.raises(ValueError, match=f"its {packed} bytes would unpack to {most + 1} or more"):
            refuse_bomb(packed, most + 1)
