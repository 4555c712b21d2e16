"""Drafter models next to a target on the CPU engine: the text is that of greedy decoding, whatever they draft."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import PreTrainedModel

from latticebpd import LatticeDrafter, NoDrafter, generate
from latticebpd.drafters import BlockLattices, drafter_named
from latticebpd.drafters.assistant.assistant_family import AssistantLattices
from latticebpd.drafters.strategies import BestTree, Vanilla
from latticebpd.models.engine.engine_copy import engine_copy
from latticebpd.models.engine.engine_model import EngineModel, gguf_model
from latticebpd.scoring.rescoring import as_scorer
from tests.helpers.block_drafters import ENGINE_SHAPE, VOCAB, tiny_drafter, tiny_target
from tests.helpers.gguf_files import FLOATS, written
from tests.helpers.trigrams import trigram

PROMPTS = [[5, 9, 12], [3, 20, 7, 8, 1], [14]]
NEW = 16
BLOCKS: dict[str, dict[str, Any]] = {
    "dflash": {},
    "causal": {"causal_head": True},
    "reduced": {"draft_tokens": list(range(1, VOCAB, 2)), "own_head": True},
    "dspark": {"sample_from_anchor": True, "markov_rank": 3, "confidence": True, "confidence_with_markov": True},
}


@pytest.fixture(scope="module")
def stock() -> PreTrainedModel:
    return tiny_target(seed=4, **ENGINE_SHAPE)


@pytest.fixture(scope="module", params=["float32", "int8", "gguf"])
def target(stock: PreTrainedModel, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    if request.param != "gguf":
        return engine_copy(stock, request.param)
    file = tmp_path_factory.mktemp("gguf") / "model.gguf"
    written(file, stock, FLOATS)
    return gguf_model(file)


@pytest.fixture(scope="module")
def expected(target: EngineModel, stock: PreTrainedModel) -> list[list[int]]:
    """Of every prompt the target's own greedy text; with float32 weights, what ``generate()`` writes."""
    texts = [generate(target, prompt, NoDrafter(), max_new_tokens=NEW).tokens[0].tolist() for prompt in PROMPTS]
    if target.weights == "float32":
        model: Any = stock
        ids = [torch.tensor([prompt]) for prompt in PROMPTS]
        assert texts == [model.generate(each, do_sample=False, max_new_tokens=NEW)[0].tolist() for each in ids]
    return texts


@pytest.mark.parametrize("kind", BLOCKS)
def test_texts_with_block_drafters_are_greedy(
    target: EngineModel, stock: PreTrainedModel, expected: list[list[int]], kind: str
) -> None:
    drafter = tiny_drafter(stock, block_size=5, **BLOCKS[kind])
    drafter.use_int8()
    for strategy in (Vanilla(), BestTree(as_scorer(trigram(VOCAB), 0.5), 12)):
        run = LatticeDrafter(BlockLattices(drafter, target, 5), strategy)
        for prompt, text in zip(PROMPTS, expected, strict=True):
            out = generate(target, prompt, run, max_new_tokens=NEW)
            assert out.tokens[0].tolist() == text
            assert out.verified_tokens > 0


@pytest.mark.parametrize("kind", BLOCKS)
def test_a_block_drafter_reads_the_same_states_from_either_kind_of_target(stock: PreTrainedModel, kind: str) -> None:
    drafter, text = tiny_drafter(stock, block_size=5, **BLOCKS[kind]), [5, 9, 12, 3, 20, 7, 8, 1, 14, 2, 2, 6]
    own, other = (
        [each for part in BlockLattices(drafter, target, 6).lattices_of_text(text, range(1, 9)) for each in part[0]]
        for target in (stock, engine_copy(stock))
    )
    for one, two in zip(own, other, strict=True):
        assert np.array_equal(one.tokens, two.tokens)
        np.testing.assert_allclose(two.log_probs, one.log_probs, atol=1e-3)


def test_texts_with_assistants_are_greedy(target: EngineModel, expected: list[list[int]]) -> None:
    """One that is like the target, one that is not."""
    for seed, weights in ((4, "int8"), (5, "float32")):
        source = AssistantLattices(engine_copy(tiny_target(seed=seed, **ENGINE_SHAPE), weights), target, k=5)
        for system in ("vanilla", "12-tree:0-gram", "copies+12-tree"):
            drafter = drafter_named(system, source, trigram(VOCAB))
            for prompt, text in zip(PROMPTS, expected, strict=True):
                out = generate(target, prompt, drafter, max_new_tokens=NEW)
                assert out.tokens[0].tolist() == text
                assert seed != 4 or out.num_calls < NEW / 2


def test_a_gguf_target_takes_drafters_from_a_file(stock: PreTrainedModel, tmp_path: Path) -> None:
    """The assistant's file too."""
    written(tmp_path / "target.gguf", stock, FLOATS)
    written(tmp_path / "assistant.gguf", stock, {})
    target, assistant = (gguf_model(tmp_path / f"{name}.gguf") for name in ("target", "assistant"))
    assert target is not None
    assert assistant is not None
    drafter = drafter_named("12-tree:0-gram", AssistantLattices(assistant, target, k=5))
    for prompt in PROMPTS:
        greedy = generate(target, prompt, NoDrafter(), max_new_tokens=NEW)
        out = generate(target, prompt, drafter, max_new_tokens=NEW)
        assert out.tokens.tolist() == greedy.tokens.tolist()
        assert out.num_calls < NEW / 2
