"""Text with the blocks in which it was written: what each call of the model committed."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.text import Text

from fst.printable import printable
from latticebpd.console import out

if TYPE_CHECKING:
    import numpy as np


def streamer_for(tokenizer: Any, show_blocks: bool, before: str = "") -> Any:
    """What writes a decode's text on standard output while it grows.

    show_blocks: with the blocks marked.  before: text that then comes first.
    """
    if show_blocks:
        return BlockWriter(out, lambda tokens: tokenizer.decode(tokens, skip_special_tokens=True), before)
    return TextWriter(lambda tokens: tokenizer.decode(tokens, skip_special_tokens=True))


class TextWriter:
    """A streamer: new tokens' text on standard output as it grows; a terminal gets no control characters.

    Args:
        decode: new tokens -> text. They are decoded together, because one may end inside a character, which then waits.
    """

    takes_arrays = True

    def __init__(self, decode: Callable[[list[int]], str]) -> None:
        self._decode, self._shown = decode, 0
        self._tokens: list[int] | None = None

    def put(self, tokens: np.ndarray) -> None:
        """Take the prompt, at the first call, or a block."""
        if self._tokens is None:
            self._tokens = []
            return
        self._tokens += tokens.tolist()
        self._write(self._decode(self._tokens).rstrip("\ufffd"))

    def end(self) -> None:
        """Take note that the text is complete."""
        self._write(self._decode(self._tokens or []), "\n")

    def _write(self, text: str, after: str = "") -> None:
        new, self._shown = text[self._shown :], max(self._shown, len(text))
        print(printable(new) if sys.stdout.isatty() else new, end=after, flush=True)


class BlockWriter:
    """A streamer: every block behind a bar, in alternating colours, as soon as the model has committed it.

    Args:
        console: what to write on.
        decode: tokens from the first block on -> text. Whole prefixes are decoded, because a block may end inside a
            character, which then waits for the next block.
        before: text to begin with, dimmed: the prompt, where the text continues it.
    """

    takes_arrays = True

    def __init__(self, console: Console, decode: Callable[[list[int]], str], before: str = "") -> None:
        self._console, self._decode, self._before = console, decode, before
        self._blocks = 0
        self._tokens: list[int] = []
        self._shown = ""

    def put(self, tokens: np.ndarray) -> None:
        """Take the prompt, at the first call, or a block."""
        if self._blocks:
            self._tokens += tokens.flatten().tolist()
            new = self._new(self._decode(self._tokens).rstrip("\ufffd"))
            text = Text.assemble(("┃", "dim"), (new, self._style))
        else:
            text = Text(self._before, style="dim")
        self._blocks += 1
        self._console.print(text, end="", soft_wrap=True)

    def end(self) -> None:
        """Take note that the text is complete."""
        self._console.print(Text(self._new(self._decode(self._tokens)), self._style), soft_wrap=True)

    @property
    def _style(self) -> str:
        return ("green", "cyan")[self._blocks % 2]

    def _new(self, so_far: str) -> str:
        """What of the text has not been shown yet."""
        new, self._shown = so_far[len(self._shown) :], so_far if len(so_far) > len(self._shown) else self._shown
        return new
