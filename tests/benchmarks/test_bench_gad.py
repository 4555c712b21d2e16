"""The GAD benchmark runs on models of any size and writes all its tables; its numbers are not tested."""

from __future__ import annotations

import csv
import importlib
import json
from pathlib import Path
from types import ModuleType

import pytest
import torch

from benchmarks.decodes import ended
from fst.fingerprint import vocabulary_fingerprint
from latticebpd.drafters.masks.mask_network import NonAutoregressiveModel
from lm_training.data.pairs import save_tokenizer, train_pair_tokenizer
from tests.helpers.tiny_families import FAMILIES

SENTENCES = [("a cat", "eine Katze"), ("two dogs run", "zwei Hunde rennen")]


@pytest.fixture
def bench() -> ModuleType:
    pytest.importorskip("sacrebleu")
    return importlib.import_module("benchmarks.bench_gad")


def test_repetition_and_ends_are_counted_as_defined(bench: ModuleType) -> None:
    assert bench.repetition([[1, 1, 2, 2], [3]]) == pytest.approx(200 / 3)
    assert bench.repetition([[1], []]) == 0
    assert ended([4, 5, 0, 7, 0], 0) == [4, 5, 0]
    assert ended([4, 5], 0) == [4, 5]


def test_one_run_writes_tables_and_speedups(
    bench: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    bpe = train_pair_tokenizer([word for pair in SENTENCES for word in pair], 270)
    torch.manual_seed(0)
    verifier = FAMILIES["marian"](
        {"vocab_size": bpe.get_vocab_size(), "bos_token_id": 1, "eos_token_id": 0, "pad_token_id": 1}
    )
    verifier.save_pretrained(tmp_path / "verifier")
    save_tokenizer(bpe, tmp_path / "verifier")
    drafter = NonAutoregressiveModel.like(verifier, 2, 5, tokenizer_fingerprint=vocabulary_fingerprint(bpe.get_vocab()))
    drafter.save_pretrained(tmp_path / "drafter")
    pairs = tmp_path / "pairs.jsonl"
    pairs.write_text("".join(json.dumps({"en": en, "de": de}) + "\n" for en, de in SENTENCES))
    monkeypatch.setattr(bench, "MAX_NEW", 10)
    models = [
        "--verifier",
        str(tmp_path / "verifier"),
        "--drafter",
        str(tmp_path / "drafter"),
        "--other",
        f"twin={tmp_path / 'drafter'}",
    ]
    monkeypatch.setattr("sys.argv", ["bench_gad", str(pairs), *models, "--batch", "1,2", "-o", str(tmp_path / "found")])
    bench.main()
    printed = capsys.readouterr().out
    for title in (
        f"Batches of 1, {len(SENTENCES)} sentences:",
        f"Batches of 2, {len(SENTENCES)} sentences:",
        "Calls and texts:",
        "Block sizes:",
        "GAD++ by β and τ:",
        "Lattices and trees",
        "by module",
        "Another drafter",
        "GAD, k = 5, twin",
    ):
        assert title in printed
    record = json.loads((tmp_path / "found" / "gad.json").read_text())
    tables = {
        "batches of 1",
        "batches of 2",
        "modules",
        "quality",
        "block sizes",
        "beta and tau",
        "lattices",
        "swap",
    }
    assert tables <= record.keys()
    assert all(len(set(map(len, record[name]))) == 1 for name in tables)
    with (tmp_path / "found" / "speedups.csv").open() as file:
        assert len(list(csv.DictReader(file))) == len(SENTENCES)
