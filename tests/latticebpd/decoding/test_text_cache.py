"""A text's cache kept from decode to decode: the texts are those of decodes that read everything, and only what is new
is read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from typing import Any

import numpy as np
import pytest

from latticebpd import DraftTree, GoldDrafter, NoDrafter, PromptNgramDrafter, TextCache, generate
from latticebpd.lattices.values import as_numpy
from latticebpd.verification.engine_verifier import EngineVerifier
from latticebpd.verification.recompute import RecomputingVerifier
from latticebpd.verification.tree_attention import TreeVerifier
from tests.helpers.engine_models import on_engine, stock
from tests.helpers.tiny_families import tiny

PROMPT, TURN = [3, 1, 4, 1, 5], [9, 2, 6]
MODELS: dict[str, Callable[[], Any]] = {
    **{family: lambda family=family: tiny(family, 3) for family in ("llama", "gpt2", "opt", "bloom")},  # type: ignore[misc]
    "engine": lambda: on_engine("int8"),
}


@pytest.fixture
def columns(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many tokens each pass reads."""
    counts: list[int] = []
    for kind in (EngineVerifier, TreeVerifier, RecomputingVerifier):
        for name in ("prefill", "verify"):
            own = getattr(kind, name)

            def counted(self: Any, tokens: Any, *trees: Any, own: Any = own) -> Any:
                counts.append(len(trees[0][0]) + 1 if trees else len(tokens[0]))
                return own(self, tokens, *trees)

            monkeypatch.setattr(kind, name, counted)
    return counts


class Gold(GoldDrafter):
    """One that drafts before the prompt is read."""

    needs_hidden = False


def new_tokens(model: Any, prompt: Sequence[int], drafter: Any, **options: Any) -> list[int]:
    mask = [[1] * len(prompt)]  # no token is padding
    out = generate(model, list(prompt), drafter, max_new_tokens=12, attention_mask=mask, **options)
    return out.sequences[0, len(prompt) :].tolist()


@pytest.mark.parametrize("drafter", [NoDrafter, PromptNgramDrafter])
@pytest.mark.parametrize("name", MODELS)
def test_only_what_follows_the_cached_text_is_read(name: str, drafter: Callable[[], Any], columns: list[int]) -> None:
    model, cache, text = MODELS[name](), TextCache(), list(PROMPT)
    for turn in range(3):
        expected = new_tokens(model, text, NoDrafter())
        columns.clear()
        assert new_tokens(model, text, drafter(), text_cache=cache) == expected
        assert cache.shared == (len(text) - len(TURN) - 1 if turn else 0)  # the token chosen last was not read
        assert 0 <= columns[0] - (len(text) - cache.shared) <= 12  # and the first draft
        text += expected + TURN


def test_a_text_that_differs_is_read_from_where_it_differs() -> None:
    model, cache = on_engine(), TextCache()
    written = new_tokens(model, PROMPT, NoDrafter(), text_cache=cache)
    for prompt, shared in (
        ([*PROMPT, *written[:4], 7, 7, 7], 9),
        ([*PROMPT, *written[:4]], 8),  # the last token's output is asked for
        (PROMPT, 4),
        ([8, *PROMPT], 0),
        ([8, *PROMPT, 2], 6),
    ):
        assert new_tokens(model, prompt, NoDrafter(), text_cache=cache) == new_tokens(model, prompt, NoDrafter())
        assert cache.shared == shared, prompt


@pytest.mark.parametrize("name", MODELS)
def test_drafts_accepted_after_the_end_of_a_text_are_no_part_of_it(name: str) -> None:
    """The end comes in the middle of an accepted draft."""
    model, cache = MODELS[name](), TextCache()
    written = new_tokens(model, PROMPT, NoDrafter())
    end = written[5]
    cut = new_tokens(model, PROMPT, Gold(written), eos_token_id=end, text_cache=cache)
    assert cut == written[: written.index(end) + 1]
    text = [*PROMPT, *cut, *TURN]
    assert new_tokens(model, text, NoDrafter(), text_cache=cache) == new_tokens(model, text, NoDrafter())
    assert cache.shared >= len(PROMPT) + len(cut) - 1


@pytest.mark.parametrize("name", MODELS)
def test_an_interrupted_decode_leaves_nothing_to_build_on(name: str) -> None:
    class Failing(NoDrafter):
        def propose(self, states: Any) -> list[DraftTree]:
            if len(states[0].tokens) > len(PROMPT) + 3:
                raise KeyboardInterrupt
            return super().propose(states)

    model, cache = MODELS[name](), TextCache()
    expected = new_tokens(model, PROMPT, NoDrafter(), text_cache=cache)
    with pytest.raises(KeyboardInterrupt):
        new_tokens(model, PROMPT, Failing(), text_cache=cache)
    assert new_tokens(model, PROMPT, NoDrafter(), text_cache=cache) == expected
    assert cache.shared == 0


def test_without_a_cache_of_keys_and_values_and_for_another_model_the_texts_are_the_same() -> None:
    models, cache, text = (tiny("llama", 3), tiny("llama", 4), on_engine()), TextCache(), list(PROMPT)
    for model, options in ((models[0], {}), (models[0], {"use_cache": False}), (models[1], {}), (models[2], {})):
        assert new_tokens(model, text, NoDrafter(), text_cache=cache, **options) == new_tokens(model, text, NoDrafter())
        assert cache.shared == 0
        assert new_tokens(model, text, NoDrafter(), text_cache=cache, **options) == new_tokens(model, text, NoDrafter())
        assert cache.shared == len(PROMPT) - 1


@pytest.mark.parametrize("options", [{}, {"use_cache": False}])
@pytest.mark.parametrize("make", [stock, on_engine])
def test_states_of_layers_are_kept_with_the_text(make: Callable[[], Any], options: dict[str, Any]) -> None:
    model, cache, text = make(), TextCache(), list(PROMPT)
    seen: list[Any] = []

    class Layers(NoDrafter):
        needs_hidden, needs_layers = True, (0, 1)

        def propose(self, states: Any) -> list[DraftTree]:
            seen.append(copy(states[0].layers))
            return super().propose(states)

    for _ in range(2):
        written = [new_tokens(model, text, Layers(), **each, **options) for each in ({}, {"text_cache": cache})]
        assert written[0] == written[1]
        half = len(seen) // 2
        for plain, cached in zip(seen[:half], seen[half:], strict=True):
            np.testing.assert_allclose(as_numpy(cached), as_numpy(plain), atol=1e-4, rtol=1e-4)
        seen.clear()
        text += [*written[0], *TURN]
    assert cache.shared == len(text) - len(written[0]) - 2 * len(TURN) - 1


def test_batches_and_encoder_decoders_are_refused() -> None:
    with pytest.raises(ValueError, match="expected one prompt of a causal model with text_cache, got 2 prompts"):
        generate(stock(), [PROMPT, PROMPT], NoDrafter(), max_new_tokens=4, text_cache=TextCache())
    with pytest.raises(ValueError, match="got an encoder–decoder; leave text_cache out"):
        generate(tiny("t5"), PROMPT, NoDrafter(), max_new_tokens=4, text_cache=TextCache())
