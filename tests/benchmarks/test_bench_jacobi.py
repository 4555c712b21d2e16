"""The Jacobi benchmark runs, compares every text and prints what it measured; its numbers are not a test's business."""

from __future__ import annotations

import csv
import importlib
import json
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch

import fst
from latticebpd import BlockwiseLM
from latticebpd.drafters.heads.head_networks import BlockHeads
from tests.helpers.tiny_families import tiny
from tests.helpers.tokenizers import letters
from tests.helpers.trigrams import trigram


@pytest.fixture
def bench() -> ModuleType:
    pytest.importorskip("sacrebleu")
    return importlib.import_module("benchmarks.bench_jacobi")


@pytest.fixture
def model_directory(tmp_path: Path) -> Path:
    tiny("marian", 5, eos=7).save_pretrained(tmp_path / "model")
    letters().save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def test_every_system_decodes_and_the_table_is_markdown(
    bench: ModuleType,
    model_directory: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    BlockwiseLM(tiny("marian", 5, eos=7), BlockHeads(16, 4, 8)).save_pretrained(tmp_path / "heads")
    letters().save_pretrained(tmp_path / "heads")
    lm: fst.NgramModel = trigram()
    lm.save(tmp_path / "lm.fst")
    (tmp_path / "texts.jsonl").write_text('{"en": "beg", "de": "geb"}\n{"en": "cab", "de": "bac"}\n')
    arguments = [
        tmp_path / "texts.jsonl",
        "--model",
        model_directory,
        "--heads",
        tmp_path / "heads",
        "--lm",
        tmp_path / "lm.fst",
    ]
    monkeypatch.setattr(
        "sys.argv",
        ["bench_jacobi.py", *map(str, arguments), "--max-new-tokens", "6", "--json", str(tmp_path / "out.json")],
    )
    bench.main()
    printed = capsys.readouterr().out
    record = json.loads((tmp_path / "out.json").read_text())
    rows = record["data"]["texts"]["1"]
    assert len(rows) == 10 + 1 + 2 * 4
    for row in rows:
        assert f"| {row['system']} | {row['iterations']} |" in printed
        assert row["iteration speedup"] == pytest.approx(rows[0]["iterations"] / row["iterations"])
        low, high = row["its interval"]
        assert low <= row["iteration speedup"] <= high
        assert np.isfinite(row["FLOPs / speedup"])
    assert {row["BLEU"] for row in rows if row["system"] != "beam 5"} == {rows[0]["BLEU"]}


def test_data_sets_are_decoded_on_every_number_of_threads_and_a_killed_run_goes_on(
    bench: ModuleType,
    model_directory: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    (tmp_path / "translation").mkdir()
    for name, lines in zip(bench.DATA, (["beg", "cab", "fad"], ["deaf", "a" * 200, "bead"]), strict=True):
        (tmp_path / name).write_text("".join(json.dumps({"en": line, "de": line[::-1]}) + "\n" for line in lines))
    output, add, done = tmp_path / "jacobi", bench.Results.add, list[tuple[str, int, int]]()
    line = [
        "--data",
        str(tmp_path),
        "--model",
        str(model_directory),
        "--max-new-tokens",
        "6",
        "--threads",
        "1",
        "2",
        "-o",
        str(output),
    ]

    def dying(self: object, data: str, threads: int, text: int, found: object) -> None:
        if len(done) == 4:
            raise KeyboardInterrupt
        done.append((data, threads, text))
        add(self, data, threads, text, found)

    def run(*more: str) -> str:
        monkeypatch.setattr("sys.argv", ["bench_jacobi.py", *line, *more])
        bench.main()
        return capsys.readouterr().out

    before = torch.get_num_threads()
    try:
        with monkeypatch.context() as patched:
            patched.setattr(bench.Results, "add", dying)
            with pytest.raises(KeyboardInterrupt):
                run()
        capsys.readouterr()
        written = (output / "decodes.csv").read_text()
        (output / "decodes.csv").write_text(
            written + written.splitlines()[1] + "\n" + written.splitlines()[2][:-1]
        )  # killed while writing
        first = run()
        with (output / "decodes.csv").open() as file:
            rows = list(csv.DictReader(file))
        again = run()
    finally:
        torch.set_num_threads(before)
    assert again == first  # all from the file, times too
    assert (output / "decodes.csv").read_text().startswith(written)
    caption, news = "multi30k-test_2016_flickr", "newstest2021-en-de"
    order = [(caption, threads, text) for threads in (1, 2) for text in range(3)] + [
        (news, threads, text) for threads in (1, 2) for text in (0, 2)
    ]
    assert done == order[:4]
    names = list(bench.systems(tiny("marian", 5, eos=7), None, None, 6))
    found = [(row["data"], int(row["threads"]), int(row["text"]), row["system"]) for row in rows]
    assert found == [(*each, name) for each in order for name in names]
    assert (
        len({row["tokens"] for row in rows if row["text"] == "0" and row["data"] == news and row["system"] != "beam 5"})
        == 1
    )
    assert f"{news}, 2 texts, 1 of more than 96 left out" in first
    with pytest.raises(ValueError, match="holds results with max_new_tokens 6, asked for is 5"):
        run("--max-new-tokens", "5")
