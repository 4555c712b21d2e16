"""Searches of many lattices at a time with a neural model, which scores all prefixes of a level in one pass.

Beams and trees hold the prefixes of a level, of all lattices, as arrays: ``row`` is each prefix's lattice, ``number`` the
count of those that the reader has read. ``texts`` precede the lattices. Rankings and ties are as in ``fst.search``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from latticebpd.lattices.drafts import ROOT, Drafts, DraftTree
from latticebpd.lattices.sausage import PADDING, SausageLattice
from latticebpd.scoring.neural.candidate_scores import Outputs, log_norms
from latticebpd.scoring.neural.prefix_reader import Reader


@dataclass(frozen=True, eq=False)
class Arcs:
    """Lattices of any shapes, padded to one.

    tokens: ``[n, slots, k]``, -1 pads.  weights: ``[n, slots, k]`` natural log, -inf for padding.
    lengths: ``[n]`` slots of each.
    """

    tokens: np.ndarray
    weights: np.ndarray
    lengths: np.ndarray

    @classmethod
    def of(cls, lattices: Sequence[SausageLattice]) -> Arcs:
        shape = (len(lattices), max(lattice.slots for lattice in lattices), max(lattice.k for lattice in lattices))
        tokens, weights = np.full(shape, PADDING, dtype=np.int64), np.full(shape, -np.inf)
        for row, lattice in enumerate(lattices):
            tokens[row, : lattice.slots, : lattice.k] = lattice.tokens
            weights[row, : lattice.slots, : lattice.k] = lattice.log_probs
        weights[tokens == PADDING] = -np.inf
        return cls(tokens, weights, np.array([lattice.slots for lattice in lattices]))


def greedy_paths(reader: Reader, texts: Sequence[np.ndarray], arcs: Arcs, alpha: float) -> list[Drafts]:
    """For every lattice the path of Kim 2024, Algorithm 2: slot by slot the best arc, in fewer passes than slots.

    Each pass reads a guess at the full path, first the lattice's best arcs, and finds the algorithm's choice after
    every prefix of the guess. Up to and including the first choice that differs from the guess, choices are final; the
    rest are the next guess.
    """
    rows, slots = arcs.tokens.shape[:2]
    guess = _best_arc(arcs.weights, arcs.tokens)[1].clip(min=0)
    settled, score = np.zeros(rows, dtype=np.int64), np.zeros(rows)
    levels: list[tuple[np.ndarray, Outputs]] = []
    while (settled < arcs.lengths).any():
        unsettled = settled < arcs.lengths
        width = int((arcs.lengths - settled).max())
        prefixes = [np.concatenate([text, guess[i, : settled[i] * unsettled[i]]]) for i, text in enumerate(texts)]
        slot = settled[:, None] + np.arange(width)  # [rows, width], of each of a row's outputs
        asked = slot < arcs.lengths[:, None]
        ahead = np.take_along_axis(guess, np.minimum(slot, slots - 1), axis=1)
        outputs = reader.read(prefixes, ahead[:, :-1] if width > 1 else None).at(np.flatnonzero(asked))
        row, column = np.nonzero(asked)
        slot = slot[row, column]
        weights = arcs.weights[row, slot] + alpha * outputs.scores(arcs.tokens[row, slot])
        value, chosen = _best_arc(weights, arcs.tokens[row, slot])
        agrees = np.zeros(asked.shape, dtype=bool)
        agrees[row, column] = chosen == guess[row, slot]
        agreed = np.cumprod(agrees, axis=1).sum(axis=1)
        final = column <= agreed[row]
        levels.append((row[final], outputs.at(np.flatnonzero(final))))
        np.add.at(score, row[final], value[final])
        guess[row, slot] = chosen
        settled = np.minimum(settled + agreed + 1, arcs.lengths)
    for (row, _), norms in zip(levels, log_norms([outputs for _, outputs in levels]), strict=True):
        np.add.at(score, row, -alpha * norms)
    return [Drafts(guess[i : i + 1, :length], score[i : i + 1]) for i, length in enumerate(arcs.lengths.tolist())]


def best_paths(reader: Reader, texts: Sequence[np.ndarray], arcs: Arcs, width: int, alpha: float) -> list[Drafts]:
    """Beam search: for every lattice the ``width`` best prefixes of each length, and so at most ``width`` paths.

    They are the best of all paths if no level has more prefixes than ``width``.
    """
    outputs, number = reader.read(texts), 0
    row, above, score = np.arange(len(texts)), np.full(len(texts), ROOT), np.zeros(len(texts))
    path = np.empty((len(row), 0), dtype=np.int64)
    paths: list[Drafts] = [Drafts(np.empty((1, 0), np.int32), np.zeros(1))] * len(texts)
    for slot in range(int(arcs.lengths.max())):
        tokens = arcs.tokens[row, slot]
        longer = score[:, None] + arcs.weights[row, slot] + alpha * outputs.log_probs(tokens)
        entry, arc = np.nonzero(longer > -np.inf)
        row, above, score = row[entry], above[entry], longer[entry, arc]
        path = np.concatenate([path[entry], tokens[entry, arc][:, None]], axis=1)
        best = _best_of_rows(row, score, path, width)
        row, above, score, path = row[best], above[best], score[best], path[best]
        for complete in np.unique(row[arcs.lengths[row] == slot + 1]).tolist():
            paths[complete] = Drafts(path[row == complete], score[row == complete])
        going_on = arcs.lengths[row] > slot + 1
        if not going_on.any():
            break
        row, above, score, path = row[going_on], above[going_on], score[going_on], path[going_on]
        outputs = reader.grow(row, above, path[:, -1])
        above, number = number + np.arange(len(row)), number + len(row)
    return paths


def best_trees(
    reader: Reader, texts: Sequence[np.ndarray], arcs: Arcs, num_nodes: int, alpha: float
) -> list[DraftTree]:
    """For every lattice the exact ``num_nodes`` most probable prefixes, as ``latticebpd.draft_tree`` defines them.

    Weights fall along a path, so a prefix that is not among the ``num_nodes`` best so far never will be, nor will its
    descendants: each level reads only those of its prefixes that are among the best of all levels.
    """
    outputs, number = reader.read(texts), 0
    rows, slots = arcs.tokens.shape[:2]
    parent_row, above, parent_weight = np.arange(rows), np.full(rows, ROOT), np.zeros(rows)
    parent_path = np.full((rows, slots), PADDING, dtype=np.int64)
    row, weight, path = parent_row[:0], parent_weight[:0], parent_path[:0]
    parent = above[:0]  # the reader's number of each prefix without its last token
    for slot in range(slots):
        tokens = arcs.tokens[parent_row, slot]
        values = arcs.weights[parent_row, slot] + alpha * outputs.scores(tokens)
        values -= np.logaddexp.reduce(values, axis=1, keepdims=True)
        values = np.minimum(values, 0.0)  # rounding must not put a child before its parent
        entry, arc = np.nonzero(values > -np.inf)
        grown = parent_path[entry]
        grown[:, slot] = tokens[entry, arc]
        row, weight = np.append(row, parent_row[entry]), np.append(weight, parent_weight[entry] + values[entry, arc])
        path, parent = np.concatenate([path, grown]), np.append(parent, above[entry])
        best = _best_of_rows(row, weight, path, num_nodes)
        row, weight, path, parent = row[best], weight[best], path[best], parent[best]
        going_on = (path[:, slot] != PADDING) & (arcs.lengths[row] > slot + 1)
        if not going_on.any():
            break
        parent_row, parent_weight, parent_path = row[going_on], weight[going_on], path[going_on]
        outputs = reader.grow(parent_row, parent[going_on], parent_path[:, slot])
        above, number = number + np.arange(len(parent_row)), number + len(parent_row)
    # In the order of weights a prefix comes before those that continue it: nodes are in the order of ``path``.
    return [replace(DraftTree.from_paths(path[row == i]), log_probs=weight[row == i]) for i in range(rows)]


def _best_of_rows(row: np.ndarray, score: np.ndarray, path: np.ndarray, count: int) -> np.ndarray:
    """Indices of the ``count`` best prefixes of every row: by falling score, then by rising tokens, a prefix before
    those that continue it."""
    order = np.lexsort((*path.T[::-1], -score, row))
    ordered = row[order]
    first = np.searchsorted(ordered, ordered)  # the index at which each one's row begins
    best: np.ndarray = order[np.arange(len(order)) - first < count]
    return best


def _best_arc(weights: np.ndarray, tokens: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """``[..., k]`` -> ``[...]`` the greatest weight, and its token; the lowest token of equal weights."""
    best = weights.max(axis=-1, keepdims=True)
    return best[..., 0], np.where(weights == best, tokens, np.iinfo(np.int64).max).min(axis=-1)
