"""Calibrated trees against enumeration and against a reference of their features, on models and lattices that are
drawn."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import numpy as np
import pytest

import fst
from fst import FEATURES, _core
from tests.helpers.token_automata import TableAutomaton
from tests.helpers.trigrams import good_model

VOCAB = 9
PLACE = {name: place for place, name in enumerate(FEATURES)}
EACH = len(FEATURES) // 2
"""Features that every slot has; the others are theirs in slots with a long match."""
MATCHES = [("match_1", 1), ("match_2", 2), ("match_3", 3), ("match_5", 5), ("match_8", 8), ("match_10", 10)]


def drawn(seed: int, slots: int = 3, k: int = 4) -> tuple[np.ndarray, np.ndarray, list[int]]:
    """A lattice, its log-probabilities, which leave something outside, and a text that repeats itself."""
    rng = np.random.default_rng(seed)
    tokens = np.array([rng.permutation(VOCAB + 1)[:k] for _ in range(slots)], np.int32).reshape(slots, k)
    log_probs = np.log(rng.dirichlet(np.ones(k + 1), slots)[:, :k])
    phrase = rng.integers(0, VOCAB, 5).tolist()
    text = [*phrase, *rng.integers(0, VOCAB, int(rng.integers(0, 12))).tolist(), *phrase[: int(rng.integers(1, 6))]]
    return tokens, log_probs, text


def ties(seed: int, slots: int = 3, k: int = 4) -> np.ndarray:
    """Transitions, some of them masked."""
    rng = np.random.default_rng(seed + 1000)
    gains = rng.normal(0, 2, (slots - 1, k, k)).astype(np.float32)
    gains[rng.random(gains.shape) < 0.2] = -np.inf
    return gains


def index_of(text: list[int]) -> fst.TextIndex:
    index = fst.TextIndex()
    for begin in range(0, len(text), 3):  # as it grows
        index.extend(text[begin : begin + 3])
    return index


def expected_features(
    lm: fst.NgramModel,
    tokens: np.ndarray,
    log_probs: np.ndarray,
    text: list[int],
    path: list[int],
    slot: int,
    transitions: np.ndarray | None = None,
    proposals: int = 0,
    legal: set[int] | None = None,
) -> dict[int, np.ndarray]:
    """Of the arcs behind ``path`` and of outside (-1), by definition."""
    legal = set(range(100)) if legal is None else legal
    history = [*text, *path]
    behind: dict[int, Counter[int]] = {}
    for length in range(11):
        if length <= len(history):
            last = history[len(history) - length :]
            places = [end for end in range(length, len(text)) if text[end - length : end] == last]
            behind[length] = Counter(text[end] for end in places)
    inside = slot < len(tokens)
    arcs = dict(zip(tokens[slot].tolist(), log_probs[slot].tolist(), strict=True)) if inside else {}
    if transitions is not None and inside and slot and path[-1] in tokens[slot - 1]:
        gains = transitions[slot - 1, tokens[slot - 1].tolist().index(path[-1])]
        arcs = {token: log_prob + float(gain) for (token, log_prob), gain in zip(arcs.items(), gains, strict=True)}
    copies = [
        token
        for length in sorted(behind, reverse=True)
        if length
        for token in behind[length]
        if token not in arcs and token in legal
    ]
    assert len(set(copies)) <= 8  # all are arcs then
    known = {gram[-1] for gram in GRAMS[id(lm)] if len(gram) > 1 and (*history[1 - len(gram) :], gram[-1]) == gram}
    likeliest = sorted(known & legal, key=lambda token: (-lm.log_prob(token, history[-2:]), token))
    proposed = [] if inside else likeliest[:proposals]
    rows = {}
    for token in {*(set(arcs) & legal), *copies, *proposed, *(legal if len(legal) <= 16 else ())}:
        row = np.zeros(len(FEATURES))
        if token in arcs:
            row[PLACE["log_prob"]] = max(arcs[token], -30)
        else:
            row[PLACE["not_drafted"]] = 1
        row[PLACE["ngram"]] = max(lm.log_prob(token, history[-2:]), -30)
        row[PLACE["ngram_prob"]] = np.exp(row[PLACE["ngram"]])
        order = max(
            (n for n in (2, 3) if (*history[len(history) - n + 1 :], token) in GRAMS[id(lm)] and len(history) >= n - 1),
            default=1,
        )
        if order > 1:
            row[PLACE["bigram"] + order - 2] = 1
        longest = max((length for length, counts in behind.items() if token in counts), default=None)
        if longest is not None:
            share = np.log(behind[longest][token] / (behind[longest].total() + 0.5))
            if longest == 0:
                row[PLACE["seen"]], row[PLACE["share_seen"]] = 1, share
            else:
                row[PLACE[next(name for name, most in MATCHES if longest <= most)]] = 1
                row[PLACE["share_1" if longest == 1 else "share_longer"]] = share
            row[PLACE["share_prob"]] = np.exp(share) if longest >= 2 else 0
        rows[token] = row
    outside = np.zeros(len(FEATURES))
    outside[PLACE["outside"]], outside[PLACE["mass"]] = (
        1,
        np.log(max(1 - np.exp(log_probs[slot]).sum(), 1e-6)) if inside else 0,
    )
    rows[-1] = outside
    if any(row[PLACE[name]] for row in rows.values() for name, _ in MATCHES[1:]):
        for row in rows.values():
            row[EACH:] = row[:EACH]
    return rows


GRAMS: dict[int, set[tuple[int, ...]]] = {}


@pytest.fixture(scope="module")
def lm() -> fst.NgramModel:
    model = good_model(vocab=VOCAB)
    GRAMS[id(model)] = {tuple(row) for rows, _, _ in model.core.ngrams() for row in rows.tolist()}
    return model


def check_arcs(
    lm: fst.NgramModel,
    seed: int,
    slots: int,
    beyond: int,
    transitions: np.ndarray | None = None,
    proposals: int = 0,
) -> None:
    """Arcs and features along a random path, ``beyond`` slots past the lattice's, are those of the definition."""
    tokens, log_probs, text = drawn(seed, slots)
    path = np.random.default_rng(seed + 1).integers(0, VOCAB, slots + beyond).tolist()
    features, arcs, sizes = fst.describe_arcs(
        tokens, log_probs, lm, index_of(text), path, text[-3:], beyond, transitions, proposals
    )
    begin = 0
    for slot, size in enumerate(sizes.tolist()):
        wanted = expected_features(lm, tokens, log_probs, text, path[:slot], slot, transitions, proposals)
        own = arcs[begin : begin + size].tolist()
        assert own == [*sorted(token for token in wanted if token >= 0), -1]
        np.testing.assert_allclose(
            features[begin : begin + size], [wanted[token] for token in own], rtol=1e-5, atol=1e-5
        )
        begin += size
    assert begin == len(arcs)


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("seed", range(40))
def test_features_are_those_of_the_definition(lm: fst.NgramModel, seed: int, tied: bool) -> None:
    check_arcs(lm, seed, 3, 2, ties(seed) if tied else None)


@pytest.mark.parametrize("proposals", [0, 1, 3, 64])
@pytest.mark.parametrize("seed", range(20))
def test_without_slots_arcs_are_copies_and_the_likeliest_tokens_of_the_model(
    lm: fst.NgramModel, seed: int, proposals: int
) -> None:
    check_arcs(lm, seed, 0, 4, proposals=proposals)


def test_a_token_whose_longer_ngram_is_unlikely_is_not_proposed_for_its_shorter_one() -> None:
    """After 0 1 the model holds 2 unlikely by its trigram, although its bigram after 1 is the likeliest."""
    ngrams = [np.arange(5)[:, None], np.array([[0, 1], [1, 2], [1, 3]]), np.array([[0, 1, 2], [0, 1, 4]])]
    log_probs = [np.full(5, -2.0), np.array([-0.5, -0.1, -2.0]), np.array([-9.0, -1.0])]
    backoffs = [np.zeros(5), np.zeros(3), np.zeros(2)]
    table = fst.NgramTable([rows.astype(np.int32) for rows in ngrams], log_probs, backoffs)
    lm = fst.NgramModel.from_table(table)
    empty = (np.empty((0, 1), np.int32), np.empty((0, 1)))
    for most, wanted in ((1, [4]), (2, [3, 4]), (3, [2, 3, 4])):
        arcs = fst.describe_arcs(*empty, lm, fst.TextIndex(), [0], [0, 1], 1, proposals=most)[1]
        assert arcs.tolist() == [*wanted, -1]


def test_behind_a_copy_transitions_are_nothing() -> None:
    tokens, log_probs, gains = (
        np.array([[1, 2], [3, 4]]),
        np.full((2, 2), -1.0),
        np.array([[[0.5, -2.0], [-1.5, -np.inf]]]),
    )
    index = index_of([7, 5, 7])  # 5 is a copy behind 7
    for token, expected in ((1, [-0.5, -3.0]), (2, [-2.5, -30.0]), (5, [-1.0, -1.0])):
        features, arcs, _ = fst.describe_arcs(tokens, log_probs, None, index, [token, 3], transitions=gains)
        assert [features[arcs == column][0, PLACE["log_prob"]] for column in (3, 4)] == expected


def enumerated(
    lm: fst.NgramModel | None,
    seed: int,
    weights: np.ndarray,
    further: int = 0,
    transitions: np.ndarray | None = None,
    slots: int = 3,
    proposals: int = 0,
) -> list[tuple[float, tuple[int, ...]]]:
    """Every prefix with its log-probability, the best first; equal ones by their tokens."""
    tokens, log_probs, text = drawn(seed, slots)
    index, paths = index_of(text), []

    def extend(path: tuple[int, ...], so_far: float) -> None:
        slot = len(path)
        if slot == len(tokens) + further:
            return
        # The path's arcs, and behind them those of the slot that follows, whatever is taken there.
        features, arcs, sizes = fst.describe_arcs(
            tokens, log_probs, lm, index, [*path, 0], text[-3:], further, transitions, proposals
        )
        begin = int(sizes[:slot].sum())
        if slots:
            row = min(slot, len(weights) - 1 - (further > 0)) if slot < len(tokens) else -1
        else:
            row = min(slot, len(weights) - 1)
        scores = features[begin:].astype(np.float64) @ weights[row]
        conditionals = scores - np.logaddexp.reduce(scores)
        for token, conditional in zip(arcs[begin:].tolist(), conditionals.tolist(), strict=True):
            if token >= 0:
                paths.append((so_far + conditional, (*path, token)))
                extend((*path, token), so_far + conditional)

    extend((), 0.0)
    return sorted(paths, key=lambda each: (-each[0], each[1]))


@pytest.mark.parametrize("seed", range(25))
@pytest.mark.parametrize("with_model", [True, False])
@pytest.mark.parametrize("further", [0, 2])
@pytest.mark.parametrize("tied", [False, True])
def test_tree_holds_the_most_probable_prefixes(
    lm: fst.NgramModel, seed: int, with_model: bool, further: int, tied: bool
) -> None:
    transitions = ties(seed) if tied else None
    weights = np.random.default_rng(seed).normal(
        0, 1, (2 + (further > 0), len(FEATURES))
    )  # the second row is the third slot's too
    wanted = enumerated(lm if with_model else None, seed, weights, further, transitions)
    if further:
        assert any(len(path) > len(drawn(seed)[0]) for _, path in wanted)
    tokens, log_probs, text = drawn(seed)
    for size in (1, 7, 40, len(wanted) + 5):
        nodes, parents, scores, counts = fst.calibrated_tree_batch(
            tokens[None],
            log_probs[None],
            lm if with_model else None,
            [index_of(text)],
            weights,
            size,
            [text[-3:]],
            further=further,
            transitions=None if transitions is None else transitions[None],
        )
        assert counts.tolist() == [min(size, len(wanted))]
        paths: list[tuple[int, ...]] = []
        for token, parent in zip(nodes[0].tolist(), parents[0].tolist(), strict=True):
            paths.append((*(paths[parent] if parent >= 0 else ()), token))
        np.testing.assert_allclose(scores[0], [score for score, _ in wanted[:size]], rtol=1e-5, atol=1e-5)
        assert len(set(paths)) == len(paths)
        assert (scores[0] <= 0).all()
        clear = [
            score for score, _ in wanted
        ]  # where no two are as good as equal, the order is that of the enumeration
        if all(a - b > 1e-4 for a, b in pairwise(clear)):
            assert paths == [path for _, path in wanted[:size]]


@pytest.mark.parametrize("seed", range(25))
@pytest.mark.parametrize(("with_model", "proposals"), [(True, 0), (True, 2), (False, 2)])
@pytest.mark.parametrize("rows", [1, 2])
def test_tree_without_slots_holds_the_most_probable_prefixes(
    lm: fst.NgramModel, seed: int, with_model: bool, proposals: int, rows: int
) -> None:
    model, weights = lm if with_model else None, np.random.default_rng(seed).normal(0, 1, (rows, len(FEATURES)))
    wanted = enumerated(model, seed, weights, 3, slots=0, proposals=proposals)
    tokens, log_probs, text = drawn(seed, slots=0)
    for size in (1, 7, len(wanted) + 5):
        nodes, parents, scores, counts = fst.calibrated_tree_batch(
            tokens[None], log_probs[None], model, [index_of(text)], weights, size, [text[-3:]], further=3,
            proposals=proposals,
        )  # fmt: skip
        assert counts.tolist() == [min(size, len(wanted))]
        paths: list[tuple[int, ...]] = []
        for token, parent in zip(nodes[0].tolist(), parents[0].tolist(), strict=True):
            paths.append((*(paths[parent] if parent >= 0 else ()), token))
        np.testing.assert_allclose(scores[0], [score for score, _ in wanted[:size]], rtol=1e-5, atol=1e-5)
        assert len(set(paths)) == len(paths)
        assert set(paths) <= {path for _, path in wanted}


@pytest.mark.parametrize("tied", [False, True])
def test_batches_do_not_depend_on_threads(lm: fst.NgramModel, tied: bool) -> None:
    gains = np.stack([ties(seed) for seed in range(30)]) if tied else None
    lattices = [drawn(seed) for seed in range(30)]
    weights = np.random.default_rng(0).normal(0, 1, (3, len(FEATURES)))
    arguments = (
        np.stack([tokens for tokens, _, _ in lattices]),
        np.stack([log_probs for _, log_probs, _ in lattices]),
        lm,
    )
    texts = [index_of(text) for _, _, text in lattices]
    contexts = [text[-1:] for _, _, text in lattices]
    one, four = (
        fst.calibrated_tree_batch(*arguments, texts, weights, 16, contexts, threads, 0, gains) for threads in (1, 4)
    )
    for a, b in zip(one, four, strict=True):
        np.testing.assert_array_equal(a, b)


def test_copies_come_from_the_longest_matches_and_are_few() -> None:
    """Behind 7 the text has had twelve tokens, none of them in the lattice: eight are arcs, the latest first."""
    text = [token for other in range(20, 32) for token in (7, other)] + [7]
    features, arcs, _ = fst.describe_arcs([[1]], [[-0.5]], None, index_of(text), [1], [7])
    assert arcs.tolist() == [1, *range(24, 32), -1]
    assert features[1:-1, PLACE["not_drafted"]].tolist() == [1] * 8


@pytest.mark.parametrize("length", range(1, 11))
def test_match_of_each_length_has_its_feature(length: int) -> None:
    run = list(range(20, 20 + length))
    features, arcs, _ = fst.describe_arcs([[7]], [[-0.5]], None, index_of([*run, 7, 5, *run]), [7])
    assert arcs.tolist() == [7, -1]
    feature = next(name for name, most in MATCHES if length <= most)
    assert {name for name, _ in MATCHES if features[0, PLACE[name]]} == {feature}


def test_the_last_ten_tokens_are_matched_and_no_more() -> None:
    """The last 11 were followed by 7, the last 10 also by 8, the last 9 also by 9."""
    run = list(range(20, 31))
    text = [*run, 7, 1, *run[1:], 8, 2, *run[2:], 9, 3, *run]
    features, _, _ = fst.describe_arcs([[7]], [[-0.5]], None, index_of(text), [7])
    assert features[0, PLACE["share_longer"]] == pytest.approx(np.log(1 / 2.5))


@pytest.mark.parametrize(("continuations", "copies"), [(64, 8), (65, 0)])
def test_histories_of_many_continuations_are_not_copied_from(continuations: int, copies: int) -> None:
    text = [token for other in range(continuations) for token in (7, 20 + other)] + [7]
    _, arcs, _ = fst.describe_arcs([[1]], [[-0.5]], None, index_of(text), [1])
    assert len(arcs) == 2 + copies


def test_mass_outside_a_slot_is_never_below_a_millionth() -> None:
    features, _, _ = fst.describe_arcs([[1, 2]], [np.log([0.75, 0.25])], None, fst.TextIndex(), [1])
    assert features[-1, PLACE["mass"]] == pytest.approx(np.log(1e-6))


@pytest.mark.parametrize(
    ("history", "names"),
    [
        ([], []),
        ([4], ["bigram"]),
        ([3, 4], ["trigram"]),
        ([2, 3, 4], ["longer_ngram"]),
        ([1, 2, 3, 4], ["longer_ngram"]),
    ],
)
def test_ngrams_of_each_order_have_their_feature(history: list[int], names: list[str]) -> None:
    ngrams = [np.arange(6, dtype=np.int32)[:, None]]
    ngrams += [
        np.stack([np.arange(first, first + n, dtype=np.int32) for first in range(1, 7 - n)]) for n in range(2, 6)
    ]
    log_probs = [np.full(len(rows), -1.0) for rows in ngrams]
    lm = fst.NgramModel.from_table(fst.NgramTable(ngrams, log_probs, [0 * rows for rows in log_probs]))
    features, _, _ = fst.describe_arcs([[5]], [[-0.5]], lm, fst.TextIndex(), [5], history)
    assert [name for name in ("bigram", "trigram", "longer_ngram") if features[0, PLACE[name]]] == names


def test_bad_input_is_refused(lm: fst.NgramModel) -> None:
    tokens, log_probs, text = drawn(0)
    batch, index = (tokens[None], log_probs[None], lm), index_of(text)
    good = np.zeros((3, len(FEATURES)))
    for weights, message in (
        (good[:, 1:], "expected weights"),
        (good[0], "expected weights"),
        (np.where(np.eye(3, len(FEATURES)), np.nan, 0), "-1e6 to 1e6"),
        (good + 1e7, "-1e6 to 1e6"),
        (good[:0], "weights for each slot"),
    ):
        with pytest.raises(ValueError, match=message):
            fst.calibrated_tree_batch(*batch, [index], weights)
    for further, weights, message in (
        (-1, good, "further slots"),
        (5000, good, "further slots"),
        (1, good[:1], "and of further slots"),
    ):
        with pytest.raises(ValueError, match=message):
            fst.calibrated_tree_batch(*batch, [index], weights, further=further)
    with pytest.raises(ValueError, match="further slots"):
        fst.describe_arcs(tokens, log_probs, lm, index, [0], further=-1)
    for proposals in (-1, 65):
        with pytest.raises(ValueError, match="0 to 64 proposals"):
            fst.calibrated_tree_batch(*batch, [index], good, proposals=proposals)
    empty = (np.empty((1, 0, 1), np.int32), np.empty((1, 0, 1)), lm)
    with pytest.raises(ValueError, match="at least one slot, or further slots"):
        fst.calibrated_tree_batch(*empty, [index], good)
    with pytest.raises(ValueError, match="at least one slot"):
        fst.best_first_tree_batch(*empty)
    with pytest.raises(ValueError, match="one text for each"):
        fst.calibrated_tree_batch(*batch, [], good)
    with pytest.raises(ValueError, match="num_nodes"):
        fst.calibrated_tree_batch(*batch, [index], good, 0)
    for bad in ([-1], [2**31 - 1]):
        with pytest.raises(ValueError, match="token ids from 0"):
            fst.TextIndex().extend(bad)
    with pytest.raises(ValueError, match="path"):
        fst.describe_arcs(tokens, log_probs, lm, index, [0] * 4)
    with pytest.raises(ValueError, match="path"):
        fst.describe_arcs(tokens, log_probs, lm, index, [-1])


def test_long_texts_are_filed_and_counted() -> None:
    rng = np.random.default_rng(0)
    text = rng.integers(0, 50, 20_000)
    index = fst.TextIndex()
    index.extend(text)
    assert len(index) == 20_000
    behind = Counter(text[1:][text[:-1] == text[-1]].tolist())
    features, arcs, _ = fst.describe_arcs([list(range(50))], [[np.log(0.01)] * 50], None, index, [0], text[-1:])
    rows = {token: row for token, row in zip(arcs.tolist(), features, strict=True) if row[PLACE["match_1"]]}
    for token, row in rows.items():
        assert row[PLACE["share_1"]] == pytest.approx(np.log(behind[token] / (behind.total() + 0.5)), rel=1e-5)
    assert len(FEATURES) == _core.NUM_FEATURES


def legal_enumerated(
    lm: fst.NgramModel,
    seed: int,
    weights: np.ndarray,
    further: int,
    transitions: np.ndarray | None,
    slots: int,
    proposals: int,
    automaton: TableAutomaton,
) -> dict[tuple[int, ...], float]:
    """Every legal prefix with its log-probability, by definition."""
    tokens, log_probs, text = drawn(seed, slots)
    prefixes = dict[tuple[int, ...], float]()

    def extend(path: tuple[int, ...], state: int, so_far: float) -> None:
        slot, legal = len(path), automaton.arcs[state]
        if slot == slots + further:
            return
        if state in automaton.chosen:
            conditionals = {automaton.chosen[state]: automaton.log_prob_of_forced(state)}
        else:
            features = expected_features(
                lm, tokens, log_probs, text, list(path), slot, transitions, proposals, set(legal)
            )
            if slots:
                row = min(slot, len(weights) - 1 - (further > 0)) if slot < slots else -1
            else:
                row = min(slot, len(weights) - 1)
            scores = {token: float(each @ weights[row]) for token, each in features.items()}
            arcs = len(scores) - 1
            with np.errstate(divide="ignore"):
                scores[-1] += float(np.log((len(legal) - arcs) / (automaton.vocab_size - arcs)))
            scores = {token: score - (legal[token][1] if token >= 0 else 0) for token, score in scores.items()}
            norm = np.logaddexp.reduce(list(scores.values()))
            conditionals = {token: float(score - norm) for token, score in scores.items() if token >= 0}
        for token, conditional in conditionals.items():
            prefixes[*path, token] = so_far + conditional
            extend((*path, token), legal[token][0], so_far + conditional)

    extend((), automaton.start, 0.0)
    return prefixes


def drawn_automaton(seed: int) -> TableAutomaton:
    """Of a state in which nearly all tokens are legal, one of a few, one of a single and one of a forced token."""
    rng = np.random.default_rng(seed + 2000)
    vocab = 30
    sizes = [25, 6, 1, 8]
    arcs = [
        {int(t): (int(rng.integers(0, 4)), float(rng.choice([0.0, 1.0, -2.0]))) for t in rng.permutation(vocab)[:size]}
        for size in sizes
    ]
    return TableAutomaton(arcs, vocab, {3: min(arcs[3])}, start=int(rng.integers(0, 4)))


@pytest.mark.parametrize("seed", range(25))
@pytest.mark.parametrize(("slots", "further"), [(3, 0), (2, 2), (0, 3)])
@pytest.mark.parametrize("tied", [False, True])
def test_a_constrained_tree_holds_the_most_probable_legal_prefixes(
    lm: fst.NgramModel, seed: int, slots: int, further: int, tied: bool
) -> None:
    """Proposals, copies and columns are legal; outside is the share of other tokens that is; few legal tokens are all
    arcs; a forced one follows alone."""
    transitions = ties(seed, slots) if tied and slots else None
    weights = np.random.default_rng(seed).normal(0, 1, (2 + (further > 0), len(FEATURES)))
    automaton, proposals = drawn_automaton(seed), 3
    wanted = legal_enumerated(lm, seed, weights, further, transitions, slots, proposals, automaton)
    tokens, log_probs, text = drawn(seed, slots)
    best = sorted(wanted.values(), reverse=True)
    for size in (1, 7, 40):
        nodes, parents, scores, counts = fst.calibrated_tree_batch(
            tokens[None],
            log_probs[None],
            lm,
            [index_of(text)],
            weights,
            size,
            [text[-3:]],
            further=further,
            transitions=None if transitions is None else transitions[None],
            proposals=proposals,
            constraints=[(automaton, automaton.start)],
        )
        assert counts.tolist() == [min(size, len(wanted))]
        paths: list[tuple[int, ...]] = []
        for token, parent in zip(nodes[0].tolist(), parents[0].tolist(), strict=True):
            paths.append((*(paths[parent] if parent >= 0 else ()), token))
        np.testing.assert_allclose(scores[0], best[:size], rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(scores[0], [wanted[path] for path in paths], rtol=1e-5, atol=1e-5)
        assert len(set(paths)) == len(paths)


def test_a_single_legal_token_is_certain(lm: fst.NgramModel) -> None:
    only = TableAutomaton([{25: (0, 0.0)}], 30)
    weights = np.random.default_rng(0).normal(0, 1, (2, len(FEATURES)))
    tokens, log_probs, text = drawn(0)
    nodes, _, scores, _ = fst.calibrated_tree_batch(
        tokens[None], log_probs[None], lm, [index_of(text)], weights, 4, [text[-3:]], further=1, constraints=[(only, 0)]
    )
    assert nodes.tolist() == [[25] * 4]
    assert scores.tolist() == [[0.0] * 4]
