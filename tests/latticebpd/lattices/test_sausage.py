"""SausageLattice, top_k and oracle_path."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fst import NgramModel, NgramTable
from latticebpd import SausageLattice, draft_tree, oracle_path, rescore
from latticebpd.lattices.sausage import top_k
from tests.helpers.lattices import num_paths, top_arcs


def test_from_logits_normalises_and_sorts_best_first() -> None:
    lattice = SausageLattice.from_logits(np.log([[0.1, 0.6, 0.3], [0.5, 0.2, 0.3]]), k=2)
    assert lattice.tokens.tolist() == [[1, 2], [0, 2]]
    np.testing.assert_allclose(np.exp(lattice.log_probs), [[0.6, 0.3], [0.5, 0.3]], rtol=1e-6)


def test_from_logits_takes_torch_and_numpy_alike() -> None:
    logits = torch.randn(4, 50, generator=torch.Generator().manual_seed(1))
    ours, theirs = SausageLattice.from_logits(logits, k=7), SausageLattice.from_logits(logits.numpy(), k=7)
    assert ours.tokens.tolist() == theirs.tokens.tolist()
    reference = torch.log_softmax(logits.double(), -1).gather(1, torch.tensor(ours.tokens).long())
    np.testing.assert_allclose(ours.log_probs, reference, atol=1e-6)


def test_from_logits_accepts_half_precision() -> None:
    assert (
        SausageLattice.from_logits(torch.zeros(2, 4, dtype=torch.bfloat16), k=4).tokens.tolist() == [[0, 1, 2, 3]] * 2
    )


@pytest.mark.parametrize("dtype", [*"bBhHiIqQ", np.float16, np.float32, np.float64])
def test_from_logits_finds_the_best_of_every_type_of_number(dtype: object) -> None:
    info = np.finfo(dtype) if np.dtype(dtype).kind == "f" else np.iinfo(dtype)
    logits = np.array([[0, 3, 2, 3, 1], [info.max, info.min, 0, 1, info.max]], dtype)
    lattice = SausageLattice.from_logits(logits, k=3)
    assert lattice.tokens.tolist() == [[1, 3, 2], [0, 4, 3]]
    assert SausageLattice.from_logits(logits[:1], k=5).tokens[0].tolist() == [1, 3, 2, 4, 0]
    exact = logits[0].astype(np.float64)
    np.testing.assert_allclose(lattice.log_probs[0], (exact - np.log(np.exp(exact).sum()))[[1, 3, 2]], rtol=1e-6)


@pytest.mark.parametrize("logits", [np.array([["1", "2"]]), np.array([[1j, 2]]), np.array([[object(), 2]])])
def test_logits_that_are_no_numbers_are_refused(logits: np.ndarray) -> None:
    with pytest.raises(ValueError, match="expected logits as numbers"):
        SausageLattice.from_logits(logits, k=1)


@pytest.mark.parametrize("mask", [-math.inf, float(np.finfo(np.float64).min), float(np.finfo(np.float32).min), -1e30])
def test_masked_arcs_are_kept_as_minus_infinity(mask: float) -> None:
    log_probs = np.array([[-1.0, mask], [mask, -2.0]])
    lattice = SausageLattice([[1, 2], [3, 4]], log_probs)
    assert lattice.log_probs.tolist() == [[-1.0, -math.inf], [-math.inf, -2.0]]
    for lm in (
        None,
        NgramModel.from_table(NgramTable([np.array([[1], [2], [3]])], [np.log([0.2, 0.3, 0.5])], [np.zeros(3)])),
    ):
        assert rescore(lattice, lm, p=4).tokens.tolist() == [[1, 4]]
        assert draft_tree(lattice, lm, num_nodes=4).tokens.tolist() == [1, 4]
    with pytest.raises(ValueError, match="slot 0: expected at least one arc"):
        SausageLattice([[1, 2]], [[mask, mask]])


def test_lattices_are_values_and_read_only() -> None:
    tokens, log_probs = np.array([[4, 7]], np.int32), np.array([[-1.0, 0.0]], np.float32)
    lattice, twin = SausageLattice(tokens, log_probs), SausageLattice(tokens.copy(), np.array([[-1.0, -0.0]]))
    assert lattice == twin
    assert len({lattice, twin}) == 1
    assert lattice not in (None, SausageLattice(tokens, log_probs - 1), SausageLattice(tokens + 1, log_probs))
    assert SausageLattice([[4, -1]], [[0, np.nan]]) == SausageLattice([[4, -1]], [[0, np.nan]])
    for array in (lattice.tokens, lattice.log_probs):
        with pytest.raises(ValueError, match="read-only"):
            array[0, 0] = 1
    assert np.shares_memory(lattice.tokens, tokens)  # nothing was copied, and the caller's own arrays stay as they were
    tokens[0, 0] = 5


@given(st.lists(st.lists(st.integers(-2, 2), min_size=5, max_size=5), min_size=1, max_size=4), st.integers(1, 5))
def test_top_k_breaks_ties_towards_the_lower_index(rows: list[list[int]], k: int) -> None:
    expected = [sorted(range(5), key=lambda i: (-row[i], i))[:k] for row in rows]
    assert top_k(np.array(rows, dtype=np.float64), k).tolist() == expected


@pytest.mark.parametrize(
    ("tokens", "log_probs", "message"),
    [
        ([[1, 2]], [[0.0]], r"one shape \[slots, k\], got \(1, 2\) and \(1, 1\)"),
        ([1, 2], [0.0, 0.0], r"\[slots, k\], got \(2,\)"),
        ([[1.0, 2.0]], [[0.0, 0.0]], "expected integer tokens, got float64"),
        ([[1, 2]], [["a", "b"]], "expected real log_probs"),
        ([[1, 2], [3, 3]], [[0.0, 0.0]] * 2, "slot 1: expected distinct tokens, got token 3 twice"),
        ([[1, -2]], [[0.0, 0.0]], r"slot 0: expected token ids >= 0 .* got \[1, -2\]"),
        ([[1, 2**31]], [[0.0, 0.0]], "slot 0: expected token ids >= 0 .* fit 32 bits"),
        ([[1, 2]], [[0.0, math.nan]], "slot 0, arc 1: expected a log-probability of at most 1e.30, got nan"),
        ([[1, 2]], [[math.inf, 0.0]], "slot 0, arc 0: .* got inf"),
        ([[1, 2], [-1, -1]], [[0.0, 0.0]] * 2, "slot 1: expected at least one arc"),
        ([[1, 2]], [[-math.inf, -math.inf]], "slot 0: expected at least one arc"),
    ],
)
def test_malformed_lattice_is_refused_by_name(tokens: list[object], log_probs: list[object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        SausageLattice(np.array(tokens), np.array(log_probs))


def test_padding_may_carry_any_weight_and_is_on_no_path() -> None:
    lattice = SausageLattice([[4, -1], [5, 6], [7, 8]], [[-1.0, math.nan], [-1.0, -2.0], [0.0, -math.inf]])
    assert rescore(lattice, None, p=9).tokens.tolist() == [[4, 5, 7], [4, 6, 7]]


def tied(seed: int, slots: int = 4, k: int = 5) -> SausageLattice:
    """A lattice with transitions, padding and masks."""
    rng = np.random.default_rng(seed)
    tokens = np.stack([rng.permutation(9)[:k] for _ in range(slots)])
    tokens[1, 3] = -1
    log_probs, transitions = rng.normal(-2, 1, (slots, k)), rng.normal(0, 1, (slots - 1, k, k))
    log_probs[2, 0] = -np.inf
    transitions[rng.random(transitions.shape) < 0.3] = -np.inf
    return SausageLattice(tokens, log_probs, transitions)


def paths_of(lattice: SausageLattice) -> list[tuple[tuple[int, ...], float]]:
    drafts = rescore(lattice, None, p=10_000)
    return list(zip(map(tuple, drafts.tokens.tolist()), drafts.scores.tolist(), strict=True))


def test_transitions_are_kept_as_read_only_float32_and_compared() -> None:
    plain = SausageLattice([[1, 2], [3, 4]], np.zeros((2, 2)))
    lattice = SausageLattice(
        [[1, 2], [3, 4]], np.zeros((2, 2)), torch.tensor([[[0.5, -1e30], [1.0, -math.inf]]], dtype=torch.bfloat16)
    )
    assert lattice.transitions is not None
    assert (lattice.transitions.dtype, lattice.transitions.tolist()) == (
        np.float32,
        [[[0.5, -math.inf], [1.0, -math.inf]]],
    )
    assert not lattice.transitions.flags.writeable
    assert plain != lattice == SausageLattice(lattice.tokens, lattice.log_probs, lattice.transitions)
    assert len(paths_of(SausageLattice([[1, 2]], [[0.0, 0.0]], np.zeros((0, 2, 2))))) == 2


@pytest.mark.parametrize(
    ("transitions", "message"),
    [
        (np.zeros((2, 2)), r"expected transitions \[slots - 1, k, k\] \(1, 2, 2\), got \(2, 2\)"),
        (np.zeros((2, 2, 2)), r"got \(2, 2, 2\)"),
        (np.array([[["a", "b"]] * 2]), "expected real transitions"),
        (
            [[[0.0, 0.0], [0.0, math.nan]]],
            "slot 1, arc 1 after arc 1: expected a transition of at most 1e.30, got nan",
        ),
        ([[[0.0, math.inf], [0.0, 0.0]]], "slot 1, arc 1 after arc 0: .* got inf"),
        ([[[0.0, 0.0], [1e300, 0.0]]], "slot 1, arc 0 after arc 1: .* got inf"),
    ],
)
def test_malformed_transitions_are_refused_by_name(transitions: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        SausageLattice([[1, 2], [3, 4]], np.zeros((2, 2)), transitions)


def test_transitions_of_arcs_that_are_none_may_be_anything() -> None:
    lattice = SausageLattice(
        [[1, -1], [3, 4]], [[0.0, 0.0], [0.0, -math.inf]], [[[0.5, math.nan], [math.inf, math.nan]]]
    )
    assert paths_of(lattice) == [((1, 3), 0.5)]


@pytest.mark.parametrize("seed", range(5))
def test_paths_leave_out_what_transitions_mask(seed: int) -> None:
    lattice = tied(seed)
    assert num_paths(lattice) == len(paths_of(lattice))


@pytest.mark.parametrize("seed", range(5))
def test_order_of_arcs_and_cuts_keep_transitions_with_their_arcs(seed: int) -> None:
    lattice = tied(seed)
    assert sorted(paths_of(top_arcs(lattice, 9))) == sorted(paths_of(lattice))
    best = top_arcs(lattice, 2)
    kept = [set(row[weights > -np.inf].tolist()) for row, weights in zip(best.tokens, best.log_probs, strict=True)]
    assert paths_of(best) == [
        each for each in paths_of(lattice) if all(token in row for token, row in zip(each[0], kept, strict=True))
    ]
    for slots in (1, 2, 3):
        short = lattice.first_slots(slots)
        tree = draft_tree(short, None, 10_000)
        longer = [node for node, depth in enumerate(draft_tree(lattice, None, 10_000).depths) if depth <= slots]
        assert short.slots == slots
        assert len(tree) == len(longer)
    assert lattice.first_slots(9) is lattice


@given(st.data())
def test_oracle_path_has_the_longest_matching_prefix_of_all_paths(data: st.DataObject) -> None:
    slots, k = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 3))
    rows = [data.draw(st.permutations(range(4))) for _ in range(slots)]
    lattice = SausageLattice(np.array([row[:k] for row in rows]), np.zeros((slots, k)))
    continuation = data.draw(st.lists(st.integers(0, 3), max_size=slots + 1))

    def matched(path: tuple[int, ...]) -> int:
        return sum(
            1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(path, continuation, strict=False))
        )

    best = max(matched(path) for path in itertools.product(*lattice.tokens.tolist()))
    longest = tuple(oracle_path(lattice, continuation).tolist())
    assert matched(longest) == best
    assert all(token in slot for token, slot in zip(longest, lattice.tokens.tolist(), strict=True))


def test_lattice_round_trips_through_openfst() -> None:
    lattice = SausageLattice([[4, -1, 7], [5, 6, 0]], [[-1.5, 0.0, -1.0], [-0.25, -2.0, -4.0]])
    automaton = lattice.to_fst()
    assert automaton.num_states() == 3
    again = SausageLattice.from_fst(automaton)
    assert again.tokens.tolist() == [[7, 4, -1], [5, 6, 0]]
    np.testing.assert_array_equal(again.log_probs, [[-1.0, -1.5, -np.inf], [-0.25, -2.0, -4.0]])


def test_automaton_of_another_topology_is_refused() -> None:
    automaton = SausageLattice([[4, 7], [5, 6]], np.zeros((2, 2))).to_fst()
    automaton.add_arc(0, automaton.arcs(1).__next__())  # from the first state straight to the last
    with pytest.raises(ValueError, match="expected a linear acceptor"):
        SausageLattice.from_fst(automaton)
