"""A disk that is full: writes fail as the operating system has them fail."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def room_for(file_bytes: int) -> Iterator[None]:
    """No file can grow beyond this size in the meantime, whoever writes it, compiled libraries too: what is over it is
    not written."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (file_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
