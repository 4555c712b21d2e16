"""What a number depends on, printed with it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from latticebpd._version import __version__
from latticebpd.lattices.lattice_set import LatticeSet


@dataclass(frozen=True)
class Signature:
    """The settings that made a result.

    lattices: model and text that the lattices are from, where the files tell.
    k, heads: arcs per slot; predictions per position, head 1 (the base model's own) included.
    lm, alpha: language models and their weights, where any took part; seed: where anything is drawn.
    """

    lattices: str | None
    k: int
    heads: int
    lm: str | None = None
    alpha: str | None = None
    seed: int | None = None
    version: str = __version__

    def __str__(self) -> str:
        return "|".join(f"{name}:{value}" for name, value in asdict(self).items() if value is not None)

    @classmethod
    def of(cls, block: LatticeSet, **settings: Any) -> Signature:
        """The signature of what is computed from ``block`` and others of its kind."""
        _, slots, k = block.tokens.shape
        return cls(block.origin, k, slots + 1, **settings)

    def check(self, block: LatticeSet) -> None:
        """Raises ValueError where ``block`` is of another kind: one result is about lattices of one shape and one origin."""
        _, slots, k = block.tokens.shape
        if (slots + 1, k) != (self.heads, self.k):
            raise ValueError(f"expected lattices of {self.heads - 1} slots x {self.k}, as the first, got {slots} x {k}")
        if block.origin != self.lattices:
            raise ValueError(
                f"expected lattices of one origin, got {self.lattices or 'an unknown one'} and {block.origin or 'an unknown one'}"
            )
