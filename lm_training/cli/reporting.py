"""How far work on tokens has come, and how fast it goes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from latticebpd.console import progress


@contextmanager
def reporting(what: str, total: int) -> Iterator[Callable[[int, int], None]]:
    """Yield what is to be called with the pieces just done and the tokens just written or read."""
    started, tokens = time.monotonic(), 0
    with progress() as bar:
        task = bar.add_task(what, total=total)

        def report(pieces: int, new_tokens: int) -> None:
            nonlocal tokens
            tokens += new_tokens
            rate = tokens / max(1e-9, time.monotonic() - started)
            bar.update(task, advance=pieces, description=f"{what} ({tokens:,} tokens, {rate:,.0f} a second)")

        yield report
