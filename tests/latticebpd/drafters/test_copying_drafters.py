"""Drafters that copy (prompt n-grams, saved top-k): right text always, few calls where a copy is right."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import save_file

from latticebpd import BlockwiseLM, LatticeSet, TreeDrafter, generate
from latticebpd.drafters import HeadLattices, MixtureDrafter, PromptNgramDrafter, State, load_top_k
from latticebpd.drafters.copies.text_matches import SuffixIndex, copied, weighted_tree
from latticebpd.lattices.drafts import DraftTree
from latticebpd.lattices.texts import Texts
from latticebpd.measuring.collect import CollectOptions, collect
from latticebpd.measuring.replay import accept_length
from tests.helpers.blockwise_models import greedy, tiny_model
from tests.helpers.drafters import saved_tree_drafter
from tests.helpers.trigrams import trigram

TOKENS = st.integers(0, 3)
TEXT = st.lists(TOKENS, max_size=40)


def state(tokens: Sequence[int], prompt_length: int, max_depth: int = 16, row: int = 0) -> State:
    return State(row, tokens, prompt_length, torch.zeros(1), max_depth)


def brute_force_matches(
    tokens: list[int], text: list[int], max_length: int, min_length: int
) -> list[tuple[int, list[int]]]:
    """For every inner place of ``tokens``, how much of what stands before it ends ``text``; grouped by that length."""
    lengths: dict[int, list[int]] = {}
    for position in range(1, len(tokens)):
        length = 0
        while (
            length < min(max_length, position, len(text))
            and tokens[position - 1 - length] == text[len(text) - 1 - length]
        ):
            length += 1
        if length >= min_length:
            lengths.setdefault(length, []).append(position)
    return sorted(lengths.items(), reverse=True)


def test_texts_of_rows_that_have_left_are_forgotten() -> None:
    """A server's rows come and go, for ever."""
    drafter = PromptNgramDrafter()
    for row in range(5):
        drafter.propose([state([1, 2, 1], 3, row=row), state([3, 3], 2, row=row + 1)])
    assert len(drafter._texts) == 2


@given(pieces=st.lists(TEXT, max_size=4), text=TEXT, max_length=st.integers(1, 5), data=st.data())
def test_index_grown_in_pieces_finds_what_brute_force_finds(
    pieces: list[list[int]], text: list[int], max_length: int, data: st.DataObject
) -> None:
    index = SuffixIndex(max_length, 100)
    for piece in pieces:
        index.extend(piece)
    min_length = data.draw(st.integers(1, max_length))
    tokens = [token for piece in pieces for token in piece]
    assert index.tokens == tokens
    assert index.matches(text, min_length) == brute_force_matches(tokens, text, max_length, min_length)


def test_index_keeps_the_latest_places_only() -> None:
    index = SuffixIndex(1, max_positions=2)
    index.extend([5, 1, 5, 2, 5, 3])
    assert index.matches([5]) == [(1, [3, 5])]


@given(source=st.lists(TOKENS, min_size=1, max_size=12), length=st.integers(0, 30), data=st.data())
def test_a_copy_runs_past_its_source_as_a_text_of_that_period_would(
    source: list[int], length: int, data: st.DataObject
) -> None:
    index = data.draw(st.integers(0, len(source) - 1))
    full = source + [0] * length
    for position in range(len(source), len(full)):
        full[position] = full[position - (len(source) - index)]
    assert copied(source, index, length) == full[index : index + length]


@given(
    paths=st.lists(st.tuples(st.lists(TOKENS, max_size=5), st.floats(0.1, 10)), max_size=6),
    keep=st.floats(0.05, 0.95),
    num_nodes=st.integers(1, 12),
)
def test_weighted_tree_holds_the_likeliest_prefixes(
    paths: list[tuple[list[int], float]], keep: float, num_nodes: int
) -> None:
    tree = weighted_tree([path for path, _ in paths], [weight for _, weight in paths], keep, num_nodes)
    total = sum(weight for _, weight in paths)
    shares: dict[tuple[int, ...], float] = {}
    for path, weight in paths:
        for depth in range(1, len(path) + 1):
            shares[tuple(path[:depth])] = shares.get(tuple(path[:depth]), 0.0) + weight / total * keep**depth
    assert len(tree) == min(num_nodes, len(shares))
    if tree.log_probs is not None:
        for node in range(len(tree)):
            prefix = tuple(tree.tokens[tree.path(node)].tolist())
            assert np.exp(tree.log_probs[node]) == pytest.approx(shares[prefix])
        assert np.exp(tree.log_probs) == pytest.approx(sorted(shares.values(), reverse=True)[: len(tree)])


def test_prompt_drafter_copies_what_followed_the_longest_match() -> None:
    text = [1, 2, 3, 4, 9, 9, 8, 2, 3, 5, 6, 7, 1, 2, 3]
    tree = PromptNgramDrafter(max_ngram=4, block_size=4, num_nodes=4).propose([state(text, len(text) - 1)])[0]
    assert accept_length(tree, [4, 9, 9, 8]) == 4 - (len(tree) < 4)  # `1 2 3` stood before 4; `2 3` alone also before 5
    wide = PromptNgramDrafter(max_ngram=4, block_size=4, num_nodes=12).propose([state(text, len(text) - 1)])[0]
    assert accept_length(wide, [4, 9, 9, 8]) == 4
    assert accept_length(wide, [5, 6, 7, 1]) == 4


def test_prompt_drafter_continues_a_period_past_the_end_of_the_text() -> None:
    text = [7, 8, 1, 2, 1, 2, 1]
    tree = PromptNgramDrafter(block_size=6, num_nodes=6).propose([state(text, 6)])[0]
    assert accept_length(tree, [2, 1, 2, 1, 2, 1]) == 6


def test_prompt_drafter_drafts_nothing_where_nothing_came_before_and_stays_within_the_limit() -> None:
    drafter = PromptNgramDrafter()
    assert len(drafter.propose([state([1, 2, 3], 2)])[0]) == 0
    assert drafter.propose([state([1, 1], 1, max_depth=2)])[0].depths.max() == 2


@given(text=st.lists(TOKENS, min_size=3, max_size=30), steps=st.lists(st.integers(1, 4), max_size=8))
def test_prompt_drafter_that_saw_the_text_grow_drafts_as_one_that_sees_it_whole(
    text: list[int], steps: list[int]
) -> None:
    growing = PromptNgramDrafter(max_matches=64)
    seen = 2
    trees: list[DraftTree] = growing.propose([state(text[:seen], 1)])
    for step in steps:
        seen = min(seen + step, len(text))
        trees = growing.propose([state(text[:seen], 1)])
    full = PromptNgramDrafter(max_matches=64).propose([state(text[:seen], 1)])
    assert trees[0].tokens.tolist() == full[0].tokens.tolist()
    assert trees[0].parents.tolist() == full[0].parents.tolist()


@pytest.fixture(scope="module")
def saved(model: BlockwiseLM) -> LatticeSet:
    data = Texts.of_rows([[3, 1, 4, 1, 5], [2, 7]], [5, 2])
    return collect(HeadLattices(model), data, CollectOptions(k=4, max_new_tokens=30))[0]


def test_saved_lattices_draft_what_the_heads_would(model: BlockwiseLM, saved: LatticeSet, tmp_path: Path) -> None:
    saved.save(tmp_path / "l.npz")
    lattices = load_top_k(tmp_path / "l.npz")
    drafter = saved_tree_drafter(lattices, trigram(), num_nodes=12, alpha=0.7)
    for prompt in ([2, 7], [3, 1, 4, 1, 5]):
        heads = generate(model, prompt, TreeDrafter(model, trigram(), num_nodes=12, alpha=0.7, k=4), max_new_tokens=24)
        out = generate(model, prompt, drafter, max_new_tokens=24)
        assert out.sequences.tolist() == heads.sequences.tolist()
        assert out.accept_counts.tolist() == heads.accept_counts.tolist()


def test_saved_lattices_without_contexts_are_taken_by_position(
    model: BlockwiseLM, saved: LatticeSet, tmp_path: Path
) -> None:
    first = 30 - 1 - (model.num_heads - 1)  # lattices of the first prompt
    save_file(
        {"tokens": saved.tokens[:first], "log_probs": saved.log_probs[:first].astype(np.float16)},
        tmp_path / "top.safetensors",
    )
    lattices = load_top_k(tmp_path / "top.safetensors")
    prompt = [3, 1, 4, 1, 5]
    heads = generate(model, prompt, TreeDrafter(model, None, num_nodes=8, k=4), max_new_tokens=24)
    out = generate(model, prompt, saved_tree_drafter(lattices, num_nodes=8), max_new_tokens=24)
    assert out.sequences.tolist() == heads.sequences.tolist()
    assert out.num_calls <= heads.num_calls + 1  # half precision may reorder a near-tie
    longer = generate(model, prompt, saved_tree_drafter(lattices, num_nodes=8), max_new_tokens=40)
    assert longer.sequences[0, 5:].tolist() == greedy(model, prompt, 40)  # past the last lattice: one token a call


@pytest.mark.parametrize("suffix", [".npz", ".safetensors"])
def test_saved_transitions_are_drafted_by_and_change_no_text(
    model: BlockwiseLM, saved: LatticeSet, tmp_path: Path, suffix: str
) -> None:
    n, slots, k = saved.tokens.shape
    tied = replace(saved, transitions=np.random.default_rng(0).normal(0, 2, (n, slots - 1, k, k)).astype(np.float16))
    file = tmp_path / f"top{suffix}"
    if suffix == ".npz":
        tied.save(file)
    else:
        save_file({name: getattr(tied, name) for name in (*LatticeSet.ARRAYS, "transitions")}, file)
    lattices = load_top_k(file)
    assert np.array_equal(lattices.transitions, tied.transitions)
    prompt = [3, 1, 4, 1, 5]
    out = generate(model, prompt, saved_tree_drafter(lattices, trigram(), num_nodes=12), max_new_tokens=24, trace=True)
    assert out.sequences[0, 5:].tolist() == greedy(model, prompt, 24)
    trees = [step.tree for step in out.trace if step.tree.lattice is not None]
    assert trees
    assert all(tree.lattice.transitions is not None for tree in trees)


def test_repeated_contexts_are_read_in_order() -> None:
    tokens = np.array([[[5]], [[6]], [[7]]], dtype=np.int32)
    lattices = LatticeSet(
        tokens, np.zeros((3, 1, 1), np.float32), np.full((3, 1), -1), np.array([[1, 2], [1, 2], [-1, 9]])
    )
    drafter = saved_tree_drafter(lattices)
    assert drafter.propose([state([0, 1, 2], 2)])[0].tokens.tolist() == [5]
    assert drafter.propose([state([0, 1, 2, 1, 2], 2)])[0].tokens.tolist() == [6]
    assert len(drafter.propose([state([0, 1, 2, 1, 2, 9], 2)])[0]) == 0  # `9` with padding is a whole text
    assert drafter.propose([state([9], 0)])[0].tokens.tolist() == [7]
    assert drafter.propose([state([0, 1, 2], 2)])[0].tokens.tolist() == [5]  # a new text begins anew
    assert drafter.propose([state([0, 1, 2], 2)])[0].tokens.tolist() == [5]
    for expected in (6, 5, 6):  # behind the last one the first follows
        assert drafter.propose([state([0, 1, 2, 1, 2], 2)])[0].tokens.tolist() == [expected]


def test_saved_lattices_without_contexts_follow_their_number_of_new_tokens() -> None:
    tokens, nothing = np.array([[[5]], [[6]]], np.int32), np.zeros((2, 0), np.int32)
    drafter = saved_tree_drafter(LatticeSet(tokens, np.zeros((2, 1, 1), np.float32), np.full((2, 1), -1), nothing))
    trees = [drafter.propose([state([0] * (3 + new), 3)])[0].tokens.tolist() for new in range(4)]
    assert trees == [[], [5], [6], []]


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"tokens": np.zeros((2, 3, 4), np.int32)}, "missing: log_probs"),
        ({"tokens": np.zeros((3, 4), np.int32), "log_probs": np.zeros((3, 4), np.float32)}, r"tokens \[n, slots, k\]"),
        (
            {"tokens": np.zeros((1, 3, 4), np.int32), "log_probs": np.zeros((1, 3, 5), np.float32)},
            r"log_probs \(1, 3, 5\)",
        ),
        (
            {"tokens": np.zeros((1, 3, 4), np.float32), "log_probs": np.zeros((1, 3, 4), np.float32)},
            "expected integer values",
        ),
    ],
)
def test_unusable_saved_tensors_are_refused_with_the_files_name(
    tmp_path: Path, arrays: dict[str, np.ndarray], message: str
) -> None:
    save_file(arrays, tmp_path / "top.safetensors")
    with pytest.raises(ValueError, match=rf"top\.safetensors: not saved top-k outputs: .*{message}"):
        load_top_k(tmp_path / "top.safetensors")


def test_damaged_safetensors_are_refused(tmp_path: Path) -> None:
    (tmp_path / "top.safetensors").write_bytes(b"\x08\0\0\0\0\0\0\0{broken}")
    with pytest.raises(ValueError, match="not saved top-k outputs"):
        load_top_k(tmp_path / "top.safetensors")
    with pytest.raises(FileNotFoundError):
        load_top_k(tmp_path / "none.safetensors")


def check_copying_drafters(data: st.DataObject) -> None:
    """Batches of one to three prompts, left-padded; lattices of half the text."""
    seed = data.draw(st.integers(0, 3))
    stop = data.draw(st.sampled_from([None, 5, 11]))
    model = tiny_model(seed, eos_token_id=stop)
    prompts = data.draw(st.lists(st.lists(st.integers(1, 22), min_size=1, max_size=8), min_size=1, max_size=3))
    texts = [greedy(model, prompt, 20) for prompt in prompts]
    options = CollectOptions(k=3, max_new_tokens=12, context_length=data.draw(st.integers(1, 3)))
    lattices, _ = collect(HeadLattices(model), Texts.of_rows(prompts, [*map(len, prompts)]), options)
    copying = PromptNgramDrafter(max_ngram=data.draw(st.integers(1, 4)))
    width = max(map(len, prompts))
    ids = [[0] * (width - len(prompt)) + prompt for prompt in prompts]
    mask = [[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts]
    for drafter in (
        copying,
        saved_tree_drafter(lattices, trigram(), num_nodes=6),
        MixtureDrafter(
            copying,
            TreeDrafter(model, None, num_nodes=6, k=3),
            num_nodes=8,
            sure=data.draw(st.sampled_from([0.0, 0.5, 2.0])),
        ),
    ):
        out = generate(model, ids, drafter, max_new_tokens=20, attention_mask=mask)
        for row, text in zip(out.sequences.tolist(), texts, strict=True):
            assert row[width : width + len(text)] == text
        assert out.num_tokens == sum(map(len, texts))


@settings(max_examples=10, deadline=None)
@given(data=st.data())
def test_every_copying_drafter_yields_the_text_of_generate(data: st.DataObject) -> None:
    check_copying_drafters(data)


@pytest.mark.slow
@settings(max_examples=400, deadline=None)
@given(data=st.data())
def test_every_copying_drafter_yields_the_text_of_generate_in_many_cases(data: st.DataObject) -> None:
    check_copying_drafters(data)


def test_options_that_make_no_sense_are_refused() -> None:
    with pytest.raises(ValueError, match="1 <= min_ngram <= max_ngram, got 3 and 2"):
        PromptNgramDrafter(max_ngram=2, min_ngram=3)
    with pytest.raises(ValueError, match="block_size, num_nodes and max_matches >= 1"):
        PromptNgramDrafter(block_size=0)
    with pytest.raises(ValueError, match="0 < keep < 1"):
        PromptNgramDrafter(keep=1.0)
    with pytest.raises(ValueError, match="match of at least one token"):
        SuffixIndex(0, 1)
    with pytest.raises(ValueError, match="at least one position"):
        SuffixIndex(2, 0)
