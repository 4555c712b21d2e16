"""JSON lines: what is in a line, and what is wrong with it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from latticebpd.lattices.json_files import read_json_lines


def texts(path: Path) -> list[Any]:
    return list(read_json_lines(path, lambda record: record["text"], "an object with a text"))


def test_each_line_is_a_record_and_blank_ones_are_none(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "ä"}\n\n{"text": "\\ud83d\\ude00"}', encoding="utf-8")
    assert texts(tmp_path / "a.jsonl") == ["ä", "😀"]


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        (b'{"text": "\xff"}', "can't decode byte 0xff"),
        (b'{"text": "\\ud83d"}', "surrogates not allowed"),
        (b'{"text": ', "line 1 column"),
        (b"[" * 100_000, "recursion"),
        (b'{"words": 1}', "text"),
        (b"[]", "list indices"),
    ],
    ids=["no UTF-8", "half a character", "cut off", "deep", "no such field", "no object"],
)
def test_a_damaged_line_is_named(tmp_path: Path, line: bytes, problem: str) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"text": "a"}\n' + line + b"\n")
    with pytest.raises(ValueError, match=rf"a\.jsonl, line 2: expected an object with a text: .*{problem}"):
        texts(path)
