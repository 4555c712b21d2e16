"""rescore and draft_tree: the public calls, held to enumeration."""

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import fst
from fst.automaton import MAX_ORDER
from latticebpd import Drafts, DraftTree, PathsDrafter, SausageLattice, TreeDrafter, draft_tree, rescore
from latticebpd.scoring.rescoring import as_scorer
from tests.helpers.blockwise_models import tiny_model
from tests.helpers.lattices import num_paths
from tests.helpers.trigrams import trigram

LM = trigram(vocab=6, seed=1)


@st.composite
def lattices(draw: st.DrawFn) -> SausageLattice:
    slots, k = draw(st.integers(1, 4)), draw(st.integers(1, 4))
    tokens = [draw(st.permutations(range(7)))[:k] for _ in range(slots)]  # token 6 is out of the model's vocabulary
    weights = draw(st.lists(st.floats(-9, 0, width=32), min_size=slots * k, max_size=slots * k))
    return SausageLattice(np.array(tokens), np.array(weights, dtype=np.float32).reshape(slots, k))


def enumerate_paths(
    lattice: SausageLattice, lm: fst.NgramModel | None, alpha: float, context: list[int]
) -> list[tuple[float, tuple[int, ...]]]:
    scored = []
    for arcs in itertools.product(range(lattice.k), repeat=lattice.slots):
        path = tuple(int(lattice.tokens[slot, arc]) for slot, arc in enumerate(arcs))
        score = 0.0
        for slot, arc in enumerate(arcs):
            score += float(lattice.log_probs[slot, arc])
            if lm is not None:
                score += alpha * lm.log_prob(path[slot], context=[*context, *path[:slot]])
        scored.append((score, path))
    return sorted(scored, key=lambda item: (-item[0], item[1]))


@settings(max_examples=60, deadline=None)
@given(lattices(), st.integers(1, 300), st.floats(0, 3), st.lists(st.integers(0, 6), max_size=3), st.booleans())
def test_drafts_are_the_best_of_all_paths(
    lattice: SausageLattice, p: int, alpha: float, context: list[int], with_lm: bool
) -> None:
    lm = LM if with_lm else None
    everything = enumerate_paths(lattice, lm, alpha, context)
    drafts = rescore(lattice, lm, p=p, alpha=alpha, context=context)
    assert len(drafts) == min(p, num_paths(lattice))
    score_of = {path: score for score, path in everything}
    paths = [tuple(path) for path in drafts.tokens.tolist()]
    assert len(set(paths)) == len(paths)
    np.testing.assert_allclose(drafts.scores, [score for score, _ in everything[: len(drafts)]], rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(drafts.scores, [score_of[path] for path in paths], rtol=1e-9, atol=1e-9)


@settings(max_examples=60, deadline=None)
@given(lattices(), st.integers(1, 200), st.floats(0, 3), st.lists(st.integers(0, 6), max_size=3))
def test_tree_is_the_most_probable_set_of_prefixes(
    lattice: SausageLattice, nodes: int, alpha: float, context: list[int]
) -> None:
    tree = draft_tree(lattice, LM, num_nodes=nodes, alpha=alpha, context=context)
    weights: dict[tuple[int, ...], float] = {(): 0.0}
    for slot in range(lattice.slots):
        for prefix in [prefix for prefix in weights if len(prefix) == slot]:
            arcs = {
                int(token): float(log_prob) + alpha * LM.log_prob(int(token), context=[*context, *prefix])
                for token, log_prob in zip(lattice.tokens[slot], lattice.log_probs[slot], strict=True)
            }
            top = max(arcs.values())
            total = top + math.log(sum(math.exp(value - top) for value in arcs.values()))
            for token, value in arcs.items():
                weights[(*prefix, token)] = weights[prefix] + value - total
    del weights[()]
    best = sorted(weights.values(), reverse=True)[:nodes]
    assert tree.log_probs is not None
    np.testing.assert_allclose(tree.log_probs, best, rtol=1e-9, atol=1e-9)
    prefixes = [tuple(tree.tokens[tree.path(node)].tolist()) for node in range(len(tree))]
    assert len(set(prefixes)) == len(prefixes)
    np.testing.assert_allclose(tree.log_probs, [weights[prefix] for prefix in prefixes], rtol=1e-9, atol=1e-9)


def test_alpha_zero_and_no_model_rank_by_the_lattice_alone() -> None:
    lattice = SausageLattice([[3, 1], [2, 5]], [[-1.0, -1.5], [-0.2, -3.0]])
    without, zero = rescore(lattice, None, p=4), rescore(lattice, LM, p=4, alpha=0.0)
    assert without.tokens.tolist() == zero.tokens.tolist() == [[3, 2], [1, 2], [3, 5], [1, 5]]


def test_a_weight_may_be_a_number_of_any_type() -> None:
    lattice = SausageLattice([[3, 1], [2, 5]], [[-1.0, -1.5], [-0.2, -3.0]])
    expected = rescore(lattice, LM, p=4, alpha=2.0).tokens.tolist()
    for alpha in (2, np.float32(2), np.float64(2), np.int64(2)):
        assert rescore(lattice, LM, p=4, alpha=alpha).tokens.tolist() == expected  # type: ignore[arg-type]


def test_equal_scores_come_in_lexicographic_order() -> None:
    lattice = SausageLattice([[9, 4], [7, 0]], np.zeros((2, 2)))
    assert rescore(lattice, None, p=4).tokens.tolist() == [[4, 0], [4, 7], [9, 0], [9, 7]]


def test_model_may_be_a_file_of_either_kind(tmp_path: Path) -> None:
    LM.save(tmp_path / "lm.fst")
    LM.to_arpa(tmp_path / "lm.arpa.gz")
    lattice = SausageLattice([[3, 1], [2, 5]], [[-1.0, -1.5], [-0.2, -3.0]])
    expected = rescore(lattice, LM, p=4, context=[2])
    for path in (tmp_path / "lm.fst", str(tmp_path / "lm.arpa.gz")):
        drafts = rescore(lattice, path, p=4, context=[2])
        assert drafts.tokens.tolist() == expected.tokens.tolist()
        np.testing.assert_allclose(drafts.scores, expected.scores, atol=1e-5)


def test_rewritten_model_file_is_read_again(tmp_path: Path) -> None:
    lattice = SausageLattice([[3, 1]], [[-1.0, -1.0]])
    scores = []
    for seed in (1, 2):
        trigram(vocab=6, seed=seed).save(tmp_path / "lm.fst")
        scores.append(rescore(lattice, tmp_path / "lm.fst", p=1).scores[0])
    assert scores[0] != scores[1]


@dataclass(frozen=True)
class Reverse:
    """A user's own scorer: the worst arcs, and its weight as their score."""

    alpha: float = 0.25

    def with_alpha(self, alpha: float) -> Reverse:
        return Reverse(alpha)

    def paths(self, lattices: Sequence[SausageLattice], contexts: Sequence[object], p: int) -> list[Drafts]:
        return [Drafts(lattice.tokens[:, ::-1].T[:p], np.full(p, self.alpha)) for lattice in lattices]

    def trees(self, lattices: Sequence[SausageLattice], contexts: Sequence[object], num_nodes: int) -> list[DraftTree]:
        return [DraftTree.empty() for _ in lattices]


def test_a_scorer_of_ones_own_is_used_as_it_is_and_at_the_weight_that_is_asked_for() -> None:
    lattice = SausageLattice([[3, 1], [2, 5]], np.zeros((2, 2)))
    assert rescore(lattice, Reverse(), p=1).tokens.tolist() == [[1, 5]]
    assert rescore(lattice, Reverse(), p=1).scores.tolist() == [0.25]
    assert rescore(lattice, Reverse(), p=1, alpha=2.0).scores.tolist() == [2.0]
    assert len(draft_tree(lattice, Reverse())) == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"p": 0}, "p"),
        ({"alpha": -1.0}, "alpha"),
        ({"alpha": math.nan}, "alpha"),
        ({"lm": 3}, "expected an fst.NgramModel, the path"),
        ({"p": 2.5}, r"expected a whole number p from 1 to 2\^31 - 1, got 2.5"),
        ({"context": "text"}, "expected a context as one sequence of token ids .*, got text; encode it"),
        ({"context": ["a", "b"]}, "expected a context .*, got text; encode it"),
        ({"context": torch.tensor([[1, 2]])}, r"expected a context .*, got Tensor tensor\(\[\[1, 2\]\]\)"),
        ({"context": [[1], [2, 3]]}, "expected a context"),
        ({"context": [1.5]}, "expected a context"),
        ({"context": None}, "expected a context"),
        ({"context": [2**70]}, "expected a context"),
    ],
)
@pytest.mark.parametrize("lm", [None, LM])
def test_argument_out_of_range_is_named(arguments: dict[str, object], message: str, lm: fst.NgramModel | None) -> None:
    sausage = SausageLattice([[3, 1]], [[-1.0, -1.5]])
    for lattice in (sausage, fst.Lattice.from_sausage(sausage.tokens, sausage.log_probs)):
        with pytest.raises(ValueError, match=message):
            rescore(lattice, **({"lm": lm} | arguments))
    if "p" not in arguments:
        with pytest.raises(ValueError, match=message):
            draft_tree(sausage, **({"lm": lm} | arguments))


def test_a_call_warns_once_of_what_a_lattice_does_not_mean() -> None:
    """Of probabilities in place of their logarithms, and of ids that the model has never seen."""
    known, probable = SausageLattice([[3, 1], [2, 0]], np.full((2, 2), -1)), SausageLattice([[3, 1]], [[0.7, 0.3]])
    unknown = SausageLattice([[3, 60], [61, 62]], np.full((2, 2), -1))
    table = LM.to_table()
    unigrams = [
        np.append(table.ngrams[0], [[fst.UNK]], 0),
        np.append(table.log_probs[0], -9),
        np.append(table.backoffs[0], 0),
    ]
    columns = zip(unigrams, (table.ngrams, table.log_probs, table.backoffs), strict=True)
    with_unk = fst.NgramModel.from_table(fst.NgramTable(*([first, *rest[1:]] for first, rest in columns)))
    none_known = SausageLattice([[60], [61]], np.full((2, 1), -1))
    unseen = "3 of the lattice's 4 tokens are not in the n-gram model, such as 60; each of them costs 1000 nats or more"
    positive = "2 of the lattice's 2 log-probabilities are above 0, up to 0.7; are they probabilities or costs?"
    for lattice, lm, expected in (
        (known, LM, []),
        (unknown, None, []),
        (unknown, LM, [unseen]),
        (unknown, with_unk, []),
        (none_known, with_unk, ["2 of the lattice's 2 tokens are not in the n-gram model, such as 60; all of them"]),
        (probable, LM, [positive]),
        (probable, None, [positive]),
    ):
        for call in (rescore, draft_tree):
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                call(lattice, lm)
            assert [str(each.message)[: len(text)] for each, text in zip(caught, expected, strict=True)] == expected
            assert {each.filename for each in caught} <= {__file__}


def test_missing_model_file_is_a_file_not_found_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        rescore(SausageLattice([[3, 1]], [[-1.0, -1.5]]), tmp_path / "none.fst")


def test_model_of_another_vocabulary_is_refused_with_both_names() -> None:
    model = tiny_model(vocab_size=23)
    model.tokenizer_fingerprint = "sha256:00"
    table = trigram().to_table()
    TreeDrafter(model, fst.NgramModel.from_table(replace(table, fingerprint="sha256:00")))
    with pytest.raises(ValueError, match=r"the model \(sha256:00\), got one over sha256:11; train one"):
        TreeDrafter(model, fst.NgramModel.from_table(replace(table, fingerprint="sha256:11")))
    with pytest.raises(ValueError, match=r"at most 23 tokens .* got one over 40"):
        PathsDrafter(model, trigram(vocab=40))


def test_batch_of_several_shapes_is_each_lattice_alone() -> None:
    rng = np.random.default_rng(3)
    lattices = [
        SausageLattice(rng.permutation(6)[None, :k].repeat(slots, 0), -rng.random((slots, k)))
        for slots, k in ((2, 3), (4, 3), (2, 3))
    ]
    scorer = as_scorer(LM, 0.8)
    for contexts in ([[], [], []], [[1], [], [2, 3]]):
        drafts, trees = scorer.paths(lattices, contexts, 4), scorer.trees(lattices, contexts, 6)
        for row, (lattice, context) in enumerate(zip(lattices, contexts, strict=True)):
            assert drafts[row].tokens.tolist() == rescore(lattice, LM, 4, 0.8, context).tokens.tolist()
            single = draft_tree(lattice, LM, 6, 0.8, context)
            assert (trees[row].tokens.tolist(), trees[row].parents.tolist()) == (
                single.tokens.tolist(),
                single.parents.tolist(),
            )
            assert trees[row].lattice is lattice


def test_lattices_with_and_without_transitions_share_no_batch() -> None:
    rng = np.random.default_rng(3)
    tokens, log_probs = rng.permutation(6)[None, :3].repeat(2, 0), -rng.random((2, 3))
    lattices = [SausageLattice(tokens, log_probs, gains) for gains in (None, rng.normal(0, 2, (1, 3, 3)))]
    for lattice, drafts in zip(lattices, as_scorer(LM, 0.8).paths(lattices, [[], []], 4), strict=True):
        assert drafts.scores.tolist() == rescore(lattice, LM, 4, 0.8).scores.tolist()


def test_the_end_of_a_long_context_is_the_history() -> None:
    lattice, context = SausageLattice([[3, 1], [2, 5]], np.zeros((2, 2))), [0, *[4] * MAX_ORDER, 2, 3]
    expected = rescore(lattice, LM, 4, context=context[-2:]).scores.tolist()
    assert rescore(lattice, LM, 4, context=context).scores.tolist() == expected
    assert rescore(lattice, LM, 4, context=context[:2]).scores.tolist() != expected
