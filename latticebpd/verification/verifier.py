"""The verifier protocol: one forward pass of the target model over every row's draft tree.

A pass sees, for each row of the batch, the *next token* (committed, but not yet read by the model) and the nodes of the
row's tree. Column 0 of every result belongs to the next token, column ``i + 1`` to node ``i``; its values are those
that the target model computes for that node's own prefix.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from latticebpd.lattices.drafts import DraftTree

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, eq=False)
class Verified:
    """The target model's output for the next token and every drafted node of each row.

    hidden: ``[rows, nodes + 1, hidden]`` final, normalised hidden states; columns after a row's nodes are meaningless.
        An array of the CPU engine, a tensor of PyTorch.
    logits_of: rows and columns, equally many -> ``[n, vocab]`` logits.
    layers: ``[rows, columns of the pass, layers * hidden]`` hidden states after selected layers, concatenated.
    best_of: rows and columns -> each one's token of the highest logit, the lowest id of equal ones; None if no faster
        than logits.
    some_logits_of: rows, columns and for each an array of tokens -> for each an array of their logits; None if no
        faster than logits.
    only: what is called with ``wanted`` -> the same output, which computes in advance only what ``wanted(row, column)``
        is true of; None if nothing is computed in advance.
    """

    hidden: Any
    logits_of: Callable[[Sequence[int], Sequence[int]], Tensor]
    layers: Tensor | None = None
    best_of: Callable[[Sequence[int], Sequence[int]], list[int]] | None = None
    some_logits_of: Callable[[Sequence[int], Sequence[int], Sequence[np.ndarray]], list[np.ndarray]] | None = None
    only: Callable[[Callable[[int, int], bool]], Verified] | None = None


class Verifier(Protocol):
    """The target model over a batch of growing texts.

    ``prefill`` or ``begin`` comes first; ``keep`` or ``cut`` follows every ``verify``.
    """

    @property
    def max_nodes(self) -> int | None:
        """The most nodes that the next pass has room for; None for no limit."""

    def prefill(self, prompts: Sequence[Sequence[int]]) -> Verified:
        """Read the prompts; the result has one column, that of each prompt's last token."""

    def begin(self, rows: int) -> None:
        """Start without reading anything: each row's text is what later passes keep, its prompt included."""

    def verify(self, next_tokens: Sequence[int], trees: Sequence[DraftTree]) -> Verified:
        """One pass over each row's next token and tree."""

    def keep(self, paths: Sequence[Sequence[int]]) -> None:
        """Append each row's next token and accepted nodes (a path from the root) to its text; drop the others."""

    def cut(self, lengths: Sequence[int]) -> None:
        """Keep the first so many tokens of each row's text, and nothing of the last pass; what comes next is a
        ``verify``."""

    def select(self, rows: Sequence[int]) -> None:
        """Continue with these rows only, renumbered in this order."""

    def layer_states(self, row: int) -> Any:
        """``[tokens, layers * hidden]``, an array or a tensor: the states after the verifier's ``layers``, of a row's
        text as far as it was read; None without such layers."""
