"""Arc posteriors against every path enumerated, and against OpenFst's sums in the log semiring."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import pywrapfst
from hypothesis import given
from hypothesis import strategies as st

import fst
from tests.helpers.products import product
from tests.helpers.trigrams import trigram

LM = trigram(7)


@given(data=st.data(), alpha=st.sampled_from([0.0, 0.5, 2.0]), with_model=st.booleans(), tied=st.booleans())
def test_posteriors_are_the_shares_of_all_paths(
    data: st.DataObject, alpha: float, with_model: bool, tied: bool
) -> None:
    slots, k = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 3))
    tokens, log_probs = np.full((slots, k), -1), np.zeros((slots, k))
    for slot in range(slots):
        ids = data.draw(
            st.lists(st.integers(0, 8), min_size=1, max_size=k, unique=True)
        )  # 7 and 8 are unknown to the model
        tokens[slot, : len(ids)] = ids
        log_probs[slot, 1 : len(ids)] = data.draw(st.sampled_from([-2.0, -0.5, -np.inf]))
    context = data.draw(st.lists(st.integers(0, 6), max_size=3))
    lm = LM if with_model else None
    transitions = None
    if tied:
        values = data.draw(
            st.lists(
                st.sampled_from([0.0, 1.5, -1.0, -np.inf]), min_size=(slots - 1) * k * k, max_size=(slots - 1) * k * k
            )
        )
        transitions = np.array(values).reshape(slots - 1, k, k)
    posteriors = fst.arc_posteriors(tokens, log_probs, lm, alpha, context, transitions)
    scores: dict[tuple[int, ...], float] = {}
    for path in itertools.product(range(k), repeat=slots):
        score, text = 0.0, list(context)
        for slot, column in enumerate(path):
            token = int(tokens[slot, column])
            score += log_probs[slot, column] if token >= 0 else -np.inf
            score += alpha * lm.log_prob(token, text) if lm is not None and token >= 0 else 0.0
            score += transitions[slot - 1, path[slot - 1], column] if transitions is not None and slot else 0.0
            text.append(token)
        scores[path] = score
    expected = np.full((slots, k), -np.inf)
    if max(scores.values()) == -np.inf:  # masked transitions leave no path
        assert np.isneginf(posteriors).all()
        return
    for path, score in scores.items():  # in logarithms: what the model does not know has e^-2000
        np.logaddexp.at(expected, (np.arange(slots), path), score)
    expected -= np.logaddexp.reduce(list(scores.values()))
    assert np.exp(posteriors) == pytest.approx(np.exp(expected), abs=1e-9)
    assert np.array_equal(np.isneginf(posteriors), np.isneginf(expected))
    assert tied or np.array_equal(np.isneginf(posteriors), (tokens < 0) | np.isneginf(log_probs))


def test_posteriors_are_openfsts_sums_over_the_product() -> None:
    rng = np.random.default_rng(1)
    tokens = np.stack([rng.permutation(7)[:5] for _ in range(8)])
    log_probs = np.log(rng.dirichlet(np.ones(5), 8))
    posteriors = fst.arc_posteriors(tokens, log_probs, LM, 0.8, [3, 1])
    assert np.exp(posteriors).sum(axis=1) == pytest.approx(1)
    automaton = pywrapfst.arcmap(product(tokens, log_probs, LM, 0.8, [3, 1]), map_type="to_log64")
    forward = [float(weight) for weight in pywrapfst.shortestdistance(automaton)]
    backward = [float(weight) for weight in pywrapfst.shortestdistance(automaton, reverse=True)]
    slot_of = {automaton.start(): 0}
    sums = np.zeros((8, 5))
    for state in automaton.states():  # numbered slot by slot
        for arc in automaton.arcs(state):
            slot_of[arc.nextstate] = slot_of[state] + 1
            column = tokens[slot_of[state]].tolist().index(arc.ilabel - 1)
            sums[slot_of[state], column] += np.exp(
                backward[automaton.start()] - forward[state] - float(arc.weight) - backward[arc.nextstate]
            )
    assert np.exp(posteriors) == pytest.approx(sums, abs=1e-6)
