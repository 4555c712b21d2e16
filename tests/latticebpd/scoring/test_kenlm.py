"""KenLM as a scorer: the same drafts, trees and scores as the automaton of the same ARPA file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import fst
from latticebpd import SausageLattice, draft_tree, rescore
from latticebpd.scoring.kenlm import KenlmScorer
from tests.helpers.trigrams import trigram

kenlm = pytest.importorskip("kenlm", reason="the extra is not installed: pip install 'latticebpd[kenlm]'")


@pytest.fixture(scope="module")
def arpa(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A trigram model that KenLM takes: with <unk>, <s> and </s>."""
    path = tmp_path_factory.mktemp("kenlm") / "lm.arpa"
    trigram(vocab=12, seed=4).to_arpa(path)
    text = path.read_text()
    lines = text.splitlines()
    count = int(next(line for line in lines if line.startswith("ngram 1=")).split("=")[1])
    lines[lines.index(f"ngram 1={count}")] = f"ngram 1={count + 3}"
    position = lines.index("\\1-grams:") + 1
    lines[position:position] = ["-2.5\t<unk>\t0", "-99\t<s>\t0", "-2\t</s>"]
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("context", [[], [3], [5, 2], [1, 4, 7]])
def test_kenlm_and_the_automaton_agree(arpa: Path, context: list[int], tied: bool) -> None:
    theirs, ours = kenlm.Model(str(arpa)), fst.NgramModel.from_arpa(arpa)
    rng = np.random.default_rng(len(context))
    for _ in range(5):
        tokens = np.stack([rng.permutation(14)[:4] for _ in range(4)])  # 12 and 13 are unknown words
        transitions = rng.normal(0, 1, (3, 4, 4)) if tied else None
        if transitions is not None:
            transitions[1, 2, :] = -np.inf
        lattice = SausageLattice(tokens, rng.normal(-2, 1, (4, 4)), transitions)
        expected, got = (
            rescore(lattice, ours, p=20, alpha=0.7, context=context),
            rescore(lattice, theirs, p=20, alpha=0.7, context=context),
        )
        np.testing.assert_allclose(got.scores, expected.scores, atol=1e-4)
        assert got.tokens.tolist() == expected.tokens.tolist()
        tree, their_tree = (draft_tree(lattice, lm, 25, 0.7, context) for lm in (ours, theirs))
        assert their_tree.tokens.tolist() == tree.tokens.tolist()
        assert their_tree.parents.tolist() == tree.parents.tolist()
        np.testing.assert_allclose(their_tree.log_probs, tree.log_probs, atol=1e-4)


def test_kenlm_finds_no_path_where_transitions_leave_none(arpa: Path) -> None:
    lattice = SausageLattice([[1, 2], [3, 4]], np.zeros((2, 2)), np.full((1, 2, 2), -np.inf))
    assert rescore(lattice, kenlm.Model(str(arpa)), p=4).tokens.shape == (0, 2)
    assert len(draft_tree(lattice, kenlm.Model(str(arpa)), 9)) == 2


def test_ids_become_words_through_a_vocabulary(arpa: Path) -> None:
    theirs = kenlm.Model(str(arpa))
    lattice = SausageLattice([[0, 1], [1, 0]], np.zeros((2, 2)))
    by_name = rescore(lattice, KenlmScorer(theirs, words=["7", "9"]), p=4)
    renamed = rescore(SausageLattice([[7, 9], [9, 7]], np.zeros((2, 2))), theirs, p=4)
    assert np.array([7, 9])[by_name.tokens].tolist() == renamed.tokens.tolist()
    assert KenlmScorer(theirs, words={0: "7"}).word(5) == "<unk>"


@pytest.mark.parametrize(("arguments", "message"), [({"p": 0}, "p from 1"), ({"alpha": -1.0}, "alpha from 0")])
def test_argument_out_of_range_is_named(arpa: Path, arguments: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        rescore(SausageLattice([[1, 2]], np.zeros((1, 2))), kenlm.Model(str(arpa)), **arguments)
