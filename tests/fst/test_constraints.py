"""Searches under automata over tokens, against enumeration of all paths and against OpenFst's composition."""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import pywrapfst
from hypothesis import given, settings
from hypothesis import strategies as st

from fst import NgramModel, NgramTable, search
from tests.helpers import products, reference
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
from tests.helpers.token_automata import TableAutomaton, token_automata

Lattice = tuple[np.ndarray, np.ndarray]
Tied = tuple[np.ndarray, np.ndarray, np.ndarray]
AUTOMATA = token_automata(VOCAB + 2)


def legal_paths(
    lattice: Tied, lm: reference.ReferenceLM | None, alpha: float, context: list[int], automaton: TableAutomaton
) -> list[tuple[tuple[int, ...], float]]:
    """All legal paths through as many of the first slots as any passes, enumerated, best first."""
    tokens, log_probs, transitions = lattice
    for slots in range(len(tokens), 0, -1):
        part = (tokens[:slots], log_probs[:slots], lm, 10**6, alpha, context, masked(transitions[: slots - 1]))
        scored = [(path, score - automaton.legal_cost(path)) for path, score in reference.nbest_paths(*part)]
        if paths := [(path, score) for path, score in scored if score > -math.inf]:
            return sorted(paths, key=lambda item: (-item[1], item[0]))
    return []


def legal_prefixes(
    lattice: Tied,
    lm: reference.ReferenceLM | None,
    alpha: float,
    context: list[int],
    automaton: TableAutomaton,
    most: int,
) -> dict[tuple[int, ...], float]:
    """The log-probability of every legal prefix of at most ``most`` tokens, by definition."""
    tokens, log_probs, transitions = lattice
    slots, weights = reference.columns(tokens, log_probs), dict[tuple[int, ...], float]()

    def extend(prefix: tuple[int, ...], state: int, total: float) -> None:
        slot = len(prefix)
        if slot == most:
            return
        if state in automaton.chosen:
            token = automaton.chosen[state]
            following = {token: automaton.log_prob_of_forced(state)}
        elif slot >= len(slots):
            return
        else:
            tied = masked(transitions) if slot and prefix[-1] in [token for token, _ in slots[slot - 1]] else None
            scores = {}
            for token, log_prob in slots[slot]:
                gained = log_prob + reference.gain(tokens, tied, prefix, token)
                if token in automaton.arcs[state] and gained > -math.inf:
                    model = alpha * lm.log_prob(token, [*context, *prefix]) if lm is not None else 0.0
                    scores[token] = gained + model - automaton.arcs[state][token][1]
            norm = np.logaddexp.reduce(list(scores.values())) if scores else 0.0
            following = {token: float(score - norm) for token, score in scores.items()}
        for token, log_prob in following.items():
            weights[*prefix, token] = total + log_prob
            extend((*prefix, token), automaton.arcs[state][token][0], total + log_prob)

    extend((), automaton.start, 0.0)
    return weights


@settings(max_examples=150)
@given(tables(), lattices_with_transitions(), st.integers(1, 300), ALPHAS, CONTEXTS, AUTOMATA, st.booleans())
def test_nbest_equals_enumeration_of_the_legal_paths(
    table: NgramTable, lattice: Tied, p: int, alpha: float, context: list[int], automaton: TableAutomaton, plain: bool
) -> None:
    tokens, log_probs, transitions = lattice
    if plain:
        transitions = np.zeros_like(transitions)
    lm, model = reference.ReferenceLM(table), NgramModel.from_table(table)
    expected = legal_paths((tokens, log_probs, transitions), lm, alpha, context, automaton)
    gains = None if plain else transitions
    found = search.nbest_paths(tokens, log_probs, model, p, alpha, context, gains, (automaton, automaton.start))
    padded = [((*path, *[-1] * (len(tokens) - len(path))), score) for path, score in expected[:p]]
    assert as_list(*found) == padded


@settings(max_examples=150)
@given(tables(), lattices_with_transitions(), st.integers(1, 100), ALPHAS, CONTEXTS, AUTOMATA, st.booleans())
def test_tree_equals_enumeration_of_the_legal_prefixes(
    table: NgramTable,
    lattice: Tied,
    size: int,
    alpha: float,
    context: list[int],
    automaton: TableAutomaton,
    plain: bool,
) -> None:
    tokens, log_probs, transitions = lattice
    if plain:
        transitions = np.zeros_like(transitions)
    lm, model = reference.ReferenceLM(table), NgramModel.from_table(table)
    tied = (tokens, log_probs, transitions)
    expected = legal_prefixes(tied, lm, alpha, context, automaton, len(tokens) + min(size, 64))
    gains = None if plain else transitions
    found = search.best_first_tree(tokens, log_probs, model, size, alpha, context, gains, (automaton, automaton.start))
    tree = prefixes(*found)
    best = sorted(expected.values(), reverse=True)[:size]
    assert [weight for _, weight in tree] == pytest.approx(best, abs=1e-9)
    assert len({prefix for prefix, _ in tree}) == len(tree)
    for prefix, weight in tree:
        assert weight == pytest.approx(expected[prefix], abs=1e-9)


@given(tables(), lattices(), st.integers(1, 50), ALPHAS, CONTEXTS)
def test_a_constraint_that_allows_everything_changes_nothing(
    table: NgramTable, lattice: Lattice, count: int, alpha: float, context: list[int]
) -> None:
    anything = TableAutomaton([dict.fromkeys(range(VOCAB + 2), (0, 0.0))], VOCAB + 2)
    lm = NgramModel.from_table(table)
    for find in (search.nbest_paths, search.best_first_tree):
        arguments = (*lattice, lm, count, alpha, context)
        pairs = zip(find(*arguments), find(*arguments, constraint=(anything, 0)), strict=True)
        assert all(np.array_equal(a, b) for a, b in pairs)


@settings(max_examples=100)
@given(tables(), lattices(), ALPHAS, CONTEXTS, token_automata(VOCAB + 2, with_forced=False))
def test_nbest_equals_the_shortest_paths_of_openfsts_composition(
    table: NgramTable, lattice: Lattice, alpha: float, context: list[int], automaton: TableAutomaton
) -> None:
    """Lattice x model, composed with the automaton by OpenFst: every state of it is final."""
    lm = NgramModel.from_table(table)
    acceptor = pywrapfst.VectorFst()
    for _ in automaton.arcs:
        acceptor.set_final(acceptor.add_state())
    acceptor.set_start(automaton.start)
    for state, arcs in enumerate(automaton.arcs):
        for token, (target, cost) in sorted(arcs.items()):
            acceptor.add_arc(state, pywrapfst.Arc(token + 1, token + 1, cost, target))
    composed = pywrapfst.compose(products.product(*lattice, lm, alpha, context).arcsort("olabel"), acceptor)
    constraint = (automaton, automaton.start)
    found, found_scores = search.nbest_paths(*lattice, lm, 10**6, alpha, context, constraint=constraint)
    if composed.start() < 0:
        assert not (found >= 0).all(axis=1).any()
        return
    tokens, scores = products.shortest_paths(composed, 10**6)
    assert sorted(found.tolist()) == sorted(tokens.tolist())
    np.testing.assert_allclose(np.sort(found_scores), np.sort(scores), atol=1e-3)


def test_paths_merge_where_the_constraints_states_are_equal() -> None:
    """Ten slots of eight tokens have 8^10 paths; the automaton, of two states, is asked for two states a slot."""
    asked = []

    class Counted(TableAutomaton):
        def successors(self, state: int, tokens: np.ndarray) -> np.ndarray:
            asked.append(state)
            return super().successors(state, tokens)

    odd = Counted([{t: (t % 2, 0.0) for t in range(8)}, {t: (1 - t % 2, 0.0) for t in range(8)}], 8)
    tokens, log_probs = np.tile(np.arange(8), (10, 1)), np.tile(np.log(np.arange(1, 9) / 36), (10, 1))
    paths, _ = search.nbest_paths(tokens, log_probs, None, 50, constraint=(odd, 0))
    assert len(paths) == 50
    assert len(asked) <= 2


class EveryPathAnother:
    """All tokens are legal, and no two paths lead to one state, as with a parser."""

    start, vocab_size, weighted = 0, 16, False

    def __init__(self) -> None:
        self.made = 1

    def legal(self, state: int) -> np.ndarray:
        return np.ones(self.vocab_size, bool)

    def successors(self, state: int, tokens: np.ndarray) -> np.ndarray:
        self.made += len(tokens)
        return np.arange(self.made - len(tokens), self.made)

    def forced(self, state: int) -> np.ndarray:
        return np.empty(0, np.int64)


def test_paths_are_short_where_states_never_merge() -> None:
    """16 tokens at each of eight slots make 4 billion states; those of the first three slots are enough."""
    rng, automaton = np.random.default_rng(0), EveryPathAnother()
    tokens = np.tile(np.arange(16, dtype=np.int32), (8, 1))
    log_probs = np.log(rng.dirichlet(np.ones(16), 8))
    found, scores = search.nbest_paths(tokens, log_probs, None, 20, 1.0, [], None, (automaton, automaton.start))
    assert automaton.made < 2**17
    length = int((found[0] >= 0).sum())
    assert length >= 3
    expected = search.nbest_paths(tokens[:length], log_probs[:length], None, 20, 1.0)
    np.testing.assert_array_equal(found[:, :length], expected[0])
    np.testing.assert_allclose(scores, expected[1])
    assert (found[:, length:] == -1).all()


def test_batches_take_a_constraint_for_some_lattices() -> None:
    only = TableAutomaton([{2: (0, 0.0)}], 8)
    tokens, log_probs = np.array([[[1, 2], [2, 3]]] * 3), np.log(np.full((3, 2, 2), 0.5))
    constraints = [None, (only, 0), None]
    paths, _, counts = search.nbest_paths_batch(tokens, log_probs, None, 9, constraints=constraints, threads=4)
    assert counts.tolist() == [4, 1, 4]
    assert paths[1, 0].tolist() == [2, 2]
    _, _, scores, counts = search.best_first_tree_batch(tokens, log_probs, None, 9, constraints=constraints, threads=4)
    assert counts.tolist() == [6, 2, 6]
    assert scores[1, :2].tolist() == [0, 0]
    with pytest.raises(ValueError, match="expected a constraint, or None, for each of 3 lattices, got 2"):
        search.nbest_paths_batch(tokens, log_probs, None, 9, constraints=constraints[:2])


def test_errors_of_an_automaton_reach_the_caller() -> None:
    class Broken(TableAutomaton):
        def legal(self, state: int) -> np.ndarray:
            raise KeyError("no such state")

    lattice = np.array([[1, 2]]), np.zeros((1, 2))
    for find in (search.nbest_paths, search.best_first_tree):
        with pytest.raises(KeyError, match="no such state"):
            find(*lattice, constraint=(Broken([{}], 4), 0))
    nan = TableAutomaton([{1: (0, math.nan)}], 4)
    with pytest.raises(ValueError, match="expected costs of tokens from -1e30 to 1e30, got nan"):
        search.nbest_paths(*lattice, constraint=(nan, 0))


def test_a_text_may_grow_while_constrained_searches_read_it() -> None:
    """Searches call Python with the text held: neither they nor the text's growth wait for each other for ever."""
    anything = TableAutomaton([dict.fromkeys(range(9), (0, 0.0))], 9)
    text, weights = search.TextIndex(), np.random.default_rng(0).normal(0, 1, (2, len(search.FEATURES)))
    text.extend([1, 2, 3] * 5)
    lattice = np.array([[[1, 2], [2, 3]]]), np.log(np.full((1, 2, 2), 0.4))

    def searched() -> list[int]:
        arguments = (*lattice, None, [text], weights, 12)
        trees = [search.calibrated_tree_batch(*arguments, further=2, constraints=[(anything, 0)]) for _ in range(60)]
        return [int(counts[0]) for *_, counts in trees]

    with ThreadPoolExecutor(4) as pool:
        searches = [pool.submit(searched) for _ in range(3)]
        growth = pool.submit(lambda: [text.extend([number % 9]) for number in range(600)])
        assert all(min(each.result(timeout=60)) > 0 for each in searches)
        growth.result(timeout=60)
    assert len(text) == 615
