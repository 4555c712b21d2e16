"""How many processors this process may use, and work on them in order."""

from __future__ import annotations

import contextlib
import math
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, Future
from functools import cache
from pathlib import Path
from typing import TypeVar


def ignore(*news: object) -> None:
    """The default of callbacks that report progress."""


CGROUPS = Path("/sys/fs/cgroup")
Task = TypeVar("Task")
Result = TypeVar("Result")


def available_processors() -> int:
    """At least 1: those that the process may run on, and no more than the quota of its control group gives time to."""
    affinity = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)
    quota = processor_quota()
    return len(affinity) if quota is None else max(1, min(len(affinity), math.ceil(quota)))


@cache
def processor_quota(root: Path = CGROUPS) -> float | None:
    """Processors' worth of time that a control group may take, as containers are limited; None without a limit.

    root: where control groups are mounted, of version 2 or 1.
    """
    with contextlib.suppress(OSError, ValueError, ZeroDivisionError):
        quota, period = (root / "cpu.max").read_text(encoding="utf-8").split()
        return None if quota == "max" else int(quota) / int(period)
    with contextlib.suppress(OSError, ValueError, ZeroDivisionError):
        limit, every = ((root / f"cpu/cpu.cfs_{name}_us").read_text(encoding="utf-8") for name in ("quota", "period"))
        return None if int(limit) < 0 else int(limit) / int(every)
    return None


def in_order(pool: Executor, work: Callable[[Task], Result], tasks: Iterable[Task], ahead: int) -> Iterator[Result]:
    """The results of ``work`` in the order of the tasks, at most ``ahead`` of which start early."""
    waiting: deque[Future[Result]] = deque()
    for task in tasks:
        waiting.append(pool.submit(work, task))
        if len(waiting) > ahead:
            yield waiting.popleft().result()
    while waiting:
        yield waiting.popleft().result()
