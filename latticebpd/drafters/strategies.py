"""Strategies: the best tokens, the best paths, the best tree, or the best path in hindsight.

A *strategy* turns lattices into draft trees (``draft``), while a text is decoded; and stored lattices, many at a time,
into arrays of the same drafts (``draft_stored``), for analyses that have no model at hand.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from latticebpd.lattices.drafts import ROOT, DraftTree
from latticebpd.lattices.lattice_set import LatticeSet
from latticebpd.lattices.sausage import PADDING, SausageLattice, best_tokens, greedy_chain, oracle_path
from latticebpd.scoring.calibrated import CalibratedScorer
from latticebpd.scoring.ngram import NgramScorer
from latticebpd.scoring.scorer import Constraints, Context, Scorer, scorer_paths, scorer_trees


@dataclass(frozen=True, eq=False)
class StoredPaths:
    """Drafts of ``n`` lattices. tokens: ``[n, p, slots]``, best path first. counts: ``[n]`` how many paths there
    are."""

    tokens: np.ndarray
    counts: np.ndarray


@dataclass(frozen=True, eq=False)
class StoredTrees:
    """Draft trees of ``n`` lattices.  tokens, parents: ``[n, nodes]``, best node first, -1 after the last."""

    tokens: np.ndarray
    parents: np.ndarray


class Strategy(Protocol):
    """Turns lattices into draft trees.

    Optional: ``takes_constraints = True``: ``draft`` has a last argument ``constraints``, as scorers have, and searches
    legal drafts only. What others draft is cut where it is not legal.
    """

    def draft(self, lattices: Sequence[SausageLattice], contexts: Sequence[Context]) -> list[DraftTree]:
        """One tree for each lattice, of any shapes; contexts: all tokens before each."""

    def draft_stored(self, lattices: LatticeSet, threads: int | None = None) -> StoredPaths | StoredTrees:
        """The same drafts of stored lattices; ``threads`` does not change them."""


@dataclass(frozen=True)
class Vanilla:
    """The best token of every slot, as it is (Stern 2018); of equal ones the lowest token. Transitions are ignored."""

    def draft(self, lattices: Sequence[SausageLattice], contexts: Sequence[Context]) -> list[DraftTree]:
        return _chains((best_tokens(lattice.tokens, lattice.log_probs) for lattice in lattices), lattices)

    def draft_stored(self, lattices: LatticeSet, threads: int | None = None) -> StoredPaths:
        return _one_path(best_tokens(lattices.tokens, lattices.log_probs))


@dataclass(frozen=True)
class GreedyChain:
    """Slot by slot the best token after the one before, by the lattice's transitions: DSpark's draft; without them,
    vanilla's.

    It is what a search for the best path finds with one beam and no language model.
    """

    def draft(self, lattices: Sequence[SausageLattice], contexts: Sequence[Context]) -> list[DraftTree]:
        chains = (greedy_chain(lattice.tokens, lattice.log_probs, lattice.transitions) for lattice in lattices)
        return _chains(chains, lattices)

    def draft_stored(self, lattices: LatticeSet, threads: int | None = None) -> StoredTrees:
        tokens = greedy_chain(lattices.tokens, lattices.log_probs, lattices.transitions)
        parents = np.where(tokens == PADDING, ROOT, np.arange(-1, tokens.shape[1] - 1, dtype=np.int32))
        return StoredTrees(tokens, parents)


@dataclass(frozen=True)
class Oracle:
    """The oracle as a strategy: the lattice's best path in hindsight (`oracle_path`), which perfect rescoring would
    draft (Kim 2024, section 6.3), whatever its transitions."""

    def draft(
        self,
        lattices: Sequence[SausageLattice],
        contexts: Sequence[Context],
        continuations: Sequence[Context] | None = None,
    ) -> list[DraftTree]:
        """continuations: after each lattice's context, the tokens that follow in the target's own text; ValueError
        without them."""
        if continuations is None:
            raise ValueError("expected the text beforehand, which the oracle has to know, got none")
        return _chains(map(oracle_path, lattices, continuations), lattices)

    def draft_stored(self, lattices: LatticeSet, threads: int | None = None) -> StoredPaths:
        wanted = lattices.continuation
        held = ((lattices.tokens == wanted[:, :, None]) & (lattices.log_probs > -np.inf)).any(axis=2)
        reached = np.logical_and.accumulate(held & (wanted != PADDING), axis=1)
        return _one_path(np.where(reached, wanted, best_tokens(lattices.tokens, lattices.log_probs)))


@dataclass(frozen=True, eq=False)
class NBestPaths:
    """The ``p`` best rescored paths (Kim 2024, section 7.2), as a prefix tree."""

    scorer: Scorer
    p: int = 16

    @property
    def takes_constraints(self) -> bool:
        return getattr(self.scorer, "takes_constraints", False)

    def draft(
        self, lattices: Sequence[SausageLattice], contexts: Sequence[Context], constraints: Constraints = None
    ) -> list[DraftTree]:
        drafts = scorer_paths(self.scorer, lattices, contexts, self.p, constraints)
        return [DraftTree.from_paths(best.tokens, lattice) for best, lattice in zip(drafts, lattices, strict=True)]

    def draft_stored(self, lattices: LatticeSet, threads: int | None = None) -> StoredPaths:
        if isinstance(self.scorer, NgramScorer):
            return StoredPaths(*self.scorer.path_arrays(lattices, self.p, threads))
        drafts = [each.tokens for each in self.scorer.paths(*_listed(lattices), self.p)]
        counts = np.array(list(map(len, drafts)), np.int64)
        return StoredPaths(_stacked(drafts, lattices.tokens.shape[1:2]), counts)


@dataclass(frozen=True, eq=False)
class BestTree:
    """The best prefix tree of ``num_nodes`` nodes, whatever paths they lie on.

    By `NgramScorer` every slot is assumed to contain the right token: a node's probability is not reduced by the heads'
    mass outside of the slot. `CalibratedScorer` has a share for the tokens that a slot lacks.

    legal_nodes: of trees under constraints, where a node costs more, since the search asks the automaton; None: as
        many.
    """

    scorer: Scorer
    num_nodes: int = 64
    legal_nodes: int | None = None

    @property
    def takes_constraints(self) -> bool:
        return getattr(self.scorer, "takes_constraints", False)

    def draft(
        self, lattices: Sequence[SausageLattice], contexts: Sequence[Context], constraints: Constraints = None
    ) -> list[DraftTree]:
        few = self.legal_nodes if constraints and all(constraints) else None
        return scorer_trees(self.scorer, lattices, contexts, few or self.num_nodes, constraints)

    def draft_stored(self, lattices: LatticeSet, threads: int | None = None) -> StoredTrees:
        if isinstance(self.scorer, NgramScorer | CalibratedScorer):
            return StoredTrees(*self.scorer.tree_arrays(lattices, self.num_nodes, threads))
        return _stored(self.draft(*_listed(lattices)))


@dataclass(frozen=True)
class BeamTree:
    """The ``width`` most probable prefixes of every length, each a continuation of one that is one token shorter.

    SGLang searches DFlash 2's selector so; a heuristic, since what a beam drops it cannot come back to. Probabilities
    are those of `BestTree` without a language model.

    num_nodes: the most probable so many nodes; None: all, at most ``width`` per slot.
    """

    width: int
    num_nodes: int | None = None

    def draft(self, lattices: Sequence[SausageLattice], contexts: Sequence[Context]) -> list[DraftTree]:
        return [self._tree(lattice) for lattice in lattices]

    def draft_stored(self, lattices: LatticeSet, threads: int | None = None) -> StoredTrees:
        return _stored(self.draft(*_listed(lattices)))

    def _tree(self, lattice: SausageLattice) -> DraftTree:
        weights = np.where(lattice.tokens == PADDING, -np.inf, lattice.log_probs).astype(np.float64)
        tokens, parents, log_probs = list[np.ndarray](), list[np.ndarray](), list[np.ndarray]()
        arcs, nodes, beam = np.zeros(1, np.int64), np.full(1, ROOT), np.zeros(1)  # of the prefixes that are kept
        for slot, row in enumerate(weights):
            steps = np.tile(row, (len(beam), 1))
            if slot and lattice.transitions is not None:
                steps += lattice.transitions[slot - 1, arcs]
            norms = np.logaddexp.reduce(steps, axis=1, keepdims=True)
            reached = beam[:, None] + (steps - np.where(norms > -np.inf, norms, 0.0))  # so rounded, never above
            best = np.argsort(-reached, axis=None, kind="stable")[: self.width]
            best = best[reached.flat[best] > -np.inf]
            befores, arcs = np.unravel_index(best, reached.shape)
            first = sum(map(len, tokens))
            tokens.append(lattice.tokens[slot, arcs])
            parents.append(nodes[befores])
            beam, nodes = reached.flat[best], first + np.arange(len(best))
            log_probs.append(beam)
        every = np.concatenate(log_probs)
        order = np.argsort(-every, kind="stable")  # a prefix comes before its continuations
        ranks = np.append(np.argsort(order), ROOT)
        order = order[: self.num_nodes]
        return DraftTree(np.concatenate(tokens)[order], ranks[np.concatenate(parents)[order]], every[order], lattice)


def _chains(paths: Iterable[np.ndarray], lattices: Sequence[SausageLattice]) -> list[DraftTree]:
    """Trees of one path each."""
    return [DraftTree.from_paths(path[None], lattice) for path, lattice in zip(paths, lattices, strict=True)]


def _stored(trees: Sequence[DraftTree]) -> StoredTrees:
    return StoredTrees(_stacked([tree.tokens for tree in trees]), _stacked([tree.parents for tree in trees]))


def _one_path(tokens: np.ndarray) -> StoredPaths:
    return StoredPaths(tokens[:, None], np.ones(len(tokens), np.int64))


def _listed(lattices: LatticeSet) -> tuple[list[SausageLattice], list[Context]]:
    """The lattices one by one, and what comes before each."""
    rows = range(len(lattices))
    return [lattices[row] for row in rows], [lattices.context_of(row) for row in rows]


def _stacked(rows: Sequence[np.ndarray], shape: tuple[int, ...] = ()) -> np.ndarray:
    """``[n, longest, *shape]``: arrays of several lengths, padded with -1."""
    result = np.full((len(rows), max(map(len, rows), default=0), *shape), PADDING, np.int32)
    for row, values in zip(result, rows, strict=True):
        row[: len(values)] = values
    return result
