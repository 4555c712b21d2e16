"""What users read: errors in one form, and foreign text without what terminals obey and XML forbids."""

from __future__ import annotations

import re
from numbers import Integral
from typing import Any

_UNPRINTABLE = re.compile(r"[^\t\n -~\xa0-\u2029\u202f-\u2065\u206a-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def expect(fits: object, expected: str, got: object = "none", remedy: str = "", *, of: object = "") -> None:
    """ValueError "expected …, got …; …" unless ``fits`` is true; ``of``: the file, or the part, that is wrong."""
    if not fits:
        begin, end = f"{of}: " if of else "", f"; {remedy}" if remedy else ""
        raise ValueError(f"{begin}expected {expected}, got {got!s:.80}{end}")


def expect_count(name: str, value: Any) -> int:
    """The number as an integer; ValueError unless it is a whole one from 1 to 2^31 - 1."""
    fits = isinstance(value, Integral) and 1 <= int(value) < 2**31
    expect(fits, f"a whole number {name} from 1 to 2^31 - 1", repr(value))
    return int(value)


def expect_utf8(name: str, text: Any) -> None:
    """ValueError for a text with bytes that were not UTF-8, which Python has as lone surrogates; other values pass."""
    if isinstance(text, str):
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:
            got = f"{text[max(0, error.start - 20) : error.start + 20]!r}"
            raise ValueError(f"expected {name} as text in UTF-8, got {got} at character {error.start}") from None


def printable(text: str) -> str:
    """The text with escapes such as ``\\x1b`` for control characters but tab and line feed, lone surrogates, and the
    characters that reverse the direction of writing."""
    return _UNPRINTABLE.sub(lambda match: match[0].encode("unicode_escape").decode(), text)


def plain_words(error: BaseException) -> str:
    """What an error of another library says to a user, without its classes, its options and its advice on code."""
    text = " ".join(str(error).split())
    if isinstance(error, KeyError):
        return f"{text:.60} is missing, or is no name that is known"
    if "ignore_mismatched_sizes" in text:
        return "the weights have other shapes than config.json says"
    if field := re.search(r"Field '(\w+)' .*\(value: (.*?)\)", text):
        return f"{field[1]} is of another type than expected, {field[2]:.60}"
    if isinstance(error, AttributeError | TypeError | ArithmeticError):
        return f"a value in its settings does not fit ({text})"
    text = re.sub(r"^(Class validation error for validator '\w+': \w+|Error\(s\) in loading \w+ for \w+): ", "", text)
    text = re.sub(r"data did not match any variant of untagged enum \w+", "it is of no kind that is known", text)
    return text if text.startswith("expected") else re.split(r"(?<=\w)\. (?=[A-Z])", text)[0]
