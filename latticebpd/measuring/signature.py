"""What a number depends on, printed with it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from latticebpd._version import __version__
from latticebpd.checks import expect
from latticebpd.lattices.lattice_set import LatticeSet
from latticebpd.scoring.weights import DECODE, POSITION

GIVEN_TEXT, OWN_TEXT = "given text", "its own greedy text"
"""The end of ``origin``: lattices of a data set's texts (*teacher forcing*), or of texts that the model wrote."""


@dataclass(frozen=True)
class Signature:
    """The settings that produced a result.

    lattices: model and text that the lattices are from, where the files say so.
    k, heads: arcs per slot; predictions per position, head 1 (the base model's own) included.
    by: ``decode``, the calls of a decode through each text as in the papers, or ``position``, all positions.
    context: ``answer`` where prompts were no context for language models.
    lm, alpha: language models and their weights; seed: where anything is drawn.
    """

    lattices: str | None
    k: int
    heads: int
    by: str | None = None
    context: str | None = None
    lm: str | None = None
    alpha: str | None = None
    seed: int | None = None
    version: str = __version__

    def __str__(self) -> str:
        return " | ".join(f"{name} {value}" for name, value in asdict(self).items() if value is not None)

    @property
    def given_text(self) -> bool:
        """Whether drafts are verified against texts of a data set, so that no decode makes such calls."""
        return (self.lattices or "").endswith(GIVEN_TEXT)

    @property
    def counted(self) -> str:
        """``by``, for readers."""
        if self.given_text:
            return "by a walk through the given text" if self.by == DECODE else "by position of the given text"
        return f"by {self.by}"

    @property
    def steps(self) -> str:
        """What is counted, in a word."""
        return "calls" if self.by == DECODE else "positions"

    @classmethod
    def of(cls, block: LatticeSet, **settings: Any) -> Signature:
        """The signature of results on ``block`` and others of its shape and origin."""
        _, slots, k = block.tokens.shape
        return cls(block.origin, k, slots + 1, **settings)

    def check(self, block: LatticeSet) -> None:
        """Raises ValueError where ``block`` has another shape or origin than the first one."""
        _, slots, k = block.tokens.shape
        if (slots + 1, k) != (self.heads, self.k):
            raise ValueError(f"expected lattices of {self.heads - 1} slots x {self.k}, as the first, got {slots} x {k}")
        if block.origin != self.lattices:
            mine, other = self.lattices or "an unknown one", block.origin or "an unknown one"
            raise ValueError(f"expected lattices of one origin, got {mine} and {other}")
        wanted = "files that number their texts, to count by decode"
        expect(self.by != DECODE or block.sequence is not None, wanted, "one that does not", "count by position")


def counted_by(wanted: str | None, block: LatticeSet) -> str:
    """``wanted``, ``decode`` or ``position``; by default by decode, and by position where texts are not known."""
    expect(wanted in (None, DECODE, POSITION), "statistics by decode or by position", repr(wanted))
    return wanted or (POSITION if block.sequence is None else DECODE)
