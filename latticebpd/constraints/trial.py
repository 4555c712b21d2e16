"""Constraints by strangers: a large one is first compiled in a process of its own.

A grammar may have any depth, and llguidance's compiler is recursive: beyond its stack it ends the process. It also may
take long. Both happen to a process whose processor time and memory the operating system limits. Texts of a few
kilobytes are not deep enough for it.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from threading import Lock

from latticebpd.constraints import grammar
from latticebpd.constraints.grammar import GrammarConstraint

SMALL = 8_000
"""Characters of a constraint that is compiled at once."""
CPU_SECONDS = 5
"""Processor time of a trial, of which starting the process takes a quarter of a second."""
SECONDS = 60.0
"""Time of a trial, on a busy machine too."""
MEMORY = 2 << 30
"""Bytes of its address space."""
KINDS: dict[str, Callable[[str], GrammarConstraint]] = {
    "json": grammar.json_schema,
    "json, any white space": partial(grammar.json_schema, any_whitespace=True),
    "regex": grammar.regex,
    "choice": lambda texts: grammar.choice(json.loads(texts)),
    "lark": grammar.lark,
}
"""Constraints by their text; a choice is a list in JSON."""
_ONE_AT_A_TIME = Lock()


def tried(kind: str, text: str) -> GrammarConstraint:
    """The constraint of a text; ValueError for one that is not supported, or takes too much time or memory."""
    if SMALL < len(text) <= grammar.MAX_BYTES:
        with _ONE_AT_A_TIME:
            _try_apart(kind, text)
    return KINDS[kind](text)


def _try_apart(kind: str, text: str) -> None:
    code = f"import sys; sys.path[:] = sys.argv[1:]; from {__name__} import main; main()"
    line = [sys.executable, "-I", "-c", code, *sys.path]
    kept = {name: os.environ[name] for name in os.environ.keys() & {"LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH"}}
    environment = {**kept, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    request = json.dumps([kind, text]).encode()
    limits = f"{CPU_SECONDS} s of processor time and {MEMORY >> 30} GiB of memory"
    try:
        done = subprocess.run(line, input=request, capture_output=True, timeout=SECONDS, env=environment, check=True)
        error = json.loads(done.stdout)
    except (subprocess.SubprocessError, ValueError):
        error = f"expected a constraint of limited complexity ({limits} to compile), got a larger or deeper one"
    if error is not None:
        raise ValueError(error)


def main() -> None:
    """Read ``[kind, text]`` as JSON, and write what is wrong with it, or null."""
    for limit, value in ((resource.RLIMIT_CPU, CPU_SECONDS), (resource.RLIMIT_AS, MEMORY), (resource.RLIMIT_CORE, 0)):
        with suppress(ValueError, OSError):  # a lower limit stands
            resource.setrlimit(limit, (value, value))
    kind, text = json.load(sys.stdin)
    error = None
    try:
        grammar.try_bytes(KINDS[kind](text))
    except ValueError as wrong:
        error = str(wrong)
    print(json.dumps(error))
