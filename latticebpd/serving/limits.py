"""What one request may ask for, and what the server holds at a time."""

from __future__ import annotations

from dataclasses import dataclass

from latticebpd.checks import expect

TOKEN_BYTES = 16
"""Bytes that a prompt may have for each token of its limit, since a longer text takes seconds to become tokens; texts
in natural languages and in programming languages have 2 to 6."""


@dataclass(frozen=True)
class Limits:
    """Limits that keep a request from holding the server.

    rows: texts that share passes.
    queue: requests that are prepared or wait for a row; more are refused.
    context: tokens of a prompt and its answer together; a row's cache grows up to them.
    max_tokens: of an answer, and the default of chats.
    seconds: from a request's arrival to its end, waiting included; a text ends there with what it has.
    body: bytes of a request.
    prefix_memory: bytes of texts that are kept for prompts that begin like them; 0: none.
    """

    rows: int = 16
    queue: int = 64
    context: int = 4096
    max_tokens: int = 1024
    seconds: float = 300.0
    body: int = 1 << 20
    prefix_memory: int = 512 << 20

    @property
    def prompt_bytes(self) -> int:
        """Bytes of a prompt's text in UTF-8, special tokens included."""
        return TOKEN_BYTES * self.context

    def __post_init__(self) -> None:
        for name in ("rows", "context", "max_tokens", "body"):
            expect(getattr(self, name) >= 1, f"{name} >= 1", getattr(self, name))
        expect(self.prefix_memory >= 0, "prefix_memory >= 0", self.prefix_memory)
        expect(self.queue >= 0 and self.seconds > 0, "queue >= 0 and seconds > 0", f"{self.queue} and {self.seconds}")
