"""Stern's tables on a translator, from sentences to tables, in one resumable command, with tiny models."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks import decodes
from benchmarks.common import interval, read_csv
from latticebpd import FeedForwardHeads
from latticebpd.drafters.heads.head_networks import ConditionedHeads
from tests.helpers.sentences import sentence_files

ROOT = Path(__file__).parents[2]


@pytest.fixture
def command(tmp_path: Path) -> list[str]:
    files = sentence_files(tmp_path, train=24, validation=6, test=5)
    (tmp_path / "results").mkdir()
    updates = ["--teacher-updates", "6", "--verifier-updates", "2", "--head-updates", "2", "--tuning-updates", "2"]
    small = [
        "--shape",
        "small",
        "--vocab-size",
        "270",
        "--batch-tokens",
        "96",
        "--width",
        "16",
        "--written",
        "12",
        "--held-out",
        "4",
    ]
    few = ["--k", "2", "3", "--tuned-k", "3", "--tuned", "2", "--timed", "2", "--calibrated", "4"]
    return [*files, "--work", str(tmp_path / "work"), "--results", str(tmp_path / "results"), *updates, *small, *few]


@pytest.mark.parametrize(
    ("heads", "width"),
    [(FeedForwardHeads(8, 5, 4), 8), (FeedForwardHeads(8, 5, 4, [3]), 16), (ConditionedHeads(8, 5, 4, [3]), 24)],
)
def test_fewer_heads_are_the_first_of_more(heads: FeedForwardHeads, width: int) -> None:
    torch.nn.init.normal_(heads.down)
    heads.shortlist = torch.tensor([1, 4])
    heads.add_transitions(6)
    states = torch.randn(3, width)
    fewer = decodes.fewer_heads(heads, 3)
    assert fewer.num_heads == 3
    assert fewer.shortlist.tolist() == [1, 4]
    assert fewer.transitions is None
    torch.testing.assert_close(fewer(states), heads(states)[:, :2])
    fewer.up.data.zero_()  # what is learnt by the one does not change the other
    assert heads.up.abs().sum() > 0


def test_interval_holds_the_measure_and_narrows_with_the_texts() -> None:
    def width(count: int) -> float:
        values = np.random.default_rng(1).normal(5.0, 1.0, count)
        mean, low, high = interval(lambda chosen: values[chosen].mean(axis=-1), count)
        assert low < mean < high
        return float(high - low)

    assert width(400) == pytest.approx(2 * 1.96 / 20, rel=0.15)
    assert width(25) > 3 * width(400)


def test_a_best_weight_at_an_end_is_tried_beyond() -> None:
    assert decodes.widened({0.5: 1.0, 1.0: 3.0, 2.0: 2.0}) == (0.5, 1.0, 2.0)
    assert decodes.widened({0.5: 1.0, 1.0: 2.0, 2.0: 3.0}) == (0.5, 1.0, 2.0, 4.0)
    assert decodes.widened({0.5: 3.0, 1.0: 2.0}) == (0.5, 1.0, 0.25)
    assert decodes.widened({0.5: 2.0, 1.0: 2.0, 2.0: 2.0}) == (0.5, 1.0, 2.0)


def test_accepted_tokens_are_pooled_over_texts() -> None:
    assert decodes.accepted_size(np.array([10, 2]), np.array([2, 2])) == (3, 1, 5)
    assert decodes.accepted_size(np.zeros(2), np.zeros(2)) == (1, 1, 1)


def test_a_sweep_is_summed_over_its_sentences() -> None:
    sacrebleu = pytest.importorskip("sacrebleu")
    from benchmarks.study.stern import swept

    written, wanted = (
        ["ein Hund läuft über das Gras", "zwei Kinder"],
        ["ein Hund rennt über das Gras", "zwei Kinder lesen"],
    )
    statistics = decodes.bleu_statistics(written, wanted)
    bleu = sacrebleu.corpus_bleu(written, [wanted]).score
    assert float(decodes.bleu_of(np.sum(statistics, axis=0))) == pytest.approx(bleu)
    rows = [
        {"rate": rate, "updates": "5"}
        | decodes.counts_row(decodes.Decoded(tokens=[4, 4], calls=[calls, calls]), written, wanted)
        for rate, calls in (("0.1", 2), ("0.2", 4))
    ]
    assert rows[0]["tokens"] == "4 4"
    first, second = swept(rows)
    assert [first[:2], second[:2]] == [["0.1", "5"], ["0.2", "5"]]
    assert first[2].startswith(f"{bleu:.2f} (")
    assert (first[3], second[3]) == ("2.00 (2.00 to 2.00)", "1.00 (1.00 to 1.00)")


@pytest.mark.slow
def test_one_command_goes_from_sentences_to_the_tables_and_goes_on(command: list[str], tmp_path: Path) -> None:
    pytest.importorskip("sacrebleu")
    environment = os.environ | {"PYTHONPATH": str(ROOT)}

    def run(*arguments: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "benchmarks.study.stern", *arguments],
            capture_output=True,
            text=True,
            env=environment,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    printed = run(*command)
    results, work = tmp_path / "results", tmp_path / "work"
    before = {path: path.stat().st_mtime_ns for path in work.rglob("*") if path.is_file()}
    assert run(*command) == printed
    assert {
        path: path.stat().st_mtime_ns for path in work.rglob("*") if path.is_file()
    } == before  # nothing was made again
    assert run("--results", str(results)) == printed  # from the CSV files alone
    assert (results / "stern.png").stat().st_size > 10_000

    from benchmarks.study.stern import measures

    measured = measures(read_csv(results / "stern.csv"))
    trees = {f"{nodes}-node tree, {lm}" for nodes in (8, 16) for lm in ("0-gram", "4-gram", "calibrated")}
    lenient = {"top-2", "top-3", "at least 2", "at least 3"}
    expected = {
        "regular": ({1, 2, 3}, set()),
        "distilled": ({1, 2, 3}, trees),
        "fine-tuned": ({3}, lenient),
        "both": ({3}, trees | lenient),
        "both, ours": ({3}, trees | lenient),
    }
    for setting, (sizes, rules) in expected.items():
        assert {k for name, k, _ in measured if name == setting} == sizes
        assert {rule for name, k, rule in measured if name == setting and k == 3} == {"exact"} | rules
    for (setting, k, rule), row in measured.items():
        assert 1 <= row["accepted low"] <= row["accepted"] <= row["accepted high"]
        if "tree" not in rule:
            assert row["accepted high"] <= k
        if setting in ("regular", "distilled"):
            assert row["BLEU"] == measured[setting, 1, "greedy"]["BLEU"]  # exact, whatever drafts
    speeds = {row["system"]: row for row in read_csv(results / "stern-speed.csv")}
    assert [*speeds] == ["greedy", "distilled, k = 2", "distilled, k = 3", "both, k = 3", "both, ours, k = 3"]
    assert float(speeds["greedy"]["speedup"]) == float(speeds["greedy"]["accepted"]) == 1
