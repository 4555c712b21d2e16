"""Checks of what users give: errors say what was expected, what was found, and what to do."""

from __future__ import annotations

from collections.abc import Mapping


def expect(fits: object, expected: str, got: object, remedy: str = "") -> None:
    """ValueError "expected …, got …; …" unless ``fits`` is true."""
    if not fits:
        raise ValueError(f"expected {expected}, got {got!s:.80}" + (f"; {remedy}" if remedy else ""))


def expect_equal(drafter: str, model: str, pairs: Mapping[str, tuple[object, object]]) -> None:
    """ValueError for the first of a drafter's properties that differs from its model's.

    drafter, model: what they are, in words. pairs: by name, with ``{}`` for the value: the model's, the drafter's.
    """
    for name, (wanted, got) in pairs.items():
        expected, remedy = f"{drafter} with {name.format(wanted)} (the {model}'s)", f"train one for this {model}"
        expect(wanted == got, expected, got, remedy)
