"""Programs that a model wrote, each in a process of its own that may do little.

The kernel limits the process's time, memory and files, and gives it no network where ``unshare`` may make a namespace.
It begins in an empty folder, with Python's standard library alone, and writes nothing outside that folder. Python
refuses other processes, connections and changes of files before they happen. That is enough for mistakes; it is no
barrier against an attacker.
"""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from tempfile import TemporaryDirectory
from types import ModuleType

PASSED, TIME = "passed", "waited too long"
SECONDS, WAITS = 10, 4
"""Processor time of a program; so many times as long by the clock, on a busy machine too."""
MEMORY, FILE = 1 << 30, 1 << 20
"""Bytes of its address space, and of each file."""
REFUSED = ("ctypes.", "fcntl.", "os.", "pty.", "resource.", "shutil.", "socket.", "subprocess.")
"""What events begin with that no program may cause, see Python's table of audit events."""
READING = {"os.fwalk", "os.listdir", "os.scandir", "os.walk"}
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


@cache
def without_network() -> tuple[str, ...]:
    """The beginning of a command that runs without a network; empty where that cannot be had."""
    prefix = ("unshare", "--map-root-user", "--net")
    try:
        subprocess.run([*prefix, "true"], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        return ()
    return prefix


def outcome(code: str, seconds: int = SECONDS) -> str:
    """Run a program: `PASSED` if it came to its end, else the name of its exception or signal, or `TIME`.

    seconds: of processor time.
    """
    ended = _outcome(code, seconds)
    return _outcome(code, seconds) if ended == TIME else ended  # a machine may have stood still


def _outcome(code: str, seconds: int) -> str:
    command = [*without_network(), sys.executable, "-I", "-S", "-B", __file__, str(seconds)]
    environment = {name: os.environ[name] for name in os.environ.keys() & {"LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH"}}
    pipe, null = subprocess.PIPE, subprocess.DEVNULL
    with (
        TemporaryDirectory() as folder,
        subprocess.Popen(command, cwd=folder, env=environment, stdin=pipe, stdout=pipe, stderr=null) as process,
    ):
        try:
            reply, _ = process.communicate(code.encode(), timeout=WAITS * seconds)
        except subprocess.TimeoutExpired:
            process.kill()
            return TIME
    if process.returncode < 0:
        return signal.Signals(-process.returncode).name
    return reply.decode() or "no reply"


def guard(folder: str) -> Callable[[str, tuple[object, ...]], None]:
    """What Python calls before each event; PermissionError for one that is refused."""

    def check(event: str, arguments: tuple[object, ...]) -> None:
        if event == "open":
            path, _, flags = arguments
            writes = isinstance(flags, int) and flags & WRITES and isinstance(path, str | bytes | os.PathLike)
            if writes and os.path.commonpath([folder, os.path.realpath(os.fsdecode(path))]) != folder:
                raise PermissionError("no files outside the folder")
        elif event.startswith(REFUSED) and event not in READING:
            raise PermissionError(event)

    return check


def main() -> None:
    """Read a program from standard input, run it, and write how it ended."""
    code, replies = sys.stdin.buffer.read(), os.dup(1)
    null = os.open(os.devnull, os.O_RDWR)
    for stream in range(3):  # what a program prints is no reply
        os.dup2(null, stream)
    seconds = int(sys.argv[1])
    limits = {resource.RLIMIT_CPU: (seconds, seconds + 1), resource.RLIMIT_AS: (MEMORY, MEMORY)}
    for limit, values in (limits | {resource.RLIMIT_FSIZE: (FILE, FILE), resource.RLIMIT_CORE: (0, 0)}).items():
        with suppress(ValueError, OSError):  # a lower limit stands
            resource.setrlimit(limit, values)
    module = sys.modules["answer"] = ModuleType("answer")
    sys.addaudithook(guard(os.path.realpath(os.curdir)))
    reply = PASSED
    try:
        exec(compile(code, "answer", "exec"), vars(module))
    except BaseException as error:
        reply = type(error).__name__
    os.write(replies, reply.encode())
    os._exit(0)  # without what the program left to be done at its end


if __name__ == "__main__":
    main()
