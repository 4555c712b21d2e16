"""The best path of a tree: of all paths that one could draft, that with the most accepted tokens on average."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from latticebpd import DraftTree, NoDrafter, PromptNgramDrafter, State, generate
from latticebpd.drafters.chain_drafter import ChainDrafter, best_chain
from latticebpd.drafters.heads.blockwise import BlockwiseLM
from latticebpd.drafters.heads.head_drafters import PathsDrafter, TreeDrafter
from tests.helpers.blockwise_models import greedy


@st.composite
def trees(draw: st.DrawFn) -> DraftTree:
    """Trees whose nodes' probabilities do not exceed their parents'."""
    parents = [draw(st.integers(-1, node - 1)) for node in range(draw(st.integers(1, 9)))]
    shares = [draw(st.floats(0.01, 1)) for _ in parents]
    probabilities = [1.0]
    for parent, share in zip(parents, shares, strict=True):
        probabilities.append(probabilities[parent + 1] * share)
    return DraftTree(np.arange(len(parents)), np.array(parents), np.log(probabilities[1:]))


@given(trees())
def test_no_other_path_promises_more_accepted_tokens(tree: DraftTree) -> None:
    chain = best_chain(tree)
    assert chain.log_probs is not None
    assert tree.log_probs is not None
    assert chain.parents.tolist() == list(range(-1, len(chain) - 1))
    expected = {node: sum(np.exp(tree.log_probs[tree.path(node)])) for node in range(len(tree))}
    best = max(expected, key=lambda node: expected[node])
    assert np.exp(chain.log_probs).sum() == pytest.approx(expected[best])
    node = -1  # its tokens are those of a path of the tree
    for token, log_prob in zip(chain.tokens.tolist(), chain.log_probs, strict=True):
        node = tree.edges[node, token]
        assert tree.log_probs[node] == log_prob


def test_a_tree_without_probabilities_is_cut_to_its_first_path() -> None:
    tree = DraftTree.from_paths([[1, 2], [1, 3, 4], [5]])
    assert best_chain(tree).tokens.tolist() == [1, 2]
    assert best_chain(DraftTree.empty()) is DraftTree.empty()


def test_chains_write_the_greedy_text_and_keep_to_the_depth(model: BlockwiseLM) -> None:
    prompt = [1, 2, 3, 1, 2, 3]
    for drafter in (TreeDrafter(model, None, num_nodes=8), PathsDrafter(model, None, 4), PromptNgramDrafter()):
        chains = ChainDrafter(drafter)
        out = generate(model, [prompt], chains, max_new_tokens=40, trace=True)
        assert out.sequences[0].tolist()[len(prompt) :] == greedy(model, prompt)
        assert any(len(each.tree) for each in out.trace)
        assert all(each.tree.depths.tolist() == list(range(1, len(each.tree) + 1)) for each in out.trace)


def test_what_is_deeper_than_may_be_drafted_is_cut_before_the_path_is_chosen() -> None:
    class Deep(NoDrafter):
        def propose(self, states: Sequence[State]) -> list[DraftTree]:
            return [DraftTree.from_paths([[1, 2, 3], [4, 5]])] * len(states)

    (tree,) = ChainDrafter(Deep()).propose([State(0, [1], 1, None, 2)])
    assert tree.tokens.tolist() == [1, 2]
