"""The modules that a decode runs through are those that `docs/architecture.md` lists, in the order of their first call.

``python -m tests.project.test_call_chain`` prints them.
"""

from __future__ import annotations

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


def listed(kind: str) -> list[str]:
    """The lines of the code block that follows a kind's mark in the page."""
    _, mark, rest = PAGE.read_text(encoding="utf-8").partition(f"<!-- call chain: {kind} -->\n")
    assert mark, f"{PAGE.name} has no mark for the call chain of {kind}"
    return rest.split("```")[1].partition("\n")[2].split()


@pytest.mark.parametrize("kind", KINDS)
def test_the_call_chain_of_a_decode_is_the_listed_one(kind: str) -> None:
    assert call_chain(load(weights=KINDS[kind])) == listed(kind)


if __name__ == "__main__":
    for each, name in KINDS.items():
        print(f"{each}:", *call_chain(load(weights=name)), sep="\n", end="\n\n")
