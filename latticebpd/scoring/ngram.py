"""Scoring with an n-gram model (Kim 2024, section 7.2): exact searches in the compiled core of ``fst``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, TypeAlias, TypeVar

import numpy as np

import fst
from fst.automaton import MAX_ORDER
from latticebpd.checks import expect
from latticebpd.lattices.drafts import Drafts, DraftTree
from latticebpd.lattices.lattice_set import LatticeSet
from latticebpd.lattices.sausage import PADDING, SausageLattice
from latticebpd.lattices.texts import padded
from latticebpd.scoring.scorer import Constraints, Context
from latticebpd.scoring.weights import checked_alpha

RETRAIN = "train one on text encoded with the same tokenizer"

T = TypeVar("T")
Tree: TypeAlias = "tuple[np.ndarray, np.ndarray, np.ndarray]"
Batch: TypeAlias = "tuple[np.ndarray, np.ndarray, np.ndarray | None, list[Context], Constraints]"
"""Lattices of one shape: tokens and log-probabilities ``[rows, slots, k]``, transitions ``[rows, slots - 1, k, k]``,
contexts and constraints."""


@dataclass(frozen=True, eq=False)
class NgramScorer:
    """Exact search over lattice and n-gram model; without a model, over the lattice only (the paper's 0-gram)."""

    lm: fst.NgramModel | None
    alpha: float = 1.0
    takes_constraints: ClassVar[bool] = True

    def __post_init__(self) -> None:
        checked_alpha(self.alpha)

    def with_alpha(self, alpha: float) -> NgramScorer:
        return replace(self, alpha=alpha)

    def paths(
        self,
        lattices: Sequence[SausageLattice],
        contexts: Sequence[Context],
        p: int,
        constraints: Constraints = None,
    ) -> list[Drafts]:
        def search(batch: Batch) -> list[Drafts]:
            tokens, log_probs, transitions, own, legal = batch
            arguments = (tokens, log_probs, self.lm, p, self.alpha, padded_histories(own), None, transitions, legal)
            arrays = fst.nbest_paths_batch(*arguments)
            return [Drafts(paths[:count], scores[:count]) for paths, scores, count in zip(*arrays, strict=True)]

        return in_batches(lattices, contexts, search, constraints)

    def trees(
        self,
        lattices: Sequence[SausageLattice],
        contexts: Sequence[Context],
        num_nodes: int,
        constraints: Constraints = None,
    ) -> list[DraftTree]:
        def search(batch: Batch) -> list[Tree]:
            tokens, log_probs, transitions, own, legal = batch
            settings = (self.lm, num_nodes, self.alpha, padded_histories(own), None, transitions, legal)
            return trees_of(fst.best_first_tree_batch(tokens, log_probs, *settings))

        trees = in_batches(lattices, contexts, search, constraints)
        return [DraftTree.trusted(*tree, lattice) for tree, lattice in zip(trees, lattices, strict=True)]

    def path_arrays(self, lattices: LatticeSet, p: int, threads: int | None = None) -> tuple[np.ndarray, np.ndarray]:
        """``paths`` of stored lattices as arrays: ``[n, p, slots]`` tokens and ``[n]`` how many paths each has."""
        arguments = (lattices.tokens, lattices.log_probs, self.lm, p, self.alpha)
        paths, _, counts = fst.nbest_paths_batch(*arguments, lattices.context, threads, lattices.transitions)
        return paths, counts

    def tree_arrays(
        self, lattices: LatticeSet, num_nodes: int, threads: int | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """``trees`` of stored lattices as arrays: ``[n, nodes]`` tokens and parents, -1 after the last."""
        arguments = (lattices.tokens, lattices.log_probs, self.lm, num_nodes, self.alpha)
        tokens, parents, _, _ = fst.best_first_tree_batch(*arguments, lattices.context, threads, lattices.transitions)
        return tokens, parents

    def check_vocabulary(self, fingerprint: str | None, vocab_size: int | None, vocabulary_name: str) -> None:
        """Refuse to score for a model of another vocabulary; None is unknown."""
        if self.lm is None:
            return
        check_fingerprints("an n-gram model", self.lm.fingerprint, fingerprint, vocabulary_name)
        wanted, got = f"an n-gram model over the token ids of {vocabulary_name}", f"one over {self.lm.vocab_size}"
        remedy = f"{RETRAIN}, or read its ARPA file by fst.NgramModel.from_arpa(path, vocab={{word: id}})"
        expect(not self.lm.own_ids, wanted, f"{got} words of its own", remedy)
        wanted = f"an n-gram model over at most {vocab_size} tokens (the vocabulary of {vocabulary_name})"
        expect(vocab_size is None or self.lm.vocab_size <= vocab_size, wanted, got, RETRAIN)


def check_fingerprints(kind: str, own: str | None, other: str | None, vocabulary_name: str) -> None:
    """ValueError if two vocabularies are known to differ.

    kind, own: the scorer and the hash of its vocabulary.  vocabulary_name, other: whose vocabulary it should be, and
    that one's hash.
    """
    if own and other and own != other:
        wanted = f"{kind} over the vocabulary of {vocabulary_name} ({other})"
        raise ValueError(f"expected {wanted}, got one over {own}; {RETRAIN}")


def trees_of(batch: tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]) -> list[Tree]:
    """Tokens, parents and log-probabilities of each tree of a batch, without its padding."""
    return [(tokens[:n], parents[:n], weights[:n]) for tokens, parents, weights, n in zip(*batch, strict=True)]


def in_batches(
    lattices: Sequence[SausageLattice],
    contexts: Sequence[Context],
    search: Callable[[Batch], Sequence[T]],
    constraints: Constraints = None,
) -> list[T]:
    """The result of ``search`` for every lattice; it is called once for those of each shape."""
    if len(lattices) == 1:
        (lattice,) = lattices
        gains = None if lattice.transitions is None else lattice.transitions[None]
        return list(search((lattice.tokens[None], lattice.log_probs[None], gains, list(contexts), constraints)))
    shapes: dict[tuple[Any, ...], list[int]] = {}
    for row, lattice in enumerate(lattices):
        shapes.setdefault((lattice.tokens.shape, lattice.transitions is None), []).append(row)
    results: dict[int, T] = {}
    for rows in shapes.values():
        own = [lattices[row] for row in rows]
        tokens, log_probs = np.stack([each.tokens for each in own]), np.stack([each.log_probs for each in own])
        tied = [each.transitions for each in own if each.transitions is not None]
        legal = None if constraints is None else [constraints[row] for row in rows]
        batch = (tokens, log_probs, np.stack(tied) if tied else None, [contexts[row] for row in rows], legal)
        results.update(zip(rows, search(batch), strict=True))
    return [results[row] for row in range(len(lattices))]


def padded_histories(contexts: Sequence[Context]) -> np.ndarray:
    """``[n, c]``, -1 on the left: the ends of the contexts, as long as any n-gram model's history."""
    return padded([np.asarray(context[-MAX_ORDER:], np.int64) for context in contexts], PADDING, left=True)[0]
