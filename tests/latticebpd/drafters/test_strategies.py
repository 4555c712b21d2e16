"""Strategies draft stored lattices as they draft live ones; names stand for them; a drafter joins them with any
source."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from latticebpd import (
    DraftTree,
    LatticeDrafter,
    MixtureDrafter,
    NeuralRescorer,
    NoDrafter,
    PromptNgramDrafter,
    ReferenceDrafter,
    SausageLattice,
    State,
    VanillaDrafter,
    generate,
    oracle_path,
    rescore,
)
from latticebpd.drafters import (
    BestTree,
    HeadLattices,
    NBestPaths,
    Oracle,
    SavedTopK,
    Strategy,
    Vanilla,
    drafter_named,
    needs_hidden,
    strategy_named,
)
from latticebpd.drafters.heads.blockwise import BlockwiseLM
from latticebpd.drafters.masks.mask_network import NonAutoregressiveModel
from latticebpd.drafters.strategies import BeamTree, GreedyChain, StoredPaths, StoredTrees
from latticebpd.drafters.system_names import SystemName, rescores
from latticebpd.lattices.drafts import ROOT
from latticebpd.lattices.lattice_set import LatticeSet
from latticebpd.lattices.sausage import PADDING
from latticebpd.lattices.texts import Texts
from latticebpd.measuring.collect import CollectOptions, collect
from latticebpd.measuring.replay import accept_length
from latticebpd.scoring.ngram import NgramScorer
from latticebpd.scoring.rescoring import as_scorer
from latticebpd.scoring.weights import Tuning, alpha_path, store_tunings
from tests.helpers.drafters import gad_drafter, saved_tree_drafter
from tests.helpers.lattice_sets import lattice_sets
from tests.helpers.lattices import num_paths, run_system
from tests.helpers.tiny_families import VOCABULARY, tiny
from tests.helpers.trigrams import good_model, trigram

LM = good_model()
STRATEGIES: dict[str, Strategy] = {
    "vanilla": Vanilla(),
    "oracle": Oracle(),
    "paths": NBestPaths(as_scorer(LM, 0.5), 3),
    "all paths": NBestPaths(as_scorer(None), 400),
    "tree": BestTree(as_scorer(LM, 0.5), 5),
    "neural paths": NBestPaths(NeuralRescorer(tiny("gpt2")), 2),
    "neural tree": BestTree(NeuralRescorer(tiny("gpt2")), 4),
}


WITH_TRANSITIONS: dict[str, Strategy] = {
    "chain": GreedyChain(),
    "beam": BeamTree(2, 5),
    **{name: STRATEGIES[name] for name in ("vanilla", "oracle", "paths", "all paths", "tree")},
}


def trees_of(drafted: StoredPaths | StoredTrees) -> list[DraftTree]:
    if isinstance(drafted, StoredPaths):
        return [
            DraftTree.from_paths(paths[:count]) for paths, count in zip(drafted.tokens, drafted.counts, strict=True)
        ]
    assert (drafted.parents[drafted.tokens == PADDING] == ROOT).all()
    rows = [tokens != PADDING for tokens in drafted.tokens]
    return [DraftTree(drafted.tokens[i, row], drafted.parents[i, row]) for i, row in enumerate(rows)]


@given(lattices=lattice_sets(), name=st.sampled_from(list(STRATEGIES)))
@settings(max_examples=60, deadline=None)
def test_stored_lattices_are_drafted_as_live_ones(lattices: LatticeSet, name: str) -> None:
    drafted_alike(lattices, name, STRATEGIES[name])


@given(lattices=lattice_sets(transitions=True), name=st.sampled_from(list(WITH_TRANSITIONS)))
@settings(max_examples=60, deadline=None)
def test_stored_lattices_with_transitions_are_drafted_as_live_ones(lattices: LatticeSet, name: str) -> None:
    drafted_alike(lattices, name, WITH_TRANSITIONS[name])


def drafted_alike(lattices: LatticeSet, name: str, strategy: Strategy) -> None:
    rows = range(len(lattices))
    contexts = [lattices.context_of(i) for i in rows]
    following = [lattices.continuation[i].tolist() for i in rows]
    known = {"continuations": following} if name == "oracle" else {}
    live = strategy.draft([lattices[i] for i in rows], contexts, **known)
    for i, (tree, stored) in enumerate(zip(live, trees_of(strategy.draft_stored(lattices)), strict=True)):
        assert (tree.tokens.tolist(), tree.parents.tolist()) == (stored.tokens.tolist(), stored.parents.tolist())
        assert tree.lattice is not None
        assert np.array_equal(tree.lattice.tokens, lattices[i].tokens)


@given(lattices=lattice_sets(transitions=True))
@settings(max_examples=60, deadline=None)
def test_chain_takes_the_best_token_behind_the_one_before(lattices: LatticeSet) -> None:
    assert lattices.transitions is not None
    for i, tree in enumerate(GreedyChain().draft([lattices[i] for i in range(len(lattices))], [[]] * len(lattices))):
        chain: list[int] = []
        for slot, tokens in enumerate(lattices.tokens[i].tolist()):
            before = lattices.tokens[i, slot - 1].tolist().index(chain[-1]) if chain else None
            weights = [
                (
                    float(lattices.log_probs[i, slot, j])
                    + (float(lattices.transitions[i, slot - 1, before, j]) if before is not None else 0),
                    -token,
                )
                for j, token in enumerate(tokens)
                if token >= 0
            ]
            best, negated = max(weights)
            if best == -np.inf:
                break
            chain.append(-negated)
        assert (tree.tokens.tolist(), tree.parents.tolist()) == (chain, list(range(-1, len(chain) - 1)))


def test_chain_needs_no_transitions_to_be_vanilla() -> None:
    lattice = SausageLattice([[3, 1], [2, 5]], [[-1.0, -1.0], [-2.0, -0.5]])
    assert (
        GreedyChain().draft([lattice], [[]])[0].tokens.tolist()
        == Vanilla().draft([lattice], [[]])[0].tokens.tolist()
        == [1, 5]
    )


def test_vanilla_and_the_oracle_do_not_look_at_transitions() -> None:
    lattice = SausageLattice([[3, 1], [2, 5]], [[-1.0, -2.0], [-2.0, -0.5]], np.array([[[9.0, -np.inf], [-9.0, 0.0]]]))
    assert Vanilla().draft([lattice], [[]])[0].tokens.tolist() == [3, 5]
    assert Oracle().draft([lattice], [[]], [[3, 5]])[0].tokens.tolist() == [3, 5]
    assert GreedyChain().draft([lattice], [[]])[0].tokens.tolist() == [3, 2]


@given(lattices=lattice_sets())
@settings(max_examples=30, deadline=None)
def test_oracle_is_the_best_of_all_paths(lattices: LatticeSet) -> None:
    lengths = run_system("oracle", lattices).lengths
    for i in range(len(lattices)):
        every = DraftTree.from_paths(rescore(lattices[i], None, p=num_paths(lattices[i])).tokens)
        assert lengths[i] == accept_length(every, lattices.continuation[i])
        assert lengths[i] == accept_length(
            DraftTree.from_paths(oracle_path(lattices[i], lattices.continuation[i])[None]), lattices.continuation[i]
        )


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("vanilla", Vanilla()),
        ("chain", GreedyChain()),
        ("4-beam", BeamTree(4)),
        ("oracle", Oracle()),
        ("16-best", (NBestPaths, 16, "a", 0.5)),
        ("8-tree", (BestTree, 8, "a", 0.5)),
        ("16-best:0-gram", (NBestPaths, 16, None, 1.0)),
        ("8-tree:b", (BestTree, 8, "b", 0.5)),
    ],
)
def test_names_stand_for_strategies(name: str, expected: object) -> None:
    models = {"a": trigram(seed=1), "b": trigram(seed=2)}
    strategy = strategy_named(name, models, 0.5)
    if not isinstance(expected, tuple):
        assert strategy == expected
        return
    kind, size, model, alpha = expected
    assert isinstance(strategy, NBestPaths | BestTree)
    assert isinstance(strategy.scorer, NgramScorer)
    assert (type(strategy), strategy.p if isinstance(strategy, NBestPaths) else strategy.num_nodes) == (kind, size)
    assert (strategy.scorer.lm, strategy.scorer.alpha) == (None if model is None else models[model], alpha)
    assert str(SystemName.parse(name)) == name.partition(":")[0]


@pytest.mark.parametrize("name", ["", "best", "0-best", "16-best:", "tree-4", "16-copies", "copies+16-tree", "greedy"])
def test_names_that_are_no_strategies_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match="expected vanilla, chain, oracle, P-best or N-tree"):
        strategy_named(name)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("16-best", True),
        ("8-calibrated", True),
        ("copies+8-tree:b", True),
        ("8-tree:0-gram", False),
        ("copies+8-tree:0-gram", False),
        ("4-beam", False),
        ("8-copies", False),
        ("tree", False),
    ],
)
def test_names_tell_which_systems_rescore(name: str, expected: bool) -> None:
    assert rescores(name) == expected


def test_names_stand_for_drafters(model: BlockwiseLM) -> None:
    heads = HeadLattices(model, 4)
    assert isinstance(drafter_named("greedy", None), NoDrafter)
    copies, mixed, tree = (
        drafter_named(name, heads, trigram()) for name in ("7-copies", "copies+9-tree", "9-tree:0-gram")
    )
    assert isinstance(copies, PromptNgramDrafter)
    assert (copies.block_size, copies.num_nodes) == (7, 7)
    assert isinstance(mixed, MixtureDrafter)
    assert isinstance(mixed.first, PromptNgramDrafter)
    assert isinstance(mixed.second, LatticeDrafter)
    assert (mixed.num_nodes, mixed.first.num_nodes, mixed.second.source) == (9, 9, heads)
    assert isinstance(tree, LatticeDrafter)
    with pytest.raises(ValueError, match="expected greedy or N-copies without a source of lattices, got 'vanilla'"):
        drafter_named("vanilla", None)
    with pytest.raises(ValueError, match="one over 40"):
        drafter_named("9-tree", heads, trigram(vocab=40))


class Every:
    """A source of one's own: lattices for every second row, none for the others."""

    needs_hidden = False
    fingerprint = vocab_size = None
    vocabulary_name = "the test"

    def lattices(self, states: Sequence[State]) -> list[SausageLattice | None]:
        return [None if state.row % 2 else SausageLattice([[state.row]], [[0.0]]) for state in states]


def test_rows_without_a_lattice_are_not_drafted_for() -> None:
    states = [State(row, [1, 2], 1, None, 4) for row in range(4)]
    trees = LatticeDrafter(Every(), Vanilla()).propose(states)
    assert [tree.tokens.tolist() for tree in trees] == [[0], [], [2], []]


def test_only_drafters_that_read_hidden_states_need_them(model: BlockwiseLM) -> None:
    saved = SavedTopK(
        LatticeSet(np.ones((1, 1, 1), int), np.zeros((1, 1, 1)), np.ones((1, 1), int), np.ones((1, 1), int))
    )
    masks = NonAutoregressiveModel.like(tiny("bart"), VOCABULARY - 1, 4)
    free = [
        NoDrafter(),
        PromptNgramDrafter(),
        ReferenceDrafter([1]),
        LatticeDrafter(saved, Vanilla()),
        gad_drafter(masks),
    ]
    heads = VanillaDrafter(model)
    assert not any(map(needs_hidden, [*free, MixtureDrafter(free[1], free[4])]))
    assert needs_hidden(heads)
    assert needs_hidden(MixtureDrafter(free[1], heads))
    with pytest.raises(ValueError, match="hidden state that predicted the last token"):
        heads.propose([State(0, [1, 2], 1, None, 3)])


def test_copies_of_a_prompt_are_drafted_before_its_first_token_is_known() -> None:
    """Before the model has read the prompt there is no next token; the first draft begins anew, whatever was there
    before."""
    drafter, prompt = PromptNgramDrafter(block_size=2, num_nodes=2), [5, 6, 7, 5, 6]
    for _ in range(2):
        assert drafter.propose([State(0, prompt, 5, None, 4)])[0].tokens.tolist() == [7, 5]
        assert drafter.propose([State(0, [*prompt, 7, 5], 5, None, 4)])[0].tokens.tolist() == [6, 7]
    assert ReferenceDrafter([7, 8]).propose([State(0, prompt, 5, None, 4)])[0].tokens.tolist() == [7, 8]


def test_saved_lattices_are_rescored_at_the_stored_weight(model: BlockwiseLM, tmp_path: Path) -> None:
    """It was 1 whatever had been tuned."""
    lm = tmp_path / "lm.fst"
    saved, _ = collect(HeadLattices(model), Texts.of_rows([[3, 1, 4]], [3]), CollectOptions(k=4, max_new_tokens=20))
    trigram().save(lm)
    store_tunings(lm, [Tuning(5.0, "64-tree", (5.0,), (2.0,), "text", (0,), 0, "sha256:0")])
    trees = []
    for drafter in (
        saved_tree_drafter(saved, lm, 6),
        saved_tree_drafter(saved, trigram(), 6, 5.0),
        saved_tree_drafter(saved, trigram(), 6),
    ):
        out = generate(model, [3, 1, 4], drafter, max_new_tokens=9, trace=True)
        assert out.trace is not None
        trees.append([step.tree.tokens.tolist() for step in out.trace])
    assert trees[0] == trees[1] != trees[2]
    old = {name: value for name, value in asdict(replace(RECORD, alpha=5.0)).items() if name != "by"}
    alpha_path(lm).write_text(json.dumps(old))  # as earlier versions wrote it
    again = generate(model, [3, 1, 4], saved_tree_drafter(saved, lm, 6), max_new_tokens=9, trace=True).trace
    assert [step.tree.tokens.tolist() for step in again or []] == trees[0]


RECORD = Tuning(1.0, "64-tree", (5.0,), (2.0,), "text", (0,), 0, "sha256:0")


def test_the_oracle_drafts_no_arc_of_no_probability() -> None:
    """Neither of a lattice nor of stored ones: the arc of token 2 is in the slot, but no path takes it."""
    tokens, log_probs = np.array([[[1, 2]]], np.int32), np.array([[[0.0, -np.inf]]], np.float32)
    lattices = LatticeSet(tokens, log_probs, np.array([[2]], np.int32), np.zeros((1, 1), np.int32))
    assert Oracle().draft_stored(lattices).tokens.tolist() == [[[1]]]
    (live,) = Oracle().draft([lattices[0]], [[]], [[2]])
    assert live.tokens.tolist() == [1]
