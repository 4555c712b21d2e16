"""Random automata as n-gram models, and random lattices under KenLM: a fixed number of each, the same every time."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pynini
import pytest

import fst
from fst.automaton import LOG_ZERO
from latticebpd import SausageLattice, draft_tree, rescore
from tests.helpers.trigrams import good_model
from tests.helpers.word_lattices import random_lattice

AUTOMATA, LATTICES = 8_000, 3_000
WEIGHTS = [0.0, 0.5, 1.0, -1.0, 99.0, 1e30, -1e30, 1e-30, float("inf")]
LABELS = [0, 1, 2, 3, 4, 5, 99, 2**31 - 1, -1, -(2**31)]


def edited(rng: random.Random, good: pynini.Fst) -> pynini.Fst:
    """A model with a few arcs, final weights or its start changed."""
    automaton, count = good.copy(), good.num_states()
    for _ in range(rng.randint(0, 3)):
        state = rng.randrange(count)
        arcs = list(automaton.arcs(state))
        chosen = rng.choice(arcs) if arcs else None
        weight = rng.choice(WEIGHTS)
        match rng.randrange(7):
            case 0 if chosen:
                arcs.remove(chosen)
            case 1:
                arcs.append(pynini.Arc(rng.choice(LABELS), rng.choice(LABELS), weight, rng.randrange(count)))
            case 2 if chosen:
                chosen.weight = pynini.Weight("tropical", weight)
            case 3 if chosen:
                chosen.nextstate = rng.randrange(count)
            case 4 if chosen:
                chosen.ilabel = chosen.olabel = rng.randint(0, 9)
            case 5:
                automaton.set_final(state, weight)
            case 6:
                automaton.set_start(state)
        automaton.delete_arcs(state)
        for arc in arcs:
            automaton.add_arc(state, arc)
    return automaton.arcsort() if rng.random() < 0.5 else automaton


def cost(automaton: pynini.Fst, context: Sequence[int], tokens: Sequence[int]) -> float:
    """-log p(tokens | context), where arcs of label 0 are taken by tokens without an arc of their own."""
    following = [
        {arc.ilabel: (min(max(float(arc.weight), LOG_ZERO), -LOG_ZERO), arc.nextstate) for arc in automaton.arcs(state)}
        for state in automaton.states()
    ]
    state = automaton.start()
    while 0 in following[state]:  # to the state of no history
        state = following[state][0][1]
    total = 0.0
    for number, token in enumerate([*context, *tokens]):
        while (label := token + 1) not in following[state]:
            weight, state = following[state][0]
            total += weight * (number >= len(context))
        weight, state = following[state][label]
        total += weight * (number >= len(context))
    return total


@pytest.mark.nightly
def test_random_automata_are_refused_or_are_the_models_that_they_say() -> None:
    rng, good, loaded = random.Random(0), good_model().to_fst(), 0
    for number in range(AUTOMATA):
        automaton = edited(rng, good)
        try:
            model = fst.NgramModel.from_fst(automaton)
        except ValueError:
            continue
        loaded += 1
        draws = np.random.default_rng(number)
        tokens = np.stack([draws.permutation(9)[:2] for _ in range(3)])
        lattice = SausageLattice(tokens, draws.normal(-2, 1, (3, 2)))
        context = draws.integers(0, 9, rng.randint(0, 3)).tolist()
        try:
            drafts = rescore(lattice, model, p=8, alpha=0.5, context=context)
        except ValueError:
            continue
        expected = []
        for arcs in itertools.product(range(2), repeat=3):
            path = [int(tokens[slot, arc]) for slot, arc in enumerate(arcs)]
            own = sum(float(lattice.log_probs[slot, arc]) for slot, arc in enumerate(arcs))
            expected.append(own - 0.5 * cost(automaton, context, path))
        np.testing.assert_allclose(drafts.scores, sorted(expected, reverse=True), atol=1e-4)
    assert loaded > AUTOMATA / 10


@pytest.mark.nightly
def test_kenlm_and_the_automaton_agree_on_random_lattices(tmp_path: Path) -> None:
    kenlm = pytest.importorskip("kenlm", reason="the extra is not installed: pip install 'latticebpd[kenlm]'")
    path, ours = tmp_path / "lm.arpa", good_model(3)
    ours.to_arpa(path)
    markers = "\\1-grams:\n-2\t<unk>\t0\n-9\t<s>\t0\n-2\t</s>\n"
    text = path.read_text().replace("ngram 1=9", "ngram 1=12")
    path.write_text(text.replace("\\1-grams:\n", markers))
    ours, theirs = fst.NgramModel.from_arpa(path), kenlm.Model(str(path))
    for number in range(LATTICES):
        rng = np.random.default_rng(number)
        slots, k = int(rng.integers(1, 6)), int(rng.integers(1, 6))
        context = rng.integers(0, 12, rng.integers(0, 5)).tolist()  # 9 and above are unknown words
        alpha, p, nodes = float(rng.choice([0.0, 0.3, 1.0, 2.5])), int(rng.integers(1, 30)), int(rng.integers(1, 30))
        lattice: SausageLattice | fst.Lattice
        if number % 2:
            lattice = random_lattice(number, states=int(rng.integers(4, 10)), vocabulary=11)
        else:
            log_probs = np.where(rng.random((slots, k)) < 0.1, -np.inf, rng.normal(-2, 1, (slots, k)))
            log_probs[:, 0] = -1
            tokens = np.stack([rng.permutation(12)[:k] for _ in range(slots)])
            ties = rng.normal(0, 1, (slots - 1, k, k)) if rng.random() < 0.5 else None
            lattice = SausageLattice(tokens, log_probs, ties)
            one, other = (draft_tree(lattice, lm, nodes, alpha, context) for lm in (ours, theirs))
            np.testing.assert_allclose(other.log_probs, one.log_probs, atol=1e-4)
        one, other = (rescore(lattice, lm, p=p, alpha=alpha, context=context) for lm in (ours, theirs))
        np.testing.assert_allclose(other.scores, one.scores, atol=1e-4)
