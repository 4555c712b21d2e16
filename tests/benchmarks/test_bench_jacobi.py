"""The Jacobi benchmark runs, compares every text and prints what it measured; its numbers are not a test's business."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import numpy as np
import pytest

import fst
from latticebpd import BlockwiseLM
from latticebpd.models.heads import BlockHeads
from tests.helpers.tiny_families import tiny
from tests.helpers.tokenizers import letters
from tests.helpers.trigrams import trigram

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "bench_jacobi.py"


def test_every_system_decodes_and_the_table_is_markdown(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    pytest.importorskip("sacrebleu")
    spec = importlib.util.spec_from_file_location("bench_jacobi", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    bench = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(bench)
    model = tiny("marian", 5, eos=7)
    model.save_pretrained(tmp_path / "model")
    BlockwiseLM(model, BlockHeads(16, 4, 8)).save_pretrained(tmp_path / "heads")
    for name in ("model", "heads"):
        letters().save_pretrained(tmp_path / name)
    lm: fst.NgramModel = trigram()
    lm.save(tmp_path / "lm.fst")
    (tmp_path / "texts.jsonl").write_text('{"en": "beg", "de": "geb"}\n{"en": "cab", "de": "bac"}\n')
    arguments = [tmp_path / "texts.jsonl", "--model", tmp_path / "model", "--heads", tmp_path / "heads", "--lm", tmp_path / "lm.fst"]
    monkeypatch.setattr(
        "sys.argv",
        ["bench_jacobi.py", *map(str, arguments), "--max-new-tokens", "6", "--json", str(tmp_path / "out.json")],
    )
    bench.main()
    printed = capsys.readouterr().out
    record = json.loads((tmp_path / "out.json").read_text())
    rows = record["threads"]["1"]
    assert len(rows) == 10 + 1 + 2 * 4
    for row in rows:
        assert f"| {row['system']} | {row['iterations']} |" in printed
        assert row["iteration speedup"] == pytest.approx(rows[0]["iterations"] / row["iterations"])
        assert np.isfinite(row["FLOPs / speedup"])
    assert {row["BLEU"] for row in rows if row["system"] != "beam 5"} == {rows[0]["BLEU"]}
