"""check_lossless: silent on the base model's own text, and exact about the first place that is not."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from latticebpd import Divergence, NoDrafter, TopK, VanillaDrafter, check_lossless, generate
from tests.helpers.blockwise_models import tiny_model
from tests.helpers.tiny_families import FAMILIES, tiny


@pytest.mark.parametrize("family", FAMILIES)
def test_greedy_text_of_every_family_is_lossless(family: str) -> None:
    model = tiny(family)
    ids, mask = (
        torch.tensor([[0, 0, 4, 9], [5, 6, 7, 8], [0, 3, 3, 3]]),
        torch.tensor([[0, 0, 1, 1], [1, 1, 1, 1], [0, 1, 1, 1]]),
    )
    # Padding must be told from text: a token that no row writes.
    written = generate(model, ids, NoDrafter(), max_new_tokens=12, attention_mask=mask, eos_token_id=[]).sequences
    pad = next(token for token in range(23) if token not in written)
    out = generate(
        model, ids, NoDrafter(), max_new_tokens=12, attention_mask=mask, eos_token_id=[8, 12], pad_token_id=pad
    )
    if model.config.is_encoder_decoder:
        report = check_lossless(
            model, out.sequences, input_ids=ids, attention_mask=mask, eos_token_id=[8, 12], pad_token_id=pad
        )
    else:
        report = check_lossless(
            model, out.sequences, 4, attention_mask=mask, eos_token_id=[8, 12], pad_token_id=pad, batch_size=2
        )
    assert report.lossless, str(report)
    assert report.tokens == out.num_tokens
    assert "all the base model's own" in str(report)


@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_first_change_of_a_text_is_found_with_both_tokens_and_the_margin(data: st.DataObject) -> None:
    model = tiny("llama")
    prompts = [[4, 9], [5, 6], [7, 7]]
    sequences = generate(model, prompts, NoDrafter(), max_new_tokens=10, eos_token_id=[]).sequences
    row, column = data.draw(st.integers(0, 2)), data.draw(st.integers(2, 11))
    own = int(sequences[row, column])
    other = data.draw(st.integers(1, 22).filter(lambda token: token != own))
    changed = sequences.clone()
    changed[row, column] = other
    with torch.inference_mode():
        logits = model(input_ids=sequences[row : row + 1, :column]).logits[0, -1]
    report = check_lossless(model, changed, 2, eos_token_id=[], batch_size=2)
    (divergence,) = report.divergences
    assert divergence == Divergence(
        row, column, other, own, pytest.approx(float(logits[own] - logits[other]), abs=1e-4)
    )
    assert divergence.margin > 0
    assert report.tokens == 2 * 10 + column - 1
    assert f"row {row}, column {column}: token {other}" in str(report)


def test_approximate_acceptance_is_caught() -> None:
    model = tiny_model(2)
    exact = generate(model, [3, 1, 4], VanillaDrafter(model), max_new_tokens=30)
    lenient = generate(model, [3, 1, 4], VanillaDrafter(model), TopK(20), max_new_tokens=30)
    assert check_lossless(model, exact.sequences, 3).lossless
    assert not check_lossless(model, lenient.sequences, 3).lossless


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"sequences": [1, 2]}, r"expected sequences \[rows, length\]"),
        ({"sequences": [[1, 2]], "prompt_length": 3}, "1 <= prompt_length <= length"),
        ({"sequences": [[1, 2]], "attention_mask": torch.ones(1, 2)},
        r"attention_mask of shape \(1, 1\), got \(1, 2\)"),
        ({"sequences": [[1, 2]], "input_ids": torch.ones(1, 2)},
        "the sources, for an encoder–decoder and for no other model"),
    ],
)  # fmt: skip
def test_arguments_that_do_not_fit_are_refused(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check_lossless(tiny("llama"), **arguments)
