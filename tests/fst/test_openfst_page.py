"""docs/openfst.md teaches what it says: its code runs, its numbers agree."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

PAGE = (Path(__file__).parents[2] / "docs" / "openfst.md").read_text(encoding="utf-8")


def test_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("kenlm")
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    for code in re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL):
        exec(code, names)
    assert names["drafts"].tokens.tolist() == [[97, -1], [96, 97]]
    assert names["path"].tolist() == [96, 97]
    assert names["edits"] == 0
    assert len(names["shares"]) == 3


def test_the_page_is_read_in_two_minutes() -> None:
    assert len(re.sub(r"```.*?```", "", PAGE, flags=re.DOTALL).split()) <= 450
