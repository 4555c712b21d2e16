"""What a verifier is: one forward pass of the base model over every row's draft tree.

A pass sees, for each row of the batch, the *next token* (certain, but not yet read by the model) and the nodes of
the row's tree.  Column 0 of every result belongs to the next token, column ``i + 1`` to node ``i``; it holds just
what the base model computes for that node's own prefix.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor

from latticebpd.lattices.drafts import DraftTree
from latticebpd.target.forward import Verified


class Verifier(Protocol):
    """The base model over a batch of growing texts.

    ``prefill`` or ``begin`` comes first; ``keep`` or ``forget`` follows every ``verify``. A verifier may be asked, when
    it is made, to keep what some of the model's layers handed on.
    """

    @property
    def max_nodes(self) -> int | None:
        """The most nodes that the next pass has room for; None if there is no limit."""

    def prefill(self, prompts: Sequence[Sequence[int]]) -> Verified:
        """Read the prompts; the result has one column, that of each prompt's last token."""

    def begin(self, rows: int) -> None:
        """Start without having read anything: each row's text is what the passes keep, its prompt included."""

    def verify(self, next_tokens: Sequence[int], trees: Sequence[DraftTree]) -> Verified:
        """One pass over each row's next token and tree."""

    def keep(self, paths: Sequence[Sequence[int]]) -> None:
        """Make each row's next token and accepted nodes (a path from the root) part of its text; forget the others."""

    def forget(self) -> None:
        """Undo the last pass."""

    def select(self, rows: Sequence[int]) -> None:
        """Go on with these rows only, renumbered in this order."""

    def layer_states(self, row: int) -> Tensor | None:
        """``[tokens, layers * hidden]`` what was kept of a row's text, so far as it was read; None where nothing was to
        be kept."""
