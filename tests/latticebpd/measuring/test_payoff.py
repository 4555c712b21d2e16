"""The pay-off of speculation: counted as a decode counts, computed as defined."""

from __future__ import annotations

import pytest

from latticebpd import BlockwiseLM, GoldDrafter, NoDrafter, TreeDrafter, VanillaDrafter, generate
from latticebpd.drafters import Drafter, PromptNgramDrafter
from latticebpd.measuring.payoff import PayOff, greedy_text, pay_off, replay
from tests.helpers.blockwise_models import greedy
from tests.helpers.trigrams import trigram

PROMPT = [3, 1, 4, 1, 5]


@pytest.mark.parametrize("new", [2, 3, 30])
def test_replay_counts_what_a_real_decode_commits(model: BlockwiseLM, new: int) -> None:
    text, hidden = greedy_text(model.base, PROMPT, new)
    assert text == PROMPT + greedy(model, PROMPT, new)
    assert hidden.shape == (len(text), 16)
    drafters: list[Drafter] = [
        NoDrafter(),
        VanillaDrafter(model),
        TreeDrafter(model, trigram(), num_nodes=20, k=5),
        PromptNgramDrafter(),
        GoldDrafter(text[len(PROMPT) :], 3),
    ]
    for drafter in drafters:
        out = generate(model, PROMPT, drafter, max_new_tokens=new, trace=True)
        assert out.trace is not None
        assert list(replay(drafter, text, len(PROMPT), hidden)) == [len(step.committed) for step in out.trace]


def test_best_size_is_that_of_the_greatest_speedup() -> None:
    found = PayOff([4, 16, 64], [1.5, 2.0, 2.5], [0.010, 0.011, 0.030], greedy_seconds=0.008)
    assert found.speedups == pytest.approx([1.2, 2.0 * 8 / 11, 2.5 * 8 / 30])
    assert found.break_even == pytest.approx([1.25, 1.375, 3.75])
    assert found.best == 16
    assert PayOff([4, 8], [1.0, 1.0], [1.0, 1.0], 1.0).best == 4


def test_sizes_are_measured_with_the_clock_given_and_the_gold_drafter_pays_by_its_block(model: BlockwiseLM) -> None:
    """A clock that ticks once a reading makes all runs equally long, so that only the counts decide."""
    ticks = iter(range(10**6))
    steps = []
    text = greedy(model, PROMPT, 21)
    found = pay_off(
        model,
        [PROMPT],
        lambda size: GoldDrafter(text, size),
        sizes=[1, 4, 9],
        max_new_tokens=21,
        timed_tokens=5,
        repeats=1,
        clock=lambda: float(next(ticks)),
        on_step=lambda: steps.append(1),
    )
    assert found.num_nodes == [1, 4, 9]
    assert found.tokens_per_call == [21 / 11, 21 / 5, 21 / 3]
    assert len(steps) == 1 + 3


def test_larger_trees_are_accepted_no_less(model: BlockwiseLM) -> None:
    found = pay_off(
        model, [PROMPT], lambda n: TreeDrafter(model, None, num_nodes=n, k=8), [1, 64], 30, timed_tokens=2, repeats=1
    )
    assert 1 <= found.tokens_per_call[0] <= found.tokens_per_call[1]
    assert all(seconds > 0 for seconds in found.seconds_per_call)


def test_nothing_to_measure_is_refused(model: BlockwiseLM) -> None:
    with pytest.raises(ValueError, match="expected prompts and sizes"):
        pay_off(model, [], lambda n: NoDrafter())
    with pytest.raises(ValueError, match=r"sizes >= 1, got 1 prompts and sizes \[0\]"):
        pay_off(model, [PROMPT], lambda n: NoDrafter(), [0])
    with pytest.raises(ValueError, match="at least 2 tokens"):
        pay_off(model, [PROMPT], lambda n: NoDrafter(), max_new_tokens=1)
