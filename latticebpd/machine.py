"""The machine that a measurement was made on."""

from __future__ import annotations

import contextlib
import os
import platform
import sys
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from fst.processors import available_processors


def processor() -> str:
    """The processor's name where Linux gives one, else its architecture."""
    with contextlib.suppress(OSError, StopIteration):
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        return next(line.split(":")[1].strip() for line in lines if line.startswith("model name"))
    return platform.processor() or platform.machine()


def machine_settings() -> dict[str, Any]:
    """What speed depends on besides the model: threads, processors, architecture, versions."""
    return {
        "threads": num_threads(),
        "cpus": os.cpu_count(),
        "machine": platform.machine(),
        "torch": version("torch"),
        "transformers": version("transformers"),
    }


def num_threads() -> int:
    """Threads of a pass: PyTorch's, if it is loaded, else as many as it would take: ``OMP_NUM_THREADS`` or one for each
    core; no more than the process's control group gives time to."""
    torch = sys.modules.get("torch")
    return min(_default_threads() if torch is None else int(torch.get_num_threads()), available_processors())


@cache
def _default_threads() -> int:
    asked = os.environ.get("OMP_NUM_THREADS", "").split(",")[0].strip()
    if asked.isdigit() and int(asked):
        return int(asked)
    # A core counts once, however many threads it runs.
    allowed = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)
    siblings = "/sys/devices/system/cpu/cpu{}/topology/thread_siblings_list"
    with contextlib.suppress(OSError):
        return len({Path(siblings.format(number)).read_text(encoding="utf-8") for number in allowed})
    return len(allowed)
