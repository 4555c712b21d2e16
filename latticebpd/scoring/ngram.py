"""Scoring with an n-gram model (Kim 2024, section 7.2): exact searches, in the compiled core of ``fst``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

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
        for rows in _of_one_shape(lattices):
            arrays = _stacked([lattices[row] for row in rows])
            paths, scores, counts = fst.nbest_paths_batch(*arrays, self.lm, p, self.alpha, _padded([contexts[row] for row in rows]))
            for i, (row, count) in enumerate(zip(rows, counts.tolist(), strict=True)):
                found[row] = Drafts(paths[i, :count], scores[i, :count])
        return [found[row] for row in range(len(lattices))]

    def trees(self, lattices: Sequence[SausageLattice], contexts: Sequence[Context], num_nodes: int) -> list[DraftTree]:
        found: dict[int, DraftTree] = {}
        for rows in _of_one_shape(lattices):
            arrays = _stacked([lattices[row] for row in rows])
            tokens, parents, log_probs, counts = fst.best_first_tree_batch(
                *arrays, self.lm, num_nodes, self.alpha, _padded([contexts[row] for row in rows])
            )
            for i, (row, count) in enumerate(zip(rows, counts.tolist(), strict=True)):
                found[row] = DraftTree(tokens[i, :count], parents[i, :count], log_probs[i, :count], lattices[row])
        return [found[row] for row in range(len(lattices))]

    def path_arrays(self, lattices: LatticeSet, p: int, threads: int | None = None) -> tuple[np.ndarray, np.ndarray]:
        """``paths`` of stored lattices as arrays: ``[n, p, slots]`` tokens and ``[n]`` how many paths there are."""
        arguments = (lattices.tokens, lattices.log_probs, self.lm, p, self.alpha)
        paths, _, counts = fst.nbest_paths_batch(*arguments, contexts=lattices.context, threads=threads)
        return paths, counts

    def tree_arrays(self, lattices: LatticeSet, num_nodes: int, threads: int | None = None) -> tuple[np.ndarray, np.ndarray]:
        """``trees`` of stored lattices as arrays: ``[n, nodes]`` tokens and parents, -1 behind the last."""
        arguments = (lattices.tokens, lattices.log_probs, self.lm, num_nodes, self.alpha)
        tokens, parents, _, _ = fst.best_first_tree_batch(*arguments, contexts=lattices.context, threads=threads)
        return tokens, parents

    def check_vocabulary(self, fingerprint: str | None, vocab_size: int | None, owner: str) -> None:
        """Refuse to score for a model of another vocabulary; what is None is unknown."""
        if self.lm is None:
            return
        if fingerprint and self.lm.fingerprint and fingerprint != self.lm.fingerprint:
            raise ValueError(
                f"expected an n-gram model over the vocabulary of {owner} ({fingerprint}), got one over {self.lm.fingerprint}; "
                "train one on text encoded with the same tokenizer"
            )
        if self.lm.own_ids:
            raise ValueError(
                f"expected an n-gram model over the token ids of {owner}, got one over {self.lm.vocab_size} words of its own; train one on "
                "text encoded with the same tokenizer, or read its ARPA file by fst.NgramModel.from_arpa(path, vocab={word: id})"
            )
        if vocab_size is not None and self.lm.vocab_size > vocab_size:
            raise ValueError(
                f"expected an n-gram model over at most {vocab_size} tokens (the vocabulary of {owner}), got one over "
                f"{self.lm.vocab_size}; train one on text encoded with the same tokenizer"
            )


def _of_one_shape(lattices: Sequence[SausageLattice]) -> list[list[int]]:
    """The lattices' indices, those of one shape together."""
    rows: dict[tuple[int, ...], list[int]] = {}
    for row, lattice in enumerate(lattices):
        rows.setdefault(lattice.tokens.shape, []).append(row)
    return list(rows.values())


def _stacked(lattices: Sequence[SausageLattice]) -> tuple[np.ndarray, np.ndarray]:
    return np.stack([lattice.tokens for lattice in lattices]), np.stack([lattice.log_probs for lattice in lattices])


def _padded(contexts: Sequence[Context]) -> np.ndarray:
    """``[n, c]``, -1 on the left: as much of the contexts as any n-gram model can look back on."""
    histories = [[int(token) for token in context[-MAX_ORDER:]] for context in contexts]
    width = max(map(len, histories))
    return np.array([[PADDING] * (width - len(history)) + history for history in histories], dtype=np.int64).reshape(len(histories), width)
