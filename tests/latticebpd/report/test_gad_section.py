"""The report's section on non-autoregressive drafts: what was measured, whole, and nothing else."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from latticebpd.report.gad import gad_section, read_record

RECORD = {
    "signature": {"command": "python benchmarks/bench_gad.py"},
    "batches of 1": [
        ["beam 5, generate()", "one a token", None, 1.0, 0.6, 91.234],
        ["GAD, k = 12", 7.25, 2.5, 1.75, 1.05, 52.1],
    ],
    "quality": [["GAD, k = 12", 7.25, 2.5, 32.5, 0.125]],
    "block sizes": [[5, 8.0, 2.0, 7.0, 2.25, 32.25]],
    "memory": [["GAD", 512]],
}


def test_the_section_has_a_table_of_everything_that_was_measured(tmp_path: Path) -> None:
    path = tmp_path / "gad.json"
    path.write_text(json.dumps(RECORD))
    section = gad_section(read_record(path))
    assert [table.name for table in section.items] == ["gad-systems-1", "gad-texts", "gad-blocks", "gad-memory"]
    systems, texts = section.items[:2]
    assert systems.csv().splitlines()[1:] == [  # type: ignore[union-attr]
        '"beam 5, generate()",one a token,,1.0,0.6,91.234',
        '"GAD, k = 12",7.25,2.5,1.75,1.05,52.1',
    ]
    shown = [[cell.value for cell in row] for row in systems.shown()]  # type: ignore[union-attr]
    assert shown[0] == ["beam 5, generate()", "one a token", "–", "1.00×", "0.60×", "91.23"]
    assert shown[1][1:3] == ["7.25", "2.50"]
    assert [cell.value for cell in texts.shown()[0]] == ["GAD, k = 12", "7.25", "2.50", "32.50", "0.12 %"]  # type: ignore[union-attr]


def test_files_that_the_benchmark_did_not_write_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "gad.json"
    for content in ("{", "[1]", '{"other": 1}'):
        path.write_text(content)
        with pytest.raises(ValueError, match=r"gad\.json: expected what benchmarks/bench_gad\.py wrote"):
            read_record(path)
    with pytest.raises(ValueError, match=r"Block sizes.*: expected rows of 6 values \(k, GAD iterations"):
        gad_section({"block sizes": [[1, 2]]})
