"""The core's searches against enumeration and OpenFst, on models and lattices that Hypothesis draws.

Weights are multiples of 1/64 where order matters, so that every sum is exact and ties are ties for everyone.
"""

from __future__ import annotations

import itertools
import math
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fst import UNK, NgramModel, NgramTable, _core, search
from fst.lattices import slots_of
from tests.helpers import reference
from tests.helpers.drawn_sausages import (
    ALPHAS,
    CONTEXTS,
    as_list,
    lattices,
    lattices_with_transitions,
    masked,
    prefixes,
)
from tests.helpers.random_tables import VOCAB, tables


@given(tables(), st.integers(0, VOCAB + 1), CONTEXTS)
def test_log_prob_equals_the_definition_of_backing_off(table: NgramTable, token: int, context: list[int]) -> None:
    assert NgramModel.from_table(table).core.log_prob(token, context) == reference.ReferenceLM(table).log_prob(
        token, context
    )


@given(tables(), CONTEXTS)
def test_score_is_the_sum_of_log_probs(table: NgramTable, tokens: list[int]) -> None:
    lm = reference.ReferenceLM(table)
    assert NgramModel.from_table(table).core.score(tokens) == sum(
        lm.log_prob(token, tokens[:t]) for t, token in enumerate(tokens)
    )


@settings(max_examples=300)
@given(tables(), lattices(), st.integers(1, 300), ALPHAS, CONTEXTS)
def test_nbest_equals_enumeration(
    table: NgramTable, lattice: tuple[np.ndarray, np.ndarray], p: int, alpha: float, context: list[int]
) -> None:
    expected = reference.nbest_paths(*lattice, reference.ReferenceLM(table), p, alpha, context)
    assert as_list(*search.nbest_paths(*lattice, NgramModel.from_table(table), p, alpha, context)) == expected


@given(lattices(), st.integers(1, 300))
def test_nbest_without_model_equals_enumeration(lattice: tuple[np.ndarray, np.ndarray], p: int) -> None:
    assert as_list(*search.nbest_paths(*lattice, None, p)) == reference.nbest_paths(*lattice, None, p, 1.0)


@settings(max_examples=300)
@given(tables(), lattices(), st.integers(1, 100), ALPHAS, CONTEXTS)
def test_tree_equals_enumeration(
    table: NgramTable, lattice: tuple[np.ndarray, np.ndarray], num_nodes: int, alpha: float, context: list[int]
) -> None:
    lm = reference.ReferenceLM(table)
    expected = reference.best_first_tree(*lattice, lm, 10_000, alpha, context)
    tree = prefixes(*search.best_first_tree(*lattice, NgramModel.from_table(table), num_nodes, alpha, context))
    # Softmax rounds, and not alike in C and Python: weights agree in order, prefixes have their own weight, none comes
    # twice, and each comes after its parent.
    assert [weight for _, weight in tree] == pytest.approx([weight for _, weight in expected[:num_nodes]], abs=1e-9)
    assert len({prefix for prefix, _ in tree}) == len(tree)
    weights = dict(expected)
    for prefix, weight in tree:
        assert weight == pytest.approx(weights[prefix], abs=1e-9)


@settings(max_examples=400)
@given(tables(), lattices_with_transitions(), st.integers(1, 300), ALPHAS, CONTEXTS)
def test_nbest_with_transitions_equals_enumeration(
    table: NgramTable, lattice: tuple[np.ndarray, np.ndarray, np.ndarray], p: int, alpha: float, context: list[int]
) -> None:
    tokens, log_probs, transitions = lattice
    lm = reference.ReferenceLM(table)
    expected = reference.nbest_paths(tokens, log_probs, lm, p, alpha, context, masked(transitions))
    paths = search.nbest_paths(tokens, log_probs, NgramModel.from_table(table), p, alpha, context, transitions)
    assert as_list(*paths) == expected


@given(lattices_with_transitions(), st.integers(1, 300))
def test_nbest_with_transitions_alone_equals_enumeration(
    lattice: tuple[np.ndarray, np.ndarray, np.ndarray], p: int
) -> None:
    tokens, log_probs, transitions = lattice
    expected = reference.nbest_paths(tokens, log_probs, None, p, 1.0, (), masked(transitions))
    assert as_list(*search.nbest_paths(tokens, log_probs, None, p, transitions=transitions)) == expected


@settings(max_examples=400)
@given(tables(), lattices_with_transitions(), st.integers(1, 100), ALPHAS, CONTEXTS, st.booleans())
def test_tree_with_transitions_equals_enumeration(
    table: NgramTable,
    lattice: tuple[np.ndarray, np.ndarray, np.ndarray],
    num_nodes: int,
    alpha: float,
    context: list[int],
    with_model: bool,
) -> None:
    tokens, log_probs, transitions = lattice
    lm, model = (reference.ReferenceLM(table), NgramModel.from_table(table)) if with_model else (None, None)
    expected = reference.best_first_tree(tokens, log_probs, lm, 10_000, alpha, context, masked(transitions))
    tree = prefixes(*search.best_first_tree(tokens, log_probs, model, num_nodes, alpha, context, transitions))
    assert [weight for _, weight in tree] == pytest.approx([weight for _, weight in expected[:num_nodes]], abs=1e-9)
    assert len({prefix for prefix, _ in tree}) == len(tree)
    weights = dict(expected)
    for prefix, weight in tree:
        assert weight == pytest.approx(weights[prefix], abs=1e-9)


@given(tables(), lattices(), st.integers(1, 50), ALPHAS, CONTEXTS)
def test_transitions_of_zero_change_nothing(
    table: NgramTable, lattice: tuple[np.ndarray, np.ndarray], count: int, alpha: float, context: list[int]
) -> None:
    lm, (slots, k) = NgramModel.from_table(table), lattice[0].shape
    nothing = np.zeros((slots - 1, k, k))
    for find in (search.nbest_paths, search.best_first_tree):
        with_them, without = (
            find(*lattice, lm, count, alpha, context, nothing),
            find(*lattice, lm, count, alpha, context),
        )
        assert all(np.array_equal(a, b) for a, b in zip(with_them, without, strict=True))


def test_transitions_tie_towards_the_lower_tokens() -> None:
    tokens, log_probs = np.array([[5, 3], [2, 7]]), np.zeros((2, 2))
    transitions = np.array([[[1.0, 0.0], [0.0, 1.0]]])  # 5 2 and 3 7
    paths, scores = search.nbest_paths(tokens, log_probs, None, 4, transitions=transitions)
    assert paths.tolist() == [[3, 7], [5, 2], [3, 2], [5, 7]]
    assert scores.tolist() == [1, 1, 0, 0]


def test_masked_transitions_may_leave_no_path_but_prefixes() -> None:
    tokens, log_probs, transitions = np.array([[1, 2], [3, 4]]), np.zeros((2, 2)), np.full((1, 2, 2), -np.inf)
    paths, scores = search.nbest_paths(tokens, log_probs, None, 4, transitions=transitions)
    assert (paths.size, scores.size) == (0, 0)
    assert prefixes(*search.best_first_tree(tokens, log_probs, None, 9, transitions=transitions)) == [
        ((1,), math.log(0.5)), ((2,), math.log(0.5)),
    ]  # fmt: skip
    both = np.stack([transitions, np.zeros((1, 2, 2))])
    _, _, counts = search.nbest_paths_batch(
        np.stack([tokens] * 2), np.stack([log_probs] * 2), None, 4, transitions=both
    )
    assert counts.tolist() == [0, 4]


def test_tokens_that_are_one_word_to_the_model_keep_their_own_transitions() -> None:
    table = NgramTable([np.array([[UNK], [1]], np.int32)], [np.array([-1.0, -2.0])], [np.zeros(2)])
    tokens, log_probs = np.array([[8, 9], [1, 7]]), np.zeros((2, 2))  # 7, 8 and 9 are all <unk>
    transitions = np.array([[[0.0, 0.5], [0.75, 0.0]]])
    paths, scores = search.nbest_paths(tokens, log_probs, NgramModel.from_table(table), 4, transitions=transitions)
    assert paths.tolist() == [[8, 7], [9, 7], [9, 1], [8, 1]]
    assert scores.tolist() == [-1.5, -2.0, -2.25, -3.0]


@pytest.mark.parametrize("shape", [(2, 2, 2), (1, 2), (1, 2, 3), (0, 2, 2)])
def test_transitions_of_another_shape_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"expected transitions \[slots - 1, k, k\]"):
        search.nbest_paths([[1, 2], [3, 4]], np.zeros((2, 2)), transitions=np.zeros(shape))


@pytest.mark.parametrize(
    ("value", "spelled"), [(math.nan, "NaN"), (math.inf, r"\+inf"), (1e300, r"\+inf"), (2e30, r"2\.0.*e\+30")]
)
def test_transitions_beyond_numbers_are_refused(value: float, spelled: str) -> None:
    transitions = np.zeros((2, 1, 2, 2))
    transitions[1, 0, 1, 0] = value
    tokens = np.array([[[1, 2], [3, 4]]] * 2)
    with pytest.raises(
        ValueError,
        match=rf"lattice 1, slot 1: expected transitions of at most 1e30, got {spelled} from token 2 to token 3",
    ):
        search.nbest_paths_batch(tokens, np.zeros((2, 2, 2)), transitions=transitions)


def test_tree_breaks_ties_by_tokens_with_prefixes_first() -> None:
    tokens = np.array([[5, 3], [7, -1], [2, 1]])
    tree = prefixes(*search.best_first_tree(tokens, np.zeros((3, 2)), None, 100))
    half, quarter = math.log(0.5), 2 * math.log(0.5)
    assert tree == [
        ((3,), half), ((3, 7), half), ((5,), half), ((5, 7), half),
        ((3, 7, 1), quarter), ((3, 7, 2), quarter), ((5, 7, 1), quarter), ((5, 7, 2), quarter),
    ]  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(tables(), lattices(), st.integers(1, 40), CONTEXTS)
def test_nbest_equals_openfst_shortestpath(
    table: NgramTable, lattice: tuple[np.ndarray, np.ndarray], p: int, context: list[int]
) -> None:
    expected = reference.shortest_paths(*lattice, reference.ReferenceLM(table), p, 1.0, context)
    paths = as_list(*search.nbest_paths(*lattice, NgramModel.from_table(table), p, 1.0, context))
    assert [score for _, score in paths] == pytest.approx([score for _, score in expected], abs=1e-4)
    worst = expected[-1][1]
    assert {path for path, score in paths if score > worst + 1e-3} == {
        path for path, score in expected if score > worst + 1e-3
    }


def test_backing_off_is_a_failure_and_not_an_epsilon() -> None:
    # p(2 | 1) is explicit at cost 5; backing off would cost 0.5 + 0.2, and must not be had.
    table = NgramTable(
        [np.array([[1], [2]], dtype=np.int32), np.array([[1, 2]], dtype=np.int32)],
        [np.array([-1.0, -0.2]), np.array([-5.0])],
        [np.array([-0.5, 0.0]), np.array([0.0])],
    )
    tokens, scores = search.nbest_paths([[1], [2]], [[0.0], [0.0]], NgramModel.from_table(table), 4)
    assert tokens.tolist() == [[1, 2]]
    assert scores == pytest.approx([-6.0])


def test_unrescored_search_leaves_the_model_alone() -> None:
    class Untouchable:
        @property
        def core(self) -> _core.Model:
            raise AssertionError("the model was touched")

    tokens, scores = search.nbest_paths([[4, 9]], [[-1.0, -0.5]], Untouchable(), 2, alpha=0)
    assert tokens.tolist() == [[9], [4]]
    assert scores.tolist() == [-0.5, -1.0]
    assert search.best_first_tree([[4, 9]], [[-1.0, -0.5]], Untouchable(), 1, alpha=0)[0].tolist() == [9]


def test_all_paths_tied_come_in_order_of_tokens() -> None:
    tokens = np.tile(np.arange(16), (8, 1))
    paths, _ = search.nbest_paths(tokens, np.full((8, 16), -2.75), None, 300)
    assert paths.tolist() == [list(path) for path in itertools.islice(itertools.product(range(16), repeat=8), 300)]


def random_model(rng: np.random.Generator, vocab: int, order: int, rows: int) -> NgramTable:
    """A closed table with random weights, most tokens rare."""
    ngrams = {(word,) for word in range(vocab)}
    for _ in range(rows):
        row = tuple((rng.random(order) ** 2 * vocab).astype(int).tolist())
        ngrams |= {row[i:j] for i in range(order) for j in range(i + 1, order + 1)}
    by_order = [np.array(sorted(row for row in ngrams if len(row) == n), dtype=np.int32) for n in range(1, order + 1)]
    log_probs = [-rng.exponential(2, len(by)) for by in by_order]
    backoffs = [rng.normal(-0.3, 0.6, len(by)) * (n < order) for n, by in enumerate(by_order, 1)]
    return NgramTable(by_order, log_probs, backoffs)


def random_lattice(rng: np.random.Generator, vocab: int, slots: int, k: int) -> tuple[np.ndarray, np.ndarray]:
    tokens = np.stack([rng.choice(vocab, k, replace=False) for _ in range(slots)])
    return tokens, rng.normal(-3, 1, (slots, k))


@pytest.mark.parametrize("order", [1, 2, 3, 5])
def test_nbest_equals_openfst_on_wide_lattices(order: int) -> None:
    rng = np.random.default_rng(order)
    table = random_model(rng, 60, order, 3000)
    lattice = random_lattice(rng, 60, 5, 8)
    expected = reference.shortest_paths(*lattice, reference.ReferenceLM(table), 64, 0.75, [3, 1])
    paths = as_list(*search.nbest_paths(*lattice, NgramModel.from_table(table), 64, 0.75, [3, 1]))
    assert [path for path, _ in paths] == [path for path, _ in expected]
    assert [score for _, score in paths] == pytest.approx([score for _, score in expected], abs=1e-4)


def test_many_paths_through_many_slots_are_distinct_and_in_order() -> None:
    rng = np.random.default_rng(0)
    table = random_model(rng, 200, 4, 5000)
    lattice = random_lattice(rng, 200, 64, 16)
    paths, scores = search.nbest_paths(*lattice, NgramModel.from_table(table), 1024)
    assert paths.shape == (1024, 64)
    assert len(np.unique(paths, axis=0)) == 1024
    assert (np.diff(scores) <= 0).all()
    lm = reference.ReferenceLM(table)
    of_token = [dict(slot) for slot in reference.columns(*lattice)]
    for i in (0, 511, 1023):
        words = paths[i].tolist()
        total = sum(of_token[t][word] + lm.log_prob(word, words[max(0, t - 3) : t]) for t, word in enumerate(words))
        assert scores[i] == pytest.approx(total, abs=1e-4)  # the automaton's weights are float32


@pytest.mark.parametrize("given_transitions", [False, True])
def test_batch_equals_single_calls_whatever_the_threads(given_transitions: bool) -> None:
    rng = np.random.default_rng(1)
    lm = NgramModel.from_table(random_model(rng, 80, 4, 3000))
    tokens, log_probs = (
        np.stack(parts) for parts in zip(*(random_lattice(rng, 80, 6, 8) for _ in range(40)), strict=True)
    )
    tokens[3, :, 1:] = -1  # one path only
    contexts = rng.integers(0, 80, (40, 3))
    contexts[::2, :2] = -1
    transitions = rng.normal(0, 1, (40, 5, 8, 8)).astype(np.float32) if given_transitions else None
    batches = [
        search.nbest_paths_batch(tokens, log_probs, lm, 12, 0.5, contexts, threads, transitions)
        for threads in (1, 2, 5)
    ]
    trees = [
        search.best_first_tree_batch(tokens, log_probs, lm, 20, 0.5, contexts, threads, transitions)
        for threads in (1, 2, 5)
    ]
    for other in batches[1:] + trees[1:]:
        for a, b in zip(batches[0] if len(other) == 3 else trees[0], other, strict=True):
            assert np.array_equal(a, b)
    for i in range(40):
        context, own = contexts[i][contexts[i] >= 0].tolist(), None if transitions is None else transitions[i]
        paths, scores = search.nbest_paths(tokens[i], log_probs[i], lm, 12, 0.5, context, own)
        count = batches[0][2][i]
        assert count == len(paths) == (1 if i == 3 else 12)
        assert np.array_equal(batches[0][0][i, :count], paths)
        assert np.array_equal(batches[0][1][i, :count], scores)
        assert (batches[0][0][i, count:] == -1).all()
        nodes, parents, weights = search.best_first_tree(tokens[i], log_probs[i], lm, 20, 0.5, context, own)
        count = trees[0][3][i]
        assert np.array_equal(trees[0][0][i, :count], nodes)
        assert np.array_equal(trees[0][1][i, :count], parents)
        assert np.array_equal(trees[0][2][i, :count], weights)


def long_rows(vocab: int = 4000) -> NgramModel:
    """A bigram model whose rows have from 1 to 2048 arcs: short ones are scanned, long ones searched or indexed."""
    rng = np.random.default_rng(2)
    followers = [np.sort(rng.choice(vocab, 1 << (word % 12), replace=False)) for word in range(48)]
    pairs = np.concatenate(
        [np.stack([np.full(len(row), word), row], axis=1) for word, row in enumerate(followers)]
    ).astype(np.int32)
    unigrams = np.arange(vocab, dtype=np.int32)[:, None]
    backoffs = [np.where(np.arange(vocab) < 48, -0.25, 0), np.zeros(len(pairs))]
    return NgramModel.from_table(
        NgramTable([unigrams, pairs], [-rng.exponential(6, vocab), -rng.exponential(3, len(pairs))], backoffs)
    )


def test_rows_of_any_length_score_as_looked_up_one_by_one() -> None:
    rng = np.random.default_rng(3)
    model = long_rows()
    for _ in range(60):
        tokens = np.stack([rng.permutation(48)[:4], rng.choice(4000, 4, replace=False)])
        paths = as_list(*search.nbest_paths(tokens, np.zeros((2, 4)), model, 16))
        assert len(paths) == 16
        for (first, second), score in paths:
            assert score == pytest.approx(model.log_prob(first) + model.log_prob(second, [first]), abs=1e-9)


def test_a_searched_row_gives_nothing_to_the_slot_after() -> None:
    """Labels are searched 16 at a time: where a slot has fewer, the last one is repeated, and must be found once."""
    model, first = long_rows(), 5  # its 32 arcs are too many to scan for two labels, and too few for an index
    row = model.states[model.arcs["nextstate"][first]]
    assert row["narcs"] == 33
    for last in (model.arcs["ilabel"][row["pos"] + 1 : row["pos"] + 33] - 1).tolist():
        lattice = np.array([[first, -1], [last - 1, last], [60, 61]]), np.zeros((3, 2))
        paths = as_list(*search.nbest_paths(*lattice, model, 4))
        assert len(paths) == 4
        for path, score in paths:
            expected = sum(model.log_prob(token, path[:i]) for i, token in enumerate(path))
            assert score == pytest.approx(expected, abs=1e-9)


def test_threads_that_meet_the_same_new_rows_find_the_same_paths() -> None:
    rng = np.random.default_rng(4)
    tokens = np.stack([np.stack([rng.permutation(48)[:8], rng.choice(4000, 8, replace=False)]) for _ in range(200)])
    single = search.nbest_paths_batch(tokens, np.zeros(tokens.shape), long_rows(), threads=1)
    for _ in range(5):
        together = search.nbest_paths_batch(tokens, np.zeros(tokens.shape), long_rows(), threads=8)
        assert all(np.array_equal(a, b) for a, b in zip(single, together, strict=True))


def test_long_row_out_of_order_is_refused() -> None:
    model = long_rows()
    arcs = model.arcs.copy()
    longest = model.states[model.arcs["nextstate"][11]]  # of token 11: 2048 arcs behind the failure arc
    assert longest["narcs"] == 2049
    arcs["ilabel"][longest["pos"] + 700] = arcs["ilabel"][longest["pos"] + 699]
    spoilt = SimpleNamespace(core=_core.Model(model.states, arcs, model.start_state, model.unigram_state))
    with pytest.raises(ValueError, match="rising order of label"):
        search.nbest_paths([[11], [5]], np.zeros((2, 1)), spoilt)


@pytest.mark.parametrize(
    ("tokens", "log_probs", "options", "message"),
    [
        ([[1, 2], [3, 3]], [[0, 0], [0, 0]], {}, "slot 1: expected distinct tokens, got token 3"),
        ([[1, 2], [3, 4]], [[0, 0], [0, math.nan]], {}, "slot 1: .* got NaN for token 4"),
        ([[1, 2], [3, 4]], [[math.inf, 0], [0, 0]], {}, r"slot 0: .* got \+inf for token 1"),
        ([[1, -2]], [[0, 0]], {}, "got -2"),
        ([[1], [-1]], [[0], [0]], {}, "slot 1: expected at least one token"),
        ([[1], [1]], [[0], [-math.inf]], {}, "slot 1: expected at least one token"),
        (np.zeros((2, 0), int), np.zeros((2, 0)), {}, "lattices of at least one slot and one token"),
        (np.zeros((0, 2), int), np.zeros((0, 2)), {}, "lattices of at least one slot and one token"),
        ([[1]], [[0, 0]], {}, "one shape"),
        ([[1.5]], [[0]], {}, "integer token ids"),
        ([[1]], [[0]], {"p": 0}, "p from 1 to 2.31 - 1, got 0"),
        ([[1]], [[0]], {"alpha": -1.0}, "alpha from 0 to 1e30, got -1.0"),
        ([[1]], [[0]], {"alpha": math.nan}, "alpha from 0 to 1e30, got nan"),
        ([[1]], [[0]], {"alpha": 1e308}, r"alpha from 0 to 1e30, got 1e\+308"),
        ([[1]], [[0]], {"alpha": np.nextafter(1e30, 2e30)}, "alpha from 0 to 1e30"),
        ([[1]], [[0]], {"p": 2**63}, "p from 1 to 2.31 - 1, got 9223372036854775808"),
        ([[1]], [[1.1e30]], {}, r"slot 0: .* at most 1e30, got 1.1e\+30 for token 1"),
        ([[1]], [[-1e30]], {}, "slot 0: expected at least one token"),
        ([[2**31]], [[0]], {}, "token ids from 0"),
    ],
)
def test_bad_lattice_is_named_in_the_error(
    tokens: object, log_probs: object, options: dict[str, object], message: str
) -> None:
    lm = NgramModel.from_table(NgramTable([np.array([[1]], dtype=np.int32)], [np.zeros(1)], [np.zeros(1)]))
    with pytest.raises(ValueError, match=message):
        search.nbest_paths(tokens, log_probs, lm, **options)


def test_bad_node_count_is_named_in_the_error() -> None:
    with pytest.raises(ValueError, match=r"num_nodes from 1 to 2\^31 - 1, got 0"):
        search.best_first_tree([[1]], [[0.0]], None, num_nodes=0)
    with pytest.raises(ValueError, match="lattice 1, slot 0: expected distinct"):
        search.nbest_paths_batch([[[1, 2]], [[3, 3]]], np.zeros((2, 1, 2)), None, threads=2)


EDGES = [0.0, 1e-300, 1.0, 999.0, 1e15, 1e29, 1e30]


@given(tables(max_order=3), lattices(), st.sampled_from(EDGES), st.integers(1, 20), CONTEXTS, st.data())
def test_scores_at_the_edges_of_the_range_are_finite_and_in_order(
    table: NgramTable,
    lattice: tuple[np.ndarray, np.ndarray],
    alpha: float,
    p: int,
    context: list[int],
    data: st.DataObject,
) -> None:
    tokens = lattice[0]
    weights = st.sampled_from([sign * edge for edge in EDGES for sign in (1, -0.999)])
    log_probs = np.array([[data.draw(weights) for _ in row] for row in tokens])
    lm = NgramModel.from_table(table)
    paths, scores = search.nbest_paths(tokens, log_probs, lm, p=p, alpha=alpha, context=context)
    assert np.isfinite(scores).all()
    assert (np.diff(scores) <= 0).all()
    assert (
        len(set(map(tuple, paths.tolist()))) == len(paths) == min(p, math.prod(int((row >= 0).sum()) for row in tokens))
    )
    nodes, parents, path_log_probs = search.best_first_tree(
        tokens, log_probs, lm, num_nodes=p, alpha=alpha, context=context
    )
    assert len(nodes) >= 1
    assert np.isfinite(path_log_probs).all()
    assert (parents < np.arange(len(parents))).all()


@pytest.mark.parametrize("mask", [-math.inf, np.finfo(np.float64).min, float(np.finfo(np.float32).min), -1e30])
def test_masked_arcs_are_never_taken(mask: float) -> None:
    tokens, log_probs = [[1, 2], [3, 4]], [[-1.0, mask], [mask, -2.0]]
    paths, scores = search.nbest_paths(tokens, log_probs, None, p=4)
    assert (paths.tolist(), scores.tolist()) == ([[1, 4]], [-3.0])
    nodes, _, path_log_probs = search.best_first_tree(tokens, log_probs, None, num_nodes=4)
    assert (nodes.tolist(), path_log_probs.tolist()) == ([1, 4], [0.0, 0.0])
    assert [arcs for slot in slots_of(tokens, log_probs) for arcs in slot] == [(1, -1.0), (4, -2.0)]
    with pytest.raises(ValueError, match="slot 0: expected at least one token"):
        search.nbest_paths([[1, 2], [3, 4]], np.full((2, 2), mask), None, p=2)


@pytest.mark.parametrize("shape", [(0, 0, 4), (2, 0, 4), (2, 3, 0), (0, 3, 0)])
def test_batch_of_lattices_without_slots_or_tokens_is_refused(shape: tuple[int, ...]) -> None:
    for find in (search.nbest_paths_batch, search.best_first_tree_batch):
        with pytest.raises(ValueError, match="lattices of at least one slot and one token"):
            find(np.empty(shape, np.int32), np.empty(shape))


def test_batch_of_no_lattices_is_empty() -> None:
    paths, scores, counts = search.nbest_paths_batch(np.empty((0, 3, 4), np.int32), np.empty((0, 3, 4)))
    assert (paths.shape, scores.shape, counts.shape) == ((0, 0, 3), (0, 0), (0,))


def test_more_paths_than_memory_holds_are_refused() -> None:
    tokens = np.tile(np.arange(16, dtype=np.int32), (12, 1))
    with pytest.raises(ValueError, match=r"at most 2\^22 paths, got p = 2147483647"):
        search.nbest_paths(tokens, np.zeros(tokens.shape), None, p=2**31 - 1)
    with pytest.raises(ValueError, match=r"at most 2\^22 nodes, got num_nodes = 5000000"):
        search.best_first_tree(tokens, np.zeros(tokens.shape), None, num_nodes=5_000_000)
    paths, _ = search.nbest_paths(tokens[:2], np.zeros((2, 16)), None, p=2**31 - 1)  # there are few
    assert len(paths) == 256


STATE = np.dtype([("final", "f4"), ("pos", "u4"), ("narcs", "u4"), ("niepsilons", "u4"), ("noepsilons", "u4")])
ARC = np.dtype([("ilabel", "i4"), ("olabel", "i4"), ("weight", "f4"), ("nextstate", "i4")])


def handmade(**changes: object) -> tuple[np.ndarray, np.ndarray]:
    """Unigrams 0 and 1 in state 0; state 1 = history (0) with an arc for 1. `changes` spoil single fields."""
    states = np.array([(math.inf, 0, 2, 0, 0), (math.inf, 2, 2, 1, 1)], STATE)
    arcs = np.array([(1, 1, 0.5, 1), (2, 2, 1.5, 0), (0, 0, 0.25, 0), (2, 2, 0.125, 0)], ARC)
    for name, value in changes.items():
        field, index = name.rsplit("_", 1)
        (states if field in STATE.names else arcs)[field][int(index)] = value
    return states, arcs


def test_handmade_model_scores_as_computed_on_paper() -> None:
    core = _core.Model(*handmade(), 0, 0)
    assert core.log_prob(1, [0]) == -0.125
    assert core.log_prob(0, [0]) == -0.75
    assert core.log_prob(1, [1]) == -1.5
    assert core.log_prob(7, [0]) == -1000.25
    assert core.score([0, 1, 1]) == -(0.5 + 0.125 + 1.5)


@pytest.mark.parametrize(
    "spoilt",
    [
        {"pos_1": 3}, {"narcs_1": 2**32 - 1}, {"pos_1": 2**32 - 1}, {"nextstate_2": 9}, {"nextstate_2": -1},
        {"nextstate_3": 2}, {"nextstate_0": -5}, {"nextstate_2": 1}, {"weight_3": math.nan}, {"weight_2": math.nan},
        {"weight_0": math.nan}, {"ilabel_2": 1}, {"narcs_1": 0}, {"ilabel_1": 1}, {"ilabel_0": 0},  {"ilabel_0": -1},
    ],
)  # fmt: skip
def test_spoilt_model_is_refused_when_the_search_meets_the_damage(spoilt: dict[str, object]) -> None:
    def load() -> SimpleNamespace:
        return SimpleNamespace(core=_core.Model(*handmade(**spoilt), 0, 0))

    tokens, log_probs = [[0, 1], [0, 1]], np.zeros((2, 2))
    with pytest.raises(ValueError, match="corrupt language model"):
        search.nbest_paths(tokens, log_probs, load())
    with pytest.raises(ValueError, match="corrupt language model"):
        search.best_first_tree(tokens, log_probs, load())


def test_infinite_weights_stand_for_a_cost_of_a_thousand() -> None:
    core = _core.Model(*handmade(weight_3=math.inf), 0, 0)
    assert core.log_prob(1, [0]) == -1000
    tokens, scores = search.nbest_paths([[0, -1], [0, 1]], np.zeros((2, 2)), SimpleNamespace(core=core))
    assert tokens.tolist() == [[0, 0], [0, 1]]
    assert scores.tolist() == [-1.25, -1000.5]


def test_model_refuses_impossible_arguments() -> None:
    states, arcs = handmade()
    for bad in [(2, 0), (0, 2), (-1, 0), (0, -1), (0, 1)]:
        with pytest.raises(ValueError, match="corrupt language model"):
            _core.Model(states, arcs, *bad)
    with pytest.raises(ValueError, match="unk_label"):
        _core.Model(states, arcs, 0, 0, 9)
    with pytest.raises(ValueError, match="20 bytes"):
        _core.Model(states.tobytes()[:-1], arcs, 0, 0)
    with pytest.raises(ValueError, match="contiguous"):
        _core.Model(states[::-1], arcs, 0, 0)


def test_a_daemon_thread_at_work_does_not_disturb_the_end_of_the_program() -> None:
    program = """
import threading, time
import numpy as np
import fst
tokens, log_probs = np.tile(np.arange(40, dtype=np.int32), (6, 1)), np.full((6, 40), -3.0)
def work():
    while True:
        fst.nbest_paths(tokens, log_probs, None, p=200)
        fst.best_first_tree(tokens, log_probs, None, num_nodes=200)
threading.Thread(target=work, daemon=True).start()
time.sleep(0.2)
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300)
    assert (ended.returncode, ended.stderr) == (0, "")
