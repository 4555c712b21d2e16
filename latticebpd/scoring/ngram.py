"""Scoring with an n-gram model (Kim 2024, section 7.2): exact searches, in the compiled core of ``fst``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

import fst
from fst.automaton import MAX_ORDER
from latticebpd.lattices.drafts import Drafts, DraftTree
from latticebpd.lattices.lattice_set import LatticeSet
from latticebpd.lattices.sausage import PADDING, SausageLattice
from latticebpd.scoring.scorer import Context
from latticebpd.scoring.weights import checked_alpha


@dataclass(frozen=True, eq=False)
class NgramScorer:
    """Exact search over lattice and n-gram model; without a model, over the lattice alone (the paper's 0-gram)."""

    lm: fst.NgramModel | None
    alpha: float = 1.0

    def __post_init__(self) -> None:
        checked_alpha(self.alpha)

    def with_alpha(self, alpha: float) -> NgramScorer:
        return replace(self, alpha=alpha)

    def paths(self, lattices: Sequence[SausageLattice], contexts: Sequence[Context], p: int) -> list[Drafts]:
        found: dict[int, Drafts] = {}
        for rows, tokens, log_probs, transitions in batches_of_one_shape(lattices):
            histories = padded_histories([contexts[row] for row in rows])
            paths, scores, counts = fst.nbest_paths_batch(
                tokens, log_probs, self.lm, p, self.alpha, histories, transitions=transitions
            )
            for i, (row, count) in enumerate(zip(rows, counts.tolist(), strict=True)):
                found[row] = Drafts(paths[i, :count], scores[i, :count])
        return [found[row] for row in range(len(lattices))]

    def trees(self, lattices: Sequence[SausageLattice], contexts: Sequence[Context], num_nodes: int) -> list[DraftTree]:
        found: dict[int, DraftTree] = {}
        for rows, tokens, log_probs, transitions in batches_of_one_shape(lattices):
            histories = padded_histories([contexts[row] for row in rows])
            batch = fst.best_first_tree_batch(
                tokens, log_probs, self.lm, num_nodes, self.alpha, histories, transitions=transitions
            )
            nodes, parents, weights, counts = batch
            for i, (row, count) in enumerate(zip(rows, counts.tolist(), strict=True)):
                found[row] = DraftTree(nodes[i, :count], parents[i, :count], weights[i, :count], lattices[row])
        return [found[row] for row in range(len(lattices))]

    def path_arrays(self, lattices: LatticeSet, p: int, threads: int | None = None) -> tuple[np.ndarray, np.ndarray]:
        """``paths`` of stored lattices as arrays: ``[n, p, slots]`` tokens and ``[n]`` how many paths there are."""
        arguments = (lattices.tokens, lattices.log_probs, self.lm, p, self.alpha)
        paths, _, counts = fst.nbest_paths_batch(*arguments, lattices.context, threads, lattices.transitions)
        return paths, counts

    def tree_arrays(
        self, lattices: LatticeSet, num_nodes: int, threads: int | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """``trees`` of stored lattices as arrays: ``[n, nodes]`` tokens and parents, -1 behind the last."""
        arguments = (lattices.tokens, lattices.log_probs, self.lm, num_nodes, self.alpha)
        tokens, parents, _, _ = fst.best_first_tree_batch(*arguments, lattices.context, threads, lattices.transitions)
        return tokens, parents

    def check_vocabulary(self, fingerprint: str | None, vocab_size: int | None, owner: str) -> None:
        """Refuse to score for a model of another vocabulary; what is None is unknown."""
        if self.lm is None:
            return
        if fingerprint and self.lm.fingerprint and fingerprint != self.lm.fingerprint:
            raise ValueError(
                f"expected an n-gram model over the vocabulary of {owner} ({fingerprint}), got one over"
                f" {self.lm.fingerprint}; train one on text encoded with the same tokenizer"
            )
        if self.lm.own_ids:
            raise ValueError(
                f"expected an n-gram model over the token ids of {owner}, got one over {self.lm.vocab_size} words of"
                " its own; train one on text encoded with the same tokenizer, or read its ARPA file by"
                " fst.NgramModel.from_arpa(path, vocab={word: id})"
            )
        if vocab_size is not None and self.lm.vocab_size > vocab_size:
            raise ValueError(
                f"expected an n-gram model over at most {vocab_size} tokens (the vocabulary of {owner}), got one over "
                f"{self.lm.vocab_size}; train one on text encoded with the same tokenizer"
            )


def batches_of_one_shape(
    lattices: Sequence[SausageLattice],
) -> Iterator[tuple[list[int], np.ndarray, np.ndarray, np.ndarray | None]]:
    """The lattices of each shape, with transitions and without: their indices, tokens and log-probabilities ``[rows,
    slots, k]``, and transitions ``[rows, slots - 1, k, k]``."""
    shapes: dict[tuple[Any, ...], list[int]] = {}
    for row, lattice in enumerate(lattices):
        shapes.setdefault((lattice.tokens.shape, lattice.transitions is None), []).append(row)
    for rows in shapes.values():
        tokens, log_probs = (
            np.stack([lattices[row].tokens for row in rows]),
            np.stack([lattices[row].log_probs for row in rows]),
        )
        transitions = [gains for row in rows if (gains := lattices[row].transitions) is not None]
        yield rows, tokens, log_probs, np.stack(transitions) if transitions else None


def padded_histories(contexts: Sequence[Context]) -> np.ndarray:
    """``[n, c]``, -1 on the left: as much of the contexts as any n-gram model can look back on."""
    histories = [np.asarray(context[-MAX_ORDER:], np.int64) for context in contexts]
    found = np.full((len(histories), max(map(len, histories))), PADDING, np.int64)
    for row, history in zip(found, histories, strict=True):
        row[len(row) - len(history) :] = history
    return found
