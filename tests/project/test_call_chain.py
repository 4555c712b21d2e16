"""The modules that `docs/architecture.md` names for the steps of a decode are those that a decode runs through.

``python -m tests.project.test_call_chain`` prints all of these.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import pytest

from latticebpd import Loaded, load

PAGE = Path(__file__).parents[2] / "docs/architecture.md"
PACKAGES = ("fst", "latticebpd", "lm_training")
KINDS = {"engine": "float32", "PyTorch": "torch"}
"""Of target models, as the page calls them -> weights."""


def call_chain(loaded: Loaded) -> list[str]:
    """The project's modules that a short decode calls, each once; compiled ones too.

    It is a second decode: the first one imports modules, reads the tokenizer and tries out how the model takes trees.
    """
    loaded.generate("The history of the city", max_new_tokens=6)
    chain: dict[str, None] = {}

    def record(frame: Any, event: str, called: Any) -> None:
        if event == "call" and frame.f_code.co_name != "<module>":
            name = frame.f_globals.get("__name__")
        else:
            name = getattr(called, "__module__", None) if event == "c_call" else None
        if isinstance(name, str) and name.split(".")[0] in PACKAGES:
            chain.setdefault(name)

    sys.setprofile(record)
    try:
        loaded.generate("The history of the city", max_new_tokens=6)
    finally:
        sys.setprofile(None)
    return list(chain)


def listed(column: int) -> set[str]:
    """The modules of a column of the page's table; "the same" are those of the column before."""
    table = PAGE.read_text(encoding="utf-8").partition("## A decode, step by step")[2].partition("\n## ")[0]
    rows = [line.split("|")[2:4] for line in table.splitlines() if "`" in line]
    assert len(rows) == 6
    cells = [row[0] if "the same" in row[column] else row[column] for row in rows]
    names = re.findall(r"`([\w.]+)`", " ".join(cells))
    return {name if name.startswith("fst.") else f"latticebpd.{name}" for name in names}


@pytest.mark.parametrize(("column", "kind"), enumerate(KINDS))
def test_a_decode_goes_through_the_modules_of_the_page(column: int, kind: str) -> None:
    chain = call_chain(load(weights=KINDS[kind]))
    assert len(chain) > 20
    assert listed(column) <= {*chain}
    assert not (listed(1 - column) - listed(column)) & {*chain}


if __name__ == "__main__":
    for each, name in KINDS.items():
        print(f"{each}:", *call_chain(load(weights=name)), sep="\n", end="\n\n")
