"""Of which columns of a pass the projection is computed, and when."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from latticebpd import DraftTree
from latticebpd.verification.asked_columns import AskedColumns

PARENTS = [-1, -1, 0, 2, 3, 4, 5]  # a chain 0, 2, 3, 4, 5, 6 and one other node
PROBABILITIES = [0.8, 0.1, 0.6, 0.5, 0.05, 0.04, 0.035]


class Computed:
    """Tokens that tell their row and column, and the columns of each call."""

    def __init__(self) -> None:
        self.calls: list[list[tuple[int, int]]] = []

    def __call__(self, rows: Sequence[int], columns: Sequence[int]) -> list[int]:
        self.calls.append(list(zip(rows, columns, strict=True)))
        return [100 * row + column for row, column in self.calls[-1]]


def tree(probabilities: Sequence[float] | None = PROBABILITIES) -> DraftTree:
    return DraftTree(
        np.arange(len(PARENTS)), np.array(PARENTS), None if probabilities is None else np.log(probabilities)
    )


@pytest.mark.parametrize(("together", "expected"), [(1, [0]), (2, [0, 1, 3, 4, 2]), (7, [0, 1, 3, 4, 2, 5, 6])])
def test_likely_descendants_are_computed_with_their_ancestor(together: int, expected: list[int]) -> None:
    best = Computed()
    tokens = AskedColumns(best, [tree()], together)
    assert tokens([0], [0]) == [0]
    assert best.calls == [[(0, column) for column in expected]]
    for column in expected:
        assert tokens([0], [column]) == [column]
    assert len(best.calls) == 1


def test_below_an_unlikely_node_probabilities_count_from_it() -> None:
    """Node 4 of probability 0.05 was not computed with the root; once it is accepted, nodes 5 and 6 are likely."""
    best = Computed()
    tokens = AskedColumns(best, [tree()], 2)
    assert [tokens([0], [column]) for column in (0, 1, 3, 4, 5, 6, 7)] == [[0], [1], [3], [4], [5], [6], [7]]
    assert best.calls[1:] == [[(0, 5), (0, 6), (0, 7)]]


def test_without_probabilities_the_first_nodes_fill_the_room() -> None:
    best = Computed()
    tokens = AskedColumns(best, [tree(None), tree(None)], 4)
    assert tokens([0, 1], [0, 0]) == [0, 100]
    assert best.calls == [[(0, 0), (1, 0), (0, 1), (0, 2)]]
    assert AskedColumns(best, [], 4)([0], [0]) == [0]
    assert best.calls[1] == [(0, 0)]
