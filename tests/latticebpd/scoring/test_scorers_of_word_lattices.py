"""Word lattices, as `fst.Lattice` and as objects of OpenFst, under every kind of scorer."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pynini
import pytest
import pywrapfst

import fst
from latticebpd import Drafts, DraftTree, SausageLattice, draft_tree, rescore
from latticebpd.scoring.ngram import NgramScorer
from latticebpd.scoring.posteriors import arc_posteriors
from tests.helpers.trigrams import trigram
from tests.helpers.word_lattices import all_paths, random_lattice


class Opaque:
    """A scorer that knows whole texts alone, as neural ones do."""

    def __init__(self, lm: fst.NgramModel, alpha: float) -> None:
        self.lm, self.alpha = lm, alpha

    def with_alpha(self, alpha: float) -> Opaque:
        return Opaque(self.lm, alpha)

    def paths(self, lattices: Sequence[SausageLattice], contexts: Sequence[Sequence[int]], p: int) -> list[Drafts]:
        return NgramScorer(self.lm, self.alpha).paths(lattices, contexts, p)

    def trees(self, lattices: Sequence[SausageLattice], contexts: Sequence[Sequence[int]], n: int) -> list[DraftTree]:
        raise NotImplementedError


@pytest.fixture(scope="module")
def lattice() -> fst.Lattice:
    """One of few paths."""
    return random_lattice(1, states=9)


def test_lattices_and_objects_are_rescored_alike(lattice: fst.Lattice) -> None:
    lm, context = trigram(18), [3, 5]
    expected, scores = lattice.nbest_paths(lm, 12, 0.6, context)
    for which in (lattice, lattice.to_fst(), pywrapfst.convert(lattice.to_fst(), "const")):
        for model in (lm, lm.to_fst(), pywrapfst.convert(lm.to_fst(), "const"), NgramScorer(lm, 0.6)):
            drafts = rescore(which, model, p=12, alpha=0.6, context=context)
            assert drafts.tokens.tolist() == expected.tolist()
            np.testing.assert_allclose(drafts.scores, scores, atol=1e-4)
    assert len(DraftTree.from_paths(expected)) > 12


def test_a_sausages_automaton_is_rescored_as_the_sausage() -> None:
    rng, lm = np.random.default_rng(0), trigram(18)
    tokens = np.stack([rng.permutation(20)[:4] for _ in range(5)])
    for transitions in (None, rng.normal(0, 1, (4, 4, 4))):
        sausage = SausageLattice(tokens, rng.normal(-2, 1, (5, 4)), transitions)
        expected = rescore(sausage, lm, p=9)
        drafts = rescore(sausage.to_fst(), lm.to_fst(), p=9)
        assert drafts.tokens.tolist() == expected.tokens.tolist()
        np.testing.assert_allclose(drafts.scores, expected.scores, atol=1e-4)
        assert isinstance(sausage.to_fst(), pynini.Fst)
        again = rescore(SausageLattice.from_fst(sausage.to_fst()), lm, p=9)
        assert again.tokens.tolist() == expected.tokens.tolist()
        np.testing.assert_allclose(again.scores, expected.scores, atol=1e-4)


def test_scorers_of_whole_texts_rank_all_sequences_of_a_small_lattice() -> None:
    lm, lattice = trigram(18), random_lattice(1, states=6)
    assert len({tokens for tokens, _, _ in all_paths(lattice)}) <= 256
    expected = rescore(lattice, lm, p=10, alpha=0.6, context=[3])
    drafts = rescore(lattice, Opaque(lm, 0.6), p=10, context=[3])
    assert drafts.tokens.tolist() == expected.tokens.tolist()
    np.testing.assert_allclose(drafts.scores, expected.scores, atol=1e-5)
    with pytest.raises(ValueError, match="an n-gram or KenLM model for the posteriors of a word lattice, got Opaque"):
        arc_posteriors(lattice, Opaque(lm, 0.6))


def test_kenlm_ranks_as_the_same_n_gram_model_and_has_its_posteriors(lattice: fst.Lattice, tmp_path: Path) -> None:
    kenlm = pytest.importorskip("kenlm")
    lm, larger = trigram(18), random_lattice(4)
    lm.to_arpa(tmp_path / "lm.arpa", markers=True)
    model = kenlm.Model(str(tmp_path / "lm.arpa"))
    for each in (lattice, larger):
        expected = rescore(each, lm, p=20, alpha=0.7, context=[3, 5])
        drafts = rescore(each.to_fst(), model, p=20, alpha=0.7, context=[3, 5])
        np.testing.assert_allclose(drafts.scores, expected.scores, atol=1e-3)
        posteriors = arc_posteriors(each, model, 0.7, [3, 5])
        np.testing.assert_allclose(np.exp(posteriors), np.exp(each.arc_posteriors(lm, 0.7, [3, 5])), atol=1e-4)


def test_words_of_a_symbol_table_meet_those_of_kenlm_and_of_n_gram_models(tmp_path: Path) -> None:
    kenlm = pytest.importorskip("kenlm")
    words = [f"w{i}" for i in range(18)]
    lm = fst.NgramModel(trigram(18).automaton, words)
    lm.to_arpa(tmp_path / "lm.arpa", markers=True)
    table = pywrapfst.SymbolTable()
    for word in ("<eps>", "w7", "new", "w3", "w11"):
        table.add_symbol(word)
    compiler = pywrapfst.Compiler(acceptor=True, isymbols=table, keep_isymbols=True)
    compiler.write("0 1 w7\n0 1 w3 0.25\n1 2 new 0.5\n1 2 w11 1\n2\n")
    automaton = compiler.compile()
    lattice = fst.Lattice.from_fst(automaton, words)
    expected = rescore(automaton, lm)
    assert {lattice.words(row) for row in expected.tokens} == {"w7 new", "w7 w11", "w3 new", "w3 w11"}
    for row, score in zip(expected.tokens, expected.scores, strict=True):
        cost = (0.25 if row[0] == 3 else 0) + (1 if row[1] == 11 else 0.5)
        assert score == pytest.approx(lm.score(row) - cost, abs=1e-5)
    by_kenlm = rescore(automaton, kenlm.Model(str(tmp_path / "lm.arpa")))
    np.testing.assert_allclose(by_kenlm.scores, expected.scores, atol=1e-3)


def test_trees_want_the_confusion_network(lattice: fst.Lattice) -> None:
    with pytest.raises(ValueError, match="got Fst; draft from a word lattice's confusion network"):
        draft_tree(lattice.to_fst(), None)
    assert len(draft_tree(SausageLattice(*lattice.to_sausage()), trigram(18), num_nodes=9)) == 9
    with pytest.raises(ValueError, match="number p from 1"):
        rescore(lattice, None, p=0)
