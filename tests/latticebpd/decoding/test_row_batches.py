"""Rows that join and leave between passes: each text is what it is alone, whatever company it has."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from latticebpd import Exact, NoDrafter, Sampling, generate
from latticebpd.decoding.acceptance import bound
from latticebpd.decoding.loop import RowBatch
from latticebpd.decoding.session import Session
from latticebpd.drafters.drafter import Drafter
from tests.helpers.drafters import DRAFTERS
from tests.helpers.engine_models import on_engine, stock, with_heads

PROMPTS = [np.random.default_rng(size).integers(1, 12, size).tolist() for size in (5, 1, 9, 2, 14, 1)]


def rule(number: int) -> Any:
    """Every other row samples, each with a seed of its own."""
    if number % 2 == 0:
        return Exact()
    return Sampling(temperature=1.5, top_k=0, generator=torch.Generator().manual_seed(number))


def alone(model: Any, number: int) -> list[int]:
    prompt = PROMPTS[number]
    out = generate(model, [prompt], NoDrafter(), rule(number), 8 + 3 * number, attention_mask=[[1] * len(prompt)])
    return [int(token) for token in out.sequences[0, len(prompt) :]]


def begun(model: Any, number: int, drafter: Drafter, block: int = 128) -> RowBatch:
    """A batch of one prompt, read but for its last token, with a length limit and a rule of its own."""
    prompt = PROMPTS[number]
    session = Session.begin(model, prompt, attention_mask=[[1] * len(prompt)], max_new_tokens=8 + 3 * number)
    batch = RowBatch.begin(session, drafter, bound(rule(number), session.settings), first=number)
    while batch.unread.read_ahead(block):
        pass
    assert len(batch.unread.tokens[0]) == 1
    return batch


@pytest.mark.parametrize("name", ["none", "tree", "copies", "copies and tree"])
@pytest.mark.parametrize("block", [1, 3, 128])
def test_rows_that_join_write_what_they_write_alone(name: str, block: int) -> None:
    heads = with_heads(on_engine("int8"))
    model, drafter = heads.target, DRAFTERS[name](heads, [])
    batch, rows = begun(model, 0, drafter, block), []
    rows += batch.rows
    for number in range(1, len(PROMPTS)):
        batch.step()
        new = begun(model, number, drafter, block)
        rows += new.rows
        batch.join(new)
    while batch.rows:
        batch.step()
    assert [row.text.new_tokens for row in rows] == [alone(model, number) for number in range(len(PROMPTS))]


def test_rows_that_are_dropped_leave_the_others_as_they_are() -> None:
    heads = with_heads(on_engine())
    model, drafter = heads.target, DRAFTERS["tree"](heads, [])
    batch = begun(model, 2, drafter)
    for number in (3, 4, 5):
        batch.join(begun(model, number, drafter))
    batch.step()
    batch.keep([1, 3])
    kept = batch.rows
    while batch.rows:
        assert [step.row for step in batch.step()] in ([3, 5], [5])
    assert [row.text.new_tokens for row in kept] == [alone(model, 3), alone(model, 5)]


def test_a_row_that_has_not_drafted_is_not_observed() -> None:
    """Heads draft after a hidden state, which a row lacks whose prompt is unread."""
    heads, observed = with_heads(on_engine()), list[list[int]]()
    model, drafter = heads.target, DRAFTERS["vanilla"](heads, [])
    drafter.observe = lambda rows, tokens: observed.append(list(rows))  # type: ignore[method-assign]
    batch = begun(model, 0, drafter)
    assert [step.prefill for step in batch.step()] == [True]
    batch.join(begun(model, 1, drafter))
    assert [step.prefill for step in batch.step()] == [False, True]
    batch.step()
    assert observed == [[0], [0, 1]]
    assert batch.num_passes == 2


def test_rows_on_pytorch_cannot_join() -> None:
    model, prompt = stock(), PROMPTS[0]
    one, other = (RowBatch.begin(Session.begin(model, prompt), NoDrafter(), Exact()) for _ in range(2))
    assert not one.unread.read_ahead(2)
    with pytest.raises(ValueError, match="expected rows on the CPU engine to join, got PyTorch's"):
        one.join(other)
