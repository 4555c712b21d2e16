"""Searching lattices with a model that is asked about many prefixes at a time, of all lattices together.

An *entry* is a prefix of a path of one of the lattices. Beams and trees hold all entries of a level, of all lattices,
as arrays. All searches take ``texts``, what stands before each lattice, and agree with ``fst.search`` in what they rank
and how they break ties.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from latticebpd.lattices.drafts import ROOT, Drafts, DraftTree
from latticebpd.lattices.sausage import PADDING, SausageLattice
from latticebpd.scoring.neural.candidate_scores import Outputs, log_norms
from latticebpd.scoring.neural.prefix_reader import Reader


@dataclass(frozen=True, eq=False)
class Arcs:
    """Lattices side by side. tokens: ``[n, slots, k]``, -1 pads. weights: ``[n, slots, k]`` natural log, -inf where no
    arc is.
    lengths: ``[n]`` slots of each."""

    tokens: np.ndarray
    weights: np.ndarray
    lengths: np.ndarray

    @classmethod
    def of(cls, lattices: Sequence[SausageLattice]) -> Arcs:
        slots, k = max(lattice.slots for lattice in lattices), max(lattice.k for lattice in lattices)
        tokens = np.full((len(lattices), slots, k), PADDING, dtype=np.int64)
        weights = np.full(tokens.shape, -np.inf)
        for row, lattice in enumerate(lattices):
            tokens[row, : lattice.slots, : lattice.k] = lattice.tokens
            weights[row, : lattice.slots, : lattice.k] = np.where(lattice.tokens == PADDING, -np.inf, lattice.log_probs)
        return cls(tokens, weights, np.array([lattice.slots for lattice in lattices]))


def greedy_paths(reader: Reader, texts: Sequence[np.ndarray], arcs: Arcs, alpha: float) -> list[Drafts]:
    """Of every lattice the one path that Algorithm 2 of Kim 2024 chooses, slot by slot, in fewer passes than slots.

    Each pass reads a guess at the whole path, at first the lattice's best arcs, and says what the algorithm chooses
    behind every prefix of the guess. Up to the first slot where that is something else, it is what the algorithm
    chooses behind its own choices; from there on it is the next guess.
    """
    rows, slots = arcs.tokens.shape[:2]
    guess = _best_arc(arcs.weights, arcs.tokens)[1].clip(min=0)
    settled, score = np.zeros(rows, dtype=np.int64), np.zeros(rows)
    levels: list[tuple[np.ndarray, Outputs]] = []
    while (settled < arcs.lengths).any():
        open_ = settled < arcs.lengths
        width = int((arcs.lengths - settled)[open_].max())
        behind = [np.concatenate([text, guess[row, : settled[row] * open_[row]]]) for row, text in enumerate(texts)]
        place = settled[:, None] + np.arange(width)  # the slots that the outputs of each row are about
        asked = open_[:, None] & (place < arcs.lengths[:, None])
        ahead = np.take_along_axis(guess, np.minimum(place, slots - 1), axis=1)
        outputs = reader.read(behind, ahead[:, :-1] if width > 1 else None)
        row, column = np.nonzero(asked)
        slot = place[row, column]
        said = outputs.at(np.flatnonzero(asked)).scores(arcs.tokens[row, slot])
        value, chosen = _best_arc(arcs.weights[row, slot] + alpha * said, arcs.tokens[row, slot])
        agrees = np.zeros(asked.shape, dtype=bool)
        agrees[row, column] = chosen == guess[row, slot]
        right = np.cumprod(agrees, axis=1).sum(axis=1)
        certain = column <= right[row]
        levels.append((row[certain], outputs.at(np.flatnonzero(asked)[certain])))
        np.add.at(score, row[certain], value[certain])
        guess[row, slot] = chosen
        settled = np.where(open_, np.minimum(settled + right + 1, arcs.lengths), settled)
    for (row, _), norms in zip(levels, log_norms([level for _, level in levels]) if levels else [], strict=True):
        np.add.at(score, row, -alpha * norms)
    return [
        Drafts(guess[row : row + 1, :length].astype(np.int32), score[row : row + 1])
        for row, length in enumerate(arcs.lengths.tolist())
    ]


def best_paths(reader: Reader, texts: Sequence[np.ndarray], arcs: Arcs, width: int, alpha: float) -> list[Drafts]:
    """Beam search: of every lattice, the ``width`` best prefixes of each length, and so at most ``width`` paths.

    The paths are the best of all where no level has more prefixes than ``width``.
    """
    outputs, number = reader.read(texts), 0
    row, above, score = np.arange(len(texts)), np.full(len(texts), ROOT), np.zeros(len(texts))
    path = np.empty((len(row), 0), dtype=np.int64)
    found: list[Drafts] = [Drafts(np.empty((1, 0), np.int32), np.zeros(1))] * len(texts)
    for slot in range(int(arcs.lengths.max())):
        tokens = arcs.tokens[row, slot]
        longer = score[:, None] + arcs.weights[row, slot] + alpha * outputs.log_probs(tokens)
        entry, arc = np.nonzero(longer > -np.inf)
        row, above, score = row[entry], above[entry], longer[entry, arc]
        path = np.concatenate([path[entry], tokens[entry, arc][:, None]], axis=1)
        best = _best_of_rows(row, score, path, width)
        row, above, score, path = row[best], above[best], score[best], path[best]
        for complete in np.unique(row[arcs.lengths[row] == slot + 1]).tolist():
            found[complete] = Drafts(path[row == complete].astype(np.int32), score[row == complete])
        open_ = arcs.lengths[row] > slot + 1
        if not open_.any():
            break
        row, above, score, path = row[open_], above[open_], score[open_], path[open_]
        outputs = reader.grow(row, above, path[:, -1])
        above, number = number + np.arange(len(row)), number + len(row)
    return found


def best_trees(
    reader: Reader, texts: Sequence[np.ndarray], arcs: Arcs, num_nodes: int, alpha: float
) -> list[DraftTree]:
    """Of every lattice, exactly the ``num_nodes`` most probable prefixes, as ``latticebpd.draft_tree`` defines them.

    Weights fall along a path, so a prefix outside of the ``num_nodes`` best of those known so far can neither come back
    nor have descendants that do: each level reads just those of its prefixes that are among the best of all levels.
    """
    outputs, number = reader.read(texts), 0
    rows, slots = arcs.tokens.shape[:2]
    parent_row, above, parent_weight = np.arange(rows), np.full(rows, ROOT), np.zeros(rows)
    parent_path = np.full((rows, slots), PADDING, dtype=np.int64)
    row, weight, path = parent_row[:0], parent_weight[:0], parent_path[:0]
    parent = above[:0]  # the reader's number of each prefix but its last token
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
        open_ = (path[:, slot] != PADDING) & (arcs.lengths[row] > slot + 1)
        if not open_.any():
            break
        parent_row, parent_weight, parent_path = row[open_], weight[open_], path[open_]
        outputs = reader.grow(parent_row, parent[open_], parent_path[:, slot])
        above, number = number + np.arange(len(parent_row)), number + len(parent_row)
    return [_tree(path[row == each], weight[row == each]) for each in range(rows)]


def _best_of_rows(row: np.ndarray, score: np.ndarray, path: np.ndarray, count: int) -> np.ndarray:
    """Indices of the ``count`` best entries of every row: by falling score, then by rising tokens, a prefix before its
    continuations."""
    order = np.lexsort((*path.T[::-1], -score, row))
    ordered = row[order]
    first = np.searchsorted(ordered, ordered)  # where each one's row begins
    best: np.ndarray = order[np.arange(len(order)) - first < count]
    return best


def _best_arc(weights: np.ndarray, tokens: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """``[..., k]`` -> ``[...]`` the greatest weight, and its token; of equal ones the lowest."""
    best = weights.max(axis=-1, keepdims=True)
    return best[..., 0], np.where(weights == best, tokens, np.iinfo(np.int64).max).min(axis=-1)


def _tree(paths: np.ndarray, weights: np.ndarray) -> DraftTree:
    """The tree of prefixes that stand in order, every one behind the prefix that it continues."""
    nodes: dict[tuple[int, ...], int] = {(): ROOT}
    tokens, parents = [], []
    for node, padded in enumerate(paths.tolist()):
        prefix = tuple(token for token in padded if token != PADDING)
        nodes[prefix] = node
        tokens.append(prefix[-1])
        parents.append(nodes[prefix[:-1]])
    return DraftTree(np.array(tokens, dtype=np.int32), np.array(parents, dtype=np.int32), weights)
