"""Jacobi decoding: greedy decoding's text whatever the blocks and initial values, in as many passes as the equations
ask for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from transformers import PreTrainedModel, StoppingCriteriaList

from latticebpd import BlockwiseLM, DraftTree, NoDrafter, PathsDrafter, PromptNgramDrafter, VanillaDrafter
from latticebpd.drafters.heads.head_networks import FeedForwardHeads
from latticebpd.jacobi import (
    DraftedInitial,
    Initial,
    LengthRatio,
    NgramContinuation,
    Padding,
    PreviousOutput,
    RandomTokens,
    Solution,
    SourceCopy,
    Trajectory,
    gauss_seidel_jacobi,
    hybrid_jacobi,
    jacobi,
    trajectory,
)
from latticebpd.jacobi.solution import UNKNOWN
from latticebpd.verification.forward import EncodedSource
from latticebpd.verification.verifier_choice import verifier_for
from tests.helpers.blockwise_models import tiny_model
from tests.helpers.rule_models import (
    RuleModel,
    adds_up,
    follows_its_predecessor,
    follows_the_last_but_one,
    knows_its_place,
)
from tests.helpers.tiny_families import FAMILIES, VOCABULARY, tiny
from tests.helpers.trigrams import trigram

ROWS = [[5, 9, 11, 3], [3, 4], [12]]
NEW = 14


def initial_of(iterates: Trajectory) -> list[int]:
    """``[m]``, each position's value before its first pass."""
    begun = iterates.values != UNKNOWN
    return iterates.values[begun.argmax(axis=0), np.arange(len(iterates.tokens))].tolist()


def padded(rows: Sequence[Sequence[int]] = ROWS, right: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
    """Ids and mask, padded with token 0, on the left unless ``right``."""
    padding = [[0] * (max(map(len, rows)) - len(row)) for row in rows]
    ids = torch.tensor([[*row, *zeros] if right else [*zeros, *row] for row, zeros in zip(rows, padding, strict=True)])
    return ids, (ids != 0).long()


def greedy(model: Any, ids: torch.Tensor, mask: torch.Tensor, new: int = NEW) -> torch.Tensor:
    """The oracle: transformers' own greedy decoding."""
    return model.generate(ids, attention_mask=mask, do_sample=False, max_new_tokens=new)


def by_definition(model: RuleModel, prompt: list[int], initial: list[int]) -> tuple[list[list[int]], int]:
    """Algorithm 1 as printed, on a rule: all iterates until one repeats itself, and how many changed something."""
    iterates = [initial]
    while True:
        last = iterates[-1]
        iterates.append([model.rule([*prompt, *last[:i]]) % model.config.vocab_size for i in range(len(last))])
        if iterates[-1] == last:
            return iterates, len(iterates) - 2


ALGORITHMS: dict[str, Callable[..., Solution]] = {
    "the whole text": jacobi,
    "a length too short": lambda *args, **options: jacobi(*args, length=4, **options),
    "a length for each row": lambda *args, **options: jacobi(*args, length=[3, 20, 50], **options),
    "an estimated length": lambda *args, **options: jacobi(*args, length=LengthRatio(2.0, 1.0), **options),
    "blocks of one": lambda *args, **options: gauss_seidel_jacobi(*args, block_size=1, **options),
    "blocks of three": lambda *args, **options: gauss_seidel_jacobi(*args, **options),
    "blocks of five up to a length": lambda *args, **options: gauss_seidel_jacobi(
        *args, block_size=5, length=7, **options
    ),
    "blocks, then single tokens": lambda *args, **options: hybrid_jacobi(*args, block_size=4, max_length=10, **options),
}


@pytest.mark.parametrize("family", FAMILIES)
def test_text_is_greedy_decodings_for_every_family_with_and_without_cache(family: str) -> None:
    model = tiny(family, seed=3, eos=7)
    ids, mask = padded()
    expected = greedy(model, ids, mask)
    for number, (name, algorithm) in enumerate(ALGORITHMS.items()):
        initial = [Padding(), RandomTokens(VOCABULARY, seed=1), SourceCopy()][number % 3]
        output = algorithm(model, ids, initial=initial, attention_mask=mask, max_new_tokens=NEW)
        assert output.sequences.tolist() == expected.tolist(), name


@pytest.mark.parametrize("family", ["llama", "t5", "marian"])
@pytest.mark.parametrize("algorithm", ["the whole text", "a length too short", "blocks of three"])
def test_a_cache_changes_neither_text_nor_counts(family: str, algorithm: str) -> None:
    model = tiny(family, seed=3, eos=7)
    ids, mask = padded()
    options: dict[str, Any] = {
        "initial": RandomTokens(VOCABULARY, 2),
        "attention_mask": mask,
        "max_new_tokens": NEW,
        "trace": True,
    }
    output, without = (ALGORITHMS[algorithm](model, ids, use_cache=use_cache, **options) for use_cache in (True, False))
    assert output.sequences.tolist() == without.sequences.tolist()
    for name in ("num_tokens", "passes", "updates", "blocks", "columns", "pairs"):
        assert getattr(output, name).tolist() == getattr(without, name).tolist(), name
    for row in range(len(ROWS)):
        assert trajectory(output, row).values.tolist() == trajectory(without, row).values.tolist()


@cache
def _models(family: str, seed: int, eos: int | None) -> PreTrainedModel:
    return tiny(family, seed, eos=eos)


CASES = given(
    family=st.sampled_from(["llama", "marian"]),
    seed=st.integers(0, 3),
    rows=st.lists(st.lists(st.integers(1, VOCABULARY - 1), min_size=1, max_size=6), min_size=1, max_size=4),
    block_size=st.integers(1, 25),
    max_length=st.integers(0, 25),
    eos=st.sampled_from([None, 7]),
    initial=st.integers(0, 3),
)


@settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
@CASES
def test_text_is_greedy_decodings_for_any_blocks_and_initial_values(
    family: str, seed: int, rows: list[list[int]], block_size: int, max_length: int, eos: int | None, initial: int
) -> None:
    _holds_to_greedy_decoding(family, seed, rows, block_size, max_length, eos, initial)


@pytest.mark.slow
@settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
@CASES
def test_text_is_greedy_decodings_in_hundreds_of_cases(
    family: str, seed: int, rows: list[list[int]], block_size: int, max_length: int, eos: int | None, initial: int
) -> None:
    _holds_to_greedy_decoding(family, seed, rows, block_size, max_length, eos, initial)


def _holds_to_greedy_decoding(
    family: str, seed: int, rows: list[list[int]], block_size: int, max_length: int, eos: int | None, initial: int
) -> None:
    model = _models(family, seed, eos)
    ids, mask = padded(rows)
    expected = greedy(model, ids, mask)
    first = [Padding(), RandomTokens(VOCABULARY, seed), SourceCopy(), DraftedInitial(PromptNgramDrafter(block_size=4))][
        initial
    ]
    output = hybrid_jacobi(model, ids, block_size, first, max_length, attention_mask=mask, max_new_tokens=NEW)
    assert output.sequences.tolist() == expected.tolist()
    assert (output.passes <= output.num_tokens).all()
    assert (output.updates <= output.passes).all()


@pytest.mark.parametrize("base", ["llama", "marian"])
def test_drafts_of_heads_as_initial_values_leave_the_text_alone(base: str) -> None:
    model = (
        tiny_model(seed=4)
        if base == "llama"
        else BlockwiseLM(tiny("marian", seed=2), FeedForwardHeads(16, 5, 8)).eval()
    )
    ids, mask = padded()
    expected = greedy(model.base, ids, mask)
    for drafter in (VanillaDrafter(model), PathsDrafter(model, trigram(), p=1, k=4), PromptNgramDrafter(), NoDrafter()):
        for algorithm in (jacobi, gauss_seidel_jacobi, hybrid_jacobi):
            output = algorithm(
                model, ids, initial=DraftedInitial(drafter), attention_mask=mask, max_new_tokens=NEW, pad_token_id=0
            )
            assert output.sequences.tolist() == expected.tolist()


def test_a_chain_takes_one_update_for_every_token() -> None:
    output = jacobi(RuleModel(follows_its_predecessor), [1], length=12, max_new_tokens=12)
    assert output.tokens() == list(range(2, 14))
    assert output.updates.tolist() == output.passes.tolist() == [12]


def test_tokens_that_depend_on_nothing_take_one_update() -> None:
    output = jacobi(RuleModel(knows_its_place), [1], length=12, max_new_tokens=12)
    assert output.tokens() == [5 * i + 3 for i in range(1, 13)]
    assert (output.updates.tolist(), output.passes.tolist()) == ([1], [2])  # the second pass notices


def test_two_interleaved_chains_take_half_as_many_updates() -> None:
    output = jacobi(RuleModel(follows_the_last_but_one), [1], length=12, max_new_tokens=12)
    assert output.updates.tolist() == [6]


@pytest.mark.parametrize("rule", [follows_its_predecessor, knows_its_place, follows_the_last_but_one, adds_up])
def test_iterates_and_updates_are_the_papers(rule: Callable[[Sequence[int]], int]) -> None:
    model = RuleModel(rule)
    for seed in range(4):
        initial = RandomTokens(model.config.vocab_size, seed)
        output = jacobi(model, [3, 1], initial, length=9, max_new_tokens=9, trace=True)
        laid_out = trajectory(output)
        iterates, updates = by_definition(model, [3, 1], initial_of(laid_out))
        assert output.updates.tolist() == [updates]
        assert laid_out.values.tolist() == iterates[: laid_out.passes + 1]
        assert updates <= int(output.passes[0]) <= updates + 1


def passes_of_blocks(
    model: RuleModel, prompt: list[int], initial: list[int], block_size: int, last_counts: bool
) -> tuple[list[int], int]:
    """Algorithm 2 on a rule: the text, and its passes when a block ends with one that changes none of the block's
    values, its last one among them or not."""
    text, passes = list(prompt), 0
    for begin in range(0, len(initial), block_size):
        block, ended = initial[begin : begin + block_size], False
        compared = len(block) if last_counts else len(block) - 1
        while not ended:
            values = [model.rule([*text, *block[:i]]) % model.config.vocab_size for i in range(len(block))]
            ended, block, passes = values[:compared] == block[:compared], values, passes + 1
        text += block
    return text[len(prompt) :], passes


@pytest.mark.parametrize("rule", [follows_its_predecessor, knows_its_place, follows_the_last_but_one, adds_up])
def test_blocks_end_by_the_authors_code_and_not_by_equation_5(rule: Callable[[Sequence[int]], int]) -> None:
    """``gs_jacobi.py`` of the authors' code compares what the decoder reads, and so never a block's last value."""
    model = RuleModel(rule)
    for seed, block_size in ((0, 1), (1, 3), (2, 4)):
        initial = RandomTokens(model.config.vocab_size, seed)
        output = gauss_seidel_jacobi(model, [3, 1], block_size, initial, max_new_tokens=12, trace=True)
        first = initial_of(trajectory(output))
        by_code, printed = (passes_of_blocks(model, [3, 1], first, block_size, last) for last in (False, True))
        assert by_code[0] == printed[0] == output.tokens()
        assert int(output.passes[0]) == by_code[1]
        assert by_code[1] <= printed[1] <= by_code[1] + int(output.blocks[0])


def test_equation_5_takes_one_pass_more_where_the_last_value_changed_last() -> None:
    """On paper: a chain settles one value a pass, 12 in 12; four blocks of three whose last pass changed something."""
    model = RuleModel(follows_its_predecessor)
    output = gauss_seidel_jacobi(model, [1], block_size=3, max_new_tokens=12)
    assert (output.passes.tolist(), output.blocks.tolist()) == ([12], [4])
    assert passes_of_blocks(model, [1], [0] * 12, 3, last_counts=True)[1] == 16
    assert passes_of_blocks(model, [1], [0] * 12, 1, last_counts=True)[1] == 24  # blocks of one: two passes a token


def test_right_initial_values_take_one_pass_and_no_update() -> None:
    ids, mask = padded()
    for model in (tiny("marian", seed=3), tiny("gpt2", seed=3)):
        known = jacobi(model, ids, attention_mask=mask, max_new_tokens=NEW)
        texts = [known.tokens(row) for row in range(3)]
        again = jacobi(model, ids, PreviousOutput(texts), length=NEW, attention_mask=mask, max_new_tokens=NEW)
        assert again.sequences.tolist() == known.sequences.tolist()
        assert (again.passes.tolist(), again.updates.tolist(), again.num_passes) == ([1] * 3, [0] * 3, 1)


def test_blocks_of_one_are_greedy_decoding_and_long_blocks_are_jacobi() -> None:
    model = tiny("opt", seed=1)
    ids, mask = padded()
    options: dict[str, Any] = {"attention_mask": mask, "max_new_tokens": NEW}
    single = gauss_seidel_jacobi(model, ids, 1, **options)
    assert single.passes.tolist() == single.num_tokens.tolist() == single.blocks.tolist()
    assert hybrid_jacobi(model, ids, 5, max_length=0, **options).passes.tolist() == single.passes.tolist()
    full = jacobi(model, ids, **options)
    for wide in (gauss_seidel_jacobi(model, ids, NEW, **options), hybrid_jacobi(model, ids, 100, **options)):
        assert (wide.passes.tolist(), wide.updates.tolist(), wide.blocks.tolist()) == (
            full.passes.tolist(),
            full.updates.tolist(),
            [1] * 3,
        )


def test_every_pass_settles_a_token() -> None:
    model = tiny("llama", seed=6)
    output = jacobi(model, [4, 5, 6], RandomTokens(VOCABULARY, 3), max_new_tokens=NEW, trace=True)
    assert output.trace is not None
    places = [iterate.start for iterate in output.trace]
    assert all(iterate.settled >= 1 for iterate in output.trace)
    assert [later - sooner for sooner, later in pairwise(places)] == [each.settled for each in output.trace[:-1]]
    frontier = trajectory(output).frontier
    assert (frontier[1:] > frontier[:-1]).all() or frontier[-2] == NEW


def test_a_rows_counts_do_not_depend_on_the_batch() -> None:
    model = tiny("marian", seed=3, eos=7)
    ids, mask = padded([*ROWS, [8, 8, 2]], right=True)  # padding on the left would move the encoder's positions
    together = gauss_seidel_jacobi(model, ids, 4, attention_mask=mask, max_new_tokens=NEW)
    for row, tokens in enumerate([*ROWS, [8, 8, 2]]):
        single = gauss_seidel_jacobi(model, tokens, 4, max_new_tokens=NEW)
        assert single.tokens() == together.tokens(row)
        for name in ("num_tokens", "passes", "updates", "blocks", "columns", "pairs"):
            assert getattr(single, name)[0] == getattr(together, name)[row], name
    assert together.num_passes == together.passes.max()


def test_text_ends_in_its_settled_part_only() -> None:
    eos = 9
    model = RuleModel(follows_its_predecessor, eos=eos)
    output = jacobi(model, [1], PreviousOutput([[eos] * 30]), length=30)  # end-of-text everywhere, none of it settled
    assert output.tokens() == list(range(2, eos + 1))
    assert output.passes.tolist() == [eos - 1]


def test_stop_rules_and_processors_are_those_of_generate() -> None:
    model = tiny("bart", seed=5)
    model.generation_config.repetition_penalty = 1.7
    model.generation_config.no_repeat_ngram_size = 2
    ids, mask = padded()
    expected = greedy(model, ids, mask)
    for block_size in (1, 3, NEW):
        output = gauss_seidel_jacobi(model, ids, block_size, attention_mask=mask, max_new_tokens=NEW)
        assert output.sequences.tolist() == expected.tolist()
    ends = StoppingCriteriaList([lambda tokens, _scores: tokens.shape[1] >= 6])
    short = jacobi(model, ROWS[0], max_new_tokens=NEW, stopping_criteria=ends)
    assert short.tokens() == output.tokens(0)[:5]  # the decoder's start is the sixth token


def test_a_decode_may_fill_all_of_the_models_positions() -> None:
    model = tiny("marian", seed=3)
    ids, mask = padded()
    expected = greedy(model, ids, mask, new=95)  # 96 positions, one of them the decoder's start
    for algorithm in (jacobi, gauss_seidel_jacobi):
        output = algorithm(model, ids, attention_mask=mask, max_new_tokens=500)
        assert output.sequences.tolist() == expected.tolist()


def test_an_ngram_model_continues_with_its_most_probable_tokens() -> None:
    lm = trigram()
    model = tiny("gpt2", seed=2)
    output = jacobi(model, [4, 7], NgramContinuation(lm), max_new_tokens=6, trace=True)
    expected = [4, 7]
    for _ in range(6):
        expected.append(max(range(lm.vocab_size), key=lambda token: (lm.log_prob(token, context=expected), -token)))
    assert initial_of(trajectory(output)) == expected[2:]


def test_random_values_do_not_depend_on_blocks_or_batch() -> None:
    model = tiny("marian", seed=3)
    ids, mask = padded()
    options: dict[str, Any] = {
        "initial": RandomTokens(VOCABULARY, 8),
        "attention_mask": mask,
        "max_new_tokens": NEW,
        "trace": True,
    }
    full = jacobi(model, ids, length=NEW, **options)
    blocks = gauss_seidel_jacobi(model, ids, 3, **options)
    for row in range(3):
        assert initial_of(trajectory(full, row)) == initial_of(trajectory(blocks, row))


@pytest.mark.parametrize("family", ["llama", "t5", "marian", "bloom"])
@pytest.mark.parametrize("use_cache", [True, False])
@torch.inference_mode()
def test_a_pass_from_nothing_reads_what_a_prefill_reads(family: str, use_cache: bool) -> None:
    model = tiny(family, seed=2)
    rows = [[1, 5, 9, 4], [1, 8]]
    source = None
    if model.config.is_encoder_decoder:
        tokens = torch.tensor([[3, 4, 6], [7, 7, 2]])
        source = EncodedSource.encode(model, tokens, torch.ones_like(tokens))
    prefilled, begun = (verifier_for(model, source, use_cache) for _ in range(2))
    expected = prefilled.prefill(rows).hidden[:, 0]
    begun.begin(2)
    output = begun.verify([row[0] for row in rows], [DraftTree.from_paths([row[1:]]) for row in rows])
    assert torch.allclose(torch.stack([output.hidden[0, 3], output.hidden[1, 1]]), expected, atol=1e-4)
    begun.keep([[0, 1, 2], [0]])
    after = [verifier.verify([6, 3], [DraftTree.empty()] * 2).hidden for verifier in (prefilled, begun)]
    assert torch.allclose(*after, atol=1e-4)


def test_a_length_estimate_grows_with_the_source() -> None:
    assert LengthRatio(1.5, 2)([1, 2, 3]) == 7


class _Wrong:
    after_first_token = False

    def __init__(self, given: list[list[int]]) -> None:
        self.given = given

    def values(self, blocks: Sequence[object]) -> list[list[int]]:
        return self.given

    def observe(self, rows: Sequence[int], tokens: Sequence[Sequence[int]]) -> None:
        pass


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda model: gauss_seidel_jacobi(model, [3], block_size=0), "block_size >= 1, got 0"),
        (lambda model: hybrid_jacobi(model, [3], max_length=-1), "max_length >= 0, got -1"),
        (lambda model: jacobi(model, [3], length=0), "length >= 1, or one for each of 1 rows, got 0"),
        (lambda model: jacobi(model, [3], length=[4, 5]), "one for each of 1 rows"),
        (lambda model: jacobi(model, [3], _Wrong([])), "for each of 1 blocks, got 0 from _Wrong"),
        (lambda model: jacobi(model, [3], _Wrong([[1] * 99]), length=5), "at most 5 initial values"),
        (lambda model: jacobi(model, [3], _Wrong([[23]]), length=5), "from 0 to 22"),
        (lambda model: jacobi(model, [[3], [4]], PreviousOutput([[1]])), "earlier output for every row, got 1"),
        (lambda model: trajectory(jacobi(model, [3], max_new_tokens=2)), "pass trace=True"),
        (lambda model: LengthRatio(-1.0), "finite ratio >= 0"),
    ],
)
def test_unusable_arguments_are_refused_by_name(call: Callable[[PreTrainedModel], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call(tiny("llama"))


def test_initialisations_share_one_interface() -> None:
    everything: list[Initial] = [
        Padding(),
        RandomTokens(5),
        SourceCopy(),
        PreviousOutput([]),
        NgramContinuation(trigram()),
        DraftedInitial(NoDrafter()),
    ]
    assert [each.after_first_token for each in everything] == [False] * 5 + [True]
