"""What is verified: a list of drafts, or a tree of draft prefixes.

A *draft tree* stores every distinct prefix once. Node ``i`` adds ``tokens[i]`` to the prefix of ``parents[i]``; the
root, -1, is the context. Parents come before their children.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Self

import numpy as np

from latticebpd.lattices.pictures import drafts_table, tree_picture
from latticebpd.lattices.sausage import SausageLattice
from latticebpd.lattices.values import ArrayValues, int32, read_only

ROOT = -1
"""Parent of the first drafted tokens."""
Edge = tuple[int, int]  # the parent and the token of a node


@dataclass(frozen=True, eq=False)
class Drafts(ArrayValues):
    """The best paths of a lattice, best first; read-only arrays.

    tokens: ``[p, slots]`` int32, rows distinct.
    scores: ``[p]`` float64, natural log: slot log-probabilities plus ``alpha`` times those of the language model.
    """

    tokens: np.ndarray
    scores: np.ndarray

    def __post_init__(self) -> None:
        tokens, scores = int32("tokens", self.tokens), np.asarray(self.scores, np.float64)
        if tokens.ndim != 2 or scores.shape != tokens.shape[:1]:
            raise ValueError(f"expected tokens [p, slots] and scores [p], got {tokens.shape} and {scores.shape}")
        self._assign(tokens=tokens, scores=read_only(scores))

    def __len__(self) -> int:
        return int(self.tokens.shape[0])

    def _repr_html_(self) -> str:
        """For notebooks, tokens as numbers; `latticebpd.show` has words."""
        return drafts_table(self)


@dataclass(frozen=True, eq=False)
class DraftTree(ArrayValues):
    """Distinct draft prefixes; read-only arrays.

    tokens: ``[n]`` int32.
    parents: ``[n]`` int32, ``parents[i] < i``; -1 is the root. Siblings carry distinct tokens.
    log_probs: ``[n]`` float64, natural log of the drafter's probability of the node's full prefix, or None.
    lattice: what the prefixes were drawn from, for inspecting a decode, or None.
    """

    tokens: np.ndarray
    parents: np.ndarray
    log_probs: np.ndarray | None = None
    lattice: SausageLattice | None = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        tokens, parents = int32("tokens", self.tokens), int32("parents", self.parents)
        log_probs = None if self.log_probs is None else read_only(np.asarray(self.log_probs, np.float64))
        if tokens.ndim != 1 or tokens.shape != parents.shape:
            raise ValueError(f"expected tokens [n] and parents [n], got {tokens.shape} and {parents.shape}")
        if log_probs is not None and log_probs.shape != tokens.shape:
            raise ValueError(f"expected log_probs [{len(tokens)}], one for each node, got {log_probs.shape}")
        if (tokens < 0).any():
            raise ValueError(f"expected token ids >= 0, got {int(tokens.min())}")
        wrong = (parents < ROOT) | (parents >= np.arange(len(parents)))
        if wrong.any():
            node = int(np.argmax(wrong))
            expected = f"expected a parent from -1 to {node - 1} (parents come first)"
            raise ValueError(f"node {node}: {expected}, got {int(parents[node])}")
        if len(set(zip(parents.tolist(), tokens.tolist(), strict=True))) != len(tokens):
            raise ValueError("expected siblings with distinct tokens, got the same token twice under one parent")
        self._assign(tokens=tokens, parents=parents, log_probs=log_probs)

    @classmethod
    def trusted(
        cls, tokens: np.ndarray, parents: np.ndarray, log_probs: np.ndarray | None, lattice: SausageLattice | None
    ) -> Self:
        """A tree of arrays that are known to be valid, of the types above: without checks."""
        tree, weights = object.__new__(cls), None if log_probs is None else read_only(log_probs)
        tree._assign(tokens=read_only(tokens), parents=read_only(parents), log_probs=weights, lattice=lattice)
        return tree

    @classmethod
    def from_paths(
        cls, paths: Sequence[Sequence[int]] | np.ndarray, lattice: SausageLattice | None = None
    ) -> DraftTree:
        """The trie of drafts, in order of first appearance; -1 ends a draft early."""
        nodes: dict[Edge, int] = {}
        for path in paths.tolist() if isinstance(paths, np.ndarray) else paths:
            node = ROOT
            for token in path:
                if token < 0:
                    break
                node = nodes.setdefault((node, token), len(nodes))
        return cls.of_edges(nodes, lattice=lattice)

    @classmethod
    def of_edges(
        cls, edges: Collection[Edge], log_probs: np.ndarray | None = None, lattice: SausageLattice | None = None
    ) -> DraftTree:
        """The tree of the nodes with these parents and tokens."""
        tokens, parents = np.array([token for _, token in edges]), np.array([parent for parent, _ in edges])
        return cls(tokens, parents, log_probs, lattice)

    @classmethod
    @lru_cache(maxsize=1)
    def empty(cls) -> DraftTree:
        """The tree that drafts nothing: plain greedy decoding."""
        return cls.from_paths([])

    def __len__(self) -> int:
        return len(self.tokens)

    def _repr_svg_(self) -> str:
        """For notebooks, tokens as numbers; `latticebpd.show` has words."""
        return tree_picture(self)

    @cached_property
    def edges(self) -> dict[Edge, int]:
        """Parent and token of each node -> the node."""
        return {edge: i for i, edge in enumerate(zip(self.parents.tolist(), self.tokens.tolist(), strict=True))}

    @cached_property
    def depths(self) -> np.ndarray:
        """``[n]`` number of drafted tokens up to and including each node, from 1."""
        depths = [0] * (len(self) + 1)  # the last entry is the root's, reached as index -1
        for node, parent in enumerate(self.parents.tolist()):
            depths[node] = depths[parent] + 1
        return np.array(depths[:-1], dtype=np.int64)

    @cached_property
    def ancestors(self) -> np.ndarray:
        """``[n, n]`` bool: whether the column's node is the row's node or one of its ancestors."""
        mask = np.eye(len(self), dtype=bool)
        above = self.parents
        while (below := np.flatnonzero(above != ROOT)).size:  # one level of the tree per round
            mask[below, above[below]] = True
            above = np.where(above == ROOT, ROOT, self.parents[above])
        return mask

    def children(self, node: int) -> np.ndarray:
        """The child nodes of ``node``, in order."""
        return np.flatnonzero(self.parents == node)

    def path(self, node: int) -> list[int]:
        """The nodes from the root's child down to ``node``."""
        nodes = []
        while node != ROOT:
            nodes.append(node)
            node = int(self.parents[node])
        return nodes[::-1]

    def pruned(self, max_depth: int) -> DraftTree:
        """The tree without the nodes deeper than ``max_depth``."""
        return self if len(self) <= max_depth else self.subtree(self.depths <= max_depth)

    def first(self, num_nodes: int | None) -> DraftTree:
        """The tree of the first ``num_nodes`` nodes; None keeps all."""
        return self if num_nodes is None else self.subtree(np.arange(len(self)) < num_nodes)

    def subtree(self, keep: np.ndarray) -> DraftTree:
        """The tree of some nodes.  keep: ``[n]`` bool, with every node its ancestors."""
        if keep.all():
            return self
        new_index = np.append(np.cumsum(keep, dtype=np.int32) - 1, np.int32(ROOT))
        log_probs = None if self.log_probs is None else self.log_probs[keep]
        return DraftTree.trusted(self.tokens[keep], new_index[self.parents[keep]], log_probs, self.lattice)
