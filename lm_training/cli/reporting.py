"""How far long work has come: a bar on a terminal, a line a minute in a log."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from latticebpd.cli.console import err, progress

EVERY = 60.0
"""Seconds between lines."""


@contextmanager
def reporting(what: str, total: int) -> Iterator[Callable[[int, int], None]]:
    """Yield what is to be called with the pieces just done and the tokens just written or read."""
    started = last = time.monotonic()
    done = tokens = 0
    with progress() as bar:
        task = bar.add_task(what, total=total)

        def report(pieces: int, new_tokens: int) -> None:
            nonlocal done, tokens, last
            done, tokens, now = done + pieces, tokens + new_tokens, time.monotonic()
            rate = tokens / max(1e-9, now - started)
            bar.update(task, advance=pieces, description=f"{what} ({rate:,.0f} tokens/s)")
            if not err.is_terminal and now - last >= EVERY:
                last = now
                err.print(f"{what}: {done} of {total}, {tokens:,} tokens, {rate:,.0f} tokens/s", soft_wrap=True)

        yield report
