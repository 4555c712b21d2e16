"""Trees that share a pass: which nodes are verified, by brute force; drafting stops where it does not pay."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any

import numpy as np
import pytest

from latticebpd import DraftTree
from latticebpd.drafters.accepted_share import AcceptedShare
from latticebpd.drafters.cost_aware import CostAwareDrafter, nodes_that_pay
from latticebpd.drafters.cost_curve import CostCurve
from latticebpd.drafters.drafter import State
from latticebpd.drafters.lattice_drafter import LatticeDrafter
from latticebpd.drafters.system_names import drafter_named, tells_probabilities

CURVE = CostCurve((1,), (1, 2, 4, 64), ((1.0, 1.1, 1.3, 7.0),), packed=True)


def tree(*probabilities: float) -> DraftTree:
    """A chain."""
    parents = np.arange(-1, len(probabilities) - 1, dtype=np.int32)
    return DraftTree(np.arange(len(probabilities), dtype=np.int32), parents, np.log(np.array(probabilities)))


@dataclass
class Scripted:
    trees: list[DraftTree]
    asked: int = 0
    needs_hidden: bool = False
    told: list[Any] = field(default_factory=list)

    def propose(self, states: Sequence[State]) -> list[DraftTree]:
        self.asked += 1
        return self.trees[: len(states)]

    def observe(self, rows: Sequence[int], tokens: Sequence[Sequence[int]]) -> None:
        self.told.append((rows, tokens))


def states(rows: int) -> list[State]:
    return [State(row, [1, 2], 1, None, 8) for row in range(rows)]


def test_the_nodes_are_the_best_of_all_choices() -> None:
    rng = np.random.default_rng(0)
    sizes = set()
    for _ in range(100):
        seconds = tuple(np.sort(rng.uniform(1, 5, 3)).tolist())
        drafting, accepted = rng.uniform(0, 0.5), rng.uniform(0, 0.5)
        curve = CostCurve((1,), (1, 4, 12), (seconds,), {}, (float(drafting),), packed=True, accepted=float(accepted))
        rows = [
            np.sort(np.log(rng.uniform(0, 1, int(rng.integers(0, 4)))))[::-1] for _ in range(int(rng.integers(1, 4)))
        ]
        nodes, saved = nodes_that_pay(rows, curve)

        def promised(sizes: Sequence[int], rows: Any = rows, curve: CostCurve = curve) -> float:
            tokens = len(rows) + sum(float(np.exp(row[:size]).sum()) for row, size in zip(rows, sizes, strict=True))
            passed = float(curve.of(1, np.array([len(rows) + sum(sizes)]))[0])
            return tokens / (passed + curve.drafting_of(len(rows)) + curve.accepted * (tokens - len(rows)))

        own = [int(keep.sum()) for keep in nodes]
        assert all(keep[:size].all() for keep, size in zip(nodes, own, strict=True))  # with every node its parent
        best = max(promised(each) for each in product(*(range(len(row) + 1) for row in rows)))
        assert promised(own) == pytest.approx(best)
        drafted = sum(float(np.exp(row[:size]).sum()) for row, size in zip(rows, own, strict=True))
        took = float(curve.of(1, np.array([len(rows) + sum(own)]))[0]) + curve.drafting_of(len(rows))
        took += curve.accepted * drafted
        plain = float(curve.of(1, np.array([len(rows)]))[0]) / len(rows)
        assert saved == pytest.approx(promised(own) * took * plain - took)
        sizes.add(sum(own))
    assert len(sizes) > 4


def test_of_equally_likely_nodes_the_first_are_kept() -> None:
    """With every node its parent: certain continuations are as likely as what they continue."""
    rng = np.random.default_rng(0)
    for _ in range(100):
        rows = [np.sort(np.log(rng.choice([0.2, 0.5, 0.8], 30)))[::-1] for _ in range(3)]
        size = int(rng.integers(2, 60))
        curve = CostCurve((1,), (1, 3 + size, 200), ((1.0, 1.1, 90.0),), packed=True)
        kept, _ = nodes_that_pay(rows, curve)
        assert sum(int(keep.sum()) for keep in kept) == size
        assert all((np.diff(keep.astype(int)) <= 0).all() for keep in kept)


def test_many_rows_keep_only_what_is_nearly_certain() -> None:
    """Beside one row's weights a token costs little; beside sixteen rows' tokens, as much as a token of a text."""
    one, other = tree(0.9, 0.5, 0.3), tree(0.4, 0.2)
    drafter = CostAwareDrafter(Scripted([one]), CURVE)
    assert len(drafter.propose(states(1))[0]) == 3
    sixteen = CostAwareDrafter(Scripted([one] + [other] * 15), CURVE)
    assert [len(each) for each in sixteen.propose(states(16))] == [1] + [0] * 15


@pytest.mark.parametrize("unit", [1.0, 0.001])
def test_drafting_that_does_not_pay_for_so_many_rows_stops_for_them_alone(unit: float) -> None:
    inner = Scripted([tree(0.95, 0.9)] + [tree(0.1)] * 7)
    seconds = tuple(tuple(unit * each for each in row) for row in CURVE.seconds)
    drafter = CostAwareDrafter(inner, replace(CURVE, seconds=seconds, drafting=(0.1 * unit,)))
    for _ in range(100):
        drafter.propose(states(8))
    before = inner.asked
    assert before < 30
    for _ in range(50):
        assert len(drafter.propose(states(1))[0]) == 2
    assert inner.asked == before + 50


def test_probabilities_count_by_the_share_that_a_text_accepts() -> None:
    """A text that refuses what the drafter is sure of is drafted less for, and others as before; a new text in its row
    begins anew."""
    drafter = CostAwareDrafter(Scripted([tree(0.9, 0.9, 0.9)] * 2), CURVE)
    first = [len(each) for each in drafter.propose(states(2))]
    assert first == [3, 3]
    later = [State(row, [1, 2, 3], 1, None, 8) for row in range(2)]
    for _ in range(20):
        drafter.observe([0, 1], [[7], [0, 1, 2, 3]])
        sizes = [len(each) for each in drafter.propose(later)]
    assert sizes == [0, 3]
    assert [len(each) for each in drafter.propose(states(2))] == first


def test_a_share_is_of_expected_tokens_at_nodes_that_the_text_reached() -> None:
    """By hand: two branches below the root, one of them with a child."""
    share, prior = AcceptedShare(), AcceptedShare.PRIOR
    branches = DraftTree(np.array([4, 5, 6]), np.array([-1, -1, 0]), np.log([0.6, 0.3, 0.48]))
    share.add(branches, [4, 9])  # 0.9 expected below the root, 0.8 below its child
    assert share.share == pytest.approx((prior + 1) / (prior + 1.7))
    shown = share.log_probs(branches)
    assert shown is not None
    assert np.exp(shown) == pytest.approx(np.exp(branches.log_probs) * share.share ** np.array([1, 1, 2]))
    share.add(branches, [8])
    assert share.share == pytest.approx((prior + 1) / (prior + 2.6))
    share.add(branches, [4])  # the text's end cuts the tree
    assert share.share == pytest.approx((prior + 2) / (prior + 3.5))
    for _ in range(200):
        share.add(branches, [4, 6])
    assert share.share == 1.0
    share.add(DraftTree.empty(), [3])
    share.add(DraftTree.from_paths([[1, 2]]), [3])
    assert share.share == 1.0


def test_news_reach_the_drafter_and_its_needs_are_kept() -> None:
    inner = Scripted([])
    drafter = CostAwareDrafter(inner, CURVE)
    drafter.observe([3], [[1, 2]])
    assert inner.told == [([3], [[1, 2]])]
    assert not drafter.needs_hidden
    assert CostAwareDrafter(replace(inner, needs_hidden=True), CURVE).needs_hidden


def test_trees_without_probabilities_are_refused() -> None:
    bare = DraftTree.from_paths([[1, 2]])
    with pytest.raises(ValueError, match="expected trees that tell probabilities"):
        CostAwareDrafter(Scripted([bare]), CURVE).propose(states(1))


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("8-copies", True),
        ("8-tree", True),
        ("2-beam", True),
        ("copies+8-tree", True),
        ("greedy", False),
        ("vanilla", False),
        ("4-best", False),
    ],
)
def test_names_tell_whose_trees_tell_probabilities(name: str, expected: bool, model: Any) -> None:
    from latticebpd.drafters.heads.head_family import HeadLattices

    assert tells_probabilities(name) == expected
    drafter = drafter_named(name, HeadLattices(model))
    tree = drafter.propose([State(0, [1, 2, 3, 1, 2], 4, model.base.lm_head.weight[0].detach(), 8)])[0]
    assert (len(tree) > 0 and tree.log_probs is not None) == expected
    assert isinstance(drafter, LatticeDrafter) or "copies" in name or name == "greedy"


def test_copies_with_a_beam_cannot_be_cut_by_cost() -> None:
    with pytest.raises(ValueError, match=r"copies\+N-tree with costs, since these trees can be cut"):
        drafter_named("copies+4-beam", None, costs=CURVE)
