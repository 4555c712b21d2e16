"""The scorer protocol: a language model and its weight ``alpha``, which ranks the paths of lattices by

    sum of the slots' log_prob + alpha * sum of log p_LM(token | context, path so far)

``ngram``, ``kenlm`` and ``neural`` are scorers; ``rescoring.as_scorer`` makes one of any kind of language model.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, TypeAlias, runtime_checkable

import numpy as np

from fst.search import ConstraintAutomaton
from latticebpd.checks import expect
from latticebpd.lattices.drafts import Drafts, DraftTree
from latticebpd.lattices.sausage import SausageLattice

Context: TypeAlias = "Sequence[int] | np.ndarray"
"""All tokens before a lattice; negative ones are padding. Empty means no history, never an implied ``<s>``."""

Constraints: TypeAlias = "Sequence[tuple[ConstraintAutomaton, int] | None] | None"
"""For each lattice the automaton of its text and the state before the lattice, or None; None: no constraints."""


@runtime_checkable
class Scorer(Protocol):
    """Ranks the paths of many lattices, of any shapes, at a time.

    Optional: ``check_vocabulary(fingerprint, vocab_size, vocabulary_name)``, which refuses lattices of another
    vocabulary; and ``takes_constraints = True``, where ``paths`` and ``trees`` have a last argument ``constraints``, by
    which they rank legal drafts only.
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


def scorer_paths(
    scorer: Scorer,
    lattices: Sequence[SausageLattice],
    contexts: Sequence[Context],
    p: int,
    constraints: Constraints = None,
) -> list[Drafts]:
    """A scorer's paths; ValueError for constraints that it does not take."""
    return scorer.paths(lattices, contexts, p, *_last_argument(scorer, constraints))


def scorer_trees(
    scorer: Scorer,
    lattices: Sequence[SausageLattice],
    contexts: Sequence[Context],
    num_nodes: int,
    constraints: Constraints = None,
) -> list[DraftTree]:
    """A scorer's trees; ValueError for constraints that it does not take."""
    return scorer.trees(lattices, contexts, num_nodes, *_last_argument(scorer, constraints))


def _last_argument(scorer: Scorer, constraints: Constraints) -> tuple[Any, ...]:
    if constraints is None or all(each is None for each in constraints):
        return ()
    wanted, remedy = "a scorer that takes constraints", "rank legal drafts by an n-gram model or without a model"
    expect(getattr(scorer, "takes_constraints", False), wanted, type(scorer).__name__, remedy)
    return (constraints,)


Rescorer = Scorer
"""Another name of `Scorer`."""


def listed(context: Context) -> list[int]:
    """A context as a list, without padding."""
    return [int(token) for token in context if token >= 0]
