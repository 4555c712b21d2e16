"""Text with the blocks in which it was written: what each call of the model committed."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rich.text import Text


def blocks_text(prompt: str, blocks: Sequence[Sequence[int]], decode: Callable[[list[int]], str]) -> Text:
    """The prompt, dimmed, and every block behind a bar, in alternating colours.

    Args:
        prompt: the text before.
        blocks: tokens of each call.
        decode: tokens from the first block on -> text.  Whole prefixes are decoded, because a block may end inside a
            character.
    """
    text = Text(prompt, style="dim")
    committed: list[int] = []
    shown = ""
    for number, block in enumerate(blocks):
        committed += block
        so_far = decode(committed)
        text.append("┃", style="dim")
        text.append(so_far[len(shown) :], style=("green", "cyan")[number % 2])
        shown = so_far
    return text
