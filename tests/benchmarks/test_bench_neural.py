"""The benchmark of neural rescorers runs and counts right; its times are not a test's business."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks import bench_neural
from latticebpd import NeuralRescorer, load
from lm_training.families.rescorers import new_rescorer
from lm_training.families.shapes import RescorerShape

SYSTEMS = ["vanilla BPD", "neural (Algorithm 2)", "neural, parallel", "tree 16, neural"]


def run(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> None:
    monkeypatch.setattr("sys.argv", ["bench_neural.py", *map(str, arguments)])
    bench_neural.main()


def test_benchmark_decodes_losslessly_and_counts_tokens_and_calls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    fingerprint = load().model.tokenizer_fingerprint
    NeuralRescorer(
        new_rescorer(RescorerShape(1, 16, 32, 2, 256), 8192), tokenizer_fingerprint=fingerprint
    ).save_pretrained(tmp_path)
    options = ("--limit", 2, "--batch", 2, "--new-tokens", 10, "--repeats", 1, "--systems", ";".join(SYSTEMS))
    run(monkeypatch, "--rescorer", tmp_path, *options, "--json", tmp_path / "out.json")
    record: dict[str, Any] = json.loads((tmp_path / "out.json").read_text())
    rows = {row["system"]: row for row in record["systems"]}
    assert list(rows) == ["generate()", *SYSTEMS]
    for row in rows.values():
        assert row["block_efficiency"] == pytest.approx(2 * 9 / row["calls"])
    assert rows["generate()"]["calls"] == 18
    assert rows["tree 16, neural"]["verified_per_call"] <= 16
    assert rows["neural (Algorithm 2)"]["rescoring_ms_per_pass"] > 0 == rows["vanilla BPD"]["rescoring_ms_per_pass"]
    assert record["sizes"]["neural_parameters_beside_embedding"] == record["sizes"]["neural_parameters"] - 8192 * 16


def test_unknown_system_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    NeuralRescorer(new_rescorer(RescorerShape(1, 16, 32, 2, 64), 8192)).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="expected systems among greedy"):
        run(monkeypatch, "--rescorer", tmp_path, "--systems", "nothing")
