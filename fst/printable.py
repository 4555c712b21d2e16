"""Foreign text without what terminals obey and XML forbids."""

from __future__ import annotations

import re

_UNPRINTABLE = re.compile(r"[^\t\n -~\xa0-\u2029\u202f-\u2065\u206a-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def printable(text: str) -> str:
    """The text with escapes such as ``\\x1b`` for control characters but tab and line feed, lone surrogates, and the
    characters that reverse the direction of writing."""
    return _UNPRINTABLE.sub(lambda match: match[0].encode("unicode_escape").decode(), text)
