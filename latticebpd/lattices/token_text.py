"""Tokens as readable text, and the classes of tokens that statistics distinguish."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

MARK = "▁"
"""Stands for the space before a word."""

CLASSES = WHOLE_WORD, WORD_START, WORD_PART, NUMBER, PUNCTUATION, SPECIAL, END = (
    "whole word", "first part of a word", "further part of a word", "number", "punctuation", "special token",
    "end of text",
)  # fmt: skip


def piece(tokenizer: Any, token: int) -> str:
    """One token's text, the space before a word as ``▁``; partial characters as the tokenizer spells them."""
    spelled = tokenizer.convert_ids_to_tokens(token)
    if spelled is None:
        return f"[{token}]"
    if spelled.startswith(MARK) or token in tokenizer.all_special_ids:
        return str(spelled)
    text: str = tokenizer.decode([token], clean_up_tokenization_spaces=False)
    return str(spelled) if not text or "\ufffd" in text else text.replace(" ", MARK).replace("\n", "⏎")


def classes(pieces: Sequence[str], tokens: Sequence[int], special: Collection[int], ends: Collection[int]) -> list[str]:
    """The class of every token of a text.

    pieces: of ``tokens``, as of :func:`piece`.  special: the tokenizer's special tokens.  ends: those that end texts.
    """

    def continues_word(i: int) -> bool:
        if not 0 < i < len(pieces) or tokens[i] in special:
            return False
        return pieces[i][:1].isalnum() and pieces[i - 1][-1:].isalnum()

    def class_of(i: int) -> str:
        text = pieces[i].lstrip(MARK)
        if tokens[i] in ends:
            return END
        if tokens[i] in special:
            return SPECIAL
        if not any(map(str.isalnum, text)):
            return PUNCTUATION
        if not any(map(str.isalpha, text)):
            return NUMBER
        if continues_word(i):
            return WORD_PART
        return WORD_START if continues_word(i + 1) else WHOLE_WORD

    return [class_of(i) for i in range(len(pieces))]
