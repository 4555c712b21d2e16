"""DraftTree: tries of drafts and their geometry."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from latticebpd import Drafts, DraftTree

PATHS = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=4), min_size=1, max_size=8)


@given(PATHS)
def test_trie_holds_every_prefix_once(paths: list[list[int]]) -> None:
    tree = DraftTree.from_paths(paths)
    prefixes = {tuple(path[: i + 1]) for path in paths for i in range(len(path))}
    held = [tuple(tree.tokens[tree.path(node)].tolist()) for node in range(len(tree))]
    assert len(held) == len(set(held))
    assert set(held) == prefixes


@given(PATHS)
def test_ancestors_and_depths_agree_with_paths(paths: list[list[int]]) -> None:
    tree = DraftTree.from_paths(paths)
    for node in range(len(tree)):
        assert np.flatnonzero(tree.ancestors[node]).tolist() == sorted(tree.path(node))
        assert tree.depths[node] == len(tree.path(node))


@given(PATHS, st.integers(0, 5))
def test_cut_trees_are_those_of_cut_drafts(paths: list[list[int]], size: int) -> None:
    tree = DraftTree.from_paths(paths)
    assert tree.pruned(size) == DraftTree.from_paths([path[:size] for path in paths])
    assert tree.first(size) == DraftTree(tree.tokens[:size], tree.parents[:size])
    assert tree.first(None) is tree


def test_minus_one_ends_a_draft_early() -> None:
    tree = DraftTree.from_paths(np.array([[5, 6, -1], [5, 7, 8]]))
    assert tree.tokens.tolist() == [5, 6, 7, 8]
    assert tree.parents.tolist() == [-1, 0, 0, 2]


def test_empty_tree_has_no_nodes() -> None:
    assert len(DraftTree.empty()) == 0
    assert DraftTree.empty().depths.shape == (0,)


@pytest.mark.parametrize(
    ("tokens", "parents", "message"),
    [
        ([1, 2], [-1], r"tokens \[n\] and parents \[n\]"),
        ([1, 2], [1, -1], "node 0: expected a parent from -1 to -1"),
        ([1, 2], [-1, -2], "node 1: expected a parent"),
        ([1, 1], [-1, -1], "siblings with distinct tokens"),
        ([-1], [-1], "token ids >= 0"),
        ([2**40 + 3], [-1], "tokens as integers that fit 32 bits, got int64 from 1099511627779"),
        ([2**70], [-1], "tokens as integers that fit 32 bits, got object"),
        ([1.5], [-1], "tokens as integers that fit 32 bits, got float64"),
        ([3], [2**32 - 1], "parents as integers that fit 32 bits"),
    ],
)
def test_malformed_tree_is_refused(tokens: list[int], parents: list[int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        DraftTree(np.array(tokens), np.array(parents))


@pytest.mark.parametrize("token", [2**31, 2**40 + 3, 2**70])
def test_ids_are_never_cut_to_fit(token: int) -> None:
    with pytest.raises(ValueError, match="tokens as integers that fit 32 bits"):
        DraftTree.from_paths([[1, token]])
    with pytest.raises(ValueError, match="tokens as integers that fit 32 bits"):
        Drafts(np.array([[token]]), np.zeros(1))


def test_drafts_and_trees_are_values_and_read_only() -> None:
    trees = [DraftTree.from_paths([[1, 2], [1, 3]]) for _ in range(2)]
    drafts = [Drafts(np.array([[1, 2], [1, 3]]), np.array([-1.0, -2.0])) for _ in range(2)]
    for pair in (trees, drafts):
        assert pair[0] == pair[1]
        assert len(set(pair)) == 1
        with pytest.raises(ValueError, match="read-only"):
            pair[0].tokens[0] = 9
    assert trees[0] != DraftTree.from_paths([[1, 2], [1, 4]])
    assert trees[0] != DraftTree(trees[0].tokens, trees[0].parents, np.zeros(3))
    assert drafts[0] != Drafts(drafts[0].tokens, np.array([-1.0, -3.0]))
