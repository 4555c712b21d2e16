"""Acceptance rules: what each keeps, that leniency only lengthens, and that sampling leaves the distribution alone."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from latticebpd import (
    Acceptance,
    Distance,
    Drafter,
    DraftTree,
    Exact,
    MinimumBlock,
    NodeDrafts,
    NoDrafter,
    ReferenceDrafter,
    Sampling,
    SausageLattice,
    SpeculativeSampling,
    State,
    TopBeta,
    TopK,
    draft_tree,
    generate,
)
from latticebpd.decoding.acceptance import accepted_paths
from latticebpd.verification.verifier import Verified
from tests.helpers.tiny_families import tiny

VOCABULARY = 6
PROMPT = [4, 9]


def verified(logits: Tensor, device: str = "cpu") -> Verified:
    """``[rows, columns, vocab]`` logits as a verifier hands them on; only the hidden states' device matters."""
    return Verified(
        torch.zeros(*logits.shape[:2], 1, device=device), lambda rows, columns: logits[list(rows), list(columns)]
    )


def accepted(rule: Acceptance, tree: DraftTree, logits: Tensor) -> tuple[list[int], int]:
    paths, next_tokens = accepted_paths(rule, [tree], verified(logits[None]))
    return paths[0], next_tokens[0]


def test_only_the_exact_rule_takes_the_best_tokens_without_logits() -> None:
    logits = torch.tensor([[[0.0, 2.0, 1.0], [2.0, 1.0, 0.0]]])
    shown = replace(verified(logits), best_of=lambda rows, columns: logits[rows, columns].argmax(dim=-1).tolist())
    tree = DraftTree.from_paths([[2]])
    assert accepted_paths(Exact(), [tree], shown) == ([[]], [1])
    assert accepted_paths(TopK(2), [tree], shown) == ([[0]], [0])


def test_greedy_rows_ask_for_no_logits_for_others_sake() -> None:
    """Next to rows that sample or have processors, which see their own prefix."""
    logits = torch.tensor([[[0.0, 2.0, 1.0], [2.0, 1.0, 0.0]]] * 3)
    asked, prefixes = set[int](), list[list[int]]()

    def logits_of(rows: Sequence[int], columns: Sequence[int]) -> Tensor:
        asked.update(rows)
        return logits[list(rows), list(columns)]

    def without_the_best(drafted: list[int], scores: Tensor) -> Tensor:
        prefixes.append(drafted)
        return scores.index_fill(0, scores.argmax()[None], -math.inf)

    def best_of(rows: Sequence[int], columns: Sequence[int]) -> list[int]:
        return logits[list(rows), list(columns)].argmax(dim=-1).tolist()

    shown = replace(verified(logits), logits_of=logits_of, best_of=best_of)
    trees = [DraftTree.from_paths([[1]]), DraftTree.from_paths([[2]]), DraftTree.from_paths([[1]])]
    rules = [Exact(), Exact(), Sampling(temperature=1e-3, top_k=1)]
    adjust = [None, without_the_best, None]
    assert accepted_paths(rules, trees, shown, adjust) == ([[0], [0], [0]], [0, 1, 0])
    assert asked == {1, 2}
    assert prefixes == [[], [2]]


TREES = st.lists(st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=4), max_size=6).map(DraftTree.from_paths)


def random_logits(tree: DraftTree, seed: int) -> Tensor:
    return torch.randn(len(tree) + 1, VOCABULARY, generator=torch.Generator().manual_seed(seed))


def test_exact_walk_ends_at_the_first_mismatch() -> None:
    tree = DraftTree(np.array([1, 2, 0, 2]), np.array([-1, 0, -1, 2]))
    choices = [1, 0, 2, 2, 2]  # after the next token 1; after node 0 (token 1) the model says 0, the draft 2
    assert accepted(Exact(), tree, torch.eye(3)[choices]) == ([0], 0)


def test_rows_of_a_batch_walk_on_their_own() -> None:
    trees = [DraftTree.from_paths([[1, 2]]), DraftTree.empty(), DraftTree.from_paths([[0], [2, 2, 2]])]
    logits = torch.eye(3)[torch.tensor([[1, 2, 0, 0], [2, 0, 0, 0], [2, 0, 2, 1]])]
    paths, next_tokens = accepted_paths(Exact(), trees, verified(logits))
    assert paths == [[0, 1], [], [1, 2]]
    assert next_tokens == [0, 2, 1]


@settings(max_examples=60, deadline=None)
@given(tree=TREES, seed=st.integers(0, 1000))
def test_walk_is_the_same_on_the_way_and_all_at_once(tree: DraftTree, seed: int) -> None:
    """`meta` stands for an accelerator, where all nodes are picked at once."""
    logits = random_logits(tree, seed)[None]
    for rule in (Exact(), TopK(2), Distance(1), TopBeta(3, 0.7), MinimumBlock(3)):
        assert accepted_paths(rule, [tree], verified(logits)) == accepted_paths(rule, [tree], verified(logits, "meta"))


@settings(max_examples=100, deadline=None)
@given(tree=TREES, seed=st.integers(0, 1000))
def test_more_lenient_rules_never_accept_less(tree: DraftTree, seed: int) -> None:
    logits = random_logits(tree, seed)
    ladders: list[list[Acceptance]] = [
        [TopK(k) for k in range(1, VOCABULARY + 1)],
        [Distance(epsilon) for epsilon in range(VOCABULARY)],
        [MinimumBlock(length) for length in range(1, 6)],
        [TopBeta(beta, 1.0) for beta in range(1, VOCABULARY + 1)],
        [TopBeta(3, tau) for tau in (0.0, 0.5, 1.0, 5.0)],
    ]
    for ladder in ladders:
        lengths = [len(accepted(rule, tree, logits)[0]) for rule in ladder]
        assert lengths == sorted(lengths)
        assert accepted(ladder[0], tree, logits) == accepted(Exact(), tree, logits)
    assert (
        accepted(TopBeta(1, 9.0), tree, logits)
        == accepted(TopBeta(9, 0.0), tree, logits)
        == accepted(Exact(), tree, logits)
    )


@settings(max_examples=60, deadline=None)
@given(tree=TREES, seed=st.integers(0, 1000))
def test_rules_keep_what_their_papers_say(tree: DraftTree, seed: int) -> None:
    logits = random_logits(tree, seed)

    def good(rule: Acceptance, node: int, token: int) -> bool:
        line = logits[node + 1]
        rank, gap = int((line > line[token]).sum()), float(line.max() - line[token])
        if isinstance(rule, TopK):
            return rank < rule.k
        if isinstance(rule, TopBeta):
            return rank < rule.beta and gap <= rule.tau
        assert isinstance(rule, Distance)
        return abs(token - int(line.argmax())) <= rule.epsilon

    for rule in (TopK(1), TopK(3), Distance(2), TopBeta(3, 1.0)):
        path, next_token = accepted(rule, tree, logits)
        end = -1
        for node in path:
            assert tree.parents[node] == end
            assert good(rule, end, int(tree.tokens[node]))  # the drafted token is kept
            end = node
        assert not any(good(rule, end, int(tree.tokens[child])) for child in tree.children(end))
        assert next_token == int(logits[end + 1].argmax())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("logits", "drafted", "rule", "kept"),
    [
        ([2.0, 1.0, 1.0, 0.0], 2, TopBeta(2, 1.0), True),  # as probable as the second best, and 1 below the best
        ([2.0, 1.0, 1.0, 1.0], 3, TopBeta(2, 1.0), True),
        ([2.0, 1.0, 1.0, 0.0], 2, TopBeta(2, 0.5), False),
        ([2.0, 1.0, 1.0, 0.0], 3, TopBeta(3, 9.0), False),  # the third best is 1
        ([2.0, 1.5, 1.0, 0.0], 2, TopBeta(2, 1.0), False),
        ([2.0, 2.0, 1.0, 0.0], 1, TopBeta(1, 9.0), True),  # equation 6 at beta = 1: as probable as the best
        ([2.0, 2.0, 1.0, 0.0], 1, TopBeta(4, 0.0), True),
        ([2.0, 1.0, 1.0, 0.0], 2, TopK(2), False),  # two tokens, and no more, are the two best
        ([2.0, 1.0, 1.0, 0.0], 1, TopK(2), True),
        ([2.0, 2.0, 1.0, 0.0], 1, TopK(1), False),  # exact, ties included
        ([2.0, 2.0, 1.0, 0.0], 1, Exact(), False),  # the lowest token
    ],
)
def test_equality_is_decided_as_the_papers_do(
    logits: list[float], drafted: int, rule: Acceptance, kept: bool, dtype: torch.dtype
) -> None:
    lines = torch.tensor([logits, logits], dtype=dtype)
    assert accepted(rule, DraftTree.from_paths([[drafted]]), lines) == (([0], 0) if kept else ([], 0))


def test_minimum_block_is_filled_wherever_the_draft_reaches() -> None:
    tree = DraftTree.from_paths([[0, 1, 2, 3], [4]])
    logits = torch.full((len(tree) + 1, VOCABULARY), 0.0)
    logits[:, 5] = 9.0  # the model wants a token that nobody drafted
    logits[0, 0] = 1.0
    for length in range(1, 8):
        path, next_token = accepted(MinimumBlock(length), tree, logits)
        assert len(path) == min(length - 1, 4)
        assert next_token == 5
    assert len(accepted(MinimumBlock(2, TopK(6)), tree, logits)[0]) == 4


def test_text_under_top_k_holds_drafted_tokens() -> None:
    """With all tokens acceptable the draft is the text, whatever the model thinks."""
    model = tiny("gpt2")
    draft = [7, 7, 9, 3, 3, 3, 11, 12]
    out = generate(model, [5, 6], ReferenceDrafter(draft, block_size=8), TopK(23), max_new_tokens=9)
    assert out.sequences[0, 2:-1].tolist() == draft
    assert out.num_calls == 1


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: TopK(0), "k >= 1, got 0"),
        (lambda: Distance(-1), "epsilon >= 0, got -1"),
        (lambda: Distance(float("nan")), "epsilon >= 0"),
        (lambda: MinimumBlock(0), "length >= 1, got 0"),
        (lambda: TopBeta(0, 1.0), "beta >= 1"),
        (lambda: TopBeta(1, -1.0), "tau >= 0"),
        (lambda: Sampling(temperature=0.0), "temperature"),
    ],
)
def test_settings_out_of_range_are_refused(make: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


class BushyDrafter(NoDrafter):
    """Drafts all combinations of some tokens, level by level, at every call."""

    def __init__(self, *levels: Sequence[int]) -> None:
        self.tree = DraftTree.from_paths(list(product(*levels)))

    def propose(self, states: Sequence[State]) -> list[DraftTree]:
        return [self.tree for _ in states]


@pytest.mark.parametrize(
    ("config", "arguments"),
    [
        ({}, {}),
        ({"temperature": 1.7}, {}),
        ({"temperature": 2.0, "top_k": 4}, {}),
        ({"temperature": 0.5, "top_k": 2, "top_p": 0.5}, {"temperature": 2.5, "top_k": 0, "top_p": 0.8}),
        ({"temperature": 2.5, "min_p": 0.2, "epsilon_cutoff": 0.03}, {}),
        ({"temperature": 2.5, "typical_p": 0.7, "eta_cutoff": 0.2}, {}),
        ({"repetition_penalty": 1.8, "top_p": 0.9}, {"temperature": 2.0}),
    ],
)
def test_sampled_texts_are_distributed_as_the_base_models(
    config: dict[str, float], arguments: dict[str, float]
) -> None:
    """Drafted for at every call with some of the likely tokens, so that drafts are accepted and rejected at both
    depths."""
    model: Any = tiny("gpt2", seed=1)
    for name, value in config.items():
        setattr(model.generation_config, name, value)
    exact = joint_distribution(model, arguments)
    rule = Sampling(**arguments, generator=torch.Generator().manual_seed(7))
    assert (
        assert_drawn_from(
            exact, model, BushyDrafter(*([token for token, _ in slot[:4]] for slot in marginals(exact))), rule
        )
        > 100
    )


def test_the_rule_below_a_minimum_block_samples_under_the_models_settings() -> None:
    model: Any = tiny("gpt2", seed=1)
    model.generation_config.top_k = 1  # so that the likeliest token is all there is to draw
    greedy = model.generate(torch.tensor([PROMPT]), do_sample=False, max_new_tokens=20).tolist()
    for rule in (Sampling(), MinimumBlock(1, Sampling())):
        assert generate(model, PROMPT, NoDrafter(), rule, max_new_tokens=20).sequences.tolist() == greedy


class DrawingDrafter(NoDrafter):
    """Draws paths slot by slot from one lattice, which does not depend on the text."""

    def __init__(self, lattice: SausageLattice, paths: int) -> None:
        self.lattice, self.paths, self.random = lattice, paths, np.random.default_rng(3)

    def propose(self, states: Sequence[State]) -> list[DraftTree]:
        q = np.exp(self.lattice.log_probs)
        drawn = [
            self.random.choice(tokens, (len(states), self.paths), p=each / each.sum())
            for tokens, each in zip(self.lattice.tokens, q, strict=True)
        ]
        return [DraftTree.from_paths(paths, self.lattice) for paths in np.stack(drawn, axis=-1)]


@pytest.mark.long
@pytest.mark.parametrize("paths", [1, 4])
def test_speculative_sampling_leaves_the_distribution_and_accepts_more_of_drawn_drafts(paths: int) -> None:
    """Chains as in Leviathan 2023, and trees of several draws; q is unlike p, and lacks tokens that p has."""
    model: Any = tiny("gpt2", seed=1)
    arguments = {"temperature": 2.5, "top_k": 0}
    exact = joint_distribution(model, arguments)
    slots = [slot[:7] for slot in marginals(exact)]
    tokens = np.array([[token for token, _ in slot] for slot in slots])
    lattice = SausageLattice(
        tokens, np.log([[share**0.7 for _, share in slot] for slot in slots]) + np.tile([0.0, 0.4], 4)[:7] - 2.0
    )
    accepted = [
        assert_drawn_from(
            exact, model, DrawingDrafter(lattice, paths), kind(**arguments, generator=torch.Generator().manual_seed(7))
        )
        for kind in (SpeculativeSampling, Sampling)
    ]
    assert accepted[0] > 1.1 * accepted[1] > 100


def test_speculative_sampling_tries_siblings_without_replacement() -> None:
    """Chi-square of one token, where what is drafted first is seldom right: what comes after it decides."""
    p, q = np.array([0.05, 0.4, 0.1, 0.15, 0.3]), np.array([0.6, 0.2, 0.15, 0.05])
    lattice = SausageLattice([[0, 1, 2, 3]], np.log(q)[None])
    random, draws = np.random.default_rng(5), 6_000
    trees = [DraftTree.from_paths(random.choice(4, (3, 1), replace=False, p=q), lattice) for _ in range(draws)]
    rule = SpeculativeSampling(generator=torch.Generator().manual_seed(7))
    chosen = rule.choose(torch.tensor(np.log(p)).expand(draws, -1), NodeDrafts(trees, [-1] * draws), [0] * draws)
    seen = np.bincount(chosen, minlength=len(p))
    assert ((seen - draws * p) ** 2 / (draws * p)).sum() < 23.5  # beyond that with probability 1e-4
    assert np.mean([token in tree.tokens for token, tree in zip(chosen, trees, strict=True)]) > 0.6


def test_speculative_sampling_refuses_drafts_that_were_not_drawn() -> None:
    for lattice in (None, SausageLattice([[1, 2]], [[-0.5, -1.0]])):
        with pytest.raises(ValueError, match="take Sampling for drafts that are not drawn"):
            accepted(SpeculativeSampling(), DraftTree.from_paths([[3]], lattice), torch.zeros(2, VOCABULARY))


def test_rules_see_what_the_drafter_thought_of_its_drafts() -> None:
    lattice = SausageLattice([[1, 2], [0, -1]], [[-0.1, -2.0], [-0.3, -np.inf]])
    tree = replace(draft_tree(lattice, None, num_nodes=4), lattice=lattice)
    seen = NodeDrafts([tree, tree, DraftTree.from_paths([[5]])], [-1, 0, -1])
    assert [seen(i).tolist() for i in range(3)] == [[1, 2], [0], [5]]
    first, second = seen.log_probs(0), seen.log_probs(1)
    assert first is not None
    assert second is not None
    np.testing.assert_allclose(first, np.array([-0.1, -2.0]) - np.logaddexp(-0.1, -2.0))
    np.testing.assert_allclose(second, [0.0], atol=1e-12)  # the only arc of its slot
    assert seen.log_probs(2) is None
    assert [[values.tolist() for values in seen.slot(i)] for i in (1, 2)] == [[[0], [pytest.approx(-0.3)]], [[], []]]


def joint_distribution(model: Any, arguments: dict[str, float]) -> dict[tuple[int, ...], float]:
    """Of three tokens behind ``PROMPT``; what each is drawn from is what ``generate(do_sample=True)`` itself says."""

    def distribution(tokens: list[list[int]]) -> Tensor:
        ids = torch.tensor(tokens)
        out = model.generate(
            ids, attention_mask=torch.ones_like(ids), do_sample=True, max_new_tokens=1, output_scores=True,
            return_dict_in_generate=True,
            **arguments,
        )  # fmt: skip
        return out.scores[0].softmax(-1)

    exact: dict[tuple[int, ...], float] = {(): 1.0}
    for _ in range(3):
        prefixes = list(exact)
        lines = distribution([[*PROMPT, *prefix] for prefix in prefixes])
        exact = {
            (*prefix, token): exact[prefix] * float(line[token])
            for prefix, line in zip(prefixes, lines, strict=True)
            for token in range(len(line))
            if exact[prefix] * float(line[token]) > 1e-12
        }
    return exact


def marginals(exact: dict[tuple[int, ...], float]) -> list[list[tuple[int, float]]]:
    """The second and the third token with their probabilities, likeliest first."""
    counts = []
    for depth in (1, 2):
        marginal: Counter[int] = Counter()
        for text, probability in exact.items():
            marginal[text[depth]] += probability
        counts.append(marginal.most_common())
    return counts


def assert_drawn_from(exact: dict[tuple[int, ...], float], model: Any, drafter: Drafter, rule: Acceptance) -> int:
    """Chi-square of decoded texts against their exact distribution; returns how many calls committed more than a
    token."""
    rows, batches = 400, 10
    seen: Counter[tuple[int, ...]] = Counter()
    drafted = 0
    for _ in range(batches):
        out = generate(model, [PROMPT] * rows, drafter, rule, max_new_tokens=3, eos_token_id=[])
        seen.update(map(tuple, out.sequences[:, 2:].tolist()))
        drafted += int(out.accept_counts[2:].sum())
    assert set(seen) <= set(exact)
    total = rows * batches
    frequent = {text for text, probability in exact.items() if probability * total >= 5}
    chi_square = sum((seen[text] - exact[text] * total) ** 2 / (exact[text] * total) for text in frequent)
    rest = 1.0 - sum(exact[text] for text in frequent)
    cells = len(frequent) - 1
    if rest * total >= 5:
        chi_square += (total - sum(seen[text] for text in frequent) - rest * total) ** 2 / (rest * total)
        cells += 1
    # Beyond this bound with probability below 1e-4 (normal approximation of chi-square by Wilson and Hilferty).
    assert chi_square < cells * (1 - 2 / (9 * cells) + 3.8 * (2 / (9 * cells)) ** 0.5) ** 3
    return drafted


@pytest.mark.parametrize(("number", "token"), [(0.0, 1), (0.49, 1), (0.5, 3), (1.0, 3)])
def test_a_number_draws_the_token_at_which_the_probabilities_reach_it(
    monkeypatch: pytest.MonkeyPatch, number: float, token: int
) -> None:
    """1, which rounding may make of the largest number, too."""
    monkeypatch.setattr(torch, "rand", lambda *shape, **_: torch.full(shape, number, dtype=torch.float64))
    rule = Sampling(top_k=0, generator=torch.Generator())
    logits = torch.tensor([[-torch.inf, 2.0, -torch.inf, 2.0, -torch.inf]])
    assert rule.choose(logits, NodeDrafts([DraftTree.empty()], [-1]), [0]) == [token]


def test_sampling_with_a_seed_repeats_itself() -> None:
    model = tiny("llama")
    texts = [
        generate(
            model,
            [[4, 9]] * 3,
            BushyDrafter(range(23), range(5)),
            Sampling(1.5, generator=torch.Generator().manual_seed(1)),
            max_new_tokens=12,
        ).sequences.tolist()
        for _ in range(2)
    ]
    assert texts[0] == texts[1]
    assert len(set(map(tuple, texts[0]))) == 3  # each row draws for itself
