"""Two drafters in one tree: the likeliest prefixes of both, the second asked only where the first is unsure."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from latticebpd import BlockwiseLM, DraftTree, State, TreeDrafter, VanillaDrafter, generate
from latticebpd.drafters import MixtureDrafter, PromptNgramDrafter
from tests.helpers.blockwise_models import greedy, tiny_model
from tests.helpers.trigrams import trigram


class Fixed:
    """Drafts the same trees always, one per row; remembers for which rows it was asked and what it heard."""

    def __init__(self, *trees: DraftTree) -> None:
        self.trees = trees
        self.asked: list[int] = []
        self.heard: list[list[int]] = []

    def propose(self, states: Sequence[State]) -> list[DraftTree]:
        self.asked += [state.row for state in states]
        return [self.trees[state.row] for state in states]

    def observe(self, rows: Sequence[int], tokens: Sequence[Sequence[int]]) -> None:
        self.heard += [list(row) for row in tokens]


def tree(prefixes: dict[tuple[int, ...], float]) -> DraftTree:
    """The tree of prefixes with their probabilities, parents before children."""
    order = sorted(prefixes, key=len)
    parents = [order.index(prefix[:-1]) if len(prefix) > 1 else -1 for prefix in order]
    return DraftTree(np.array([p[-1] for p in order]), np.array(parents), np.log([prefixes[p] for p in order]))


def prefixes(drafted: DraftTree) -> dict[tuple[int, ...], float]:
    assert drafted.log_probs is not None
    return {
        tuple(drafted.tokens[drafted.path(i)].tolist()): float(np.exp(drafted.log_probs[i]))
        for i in range(len(drafted))
    }


def states(rows: int = 1) -> list[State]:
    return [State(row, [1, 2], 1, torch.zeros(1), 8) for row in range(rows)]


@st.composite
def distributions(draw: st.DrawFn) -> dict[tuple[int, ...], float]:
    """Prefixes closed under prefixes, children sharing what their parent has."""
    probabilities: dict[tuple[int, ...], float] = {}

    def grow(prefix: tuple[int, ...], mass: float) -> None:
        if len(prefix) == 3:
            return
        for token in draw(st.lists(st.integers(0, 3), unique=True, max_size=3)):
            share = mass * draw(st.floats(0.05, 0.33))
            probabilities[(*prefix, token)] = share
            grow((*prefix, token), share)

    grow((), 1.0)
    return probabilities


@given(one=distributions(), two=distributions(), num_nodes=st.integers(1, 20))
def test_mixture_holds_the_likeliest_prefixes_of_the_sum(
    one: dict[tuple[int, ...], float], two: dict[tuple[int, ...], float], num_nodes: int
) -> None:
    mixed = MixtureDrafter(Fixed(tree(one)), Fixed(tree(two)), num_nodes, sure=2.0).propose(states())[0]
    rest = 1 - sum(probability for prefix, probability in one.items() if len(prefix) == 1)
    total = {prefix: one.get(prefix, 0.0) + rest * two.get(prefix, 0.0) for prefix in {**one, **two}}
    if not total:
        assert len(mixed) == 0
        return
    kept = prefixes(mixed)
    assert len(kept) == min(num_nodes, len(total))
    for prefix, probability in kept.items():
        assert probability == pytest.approx(total[prefix])
    assert sorted(kept.values(), reverse=True) == pytest.approx(sorted(total.values(), reverse=True)[: len(kept)])


def test_second_drafter_is_asked_for_unsure_rows_alone() -> None:
    sure, unsure = tree({(5,): 0.8, (5, 6): 0.7}), tree({(5,): 0.3})
    second = Fixed(tree({(9,): 0.9}), tree({(9,): 0.9}), tree({(7,): 0.5}))
    mixture = MixtureDrafter(Fixed(sure, unsure, DraftTree.empty()), second, num_nodes=4, sure=0.6)
    first, mixed, single = mixture.propose(states(3))
    assert second.asked == [1, 2]
    assert prefixes(first) == pytest.approx({(5,): 0.8, (5, 6): 0.7})
    assert prefixes(mixed) == pytest.approx({(5,): 0.3, (9,): 0.63})
    assert prefixes(single) == pytest.approx({(7,): 0.5})


def test_a_claim_of_just_sure_is_enough() -> None:
    second = Fixed(tree({(9,): 0.9}))
    mixed = MixtureDrafter(Fixed(tree({(5,): 1.0})), second, num_nodes=4, sure=1.0).propose(states())[0]
    assert (second.asked, mixed.tokens.tolist()) == ([], [5])


def test_of_equally_likely_prefixes_the_shorter_are_kept() -> None:
    alike = tree({(5,): 0.5, (5, 6): 0.5, (5, 6, 7): 0.5})
    for num_nodes in (1, 2):
        mixed = MixtureDrafter(Fixed(alike), Fixed(DraftTree.empty()), num_nodes).propose(states())[0]
        assert mixed.tokens.tolist() == [5, 6][:num_nodes]


@pytest.mark.filterwarnings("error")
def test_prefixes_without_any_probability_come_last_and_warn_nobody() -> None:
    one = DraftTree(np.array([3, 4]), np.array([-1, -1]), np.array([-1.0, -np.inf]))
    two = DraftTree(np.array([5]), np.array([-1]), np.array([-2e3]))
    mixed = MixtureDrafter(Fixed(one), Fixed(two), num_nodes=3).propose(states())[0]
    assert mixed.tokens.tolist()[0] == 3
    assert mixed.log_probs is not None
    assert (mixed.log_probs[1:] < -700).all()


def test_both_hear_what_was_committed() -> None:
    first, second = Fixed(DraftTree.empty()), Fixed(DraftTree.empty())
    MixtureDrafter(first, second).observe([0], [[4, 5]])
    assert first.heard == second.heard == [[4, 5]]


def test_trees_without_probabilities_cannot_be_mixed(model: BlockwiseLM) -> None:
    with pytest.raises(ValueError, match="probabilities, got VanillaDrafter"):
        generate(model, [3, 1], MixtureDrafter(VanillaDrafter(model), PromptNgramDrafter()), max_new_tokens=8)
    with pytest.raises(ValueError, match="num_nodes >= 1"):
        MixtureDrafter(PromptNgramDrafter(), PromptNgramDrafter(), num_nodes=0)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_copies_and_heads_together_yield_the_text_of_generate(seed: int) -> None:
    model = tiny_model(seed)
    prompts = [[3, 1, 4, 1, 5], [2, 7, 2, 7, 2]]
    for sure in (0.0, 0.5, 2.0):
        drafter = MixtureDrafter(
            PromptNgramDrafter(), TreeDrafter(model, trigram(), num_nodes=8, k=4), num_nodes=10, sure=sure
        )
        out = generate(model, prompts, drafter, max_new_tokens=40)
        assert [row[5:].tolist() for row in out.sequences] == [greedy(model, prompt, 40) for prompt in prompts]
        assert out.verified_tokens <= 10 * out.num_calls
