"""`rescore`, `draft_tree` and drafters from lattices under constraints: only legal drafts, and who takes none."""

from __future__ import annotations

from typing import Any

import numpy as np
import pynini
import pytest

import fst
from latticebpd import SausageLattice, draft_tree, fst_constraint, load, rescore
from latticebpd.constraints.model_tokens import model_tokens
from latticebpd.drafters.drafter import State
from latticebpd.drafters.empty_lattices import EmptyLattices
from latticebpd.drafters.lattice_drafter import LatticeDrafter
from latticebpd.drafters.strategies import BestTree, NBestPaths, Vanilla
from latticebpd.scoring.calibrated import CalibratedScorer
from latticebpd.scoring.calibration import default_calibration
from latticebpd.scoring.ngram import NgramScorer
from tests.helpers.token_automata import TableAutomaton
from tests.helpers.trigrams import good_model

LATTICE = SausageLattice([[3, 7, 5], [4, 8, 5]], [[-0.1, -2.4, -3.0], [-0.5, -1.0, -2.0]])
EVEN_FIRST = TableAutomaton([{5: (1, 0.0), 7: (1, 0.5)}, {4: (2, 0.0), 5: (2, 0.0), 9: (2, 0.0)}, {6: (2, 0.0)}], 10)


def test_drafts_are_legal_and_cost_what_the_automaton_says() -> None:
    drafts = rescore(LATTICE, None, p=9, constraint=EVEN_FIRST)
    assert drafts.tokens.tolist() == [[7, 4], [5, 4], [7, 5], [5, 5]]
    assert drafts.scores == pytest.approx([-3.4, -3.5, -4.9, -5.0], abs=1e-6)
    assert rescore(LATTICE, None, constraint=EVEN_FIRST, state=1).tokens.tolist() == [[4, -1], [5, -1]][1:]
    assert rescore(LATTICE, None, constraint=EVEN_FIRST, state=2).tokens.shape == (0, 2)


def test_trees_are_legal_and_go_on_with_what_is_forced() -> None:
    forced = TableAutomaton([*EVEN_FIRST.arcs[:2], {6: (3, 0.0)}, {6: (4, 0.0), 1: (4, 0.0)}, {}], 10, {2: 6, 3: 6})
    tree = draft_tree(LATTICE, None, num_nodes=20, constraint=forced)
    paths = [tree.tokens[tree.path(node)].tolist() for node in range(len(tree))]
    assert [path for path in paths if len(path) == 2] == [[7, 4], [5, 4], [7, 5], [5, 5]]
    assert [path for path in paths if len(path) > 2] == [[*path, 6] for path in paths if 2 <= len(path) < 4]  # and on
    first = np.exp(tree.log_probs[tree.parents == -1])  # type: ignore[index]
    assert first.sum() == pytest.approx(1)
    odds = np.exp(-2.4 - 0.5 + 3.0)
    assert first == pytest.approx([odds / (1 + odds), 1 / (1 + odds)], rel=1e-6)


def test_a_drafter_uses_the_automaton_of_each_row() -> None:
    class Source:
        needs_hidden, vocab_size, fingerprint, vocabulary_name = False, 10, None, "the model"

        def lattices(self, states: Any) -> list[SausageLattice | None]:
            return [LATTICE] * len(states)

    def states() -> list[State]:
        automata = [(None, 0), (EVEN_FIRST, 0), (EVEN_FIRST, 1)]
        return [
            State(row, [1, 2], 2, None, 9, automaton=each, automaton_state=at)
            for row, (each, at) in enumerate(automata)
        ]

    source: Any = Source()
    for strategy in (BestTree(NgramScorer(None), 3), NBestPaths(NgramScorer(None), 1)):
        free, legal, later = LatticeDrafter(source, strategy).propose(states())
        assert (free.tokens[0], legal.tokens[0]) == (3, 7)
        assert later.tokens[0] == 5
    assert [tree.tokens[0] for tree in LatticeDrafter(source, Vanilla()).propose(states())] == [3, 3, 3]


def test_without_lattices_the_model_and_the_text_propose_legal_tokens_only() -> None:
    lm = good_model(vocab=9)
    scorer = CalibratedScorer(NgramScorer(lm), default_calibration(True))
    drafter = LatticeDrafter(EmptyLattices(9), BestTree(scorer, 12))
    text = [0, 1, 2, 3, 0, 1, 2, 3, 0, 1]
    allowed = TableAutomaton([{2: (1, 0.0), 5: (0, 0.0)}, {4: (0, 0.0), 7: (1, 0.0)}], 9)
    free, legal = drafter.propose(
        [State(0, text, 4, None, 9), State(1, text, 4, None, 9, automaton=allowed, automaton_state=0)]
    )
    assert free.tokens[0] == legal.tokens[0] == 2
    assert len(legal) == 12
    for node in range(len(legal)):
        assert allowed.follow(legal.tokens[legal.path(node)].tolist()) is not None
    assert any(allowed.follow(free.tokens[free.path(node)].tolist()) is None for node in range(len(free)))


def test_a_boosted_word_ranks_first_and_a_word_that_only_begins_like_it_does_not() -> None:
    """Contextual biasing: any text of letters, in which one word gains two nats, from its first token on; a text that
    then differs pays them back."""
    loaded = load()
    tokens = model_tokens(loaded.tokenizer, loaded.target.vocab_size)
    letters = pynini.union(*" Zabcdefghijklmnopqrstuvwxyz")
    word = pynini.accep("", weight=-2) + " Zurich"
    automaton = fst_constraint(pynini.closure(pynini.union(letters, word)).optimize()).automaton(tokens, [0])

    def costs_of(text: str) -> list[float]:
        state, costs = automaton.start, list[float]()
        for token in tokens.encode(text):
            costs.append(float(automaton.costs(state, np.array([token]))[0]))
            state = int(automaton.successors(state, np.array([token]))[0])
        return costs

    boosted, plain = tokens.encode(" Zurich")[0], tokens.encode(" river")[0]
    assert costs_of(" Zurich")[0] == pytest.approx(-2)
    assert sum(costs_of(" Zurich")) == pytest.approx(-2)
    assert sum(costs_of(" Zurich river Zurich")) == pytest.approx(-4)
    assert sum(costs_of(" Zurila")) == sum(costs_of(" river")) == pytest.approx(0)
    lattice = SausageLattice([[plain, boosted]], [[-1.0, -1.5]])
    assert rescore(lattice, None, p=1).tokens.tolist() == [[plain]]
    assert rescore(lattice, None, p=1, constraint=automaton).tokens.tolist() == [[boosted]]


def test_a_scorer_without_constraints_and_a_word_lattice_are_refused_by_name() -> None:
    class Plain:
        alpha = 1.0

        def with_alpha(self, alpha: float) -> Plain:
            return self

        def paths(self, lattices: Any, contexts: Any, p: int) -> Any:
            return NgramScorer(None).paths(lattices, contexts, p)

        def trees(self, lattices: Any, contexts: Any, num_nodes: int) -> Any:
            return NgramScorer(None).trees(lattices, contexts, num_nodes)

    assert len(rescore(LATTICE, Plain(), p=2)) == 2
    for draft in (rescore, draft_tree):
        with pytest.raises(ValueError, match="expected a scorer that takes constraints, got Plain; rank"):
            draft(LATTICE, Plain(), constraint=EVEN_FIRST)  # type: ignore[operator]
    with pytest.raises(
        ValueError, match="expected an automaton over tokens as constraint, got FstConstraint; make it by"
    ):
        rescore(LATTICE, None, constraint=fst_constraint(pynini.accep("a")))  # type: ignore[arg-type]
    words = fst.Lattice.from_sausage([[4, 7]], [[-0.5, -1.0]])
    with pytest.raises(ValueError, match="expected a SausageLattice with a constraint, got Lattice"):
        rescore(words, None, constraint=EVEN_FIRST)
