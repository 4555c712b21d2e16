"""Comparisons of systems against drafting and verifying one lattice at a time, by hand, and their identities."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fst
from latticebpd import Drafts, DraftTree, SausageLattice, draft_tree, rescore
from latticebpd.drafters.strategies import Vanilla
from latticebpd.lattices.lattice_set import LatticeSet
from latticebpd.lattices.sausage import PADDING
from latticebpd.measuring import compare, comparison, lattice_files, lengths_of, ranks
from latticebpd.measuring.examples import exclude_examples
from latticebpd.measuring.replay import accept_length
from latticebpd.measuring.tuning import sweep_alpha
from latticebpd.scoring.rescoring import Tuned, as_scorer
from latticebpd.scoring.weights import Tuning
from tests.helpers.commands import Run
from tests.helpers.lattice_sets import by_hand, decode, lattice_sets
from tests.helpers.lattices import num_paths, run_system, top_arcs
from tests.helpers.trigrams import good_model

LM = good_model()


def drafts_one_by_one(name: str, lattices: LatticeSet, index: int, lm: fst.NgramModel | None) -> DraftTree:
    size, kind = name.split(":")[0].split("-")
    model = None if ":" in name else lm
    lattice, context = lattices[index], lattices.context_of(index)
    if kind == "best":
        return DraftTree.from_paths(rescore(lattice, model, int(size), 0.5, context).tokens)
    return draft_tree(lattice, model, int(size), 0.5, context)


@given(
    lattices=lattice_sets(),
    name=st.sampled_from(["1-best", "3-best", "400-best", "1-tree", "5-tree", "3-best:0-gram", "4-tree:0-gram"]),
)
@settings(max_examples=40, deadline=None)
def test_outcomes_equal_drafting_and_verifying_one_by_one(lattices: LatticeSet, name: str) -> None:
    outcome = run_system(name, lattices, LM, 0.5)
    for i in range(len(lattices)):
        tree = drafts_one_by_one(name, lattices, i, LM)
        assert outcome.nodes[i] == len(tree)
        assert outcome.lengths[i] == accept_length(tree, lattices.continuation[i])
        path, node = [], -1
        while len(children := tree.children(node)):
            node = int(children[0])
            path.append(int(tree.tokens[node]))
        assert outcome.first[i].tolist() == path + [PADDING] * (lattices.tokens.shape[1] - len(path))


@given(lattices=lattice_sets())
@settings(max_examples=20, deadline=None)
def test_identities(lattices: LatticeSet) -> None:
    result = compare([lattices], ["1-best:0-gram", "256-best", "3-best"], LM)  # at most 4 slots of 4: 256 paths are all
    assert result.systems == ("vanilla", "1-best:0-gram", "256-best", "3-best", "oracle")
    np.testing.assert_array_equal(run_system("vanilla", lattices, None).lengths, lengths_of(ranks(lattices), 1))
    assert (result.outcomes.sum(axis=1) == result.steps).all()
    assert result.outcomes[0].tolist() == [0, result.steps[0], 0]
    assert (
        result.counts[1].tolist() == result.counts[0].tolist()
    )  # the best path of an unrescored lattice is vanilla's draft
    assert result.counts[2].tolist() == result.counts[-1].tolist()  # all paths are as good as the oracle
    oracle = run_system("oracle", lattices, None).lengths
    for name in ("vanilla", "3-best", "5-tree"):
        assert (run_system(name, lattices, LM).lengths <= oracle).all()
    assert lattices.sequence is not None
    lengths = run_system("3-best", lattices, LM).lengths
    texts = [lengths[lattices.sequence == text].tolist() for text in np.unique(lattices.sequence)]
    assert result.decode_totals[3, :2].tolist() == [len(lattices), sum(map(decode, texts))]
    assert (result.decode_totals[:, 1] == result.steps).all()
    by_position = compare([lattices], ["3-best"], LM, by="position")
    assert (by_position.outcomes.sum(axis=1) == len(lattices)).all()
    assert result.resampled[:, 0].tolist() == result.resampled[:, 1].tolist()


def test_hand_computed_comparison() -> None:
    lattices = by_hand()  # vanilla accepts 1, 0, 2, 0; vanilla drafts are (1 2) (2 1) (1 1) (2 3)
    result = compare([lattices], ["4-best"], by="position")
    assert result.systems == ("vanilla", "4-best", "oracle")
    assert result.block_efficiency.tolist() == [1.75, 2.25, 2.25]  # all four paths: 2, 0, 2, 1
    assert result.headroom_recovered.tolist() == [0, 1, 1]
    assert result.outcomes.tolist() == [[0, 4, 0], [2, 2, 0], [2, 2, 0]]
    assert result.verified_tokens.tolist() == [2, 6, 2]
    assert result.repeats[0].tolist() == [1, 8, 5]  # behind head 1's 0, (1 1) repeats; runs of 1, 1, 2, 1
    assert result.consecutive_repeats[0] == 12.5
    assert result.longest_run[0] == 1.25
    assert result.repetition_changes[2].tolist() == [
        [0, 1],
        [0, 0],
        [0, 0],
    ]  # the oracle's first draft is (1 1) where vanilla's is (1 2), a win
    assert result.repetition_shares(0)[2].tolist() == [0, 50]
    assert np.isnan(result.repetition_shares(2)[2]).all()  # no losses
    # vanilla: slot 1 held it, slot 0 lacked it, never, slot 0 held it; all paths: never, slot 0 lacked it, never, the
    # text had ended
    assert result.lost.tolist() == [[2, 1, 0, 0], [0, 1, 1, 0], [0, 1, 1, 0]]


def test_hand_computed_comparison_by_decode() -> None:
    """Vanilla calls at positions 0 and 2, all paths and the oracle at 0 and 3: what lies between, no decode sees."""
    result = compare([by_hand()], ["4-best"])
    assert result.signature.by == "decode"
    assert result.steps.tolist() == [2, 2, 2]
    assert result.counts.tolist() == [[0, 1, 1], [0, 1, 1], [0, 1, 1]]
    assert result.block_efficiency.tolist() == [2, 2, 2]
    assert np.isnan(result.headroom_recovered).all()
    assert result.outcomes.tolist() == [[0, 2, 0], [2, 0, 0], [2, 0, 0]]  # vanilla drafts at 0 and 3 accept 1 and 0
    assert result.repeats[0].tolist() == [1, 4, 3]  # (1 2), (1 1)
    assert result.lost.tolist() == [[1, 0, 0, 0], [0, 0, 1, 0], [0, 0, 1, 0]]
    assert result.verified_tokens.tolist() == [2, 6, 2]
    assert result.texts.tolist() == [1]
    in_blocks = compare([by_hand().take(np.arange(4) < 3), by_hand().take(np.arange(4) == 3)], ["4-best"])
    assert in_blocks.to_json() == result.to_json()
    assert {"mended", "walked"} <= result.to_json().keys()  # as earlier versions wrote them
    assert compare([replace(by_hand(), sequence=None)], []).signature.by == "position"


@given(lattices=lattice_sets(), size=st.integers(1, 6))
@settings(max_examples=30)
def test_counts_by_decode_equal_walking_one_by_one(lattices: LatticeSet, size: int) -> None:
    """Every system's own decode is walked by hand, and everything is counted where it makes a call, and nowhere
    else."""
    assert lattices.sequence is not None
    result = compare(
        [lattices.take(np.arange(1)), lattices.take(np.arange(1, len(lattices)))], [f"{size}-tree"], LM, 0.5
    )
    vanilla = run_system("vanilla", lattices, None)
    for row, name in enumerate(result.systems):
        outcome = run_system(name, lattices, LM, 0.5)
        visited = []
        for text in np.unique(lattices.sequence):
            own = np.flatnonzero(lattices.sequence == text)
            at = 0
            while at < len(own):
                visited.append(own[at])
                at += outcome.lengths[own[at]] + 1
        assert (
            result.counts[row].tolist()
            == np.bincount(outcome.lengths[visited], minlength=result.counts.shape[1]).tolist()
        )
        assert result.nodes[row] == outcome.nodes[visited].sum()
        better = (outcome.lengths - vanilla.lengths)[visited]
        assert result.outcomes[row].tolist() == [(better > 0).sum(), (better == 0).sum(), (better < 0).sum()]
        drafts = np.hstack([lattices.context[:, -1:], outcome.first])[visited].tolist()
        assert result.repeats[row].tolist() == [
            sum(column) for column in zip(*map(repetition_one_by_one, drafts), strict=True)
        ]


def test_what_the_budget_cut_is_told_from_what_was_misranked() -> None:
    """The right tokens are 1, 1; each slot has 1 before 2."""
    tokens = np.tile(np.array([[1, 2], [1, 2]], np.int32), (1, 1, 1))
    log_probs = np.array([[[-0.5, -1.0], [-0.5, -1.0]]], np.float32)

    def lost(system: str, continuation: list[int]) -> list[int]:
        lattices = LatticeSet(tokens, log_probs, np.array([continuation], np.int32), np.zeros((1, 1), np.int32))
        causes: list[int] = compare([lattices], [system]).lost[1].tolist()
        return causes

    assert lost("1-tree", [1, 1]) == [0, 0, 0, 1]  # one node: nothing is drafted behind 1
    assert lost("2-tree", [1, 1]) == [0, 0, 0, 0]
    assert lost("2-tree", [1, 2]) == [1, 0, 0, 0]  # two nodes: 1, and 1 behind it in 2's place
    assert lost("2-tree", [2, 1]) == [1, 0, 0, 0]
    assert lost("1-best", [2, 1]) == [1, 0, 0, 0]
    assert lost("1-tree", [1, 3]) == [0, 1, 0, 0]
    assert lost("1-tree", [1, PADDING]) == [0, 0, 1, 0]


@given(lattices=lattice_sets())
@settings(max_examples=10)
def test_intervals_resample_texts(lattices: LatticeSet) -> None:
    """Every resampled pair is the sum of texts' tokens and calls, each times its weight; with every weight 1 it is the
    whole."""
    assert lattices.sequence is not None
    result = compare([lattices], ["3-best"], LM)
    weights = {
        text: np.random.default_rng((0, text)).poisson(1, comparison.RESAMPLES)
        for text in np.unique(lattices.sequence).tolist()
    }
    for row, name in enumerate(result.systems):
        lengths = run_system(name, lattices, LM).lengths
        texts = {text: lengths[lattices.sequence == text].tolist() for text in weights}
        tokens = sum(weights[text] * len(texts[text]) for text in texts)
        steps = sum(weights[text] * decode(texts[text]) for text in texts)
        assert (result.resampled[:, row] == np.stack([tokens, steps], axis=1)).all()


def test_a_repetition_of_head_1s_token_counts() -> None:
    """The committed token stands before the draft: a first slot that repeats it is a repetition (the paper's drafts
    have 9 tokens)."""
    lattices = by_hand()
    behind_1 = replace(lattices, context=np.array([[9, 1]] * 4, np.int32))  # vanilla drafts are (1 2) (2 1) (1 1) (2 3)
    result = compare([behind_1], [], by="position")
    assert result.repeats[0].tolist() == [3, 8, 2 + 1 + 3 + 1]
    unknown = replace(lattices, context=np.full((4, 1), PADDING, np.int32))
    assert compare([unknown], [], by="position").repeats[0].tolist() == [1, 4, 5]
    no_context = replace(lattices, context=np.empty((4, 0), np.int32))
    assert compare([no_context], [], by="position").repeats[0].tolist() == [1, 4, 5]


def repetition_one_by_one(draft: list[int]) -> tuple[int, int, int]:
    pairs = [(a, b) for a, b in itertools.pairwise(draft) if PADDING not in (a, b)]
    runs = [len(list(group)) for token, group in itertools.groupby(draft) if token != PADDING]
    return sum(a == b for a, b in pairs), len(pairs), max(runs, default=0)


@given(lattices=lattice_sets())
@settings(max_examples=40, deadline=None)
def test_repetition_equals_counting_one_by_one(lattices: LatticeSet) -> None:
    result = compare([lattices], ["3-tree"], LM, by="position")
    for row, name in enumerate(result.systems):
        drafts = run_system(name, lattices, LM).first
        heads_1 = lattices.context[:, -1].tolist()
        counted = [
            repetition_one_by_one([head_1, *draft]) for head_1, draft in zip(heads_1, drafts.tolist(), strict=True)
        ]
        assert result.repeats[row].tolist() == [sum(column) for column in zip(*counted, strict=True)]


@dataclass(frozen=True)
class Contrary:
    """A scorer of another kind: ranks paths from the worst."""

    alpha: float = 1.0

    def with_alpha(self, alpha: float) -> Contrary:
        return Contrary(alpha)

    def paths(self, lattices: Sequence[SausageLattice], contexts: Sequence[object], p: int) -> list[Drafts]:
        everything = [rescore(lattice, None, num_paths(lattice)) for lattice in lattices]
        return [Drafts(each.tokens[::-1][:p], each.scores[::-1][:p]) for each in everything]

    def trees(self, lattices: Sequence[SausageLattice], contexts: Sequence[object], num_nodes: int) -> list[DraftTree]:
        return [DraftTree.from_paths(best.tokens).first(num_nodes) for best in self.paths(lattices, contexts, 1)]


@given(lattices=lattice_sets())
@settings(max_examples=20, deadline=None)
def test_any_rescorer_takes_part_by_name(lattices: LatticeSet) -> None:
    models = {"small": as_scorer(LM, 0.5), "contrary": Contrary()}
    systems = ["2-best", "2-best:0-gram", "2-best:contrary", "2-tree:contrary"]
    result = compare([lattices], systems, models, by="position")
    assert (
        result.counts[1].tolist()
        == np.bincount(run_system("2-best", lattices, LM, 0.5).lengths, minlength=result.counts.shape[1]).tolist()
    )
    for row, p in ((3, 2), (4, 1)):
        drafts = [best.tokens for best in Contrary().paths([lattices[i] for i in range(len(lattices))], [], p)]
        trees = [DraftTree.from_paths(tokens) for tokens in drafts]
        if row == 4:
            trees = [tree.first(2) for tree in trees]
        lengths = [accept_length(tree, lattices.continuation[i]) for i, tree in enumerate(trees)]
        assert result.counts[row].tolist() == np.bincount(lengths, minlength=result.counts.shape[1]).tolist()
        assert result.nodes[row] == sum(map(len, trees))
    assert result.signature.lm == "small 3-gram of " + str(sum(LM.num_ngrams)) + " n-grams, contrary Contrary"
    assert result.signature.alpha == "0.5,1"


@given(lattices=lattice_sets())
@settings(max_examples=20, deadline=None)
def test_every_system_runs_at_its_own_weight(lattices: LatticeSet) -> None:
    own = {"3-best": 4.0, "3-tree": 0.25}
    tuned = Tuned(
        as_scorer(LM), tuple(Tuning(alpha, name, (alpha,), (1.0,), "text", (0,), 0, "") for name, alpha in own.items())
    )
    together, given_alpha = (compare([lattices], list(own), tuned, alpha, by="position") for alpha in (None, 1.5))
    assert (together.signature.alpha, given_alpha.signature.alpha) == ("4,0.25", "1.5")
    for name, alpha in own.items():
        row = together.systems.index(name)
        for result, weight in ((together, alpha), (given_alpha, 1.5)):
            lengths = run_system(name, lattices, LM, weight).lengths
            assert result.counts[row].tolist() == np.bincount(lengths, minlength=result.counts.shape[1]).tolist()


@given(
    lattices=lattice_sets(), alphas=st.lists(st.sampled_from([0.0, 0.3, 1.0, 4.0]), min_size=1, max_size=3, unique=True)
)
@settings(max_examples=20, deadline=None)
def test_sweep_equals_one_run_for_each_weight(lattices: LatticeSet, alphas: list[float]) -> None:
    assert lattices.sequence is not None
    by_decode, by_position = (
        sweep_alpha([block], "3-best", LM, alphas) for block in (lattices, replace(lattices, sequence=None))
    )
    assert by_decode.alphas == by_position.alphas == tuple(sorted(alphas))
    assert (by_decode.by, by_position.by) == ("decode", "position")
    for row, alpha in enumerate(sorted(alphas)):
        lengths = run_system("3-best", lattices, LM, alpha).lengths
        calls = sum(decode(lengths[lattices.sequence == text].tolist()) for text in np.unique(lattices.sequence))
        assert by_decode.counts[row].tolist() == np.bincount(lengths, minlength=by_decode.counts.shape[1]).tolist()
        assert by_decode.block_efficiency[row] == len(lattices) / calls
        assert by_position.block_efficiency[row] == pytest.approx(lengths.mean() + 1)
    for swept in (by_decode, by_position):
        best = swept.block_efficiency.max()
        assert swept.best == min(
            alpha for alpha, value in zip(swept.alphas, swept.block_efficiency, strict=True) if value == best
        )
    parts = [sweep_alpha([lattices], "3-best", LM, [alpha]) for alpha in alphas]
    joined = sum(parts[1:], parts[0])
    assert (joined.alphas, joined.counts.tolist()) == (by_decode.alphas, by_decode.counts.tolist())
    assert joined.decode_totals.tolist() == by_decode.decode_totals.tolist()


@given(
    lattices=lattice_sets(min_size=4), drawn=st.lists(st.tuples(st.booleans(), st.sets(st.integers(0, 11))), max_size=3)
)
@settings(max_examples=30, deadline=None)
def test_examples_of_several_tunings_are_left_out_by_their_own_numbers(
    lattices: LatticeSet, drawn: list[tuple[bool, set[int]]]
) -> None:
    tunings = [
        Tuning(1, "1-best", (1,), (1,), "text" if texts else "lattice", tuple(sorted(ids)), 0, "")
        for texts, ids in drawn
    ]
    assert lattices.sequence is not None
    kept = [
        row
        for row in range(len(lattices))
        if not any((lattices.sequence[row] if texts else row) in ids for texts, ids in drawn)
    ]
    parts = [lattices.take(np.arange(0, 3)), lattices.take(np.arange(3, len(lattices)))]
    if not kept:
        with pytest.raises(ValueError, match="expected lattices besides those that the weights were tuned on"):
            list(exclude_examples(parts, tunings))
        return
    left = [tokens for block in exclude_examples(parts, tunings) for tokens in block.tokens.tolist()]
    assert left == lattices.tokens[kept].tolist()


def test_lattices_of_two_origins_are_not_mixed() -> None:
    lattices = by_hand()
    with pytest.raises(ValueError, match="expected lattices of one origin, got a and b"):
        compare([replace(lattices, origin="a"), replace(lattices, origin="b")], [])
    with pytest.raises(ValueError, match=r"expected lattices of 2 slots x 2, as the first, got 2 x 1"):
        compare(
            [lattices, replace(lattices, tokens=lattices.tokens[:, :, :1], log_probs=lattices.log_probs[:, :, :1])], []
        )


def test_ties_go_to_the_lowest_token_in_every_system() -> None:
    """Weights are equal all over: the vanilla draft, the 0-gram's best path and the oracle's arcs behind a miss are the
    lowest ids."""
    rng = np.random.default_rng(0)
    tokens = np.stack([rng.permutation(9)[:3] for _ in range(400 * 2)]).reshape(400, 2, 3).astype(np.int32)
    wanted = rng.integers(0, 9, (400, 2)).astype(np.int32)
    lattices = LatticeSet(tokens, np.zeros((400, 2, 3), np.float32), wanted, np.zeros((400, 1), np.int32))
    lowest = tokens.min(axis=2)
    for name in ("vanilla", "1-best:0-gram"):
        assert run_system(name, lattices).first.tolist() == lowest.tolist()
    np.testing.assert_array_equal(lengths_of(ranks(lattices), 1), run_system("vanilla", lattices).lengths)
    missing = ~(tokens == wanted[:, :, None]).any(axis=2)
    assert run_system("oracle", lattices).first[missing].tolist() == lowest[missing].tolist()
    states = [SausageLattice(tokens[i], np.zeros((2, 3))) for i in range(20)]
    assert [tree.tokens.tolist() for tree in Vanilla().draft(states, [[]] * 20)] == lowest[:20].tolist()
    assert [top_arcs(lattice, 1).tokens[:, 0].tolist() for lattice in states] == lowest[:20].tolist()


def test_interval_holds_the_gain_and_narrows_with_data(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lattice_files, "UNIT", 1)
    rng = np.random.default_rng(1)

    def sample(n: int) -> LatticeSet:
        tokens = np.stack([rng.permutation(6)[:3] for _ in range(n * 3)]).reshape(n, 3, 3).astype(np.int32)
        continuation = np.take_along_axis(tokens, rng.choice(3, (n, 3, 1), p=[0.5, 0.3, 0.2]), axis=2)[:, :, 0]
        return LatticeSet(
            tokens, -np.tile(np.arange(3, dtype=np.float32), (n, 3, 1)), continuation, np.zeros((n, 1), np.int32)
        )

    widths = []
    for n in (200, 3200):
        result = compare([sample(n)], ["3-best"])
        low, high = result.gain_interval()[1]
        assert low < result.block_efficiency[1] - result.block_efficiency[0] < high
        # Gains of single positions lie between 0 and 3, so the interval of their mean is about as wide as theory says.
        gains = run_system("3-best", sample(n), None).lengths - run_system("vanilla", sample(n), None).lengths
        assert 0 < high - low < 8 * gains.std() / math.sqrt(n)
        widths.append(high - low)
    assert widths[1] < widths[0] / 2


def test_a_single_unit_has_no_interval(run: Run, tmp_path: Path) -> None:
    """Of one text, or of fewer than 256 lattices of a file that does not name its texts, all samples are alike."""
    lattices = replace(by_hand(), sequence=None)
    for of_one_text in (by_hand(), lattices):
        assert np.isnan(compare([of_one_text], ["2-best"]).gain_interval()).all()
    lattices.save(tmp_path / "lattices.npz")
    status, out, errors = run("compare", tmp_path / "lattices.npz", "-s", "2-best", "--json")
    assert status == 0, errors
    assert [(row["gain_low"], row["gain_high"]) for row in json.loads(out)["systems"]] == [(None, None)] * 3
    assert " to " not in run("compare", tmp_path / "lattices.npz", "-s", "2-best")[1].split("against vanilla")[0]


def test_bad_requests_are_named() -> None:
    for name in ("best", "0-best", "16-best:", "tree-4", ""):
        with pytest.raises(ValueError, match="expected vanilla, chain, oracle, P-best or N-tree"):
            compare([by_hand()], [name])
    with pytest.raises(ValueError, match="at least one lattice"):
        compare([], ["1-best"])
    with pytest.raises(ValueError, match="expected a language model among 0-gram, a, got 'b'"):
        compare([by_hand()], ["4-best:b"], {"a": None})
    for alphas in ([], [-1.0], [float("nan")]):
        with pytest.raises(ValueError, match="expected weights >= 0"):
            sweep_alpha([by_hand()], "4-best", None, alphas)
    with pytest.raises(ValueError, match="at least one lattice"):
        sweep_alpha([], "4-best", None)
