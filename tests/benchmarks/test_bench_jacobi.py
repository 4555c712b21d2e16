"""The Jacobi benchmark runs, compares every text and prints what it measured; its numbers are not a test's business."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from benchmarks import bench_jacobi as bench
from latticebpd import BlockwiseLM
from latticebpd.drafters.heads.head_networks import FeedForwardHeads
from tests.helpers.tiny_families import tiny
from tests.helpers.tokenizers import letters
from tests.helpers.trigrams import trigram

Run = Callable[..., str]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """The program on four texts with a tiny translator; what it printed."""
    for name, model in (
        ("model", tiny("marian", 5, eos=7)),
        ("heads", BlockwiseLM(tiny("marian", 5, eos=7), FeedForwardHeads(16, 4, 8))),
    ):
        model.save_pretrained(tmp_path / name)
        letters().save_pretrained(tmp_path / name)
    trigram().save(tmp_path / "lm.fst")
    lines = [json.dumps({"en": text}) + "\n" for text in ("beg", "cab", "fad", "bead")]
    (tmp_path / "texts.jsonl").write_text("".join(lines))
    monkeypatch.chdir(tmp_path)

    def program(*more: str) -> str:
        words = ["texts.jsonl", "--model", "model", "--max-new-tokens", "6", "-o", "rows.csv"]
        monkeypatch.setattr("sys.argv", ["bench_jacobi.py", *(more if "--table" in more else [*words, *more])])
        bench.main()
        return capsys.readouterr().out

    return program


def rows(path: Path) -> list[dict[str, str]]:
    with path.open() as file:
        return list(csv.DictReader(file))


def test_every_system_decodes_and_the_table_is_that_of_the_rows(run: Run, tmp_path: Path) -> None:
    printed = run("--heads", "heads", "--lm", "lm.fst", "--limit", "2")
    measured = rows(tmp_path / "rows.csv")
    assert len(measured) == 2 * (10 + 1 + 2 * 3)
    lines = bench.lines_of(measured)
    assert len(lines) == 10 + 1 + 2 * 3
    greedy = [row for row in measured if row["system"] == bench.GREEDY]
    for name, iterations, over, _, _, _, flops, cost in lines:
        assert f"| {name} | {iterations} | {over} |" in printed
        own = [row for row in measured if row["system"] == name]
        assert int(iterations) == sum(int(row["passes"]) for row in own)
        value, low, high = (float(each) for each in over.replace("(", "").replace(")", "").replace("to ", "").split())
        assert value == pytest.approx(sum(int(row["passes"]) for row in greedy) / int(iterations), abs=0.005)
        assert low <= value <= high
        assert np.isfinite([float(flops), float(cost)]).all()
        assert name == bench.BEAM or [row["tokens"] for row in own] == [row["tokens"] for row in greedy]
    assert f"| {lines[-1][0]} |" in run("--table", "rows.csv")


def test_a_killed_run_goes_on(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    add, done = bench.Results.add, list[int]()

    def dying(self: object, text: int, inputs: object) -> None:
        if len(done) == 2:
            raise KeyboardInterrupt
        done.append(text)
        add(self, text, inputs)  # type: ignore[arg-type]

    with monkeypatch.context() as patched:
        patched.setattr(bench.Results, "add", dying)
        with pytest.raises(KeyboardInterrupt):
            run()
    path = tmp_path / "rows.csv"
    written = path.read_text()
    path.write_text(written + written.splitlines()[1] + "\n" + written.splitlines()[2][:-1])  # killed while writing
    first = run()
    after = path.read_text()
    assert after.startswith(written)
    names = list(bench.systems(tiny("marian", 5, eos=7), None, None, 6))
    assert [(int(row["text"]), row["system"]) for row in rows(path)] == [(n, name) for n in range(4) for name in names]
    assert run().splitlines()[-len(names) :] == first.splitlines()[-len(names) :]  # all from the file, times too
    assert path.read_text() == after


def test_a_model_without_heads_is_refused_as_one_with(run: Run) -> None:
    with pytest.raises(ValueError, match="model: expected a model with heads, got one without"):
        run("--heads", "model")
