"""Checks of what users give: errors state what was expected, what was given, and what to do."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

from fst.printable import expect as expect
from fst.printable import expect_count as expect_count
from fst.printable import expect_utf8 as expect_utf8


def extra_module(name: str, extra: str, purpose: str) -> Any:
    """A module of an optional extra; the ValueError where it is not installed has the command that does so."""
    try:
        return import_module(name)
    except ImportError as error:
        package = name.partition(".")[0].replace("_", "-")
        remedy = f"pip install 'latticebpd[{extra}]'"
        raise ValueError(f"expected the package {package} for {purpose}, found none; {remedy}") from error


def expect_equal(drafter: str, model: str, pairs: Mapping[str, tuple[object, object]]) -> None:
    """ValueError for the first of a drafter's properties that differs from its model's.

    drafter, model: what they are, in words. pairs: by name, with ``{}`` for the value: the model's, the drafter's.
    """
    for name, (wanted, got) in pairs.items():
        expected, remedy = f"{drafter} with {name.format(wanted)} (the {model}'s)", f"train one for this {model}"
        expect(wanted == got, expected, got, remedy)
