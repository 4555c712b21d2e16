"""Text with the blocks in which it was written: what each call of the model committed."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
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
    decode = partial(tokenizer.decode, skip_special_tokens=True)
    return BlockWriter(out, decode, before) if show_blocks else TextWriter(decode)


class TextWriter:
    """A streamer: new tokens' text on standard output as it grows; a terminal gets no control characters.

    decode: tokens from the first block on -> text. They are decoded together, because a block may end inside a
        character, which then waits for the next one.
    """

    accepts_numpy = True

    def __init__(self, decode: Callable[[list[int]], str]) -> None:
        self._decode, self._shown, self._blocks = decode, 0, 0
        self._tokens: list[int] = []

    def put(self, tokens: np.ndarray) -> None:
        """Take the prompt, at the first call, or a block."""
        if self._blocks:
            self._tokens += tokens.flatten().tolist()
            self._show(self._new(self._decode(self._tokens).rstrip("\ufffd")))
        self._blocks += 1

    def end(self) -> None:
        """Take note that the text is complete."""
        self._show(self._new(self._decode(self._tokens)), "\n")

    def _new(self, so_far: str) -> str:
        """What of the text has not been shown yet."""
        new, self._shown = so_far[self._shown :], max(self._shown, len(so_far))
        return new

    def _show(self, new: str, end: str = "") -> None:
        print(printable(new) if sys.stdout.isatty() else new, end=end, flush=True)


class BlockWriter(TextWriter):
    """Every block after a bar, in alternating colours, as soon as the model has committed it.

    before: text to begin with, dimmed: the prompt, where the text continues it.
    """

    def __init__(self, console: Console, decode: Callable[[list[int]], str], before: str = "") -> None:
        super().__init__(decode)
        self._console, self._before = console, before

    def put(self, tokens: np.ndarray) -> None:
        if not self._blocks:
            self._console.print(Text(self._before, style="dim"), end="", soft_wrap=True)
        super().put(tokens)

    def _show(self, new: str, end: str = "") -> None:
        text = Text(new, ("green", "cyan")[self._blocks % 2])
        self._console.print(text if end else Text.assemble(("┃", "dim"), text), end=end, soft_wrap=True)
