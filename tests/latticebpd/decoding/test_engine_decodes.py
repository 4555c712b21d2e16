"""Decodes on the CPU engine: the texts of `generate()`, with drafts and without, and what drafters get from it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from transformers import LogitsProcessorList, NoRepeatNGramLogitsProcessor

from latticebpd import DraftTree, NoDrafter, custom_generate, generate, load
from latticebpd.drafters import drafter_named
from latticebpd.drafters.bundled import MODEL, load_prompts
from latticebpd.lattices.drafts import ROOT
from latticebpd.models.engine.engine_copy import engine_copy
from latticebpd.models.load_target import load_stock
from latticebpd.scoring.neural.prefix_reader import CachedReader, EngineReader, reader_for
from latticebpd.verification.engine_verifier import EngineVerifier
from latticebpd.verification.verifiers import verifier_of
from tests.helpers.drafters import DRAFTERS
from tests.helpers.engine_models import on_engine, stock, with_heads
from tests.helpers.tiny_families import VOCABULARY

TREE = DraftTree(np.array([5, 6, 7, 8, 9, 10, 11], np.int32), np.array([-1, -1, 0, 1, 2, 3, 4], np.int32))


@pytest.fixture(params=[1, 2])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


@pytest.mark.parametrize("name", sorted(DRAFTERS))
@pytest.mark.parametrize("weights", ["float32", "int8"])
def test_drafts_change_nothing_in_a_batch(name: str, weights: str, threads: int) -> None:
    model: Any = stock()
    heads = with_heads(engine_copy(model, weights))
    prompts = torch.tensor([[0, 0, 4, 9, 5], [5, 6, 7, 8, 3]])
    settings: Any = {"max_new_tokens": 30, "attention_mask": torch.tensor([[0, 0, 1, 1, 1], [1, 1, 1, 1, 1]])}
    expected = generate(heads.target, prompts, NoDrafter(), **settings).sequences
    if weights == "float32":
        np.testing.assert_array_equal(model.generate(prompts, do_sample=False, **settings), expected)
    output = generate(heads.target, prompts, DRAFTERS[name](heads, expected[:, 5:].tolist()), **settings)
    np.testing.assert_array_equal(output.sequences, expected)


def test_the_bundled_model_writes_what_its_generate_writes() -> None:
    loaded, stock_model = load(weights="float32"), load_stock(MODEL)
    assert loaded.weights == "float32"
    for prompt in load_prompts()[:3]:
        ids = torch.tensor([loaded.encode(prompt.text)])
        expected = stock_model.generate(ids, do_sample=False, max_new_tokens=32)
        for system in ("vanilla", "24-tree", "copies+8-tree"):
            output = generate(loaded.target, ids, loaded.drafter(system), max_new_tokens=32)
            np.testing.assert_array_equal(output.sequences, expected)
            assert output.block_efficiency > 1


@pytest.mark.parametrize("do_sample", [False, True])
def test_processors_and_sampling_are_those_of_generate(do_sample: bool) -> None:
    model: Any = stock()
    target, prompt = engine_copy(model), torch.tensor([[4, 9, 5, 9]])
    settings = {"max_new_tokens": 24, "logits_processor": LogitsProcessorList([NoRepeatNGramLogitsProcessor(2)])}
    texts = []
    drafters = (NoDrafter(), drafter_named("8-copies", None))
    for decoding in ({}, *({"custom_generate": custom_generate(each, target=target)} for each in drafters)):
        torch.manual_seed(0)
        texts.append(model.generate(prompt, do_sample=do_sample, **settings, **decoding).tolist())
    assert texts[1:] == texts[:1] * 2


def test_columns_that_follow_level_by_level_have_the_bits_of_one_pass() -> None:
    verifier = verifier_of(on_engine())
    assert isinstance(verifier, EngineVerifier)
    verifier.prefill([[3, 4, 5, 6], [9, 8]])
    expected = verifier.verify([2, 2], [TREE, TREE]).hidden
    verifier.keep([[], []])  # the columns of the next tokens
    levels = [[0, 1], [2, 3], [4, 5], [6]]  # the tree's nodes
    for nodes in levels:
        rows = np.repeat([0, 1], len(nodes))
        hidden = verifier.grow(rows, np.tile(TREE.parents[nodes], 2).astype(np.int64), np.tile(TREE.tokens[nodes], 2))
        for row, part in zip((0, 1), np.split(hidden.hidden[0], 2), strict=True):
            np.testing.assert_array_equal(part, expected[row, [node + 1 for node in nodes]])
    for cache in verifier.caches:
        cache.keep([0, 2, 4, 6])
    after = verifier.verify([1, 1], [DraftTree.empty(), DraftTree.empty()]).hidden
    verifier.prefill([[3, 4, 5, 6, 2, 5, 7, 9, 11], [9, 8, 2, 5, 7, 9, 11]])
    np.testing.assert_array_equal(verifier.verify([1, 1], [DraftTree.empty(), DraftTree.empty()]).hidden, after)


def test_a_row_may_be_selected_twice_and_goes_on_by_itself() -> None:
    verifier = EngineVerifier(on_engine())
    verifier.prefill([[3, 4, 5], [9, 8]])
    verifier.select([1, 0, 1])
    verifier.verify([1, 2, 3], [DraftTree.empty()] * 3)
    verifier.keep([[]] * 3)
    hidden = verifier.verify([4, 4, 4], [DraftTree.empty()] * 3).hidden
    verifier.prefill([[9, 8, 1], [3, 4, 5, 2], [9, 8, 3]])
    np.testing.assert_array_equal(verifier.verify([4, 4, 4], [DraftTree.empty()] * 3).hidden, hidden)


@torch.inference_mode()
def test_prefixes_are_read_as_pytorch_reads_them() -> None:
    own, plain = reader_for(on_engine()), reader_for(stock())
    assert type(own) is EngineReader
    assert type(plain) is CachedReader
    candidates = np.arange(VOCABULARY)

    def agree(*levels: Any) -> None:
        one, other = (level.log_probs(np.tile(candidates, (len(level.rows), 1))) for level in levels)
        np.testing.assert_allclose(one, other, atol=1e-3)

    texts = [np.array([3, 1, 4]), np.array([2, 7, 1, 8, 2])]
    rows, parents, tokens = np.array([1, 0, 1]), np.array([ROOT] * 3), np.array([5, 6, 7])
    for grown in (texts, [np.array([*text, 9, 9]) for text in texts], [texts[1][:4], texts[1], texts[1]]):
        agree(own.read(grown), plain.read(grown))
        agree(own.grow(rows, parents, tokens), plain.grow(rows, parents, tokens))
        deeper = (np.array([0, 1, 1, 0]), np.array([1, 2, 0, ROOT]), np.array([8, 9, 10, 11]))
        agree(own.grow(*deeper), plain.grow(*deeper))
    tails = np.array([[1, 2], [3, 4], [5, 6]])
    agree(own.read(grown, tails), plain.read(grown, tails))
