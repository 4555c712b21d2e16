"""Searches of many lattices at a time with a neural model, which scores all prefixes of a level in one pass.

Arrays hold the prefixes of a level, of all lattices: ``row`` is each prefix's lattice, ``number`` the count of those
that the reader has read. ``texts`` precede the lattices. Rankings and ties are as in ``fst.search``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from latticebpd.lattices.drafts import ROOT, Drafts, DraftTree
from latticebpd.lattices.sausage import PADDING, SausageLattice, best_tokens
from latticebpd.scoring.neural.prefix_reader import Outputs, Reader, index_in_group, log_norms


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
    guess = best_tokens(arcs.tokens, arcs.weights).clip(min=0)
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
        chosen = best_tokens(arcs.tokens[row, slot], weights)
        agrees = np.zeros(asked.shape, dtype=bool)
        agrees[row, column] = chosen == guess[row, slot]
        agreed = np.cumprod(agrees, axis=1).sum(axis=1)
        final = column <= agreed[row]
        levels.append((row[final], outputs.at(np.flatnonzero(final))))
        np.add.at(score, row[final], weights.max(axis=-1)[final])
        guess[row, slot] = chosen
        settled = np.minimum(settled + agreed + 1, arcs.lengths)
    for (row, _), norms in zip(levels, log_norms([outputs for _, outputs in levels]), strict=True):
        np.add.at(score, row, -alpha * norms)
    return [Drafts(guess[i : i + 1, :length], score[i : i + 1]) for i, length in enumerate(arcs.lengths.tolist())]


def best_paths(reader: Reader, texts: Sequence[np.ndarray], arcs: Arcs, width: int, alpha: float) -> list[Drafts]:
    """Beam search: for every lattice the ``width`` best prefixes of each length, and so at most ``width`` paths, which
    are the best of all paths if no level has more prefixes."""
    prefixes = _best_prefixes(reader, texts, arcs, width, alpha, complete=True)
    lengths = arcs.lengths.tolist()
    return [Drafts(path[:, :length], weight) for (path, weight), length in zip(prefixes, lengths, strict=True)]


def best_trees(
    reader: Reader, texts: Sequence[np.ndarray], arcs: Arcs, num_nodes: int, alpha: float
) -> list[DraftTree]:
    """For every lattice the exact ``num_nodes`` most probable prefixes, as ``latticebpd.draft_tree`` defines them.

    Weights fall along a path, so a prefix that is not among the ``num_nodes`` best so far never will be, nor will its
    descendants: each level reads only those of its prefixes that are among the best of all levels.
    """
    prefixes = _best_prefixes(reader, texts, arcs, num_nodes, alpha, complete=False)
    # In the order of weights a prefix comes before those that continue it: nodes are in the order of paths.
    return [replace(DraftTree.from_paths(path), log_probs=weight) for path, weight in prefixes]


def _best_prefixes(
    reader: Reader, texts: Sequence[np.ndarray], arcs: Arcs, count: int, alpha: float, complete: bool
) -> list[tuple[np.ndarray, np.ndarray]]:
    """For every lattice the tokens ``[n, slots]``, -1 after a prefix's end, and weights of at most ``count`` prefixes.

    complete: full paths, by their scores; else prefixes of all lengths, by their probabilities.
    """
    rows, slots = arcs.tokens.shape[:2]
    outputs, num_read = reader.read(texts), 0
    # Of the prefixes read last: their lattices, the reader's numbers, weights and tokens.
    read: tuple[np.ndarray, ...]
    pool: tuple[np.ndarray, ...]
    read = (np.arange(rows), np.full(rows, ROOT), np.zeros(rows), np.full((rows, slots), PADDING))
    pool = tuple(array[:0] for array in read)  # the same of all prefixes so far, but their parents' numbers
    for slot in range(slots):
        row, number, weight, path = read
        tokens = arcs.tokens[row, slot]
        if complete:
            values = arcs.weights[row, slot] + alpha * outputs.log_probs(tokens)
            pool = tuple(array[arcs.lengths[pool[0]] <= slot] for array in pool)
        else:
            values = arcs.weights[row, slot] + alpha * outputs.scores(tokens)
            values -= np.logaddexp.reduce(values, axis=1, keepdims=True)
            values = np.minimum(values, 0.0)  # rounding must not put a child before its parent
        entry, arc = np.nonzero(values > -np.inf)
        path = path[entry]
        path[:, slot] = tokens[entry, arc]
        grown = (row[entry], number[entry], weight[entry] + values[entry, arc], path)
        pool = tuple(map(np.concatenate, zip(pool, grown, strict=True)))
        best = _best_of_rows(pool[0], pool[2], pool[3], count)
        row, parent, weight, path = pool = tuple(array[best] for array in pool)
        going_on = (path[:, slot] != PADDING) & (arcs.lengths[row] > slot + 1)
        if not going_on.any():
            break
        row, weight, path = row[going_on], weight[going_on], path[going_on]
        outputs = reader.grow(row, parent[going_on], path[:, slot])
        read, num_read = (row, num_read + np.arange(len(row)), weight, path), num_read + len(row)
    row, _, weight, path = pool
    return [(path[row == each], weight[row == each]) for each in range(rows)]


def _best_of_rows(row: np.ndarray, score: np.ndarray, path: np.ndarray, count: int) -> np.ndarray:
    """Indices of the ``count`` best prefixes of every row: by falling score, then by rising tokens, shorter first."""
    order = np.lexsort((*path.T[::-1], -score, row))
    return order[index_in_group(row[order]) < count]
