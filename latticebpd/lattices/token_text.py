"""Tokens as people read them, and the classes that statistics tell apart."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

MARK = "▁"
"""Stands for the space before a word."""

WHOLE_WORD = "whole word"
WORD_START = "first part of a word"
WORD_PART = "further part of a word"
NUMBER = "number"
PUNCTUATION = "punctuation"
SPECIAL = "special token"
END = "end of text"
CLASSES = (WHOLE_WORD, WORD_START, WORD_PART, NUMBER, PUNCTUATION, SPECIAL, END)


def piece(tokenizer: Any, token: int) -> str:
    """One token's text, the space before a word as ``▁``; bytes that are no whole character as the tokenizer spells
    them."""
    spelled = tokenizer.convert_ids_to_tokens(token)
    if spelled is None:
        return f"[{token}]"
    if spelled.startswith(MARK) or token in tokenizer.all_special_ids:
        return str(spelled)
    text: str = tokenizer.decode([token], clean_up_tokenization_spaces=False)
    return str(spelled) if not text or "\ufffd" in text else text.replace(" ", MARK).replace("\n", "⏎")


def classes(pieces: Sequence[str], tokens: Sequence[int], special: Collection[int], ends: Collection[int]) -> list[str]:
    """The class of every token of a text.

    Args:
        pieces: what :func:`piece` makes of ``tokens``.
        special: the tokenizer's special tokens.
        ends: those that end a text.
    """

    def goes_on(place: int) -> bool:
        """Whether a piece belongs to the word of the piece before it."""
        return (
            0 < place < len(pieces)
            and tokens[place] not in special
            and pieces[place][:1].isalnum()
            and pieces[place - 1][-1:].isalnum()
        )

    def name(place: int) -> str:
        text = pieces[place].lstrip(MARK)
        if tokens[place] in ends:
            return END
        if tokens[place] in special:
            return SPECIAL
        if not any(character.isalnum() for character in text):
            return PUNCTUATION
        if all(not character.isalpha() for character in text):
            return NUMBER
        if goes_on(place):
            return WORD_PART
        return WORD_START if goes_on(place + 1) else WHOLE_WORD

    return [name(place) for place in range(len(pieces))]
