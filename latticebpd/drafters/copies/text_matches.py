"""Suffix matches in a text, and the draft trees that copies of what followed them make."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from latticebpd.checks import expect
from latticebpd.lattices.drafts import ROOT, DraftTree


class SuffixIndex:
    """Finds where the last tokens of a text occur in an indexed text, and grows with it.

    Every n-gram of up to ``max_length`` tokens is filed under where it ends, so adding a token costs ``max_length``
    entries and a look-up at most ``max_length`` probes, however long the text is.

    max_length: longest match looked for, >= 1.
    max_positions: positions remembered per n-gram, the latest ones, >= 1.
    """

    def __init__(self, max_length: int, max_positions: int) -> None:
        expect(max_length >= 1, "a match of at least one token", f"max_length {max_length}")
        expect(max_positions >= 1, "at least one position per n-gram", f"max_positions {max_positions}")
        self.max_length, self.max_positions = max_length, max_positions
        self.tokens: list[int] = []
        self._positions: dict[tuple[int, ...], list[int]] = {}

    def extend(self, tokens: Sequence[int]) -> None:
        """Append tokens to the indexed text."""
        for token in map(int, tokens):
            self.tokens.append(token)
            end = len(self.tokens)
            for length in range(1, min(self.max_length, end) + 1):
                positions = self._positions.setdefault(tuple(self.tokens[end - length : end]), [])
                positions.append(end)
                if len(positions) > self.max_positions:
                    del positions[0]

    def matches(self, text: Sequence[int], min_length: int = 1) -> list[tuple[int, list[int]]]:
        """Matches of the text's suffixes: ``(length, positions)``, longest first.

        A position is the position right after the match, so that ``tokens[position]`` is what came next there; the end
        of the indexed text, where nothing came next, is left out. A position is listed with its longest match only, in
        ascending order.
        """
        seen = {len(self.tokens)}
        matches: list[tuple[int, list[int]]] = []
        for length in range(min(self.max_length, len(text)), min_length - 1, -1):
            occurrences = self._positions.get(tuple(text[len(text) - length :]), ())
            positions = [position for position in occurrences if position not in seen]
            if positions:
                matches.append((length, positions))
                seen.update(positions)
        return matches


def copied(source: Sequence[int], position: int, length: int) -> list[int]:
    """``length`` tokens copied from ``position`` on.

    Where the source ends, the copy goes on with its own beginning, as in LZ77: a text that repeats with a period
    shorter than ``length`` is continued past its end.
    """
    copy = list(source[position : position + length])
    period = len(copy)
    while copy and len(copy) < length:
        copy.append(copy[len(copy) - period])
    return copy


def weighted_tree(
    paths: Sequence[Sequence[int]], weights: Sequence[float], keep: float, num_nodes: int, other: float = 0.0
) -> DraftTree:
    """The ``num_nodes`` likeliest prefixes of weighted guesses.

    A node's probability is the share of weight of the paths through it, times ``keep`` for every token of its depth:
    the chance that one more copied token is right where all before it were.  As ``keep < 1``, a node comes before its
    children, so the likeliest nodes form a tree; ties go to the path named first.

    weights: of each path, > 0. keep: between 0 and 1. other: weight of everything that no path guesses.
    """
    if not paths:
        return DraftTree.empty()
    nodes: dict[tuple[int, int], int] = {}  # (parent, token) -> node
    shares: dict[int, float] = {}
    total = sum(weights) + other
    for path, weight in zip(paths, weights, strict=True):
        node, share = ROOT, weight / total
        for token in path:
            share *= keep
            node = nodes.setdefault((node, token), len(nodes))
            shares[node] = shares.get(node, 0.0) + share
    edges, best = list(nodes), sorted(shares, key=lambda node: -shares[node])[:num_nodes]
    index_of = {ROOT: ROOT} | {node: index for index, node in enumerate(best)}
    kept = [(index_of[parent], token) for parent, token in map(edges.__getitem__, best)]
    return DraftTree.of_edges(kept, np.log([shares[node] for node in best]))
