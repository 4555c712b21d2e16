"""Lattices to and from OpenFst, and the failure-resolved product against full enumeration and the compiled search."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pynini
import pytest
import pywrapfst
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import fst
from tests.helpers.ngram_models import Ngrams, arpa, ngrams
from tests.helpers.products import ModelWalk, product, shortest_paths
from tests.helpers.trigrams import trigram

fixture_is_shared = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=60)
Lattice = tuple[np.ndarray, np.ndarray]


@st.composite
def lattices(draw: st.DrawFn) -> Lattice:
    """Up to 4 slots of up to 3 tokens, padded; log-probabilities that float32 holds exactly."""
    k = draw(st.integers(1, 3))
    tokens, log_probs = [], []
    for _ in range(draw(st.integers(1, 4))):
        slot = draw(st.lists(st.sampled_from([0, 1, 3, 4, 8]), min_size=1, max_size=k, unique=True))
        tokens.append(slot + [-1] * (k - len(slot)))
        log_probs.append([-draw(st.integers(0, 640)) / 64 for _ in slot] + [0.0] * (k - len(slot)))
    return np.array(tokens), np.array(log_probs)


@given(
    lattice=lattices(), model=ngrams(), alpha=st.sampled_from([0.0, 0.5, 1.0]), context=st.lists(st.sampled_from([0, 1, 3, 9]), max_size=4)
)
@fixture_is_shared
def test_shortest_paths_of_the_product_are_all_paths_in_order(
    lattice: Lattice, model: Ngrams, alpha: float, context: list[int], tmp_path: Path
) -> None:
    (tmp_path / "lm.arpa").write_text(arpa(model))
    lm = fst.NgramModel.from_arpa(tmp_path / "lm.arpa")
    slots = [[(int(t), float(v)) for t, v in zip(*slot, strict=True) if t >= 0] for slot in zip(*lattice, strict=True)]
    want = {}
    for path in itertools.product(*slots):
        tokens = tuple(token for token, _ in path)
        score = sum(log_prob for _, log_prob in path)
        for i, token in enumerate(tokens):
            # A token unknown to a model without <unk> wipes the history out, so the core is given the whole of it.
            score += alpha * lm.log_prob(token, [*context, *tokens[:i]]) if alpha else 0
        want[tokens] = score
    paths, scores = shortest_paths(product(*lattice, lm, alpha, context), p=200)
    got = dict(zip(map(tuple, paths.tolist()), scores.tolist(), strict=True))
    assert got.keys() == want.keys()
    assert len(paths) == len(got)
    for tokens, score in got.items():
        assert score == pytest.approx(want[tokens], abs=1e-3, rel=1e-6)
    assert (np.diff(scores) <= 0).all()
    _, searched = fst.nbest_paths(*lattice, lm, p=5, alpha=alpha, context=context)
    np.testing.assert_allclose(searched, scores[:5], atol=1e-3, rtol=1e-6)


@given(lattice=lattices())
def test_lattice_and_acceptor_turn_into_each_other(lattice: Lattice) -> None:
    automaton = fst.lattice_to_fst(*lattice)
    assert automaton.verify()
    tokens, log_probs = fst.fst_to_lattice(automaton)
    again = fst.lattice_to_fst(tokens, log_probs)
    assert pywrapfst.equal(automaton, again)
    slots = [{(int(t), float(v)) for t, v in zip(*slot, strict=True) if t >= 0} for slot in zip(*lattice, strict=True)]
    assert [{(int(t), float(v)) for t, v in zip(*slot, strict=True) if t >= 0} for slot in zip(tokens, log_probs, strict=True)] == slots
    assert (log_probs[:, 1:] <= log_probs[:, :-1]).all()


def resolved(lm: fst.NgramModel, tokens: np.ndarray, context: list[int]) -> pywrapfst.VectorFst:
    """The model as an automaton without failure arcs: from every history that the tokens reach, an arc for each of them."""
    automaton, states = pywrapfst.VectorFst(), {}
    walk = ModelWalk(lm.automaton)
    history = lm.automaton.unigram_state
    for token in context:
        _, history = walk.step(history, token)
    queue = [history]
    states[history] = automaton.add_state()
    automaton.set_start(states[history])
    for history in queue:
        automaton.set_final(states[history])
        for token in np.unique(tokens[tokens >= 0]).tolist():
            cost, following = walk.step(history, token)
            if following not in states:
                states[following] = automaton.add_state()
                queue.append(following)
            automaton.add_arc(states[history], pywrapfst.Arc(token + 1, token + 1, cost, states[following]))
    return automaton.arcsort("ilabel")


@pytest.mark.parametrize("seed", range(6))
def test_lattice_with_transitions_composed_by_openfst_has_our_paths(seed: int) -> None:
    rng = np.random.default_rng(seed)
    lm, slots, k = trigram(20, seed), 5, 6
    tokens = np.stack([rng.permutation(22)[:k] for _ in range(slots)])  # 20 and 21 are unknown to the model
    log_probs, transitions = rng.normal(-2, 1, (slots, k)), rng.normal(0, 1.5, (slots - 1, k, k))
    transitions[rng.random(transitions.shape) < 0.2] = -np.inf
    tokens[2, 4:], log_probs[3, 1] = -1, -np.inf
    context = [3, 8]
    lattice = fst.lattice_to_fst(tokens, log_probs, transitions)
    assert lattice.verify()
    assert lattice.num_states() == 1 + ((tokens >= 0) & (log_probs > -np.inf)).sum()  # one for each column
    composed = pywrapfst.compose(lattice.arcsort("olabel"), resolved(lm, tokens, context))
    for automaton in (composed, product(tokens, log_probs, lm, 1.0, context, transitions)):
        expected, costs = shortest_paths(automaton, 40)
        found, scores = fst.nbest_paths(tokens, log_probs, lm, 40, 1.0, context, transitions)
        assert found.tolist() == expected.tolist()
        np.testing.assert_allclose(scores, costs, atol=1e-4)


def test_lattice_with_transitions_is_no_sausage_automaton() -> None:
    with pytest.raises(ValueError, match="it is no sausage"):
        fst.fst_to_lattice(fst.lattice_to_fst([[1, 2], [3, 4]], np.zeros((2, 2)), np.zeros((1, 2, 2))))


def test_pyninis_own_acceptors_are_lattices() -> None:
    automaton = pynini.union("a", "b") + pynini.accep("c")
    automaton = pynini.determinize(automaton.rmepsilon()).minimize()
    tokens, log_probs = fst.fst_to_lattice(automaton)
    assert tokens.tolist() == [[ord("a") - 1, ord("b") - 1], [ord("c") - 1, -1]]
    assert log_probs.tolist() == [[0, 0], [0, -np.inf]]


def test_final_weight_goes_to_the_last_slot() -> None:
    automaton = fst.lattice_to_fst([[1], [2]], [[-1.0], [-2.0]])
    automaton.set_final(2, 0.5)
    assert fst.fst_to_lattice(automaton)[1].tolist() == [[-1.0], [-2.5]]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "without a start state"),
        ("0 1 3 3\n0 2 4 4\n1\n2", "arcs from state 0 to 2 states"),
        ("0 1 3 3\n1 2 4 4\n1\n2", "state 1 that is final and has arcs"),
        ("0 1 3 3\n1 0 4 4\n", "a cycle through state 0"),
        ("0 1 3 3\n", "a final state at its end"),
        ("0", "at least one arc"),
        ("0 1 3 4\n1", "an arc 3:4 at state 0"),
        ("0 1 0 0\n1", "labels above 0, got 0 at state 0"),
        ("0 1 3 3\n0 1 3 3 0.5\n1", "one twice at state 0"),
    ],
)
def test_automata_that_are_no_sausage_are_refused(text: str, message: str) -> None:
    compiler = pywrapfst.Compiler()
    compiler.write(text + "\n")
    with pytest.raises(ValueError, match=message):
        fst.fst_to_lattice(compiler.compile())


def test_other_semirings_are_refused() -> None:
    with pytest.raises(ValueError, match="arc type log"):
        fst.fst_to_lattice(pywrapfst.VectorFst("log"))


@pytest.mark.parametrize(
    ("tokens", "log_probs", "message"),
    [
        ([[1, 2]], [[0.0]], r"one shape \[slots, k\], got \(1, 2\) and \(1, 1\)"),
        ([[1.5]], [[0.0]], "tokens as integers"),
        ([[-2]], [[0.0]], "slot 0: expected token ids"),
        ([[1], [2**31]], [[0.0], [0.0]], "slot 1: expected token ids"),
        ([[1]], [[np.nan]], "slot 0: expected a log-probability of at most 1e.30 for token 1, got nan"),
        ([[1]], [[np.inf]], "got inf"),
        ([[1]], [[-np.inf]], "at least one token"),
        ([[-1]], [[0.0]], "at least one token"),
        ([[1, 1]], [[0.0, -1.0]], "every token once"),
    ],
)
def test_arrays_that_are_no_lattice_are_refused(tokens: list, log_probs: list, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        fst.lattice_to_fst(tokens, log_probs)
