"""The decoding benchmark runs, counts right and accounts for its time; its numbers are not a test's business."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks import bench_decoding as bench
from benchmarks.common import Stopwatch


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., Any]:
    def run(*arguments: object) -> Any:
        monkeypatch.setattr(
            "sys.argv", ["bench_decoding.py", *map(str, arguments), "--json", str(tmp_path / "out.json")]
        )
        bench.main()
        return json.loads((tmp_path / "out.json").read_text())

    return run


def test_stopwatch_gives_each_second_to_one_part() -> None:
    now = [0.0]
    watch = Stopwatch(lambda: now[0], whole=frozenset({"whole"}))
    with watch.part("outer"):
        now[0] += 1
        with watch.part("inner"):
            now[0] += 2
        now[0] += 4
        with watch.part("whole"):
            now[0] += 8
            with watch.part("inner"):
                now[0] += 16
    assert watch.seconds == {"outer": 5.0, "inner": 2.0, "whole": 24.0}


def test_bundled_model_is_compared_budgeted_and_written(call: Callable[..., Any]) -> None:
    systems = ["greedy, this loop", "vanilla BPD", "16-best 4-gram", "n-grams + tree, 8 nodes"]
    record = call(
        "--batch", "1,2", "--context", 9, "--new-tokens", 6, "--repeats", 1, "--groups", 2, "--budget",
        "--systems", ";".join(systems),
    )  # fmt: skip
    assert [row["system"] for row in record["decoding"]] == ["generate()", *systems] * 2
    assert [row["calls"] for row in record["decoding"] if row["system"] == systems[0]] == [10, 20]
    budgets = {row["system"]: row for row in record["budget"] if row["batch"] == 1}
    assert set(budgets) == set(systems)
    assert budgets["vanilla BPD"]["heads"] > 0
    assert budgets["16-best 4-gram"]["search"] > 0
    assert budgets["greedy, this loop"]["heads"] == budgets["greedy, this loop"]["search"] == 0
    for parts in budgets.values():
        for name in ("forward", "project", "verify", "cache", "loop"):
            assert parts[name] > 0
    assert record["signature"]["torch"] == torch.__version__


def test_unknown_system_is_refused(call: Callable[..., Any]) -> None:
    with pytest.raises(ValueError, match="expected systems among greedy"):
        call("--systems", "none such")
