"""The load of several clients: every answer is counted, and has the text that one client gets."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.engine import throughput
from tests.helpers.served import serving, tiny


def test_answers_of_all_clients_are_counted_and_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    questions, output = tmp_path / "question.jsonl", tmp_path / "throughput.csv"
    lines = [{"question_id": n, "category": "letters", "turns": ["abcdefg"[n:]]} for n in range(5)]
    questions.write_text("".join(json.dumps(line) + "\n" for line in lines))
    with serving(tiny()) as served:
        options = (
            f"-o {output} --questions {questions} --server tiny={served.url}/v1 --clients 1,3 --rounds 2 --limit 6"
        )
        monkeypatch.setattr("sys.argv", ["throughput", *options.split()])
        throughput.main()
        assert served.count("generated_tokens_total") == 3 * 2 * 5 * 6  # of the warm-up too
    rows = throughput.read_csv(output)
    assert [(row["clients"], row["turn"]) for row in rows] == [("1", "1"), ("3", "1"), ("1", "2"), ("3", "2")]
    assert {(row["tokens"], row["answers"], row["same"]) for row in rows} == {("30", "5", "5")}
    assert "| tiny | 3 |" in capsys.readouterr().out
