"""How many processors a process may use: its affinity, and its control group's quota."""

import os
from pathlib import Path

import pytest

from fst import processors


def write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (root / name).parent.mkdir(exist_ok=True)
        (root / name).write_text(text)


@pytest.mark.parametrize(
    ("files", "quota"),
    [
        ({}, None),
        ({"cpu.max": "max 100000\n"}, None),
        ({"cpu.max": "150000 100000\n"}, 1.5),
        ({"cpu.max": "nonsense\n"}, None),
        ({"cpu.max": "100 0\n"}, None),
        ({"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, None),
        ({"cpu/cpu.cfs_quota_us": "25000\n", "cpu/cpu.cfs_period_us": "50000\n"}, 0.5),
    ],
)
def test_quota_of_a_control_group(tmp_path: Path, files: dict[str, str], quota: float | None) -> None:
    write(tmp_path, files)
    assert processors.processor_quota(tmp_path) == quota


@pytest.mark.parametrize(("quota", "most"), [(None, 10**6), (0.5, 1), (1.0, 1), (1.5, 2), (10**6, 10**6)])
def test_the_smaller_of_affinity_and_quota(monkeypatch: pytest.MonkeyPatch, quota: float | None, most: int) -> None:
    monkeypatch.setattr(processors, "processor_quota", lambda: quota)
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    assert processors.available_processors() == min(allowed, most)
