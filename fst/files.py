"""Atomic writing of files, reading of gzip, locks between processes, and releasing the pages of mapped files."""

from __future__ import annotations

import errno
import fcntl
import glob
import gzip
import mmap
import os
import re
import shutil
import tempfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Literal

import numpy as np

from fst.printable import expect
from fst.processors import ignore

PathLike = str | os.PathLike[str]
Kind = Literal["file", "folder"]
DISK_ERRORS = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO}
"""Errors of writing that carry no file name."""


def temporary_beside(path: Path) -> Path:
    """A hidden name next to ``path`` for a temporary file or folder; those of processes that have ended are deleted."""
    # A folder may be shared by machines, and another one's processes cannot be asked.
    prefix = f".{path.name}.{zlib.crc32(os.uname().nodename.encode()):08x}-"
    for left in path.parent.glob(f"{glob.escape(prefix)}*.tmp"):
        try:
            if (pid := int(left.name[len(prefix) : -4])) != os.getpid():
                os.kill(pid, 0)
                continue
        except (ProcessLookupError, OverflowError):
            pass
        except (PermissionError, ValueError):  # another user's; another file
            continue
        with suppress(OSError):
            shutil.rmtree(left) if left.is_dir() else left.unlink()
    return path.with_name(f"{prefix}{os.getpid()}.tmp")


@contextmanager
def replacing(path: PathLike) -> Iterator[Path]:
    """Yield a temporary path next to ``path``; rename it to ``path`` on success, delete it on any error.

    A reader therefore sees the old file or the complete new one, never a half.  Missing parent folders are created.
    An error in writing names ``path``, not the temporary file.  ValueError where ``path`` is a folder, a pipe or a
    device, which a file must not replace.
    """
    path = Path(path)
    require_kind(path, "file")
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = temporary_beside(path)
    try:
        with errors_naming(path, temporary):
            yield temporary
            temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def replacing_files(directory: PathLike) -> Iterator[Path]:
    """Yield an empty temporary directory inside ``directory``; on success its files, and those of folders in it, are
    moved up, else deleted.

    What is half-written never stands under its own name.  Errors and missing folders are treated as by `replacing`.
    Others may read the files as far as the process's umask lets them; safetensors would keep its own from them.
    """
    directory = Path(directory)
    require_kind(directory, "folder")
    directory.mkdir(parents=True, exist_ok=True)
    temporary = temporary_beside(directory / "files")
    try:
        with errors_naming(directory, temporary):
            temporary.mkdir()
            yield temporary
            permissions = temporary.stat().st_mode & 0o666
            files = sorted(path for path in temporary.rglob("*") if not path.is_dir())
            places = [directory / path.relative_to(temporary) for path in files]
            for place in places:
                require_kind(place.parent, "folder")
                require_kind(place, "file")
            for path, place in zip(files, places, strict=True):
                path.chmod(permissions)
                place.parent.mkdir(exist_ok=True)
                path.replace(place)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def read_text(path: PathLike) -> str:
    """A text in UTF-8; the ValueError for other bytes names the file."""
    try:
        return Path(path).read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        got = f"{error.object[max(0, error.start - 20) : error.start + 20]!r} at byte {error.start}"
        raise ValueError(f"{os.fspath(path)}: expected text in UTF-8, got {got}") from None


def write_text(path: PathLike, text: str) -> None:
    """Write a text in UTF-8, atomically."""
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def save_array(path: PathLike, array: np.ndarray) -> None:
    """Write a ``.npy`` file, atomically.

    Into a file proper numpy would write by C's own buffer, and overlook that its last bytes find no room on the disk.
    """
    with replacing(path) as temporary, open(temporary, "wb") as file:
        np.lib.format.write_array(SimpleNamespace(write=file.write), array, allow_pickle=False)


def copy(source: PathLike, path: PathLike) -> None:
    """Copy a file, atomically."""
    with replacing(path) as temporary:
        shutil.copyfile(source, temporary)


@contextmanager
def errors_naming(path: Path, temporary: Path) -> Iterator[None]:
    """Let errors in writing name ``path``, which somebody asked for."""
    try:
        yield
    except OSError as error:
        if error.errno is None and not error.args[1:]:  # numpy: "324241 requested and 153536 written"
            raise OSError(errno.ENOSPC, f"could not be written whole, {error}; is the disk full?", str(path)) from error
        unnamed = error.filename is None and error.errno in DISK_ERRORS
        if unnamed or str(temporary) in (str(error.filename), str(error.filename2)):
            raise OSError(error.errno, error.strerror, str(path)) from error
        raise
    except Exception as error:  # safetensors and tokenizers, in Rust, wrap the system's errors in types of their own
        number = re.search(r"\(os error (\d+)\)", str(error))
        if number is None:
            raise
        raise OSError(int(number[1]), os.strerror(int(number[1])), str(path)) from error


LARGEST_SMALL_FILE = 64 << 20
LARGEST_RATIO = 64
PIECE = 4 << 20
"""Bytes read at a time."""
GZIP_DAMAGE = (EOFError, gzip.BadGzipFile, zlib.error)


def unpacked(path: PathLike, progress: Callable[[int, int], object] = ignore) -> Iterator[bytes]:
    """The text of a plain or gzip file, piece by piece; `GZIP_DAMAGE` or ValueError where it cannot be unpacked.

    progress: called with the bytes read so far and in all.
    """
    with open(path, "rb") as raw:
        compressed, size = raw.read(2) == b"\x1f\x8b", os.fstat(raw.fileno()).st_size
        raw.seek(0)
        file, total = gzip.GzipFile(fileobj=raw) if compressed else raw, 0
        while piece := file.read(PIECE):
            total += len(piece)
            refuse_bomb(size, total)
            yield piece
            progress(raw.tell(), size)


def refuse_bomb(packed: int, unpacked: int) -> None:
    """ValueError where a compressed file unpacks to far more than any real one does.

    packed, unpacked: bytes. Text shrinks to a tenth, arrays of numbers to a third; up to `LARGEST_SMALL_FILE`
        anything may come out.
    """
    if unpacked > LARGEST_SMALL_FILE and unpacked > LARGEST_RATIO * packed:
        size = f"{unpacked} or more, over {LARGEST_RATIO} times as many"
        raise ValueError(f"its {packed} bytes would unpack to {size}; if that is what you want, store it uncompressed")


@dataclass(frozen=True)
class FileStamp:
    """Which file a name stood for: another one once it has been replaced or written to.

    stamp: device, inode, size in bytes, and time of the last change in nanoseconds.
    """

    path: Path
    stamp: tuple[int, ...]

    @classmethod
    def of(cls, path: PathLike) -> FileStamp:
        read = Path(path).stat()
        return cls(Path(path).absolute(), (read.st_dev, read.st_ino, read.st_size, read.st_mtime_ns))

    def check(self) -> None:
        """ValueError where the name stands for another file by now; a deleted one lives on while it is mapped."""
        try:
            same = FileStamp.of(self.path) == self
        except FileNotFoundError:
            return
        expect(same, "the file that was loaded", "one that was changed since", "load it again", of=self.path)


def require_kind(path: Path, *kinds: Kind) -> None:
    """ValueError where the name is taken by something of another kind; it may be free."""
    if path.exists():
        kind = "folder" if path.is_dir() else "file" if path.is_file() else "pipe" if path.is_fifo() else "device"
        wanted = f"to write a {' or a '.join(kinds)} of this name"
        expect(kind in kinds, wanted, f"a {kind}", "name another", of=path)


def require_writable(path: PathLike, *kinds: Kind) -> None:
    """Refuse a name that no such thing can be written under, before the work begins whose result goes there.

    Parent folders may be missing, as for `replacing`: they are created when there is something to write, not here.
    Raises ValueError: something else has the name, or the folder is a file, or cannot be written to.
    """
    path = Path(path)
    require_kind(path, *kinds)
    folder = path if path.is_dir() else path.parent
    while not folder.exists():
        folder = folder.parent
    try:
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        got = f"{folder}: {error.strerror}; name another"
        raise ValueError(f"{path}: expected a folder that can be written to, got {got}") from None


@contextmanager
def locked(path: PathLike, wait: bool = False) -> Iterator[None]:
    """Hold a folder, or the name of a file to be written, against other processes for as long as this one lives.

    wait: until another process that holds it has ended; else that is a ValueError.
    """
    path = Path(path)
    lock = path if path.is_dir() else path.with_name(f".{path.name}.lock")
    lock.parent.mkdir(parents=True, exist_ok=True)
    handle = os.open(lock, os.O_RDONLY if lock is path else os.O_RDWR | os.O_CREAT, 0o644)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            # Its last holder may just have deleted it.
            taken = not lock.exists() or not os.path.samestat(os.fstat(handle), lock.stat())
        except BlockingIOError:
            taken = True
        if taken and wait:
            with locked(path, wait):
                yield
            return
        if taken:
            raise ValueError(f"{path}: another process is writing it; wait until that has ended, or name another")
        try:
            yield
        finally:
            if lock is not path:
                lock.unlink(missing_ok=True)
    finally:
        os.close(handle)


def release(array: np.ndarray) -> None:
    """Let the pages of a mapped array go; they come back from the file when they are needed.

    Other arrays stay as they are.
    """
    mapped: object = array
    while isinstance(mapped, np.ndarray):
        mapped = mapped.base
    if isinstance(mapped, mmap.mmap):
        mapped.madvise(mmap.MADV_DONTNEED)
