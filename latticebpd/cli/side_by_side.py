"""Decodes of one prompt next to each other in a terminal, as they grow."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.live import Live
from rich.table import Column, Table
from rich.text import Text

from latticebpd.cli.accepted_blocks import BlockWriter

if TYPE_CHECKING:
    from latticebpd.decoding.loop import Generated

FRAMES = 12
"""A second."""


class PausedDecode:
    """A decode that goes on by one call of the model at a time, in a thread of its own, and its column.

    seconds: that it has run, pauses apart.  tokens: written so far.  result: None until it has ended.

    decode: the decode, by its streamer. text_of: tokens -> text. before: text that the decode continues. about: words
        below the name.
    """

    accepts_numpy = True

    def __init__(
        self,
        name: str,
        decode: Callable[[Any], Generated],
        text_of: Callable[[list[int]], str],
        before: str = "",
        about: str = "",
    ) -> None:
        self.name, self.about, self.seconds, self.tokens = name, about, 0.0, 0
        self.result: Generated | None = None
        self._prompt_seen = False
        self._decode, self._text, self._begun, self._error = decode, Text(), 0.0, list[BaseException]()
        console: Any = self  # which collects what is printed
        self._writer = BlockWriter(console, text_of, before)
        self._resume, self._pause = threading.Semaphore(0), threading.Semaphore(0)
        threading.Thread(target=self._run, name=name, daemon=True).start()

    def step(self) -> None:
        """Run up to the next block, or to the end; raises what the decode raises."""
        self._resume.release()
        self._pause.acquire()
        if self._error:
            raise self._error[0]

    def column(self) -> Text:
        rate = f"{self.tokens / self.seconds:.1f} tokens/s" if self.tokens else ""
        about = (f"{self.about}\n" if self.about else "", "dim")
        return Text.assemble((self.name, "bold"), "  ", (rate, "bold cyan"), "\n", about, "\n", self._text)

    def _run(self) -> None:
        self._continue()
        try:
            self.result = self._decode(self)
        except BaseException as error:  # raised again where the decode is watched
            self._error.append(error)
        self.seconds += time.perf_counter() - self._begun
        self._pause.release()

    def _continue(self) -> None:
        self._resume.acquire()
        self._begun = time.perf_counter()

    def put(self, tokens: Any) -> None:
        """A streamer's: the prompt, then block by block."""
        self.seconds += time.perf_counter() - self._begun
        self._writer.put(tokens)
        self.tokens += tokens.size if self._prompt_seen else 0
        self._prompt_seen = True
        self._pause.release()
        self._continue()

    def end(self) -> None:
        self._writer.end()

    def print(self, text: Text, **_: Any) -> None:
        """The writer's console."""
        self._text.append_text(text)


def show_side_by_side(console: Console, decodes: Sequence[PausedDecode]) -> list[Generated]:
    """Run decodes to their ends, a column for each; whichever has run for the shortest time goes on, so that at every
    moment all have run equally long. Returns their results."""

    def columns() -> Table:
        grid = Table.grid(*(Column(ratio=1) for _ in decodes), padding=(0, 2), expand=True)
        grid.add_row(*(decode.column() for decode in decodes))
        return grid

    with Live(columns(), console=console, auto_refresh=False, vertical_overflow="visible") as live:
        shown = 0.0
        while running := [decode for decode in decodes if decode.result is None]:
            min(running, key=lambda decode: decode.seconds).step()
            if time.perf_counter() - shown > 1 / FRAMES:
                live.update(columns(), refresh=True)
                shown = time.perf_counter()
        live.update(columns(), refresh=True)
    return [decode.result for decode in decodes if decode.result is not None]
