"""Chats next to a long prompt: each is sent once, and the table has their seconds."""

from __future__ import annotations

import pytest

from benchmarks.engine import long_prompt
from tests.helpers.served import serving, tiny


def test_chats_alone_and_next_to_a_prompt_are_counted(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with serving(tiny()) as served:
        monkeypatch.setattr("sys.argv", ["long_prompt", f"{served.url}/v1", *["--chats", "3", "--words", "30"]])
        long_prompt.main()
        assert served.count("generated_tokens_total") == 1 + 3 + (1 + 1) + (3 + 1)
    rows = [line.split("|")[1:3] for line in capsys.readouterr().out.splitlines() if line.startswith("| ")]
    assert [[cell.strip() for cell in row] for row in rows[2:]] == [["0", "1"], ["0", "3"], ["30", "1"], ["30", "3"]]
