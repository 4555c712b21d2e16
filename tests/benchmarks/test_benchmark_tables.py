"""Benchmarks of single parts run on little data, and their tables are those of their rows; numbers are not tested."""

from __future__ import annotations

import itertools
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from benchmarks import bench_lm_training, bench_precision, bench_rescoring
from benchmarks.common import MADE_BY, made_by, permutation_p, read_csv, stamped, usage
from latticebpd.drafters.bundled import LM
from latticebpd.lattices.lattice_set import LatticeSet


def test_a_program_is_measured_and_its_failure_reported(tmp_path: Path) -> None:
    text = tmp_path / "text"
    text.write_text("abc")
    command = [sys.executable, "-c", "import sys; assert sys.stdin.read() == 'abc'; x = bytearray(60_000_000)"]
    used = usage(command, text)
    assert used["seconds"] > 0
    assert 60 < used["mb"] < 400
    with pytest.raises(ValueError, match="AssertionError"):
        usage(command)


def test_precisions_are_counted_prompt_by_prompt() -> None:
    rows = [
        {"precision": "float32", "decoded by": "tree", "prompt": "0", "tokens": "128", "margin": ""},
        {"precision": "bfloat16", "decoded by": "tree", "prompt": "0", "tokens": "1000", "margin": "0.0312"},
        {"precision": "bfloat16", "decoded by": "tree", "prompt": "1", "tokens": "128", "margin": ""},
    ]
    assert bench_precision.lines_of(rows) == [
        ["float32", "tree", "0 of 1", "128", "-"],
        ["bfloat16", "tree", "1 of 2", "1,128", "0.0312"],
    ]


def test_estimation_is_run_as_often_as_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    corpus, output = tmp_path / "corpus.npy", tmp_path / "rows.csv"
    np.save(corpus, np.random.default_rng(0).integers(0, 50, 2000).astype(np.uint16))
    sizes = ("--sizes", "1000", "2000", "--repeats", "2", "--alone", "--threads", "1")
    monkeypatch.setattr("sys.argv", ["bench_lm_training", str(corpus), *sizes, "-o", str(output)])
    bench_lm_training.main()
    rows = read_csv(output)
    assert [(row["tokens"], row["repeat"]) for row in rows] == [(n, r) for n in ("1000", "2000") for r in "01"]
    assert [line[0] for line in bench_lm_training.lines_of(rows)] == ["1,000", "2,000"]
    monkeypatch.setattr("sys.argv", ["bench_lm_training", str(corpus), "--sizes", "3000", "--alone", "-o", str(output)])
    with pytest.raises(ValueError, match="expected 3000 tokens, got 2000"):
        bench_lm_training.main()


def test_searches_are_timed_and_openfst_must_agree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rng, path = np.random.default_rng(0), tmp_path / "lattices.npz"
    tokens = np.stack([[rng.choice(8192, 16, replace=False) for _ in range(8)] for _ in range(2)])
    log_probs = -rng.exponential(size=tokens.shape)
    ties = rng.standard_normal((2, 7, 16, 16)).astype(np.float32)  # as of the package's heads; they are left out
    LatticeSet(tokens, log_probs, np.full((2, 8), -1), np.full((2, 3), -1), transitions=ties).save(path)
    command = ["bench_rescoring", "--case", "two", str(LM), str(path), "-o", str(tmp_path / "rows.csv")]
    monkeypatch.setattr("sys.argv", command)
    monkeypatch.setattr(bench_rescoring, "REPEATS", 1)
    monkeypatch.setattr(bench_rescoring, "compiled", lambda _: None)
    bench_rescoring.main()
    rows = read_csv(tmp_path / "rows.csv")
    assert len(rows) == 2 * (8 + 8 - 1 + 3)
    both, by_p, by_size = (lines for _, lines in bench_rescoring.tables(rows))
    assert [line[0] for line in both] == ["16 best paths, core", *(f"tree of {n} nodes, core" for n in (16, 64, 256))]
    assert len(by_p) == 1
    assert len(by_size) == 2
    assert "" not in by_p[0] + by_size[0]
    monkeypatch.setattr(bench_rescoring, "compiled", lambda _: Path("phi_compose"))
    monkeypatch.setattr(bench_rescoring, "openfst", lambda _, of: (np.zeros(2), [np.zeros(1)] * 2))
    with pytest.raises(ValueError, match="two, lattice 0: expected OpenFst's"):
        bench_rescoring.main()


def test_both_methods_have_columns_and_a_ratio() -> None:
    about = {"case": "one", "search": "best paths", "slots": "8", "k": "16", "size": "16"}
    times = {"core": (10, 20, 60), "OpenFst C++": (100, 300, 500)}
    rows = [about | {"by": by, "us": str(us)} for by, own in times.items() for us in own]
    lines = bench_rescoring.tables(rows)[0][1]
    assert lines[0] == ["16 best paths, core", "20.0 (56.0)"]
    assert lines[2] == ["... over the core", "15.0"]


def test_word_lattices_are_searched_alike_by_openfst(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pynini")
    from benchmarks import bench_word_lattices as bench

    monkeypatch.setattr(bench, "SIZES", ((20, 2),))
    monkeypatch.setattr(bench, "REPEATS", 1)
    rows = bench.measured(SimpleNamespace(count=1))
    lines = bench.lines_of([{name: str(value) for name, value in row.items()} for row in rows])
    assert [line[:2] for line in lines] == [["20 states, 2 arcs each", "16"], ["20 states, 2 arcs each", "100"]]


def test_a_permutation_test_counts_orders_that_agree_as_much() -> None:
    """By hand: of three points in order, only the same and the opposite order correlate as strongly."""
    one = np.array([0.0, 1.0, 2.0])
    assert permutation_p(one, 3 * one + 1) == permutation_p(one, -one) == pytest.approx(2 / 6)
    assert permutation_p(one, np.array([1.0, 3.0, 2.0])) == 1
    assert permutation_p(one, np.zeros(3)) == 1


def test_a_permutation_test_is_that_of_all_orders_correlated_one_by_one() -> None:
    one, other = np.random.default_rng(1).standard_normal((2, 5))
    strengths = [abs(np.corrcoef(one, order)[0, 1]) for order in itertools.permutations(other)]
    expected = np.mean([each >= strengths[0] - 1e-9 for each in strengths])
    assert permutation_p(one, other) == pytest.approx(expected)
    assert 2 / 120 <= expected < 1


@pytest.mark.parametrize("size", [1, 10])
def test_a_permutation_test_of_too_few_or_many_points_is_refused(size: int) -> None:
    with pytest.raises(ValueError, match="expected two lists of one length, 2 to 9"):
        permutation_p(np.arange(size), np.arange(size))


def test_rows_say_which_commit_and_files_they_are_made_by(tmp_path: Path) -> None:
    (row,) = stamped([{"tokens": 1}])
    assert row == {"tokens": 1, MADE_BY: made_by()}
    (tmp_path / "latticebpd").mkdir()
    (tmp_path / "latticebpd/heads.safetensors").write_bytes(b"heads")
    with_heads = made_by(tmp_path)
    assert with_heads.startswith(f"{made_by()} sha256:")
    (tmp_path / "lm.fst.calibration.json").write_text("{}")
    assert made_by(tmp_path) not in (made_by(), with_heads)
    (tmp_path / "notes.txt").write_text("")
    assert made_by(tmp_path) != with_heads


OLDER = {
    *("bundled/demo", "smollm2/amounts", "smollm2/gpu", "smollm2/losses", "smollm2/trees"),
    *(f"smollm2/drafters{part}" for part in ("", ".branches", ".search", ".speed")),
    *(f"engine/answers{machine}" for machine in ("", "-avx2", "-zen5")),
    *(f"engine/passes{of}" for of in ("", "-avx2", "-busy", "-random", "-two-threads", "-zen5")),
    *("engine/harness", "engine/lookup", "engine/perplexity", "engine/throughput"),
    *("jacobi", "precision-zen3"),
}
"""Files of rows from before there was the column; ``benchmarks/README.md`` says so. The study's have none either."""


def test_rows_of_one_file_are_of_one_version_or_named_as_older() -> None:
    root = Path(__file__).parents[2] / "benchmarks"
    older = set()
    for path in sorted(root.glob("**/results/*.csv")):
        name = str(path.relative_to(root).with_suffix("")).replace("results/", "")
        rows = read_csv(path)
        if name.startswith("study/"):
            continue
        if MADE_BY not in rows[0]:
            older.add(name)
        else:
            assert len({row[MADE_BY] for row in rows}) == 1, f"{path} holds rows of several versions"
    assert older <= OLDER, f"measured anew without the column {MADE_BY!r}"
    assert f"`{MADE_BY}`" in (root / "README.md").read_text(encoding="utf-8")
