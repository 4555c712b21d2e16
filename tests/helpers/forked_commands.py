"""The program in a process of its own, without the seconds of its imports: killed as it writes, or on a full disk."""

from __future__ import annotations

import ctypes
import mmap
import os
import resource
import signal
import struct
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from latticebpd.cli import main

WRITES = {"os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.truncate", "shutil.rmtree"}


@dataclass(frozen=True)
class Ended:
    """How a command ended.

    status: its exit status; negative: the signal that ended it.  errors: standard error.  writes: its file operations:
        files opened for writing, folders made, names changed or deleted.
    """

    status: int
    errors: str
    writes: int


def run_forked(
    arguments: Sequence[object],
    killed_before: int | None = None,
    file_bytes: int | None = None,
    ordinary_user: bool = False,
) -> Ended:
    """Run a command line.

    killed_before: number of the file operation, from 0, before which the process is killed.
    file_bytes: no file grows beyond this size.
    ordinary_user: as one whom the permissions of files bind, root too.
    """
    counter = mmap.mmap(-1, 8)  # shared by both processes
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        os.dup2(writer, 2)
        sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w")  # pytest has its own
        if file_bytes is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (file_bytes, file_bytes))
        if ordinary_user:
            drop_capabilities()
        sys.addaudithook(_counting(counter, killed_before))
        sys.argv = ["latticebpd", *map(str, arguments)]
        status = 1
        try:
            main()
            status = 0
        except SystemExit as end:
            status = int(end.code or 0)
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)
    os.close(writer)
    with open(reader, encoding="utf-8") as pipe:
        errors = pipe.read()
    _, waited = os.waitpid(child, 0)
    (writes,) = struct.unpack("q", counter)
    return Ended(os.waitstatus_to_exitcode(waited), errors, writes)


def drop_capabilities() -> None:
    """Leave this process none of Linux's capabilities, which lift permissions from root."""
    if os.getuid():
        return
    version_3, this_process = 0x20080522, 0
    assert ctypes.CDLL(None).capset(struct.pack("Ii", version_3, this_process), bytes(24)) == 0


def _counting(counter: mmap.mmap, killed_before: int | None) -> Callable[[str, tuple[object, ...]], None]:
    """An audit hook that counts file operations, and kills the process before one of them."""

    def hook(event: str, arguments: tuple[object, ...]) -> None:
        flags = arguments[2] if event == "open" else 0
        if event in WRITES or (isinstance(flags, int) and flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)):
            (seen,) = struct.unpack("q", counter)
            if seen == killed_before:
                os.kill(os.getpid(), signal.SIGKILL)
            counter[:] = struct.pack("q", seen + 1)

    return hook
