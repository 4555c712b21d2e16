"""Drafting systems as functions of lattices: what each would have had accepted, and at what cost.

A system is named as people say it::

    vanilla             the best token of every slot (Stern 2018)
    16-best             the 16 best rescored paths (Kim 2024, section 7.2); any number
    64-tree             the best prefix tree of 64 nodes; any number
    16-best:0-gram      the same without the language model; so for trees
    16-best:NAME        the same with the language model of that name, where several are compared
    oracle              the lattice's best path in hindsight

Lengths are those of exact verification on the base model's own text, which the lattices carry.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

import fst
from latticebpd.analysis.oracle import lengths_of, ranks
from latticebpd.lattices.lattice_set import LatticeSet
from latticebpd.lattices.sausage import PADDING
from latticebpd.scoring.rescoring import LanguageModel, NgramRescorer, Rescorer, as_rescorer, draft_tree_batch, rescore_batch, weight_of

VANILLA, ORACLE, NO_MODEL = "vanilla", "oracle", "0-gram"
_PATTERN = re.compile(r"([1-9][0-9]{0,5})-(best|tree)(?::(.+))?")

Models: TypeAlias = "LanguageModel | Mapping[str, LanguageModel]"
"""One language model, or several by name; the first is that of systems that name none."""
Weights: TypeAlias = float | Mapping[str, float | None] | None
"""The weight of all language models, or of each by name; None stands for the one that is stored with the model, else 1."""


@dataclass(frozen=True, eq=False)
class Outcome:
    """Of every lattice: lengths ``[n]`` accepted drafted tokens; nodes ``[n]`` verified tokens; first ``[n, slots]`` the first
    draft, -1 where a tree has none of that depth."""

    lengths: np.ndarray
    nodes: np.ndarray
    first: np.ndarray


@dataclass(frozen=True)
class System:
    """A system with everything it needs.

    kind: vanilla, oracle, best or tree.  size: paths or nodes.  rescorer, alpha: its language model, and its weight.
    """

    name: str
    kind: str
    size: int = 0
    rescorer: Rescorer | None = None
    alpha: float = 1.0

    @classmethod
    def named(cls, name: str, lm: Models = None, alpha: Weights = None) -> System:
        """The system of that name.

        Raises:
            ValueError: a name that is no system's, or one of a language model that is not among ``lm``.
        """
        if name in (VANILLA, ORACLE):
            return cls(name, name)
        match = _PATTERN.fullmatch(name)
        if match is None:
            raise ValueError(
                f"expected vanilla, oracle, P-best or N-tree, perhaps with :0-gram or a language model's name behind, "
                f"such as 16-best:0-gram, got {name!r}"
            )
        models = lm if isinstance(lm, Mapping) else {"": lm}
        wanted = match[3] if match[3] is not None else next(iter(models), NO_MODEL)
        if wanted != NO_MODEL and wanted not in models:
            raise ValueError(f"{name}: expected a language model among {', '.join([NO_MODEL, *filter(None, models)])}, got {wanted!r}")
        weight = alpha.get(wanted) if isinstance(alpha, Mapping) else alpha
        rescorer = as_rescorer(None if wanted == NO_MODEL else models[wanted])
        return cls(name, match[2], int(match[1]), rescorer, weight_of(rescorer, weight))

    def run(self, lattices: LatticeSet, threads: int | None = None) -> Outcome:
        """Draft every lattice and verify the drafts against the continuation; ``threads`` does not change the result."""
        n, slots, _ = lattices.tokens.shape
        if self.kind == ORACLE:
            lengths = lengths_of(ranks(lattices), lattices.tokens.shape[2])
            path = np.where(np.arange(slots) < lengths[:, None], lattices.continuation, _best_tokens(lattices))
            return Outcome(lengths, np.full(n, slots), path)
        if self.kind == VANILLA:
            path = _best_tokens(lattices)
            return Outcome(_agreement(path, lattices.continuation), np.full(n, slots), path)
        if self.kind == "best":
            return _of_paths(*self._paths(lattices, threads), lattices.continuation)
        return _of_trees(*self._trees(lattices, threads), lattices.continuation)

    def _paths(self, lattices: LatticeSet, threads: int | None) -> tuple[np.ndarray, np.ndarray]:
        """``[n, p, slots]`` paths, best first, and ``[n]`` how many there are."""
        if isinstance(self.rescorer, NgramRescorer):
            arguments = (lattices.tokens, lattices.log_probs, self.rescorer.lm, self.size, self.alpha)
            paths, _, counts = fst.nbest_paths_batch(*arguments, contexts=lattices.context, threads=threads)
            return paths, counts
        drafts = [found.tokens for found in rescore_batch(*self._one_by_one(lattices))]
        return _stacked(drafts, (lattices.tokens.shape[1],)), np.array([len(rows) for rows in drafts], np.int64)

    def _trees(self, lattices: LatticeSet, threads: int | None) -> tuple[np.ndarray, np.ndarray]:
        """``[n, nodes]`` tokens and parents."""
        if isinstance(self.rescorer, NgramRescorer):
            arguments = (lattices.tokens, lattices.log_probs, self.rescorer.lm, self.size, self.alpha)
            tokens, parents, _, _ = fst.best_first_tree_batch(*arguments, contexts=lattices.context, threads=threads)
            return tokens, parents
        trees = draft_tree_batch(*self._one_by_one(lattices))
        return _stacked([tree.tokens for tree in trees], ()), _stacked([tree.parents for tree in trees], ())

    def _one_by_one(self, lattices: LatticeSet) -> tuple[Any, ...]:
        contexts = [lattices.context_of(index) for index in range(len(lattices))]
        return [lattices[index] for index in range(len(lattices))], self.rescorer, self.size, self.alpha, contexts


def run_system(name: str, lattices: LatticeSet, lm: LanguageModel, alpha: float | None = None, threads: int | None = None) -> Outcome:
    """Draft every lattice with the system of that name and verify the drafts against the continuation.

    Args:
        name: see above.
        lattices: with continuations.
        lm: the language model of systems that are not ``:0-gram``.
        alpha: its weight; None takes the one that is stored with it, and 1 where none is.
        threads: for an n-gram model's search, by default one for each processor.
    """
    return System.named(name, lm, alpha).run(lattices, threads)


def _stacked(rows: list[np.ndarray], shape: tuple[int, ...]) -> np.ndarray:
    """``[n, longest, *shape]``: arrays of several lengths, -1 behind the short ones."""
    result = np.full((len(rows), max(map(len, rows), default=0), *shape), PADDING, np.int32)
    for row, values in zip(result, rows, strict=True):
        row[: len(values)] = values
    return result


def _best_tokens(lattices: LatticeSet) -> np.ndarray:
    """``[n, slots]`` the best column of every slot, the first of several."""
    weights = np.where(lattices.tokens == PADDING, -np.inf, lattices.log_probs)
    best: np.ndarray = np.take_along_axis(lattices.tokens, weights.argmax(axis=2)[:, :, None], axis=2)[:, :, 0]
    return best


def _agreement(paths: np.ndarray, continuation: np.ndarray) -> np.ndarray:
    """``[...]`` how many leading tokens of ``paths [..., slots]`` are the continuation's."""
    agreed = (paths == continuation) & (continuation != PADDING)
    lengths: np.ndarray = np.cumprod(agreed, axis=-1, dtype=np.int64).sum(axis=-1)
    return lengths


def _of_paths(paths: np.ndarray, counts: np.ndarray, continuation: np.ndarray) -> Outcome:
    p = paths.shape[1]
    there = np.arange(p) < counts[:, None]
    lengths = np.where(there, _agreement(paths, continuation[:, None, :]), 0).max(axis=1)
    # A path adds the nodes behind what it shares with any path before it.
    nodes = counts.astype(np.int64) * paths.shape[2]
    for row in range(1, p):
        shared = np.logical_and.accumulate(paths[:, :row] == paths[:, row : row + 1], axis=2).sum(axis=2).max(axis=1)
        nodes -= np.where(row < counts, shared, 0)
    return Outcome(lengths, nodes, paths[:, 0])


def _of_trees(tokens: np.ndarray, parents: np.ndarray, continuation: np.ndarray) -> Outcome:
    n, size = tokens.shape
    slots = continuation.shape[1]
    rows = np.arange(n)
    # The last column stands for the root, reached as index -1; parents come before their children.
    depth, right, leads = np.zeros((n, size + 1), np.int64), np.ones((n, size + 1), bool), np.ones((n, size + 1), bool)
    first = np.full((n, slots), PADDING, tokens.dtype)
    for node in range(size):
        parent, there = parents[:, node], tokens[:, node] != PADDING
        depth[:, node] = depth[rows, parent] + 1
        at = np.minimum(depth[:, node], slots) - 1
        wanted = continuation[rows, at]
        right[:, node] = there & right[rows, parent] & (tokens[:, node] == wanted)
        # The first draft goes on with the first child of each node: the best.
        leads[:, node] = there & leads[rows, parent] & (first[rows, at] == PADDING)
        first[rows[leads[:, node]], at[leads[:, node]]] = tokens[leads[:, node], node]
    lengths = np.where(right[:, :size], depth[:, :size], 0).max(axis=1, initial=0)
    return Outcome(lengths, (tokens != PADDING).sum(axis=1), first)
