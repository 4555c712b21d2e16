"""The scorer protocol: a language model and its weight ``alpha``, which ranks the paths of lattices by

    sum of the slots' log_prob + alpha * sum of log p_LM(token | context, path so far)

``ngram``, ``kenlm`` and ``neural`` are scorers; ``rescoring.as_scorer`` makes one of any kind of language model.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, TypeAlias, runtime_checkable

import numpy as np

from latticebpd.lattices.drafts import Drafts, DraftTree
from latticebpd.lattices.sausage import SausageLattice

Context: TypeAlias = "Sequence[int] | np.ndarray"
"""All tokens before a lattice; negative ones are padding. Empty means no history, never an implied ``<s>``."""


@runtime_checkable
class Scorer(Protocol):
    """Ranks the paths of many lattices, of any shapes, at a time.

    Optional: ``check_vocabulary(fingerprint, vocab_size, vocabulary_name)``, which refuses lattices of another
    vocabulary.
    """

    @property
    def alpha(self) -> float:
        """The language model's weight, >= 0."""

    def with_alpha(self, alpha: float) -> Any:
        """The same scorer at another weight; the model is shared."""

    def paths(self, lattices: Sequence[SausageLattice], contexts: Sequence[Context], p: int) -> list[Drafts]:
        """The ``p`` best drafts of each lattice, best first, ties towards the lexicographically smaller tokens."""

    def trees(self, lattices: Sequence[SausageLattice], contexts: Sequence[Context], num_nodes: int) -> list[DraftTree]:
        """The best prefix tree of each lattice, of at most ``num_nodes`` nodes, with its lattice."""


Rescorer = Scorer
"""Its public name."""


def listed(context: Context) -> list[int]:
    """A context as a list, without padding."""
    return [int(token) for token in context if token >= 0]
