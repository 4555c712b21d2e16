"""Acceptors as automata over tokens: against OpenFst's composition and shortest distance, against enumeration, and
against the tokenizer of the bundled model; and garbage."""

from __future__ import annotations

import itertools
import math
import pickle
import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import pynini
import pytest
import pywrapfst
from hypothesis import given, settings
from hypothesis import strategies as st

import fst
from latticebpd import fst_constraint, load
from latticebpd.constraints.model_tokens import ModelTokens, model_tokens
from latticebpd.constraints.token_automaton import ILLEGAL, after

BYTE_TOKENS = [b"a", b"b", b"ab", b"ba", b"aab", b"c", None, b"bb", b"a", b""]
"""Two tokens spell alike, two spell nothing."""
NO_B = [b"a", None, b"ab", b"bc", b"c", None, None, b"abc", None, None]
"""No token spells ``b`` alone: not every text can be written."""
END = 6


class Spelling:
    """What `ModelTokens` tells, of a tokenizer that takes the longest token."""

    def __init__(self, spelled: Sequence[bytes | None]) -> None:
        self.spelled, self.vocab_size = list(spelled), len(spelled)

    def bytes_of(self, tokens: Sequence[int]) -> bytes:
        return b"".join(self.spelled[token] or b"" for token in tokens)

    def encode(self, text: str) -> list[int]:
        rest, ids = text.encode(), []
        while rest:
            fitting = [token for token, each in enumerate(self.spelled) if each and rest.startswith(each)]
            if not fitting:
                return []
            ids.append(max(fitting, key=lambda token: (len(self.spelled[token] or b""), -token)))
            rest = rest[len(self.spelled[ids[-1]] or b"") :]
        return ids


@st.composite
def acceptors(draw: st.DrawFn, labels: int = 3) -> pywrapfst.VectorFst:
    """Of up to four states: cycles, epsilons, dead and unreachable states, several paths of one text; weights in
    eighths, below 0 too but for epsilons."""
    states = draw(st.integers(1, 4))
    acceptor = pywrapfst.VectorFst()
    for _ in range(states):
        acceptor.add_state()
    acceptor.set_start(draw(st.integers(0, states - 1)))
    weights = st.sampled_from([0.0, 0.0, 0.5, 1.25, -0.75]) if draw(st.booleans()) else st.just(0.0)
    state = st.integers(0, states - 1)
    arcs = st.lists(st.tuples(state, st.integers(0, labels), weights, state), max_size=8)
    for source, label, weight, target in draw(arcs):
        byte = 0 if label == 0 else 96 + label
        acceptor.add_arc(source, pywrapfst.Arc(byte, byte, abs(weight) if label == 0 else weight, target))
    for each in draw(st.lists(state, min_size=1, max_size=2)):
        acceptor.set_final(each, draw(weights))
    return acceptor


def cost_of(acceptor: pywrapfst.VectorFst, labels: Sequence[int]) -> float:
    """OpenFst's shortest distance of one label sequence through the acceptor; infinite where it is not accepted."""
    text = pywrapfst.VectorFst()
    states = [text.add_state() for _ in range(len(labels) + 1)]
    text.set_start(0)
    text.set_final(states[-1])
    for state, label in enumerate(labels):
        text.add_arc(state, pywrapfst.Arc(label, label, 0, state + 1))
    both = pywrapfst.compose(text, acceptor.copy().arcsort("ilabel"))
    if both.start() < 0:
        return math.inf
    return float(pywrapfst.shortestdistance(both, reverse=True)[both.start()])


def walk(automaton: Any, path: Sequence[int]) -> tuple[int, float]:
    """The state after a path, and what its tokens cost."""
    state, total = automaton.start, 0.0
    for token in path:
        reached = after(automaton, state, token)
        if reached == ILLEGAL:
            return ILLEGAL, math.inf
        total += float(automaton.costs(state, np.array([token]))[0])
        state = reached
    return state, total


def check_against_openfst(acceptor: pywrapfst.VectorFst, spelled: Sequence[bytes | None], longest: int = 3) -> None:
    """Every path of tokens: its cost, whether it may end, and whether it is legal, which it is where some path that
    continues it may end."""
    tokens: Any = Spelling(spelled)
    words = [token for token, each in enumerate(spelled) if each]
    paths = [path for length in range(longest + 1) for path in itertools.product(words, repeat=length)]
    costs = {path: cost_of(acceptor, [*tokens.bytes_of(path)]) for path in paths}
    try:
        automaton = fst_constraint(acceptor).automaton(tokens, [END])
    except ValueError:
        assert all(cost == math.inf for cost in costs.values())
        return
    for path, cost in costs.items():
        state, _ = walk(automaton, path)
        if state == ILLEGAL:
            assert cost == math.inf
            continue
        mask = automaton.legal(state)
        assert mask[END] == (cost < math.inf)
        assert (automaton.successors(state, np.arange(len(spelled))) != ILLEGAL).tolist() == mask.tolist()
        if cost < math.inf:
            ended, whole = walk(automaton, [*path, END])
            assert whole == pytest.approx(cost, abs=1e-3)
            assert not automaton.legal(ended).any()
        assert mask.any()  # no dead ends
        assert can_end(automaton, state)


def can_end(automaton: Any, state: int) -> bool:
    """Whether some tokens lead to an end."""
    known, waiting = {state}, [state]
    while waiting:
        at = waiting.pop()
        mask = automaton.legal(at)
        if mask[END]:
            return True
        following = set(automaton.successors(at, np.flatnonzero(mask)).tolist()) - known
        if len(known) > 200:  # residuals of a weighted acceptor may differ for ever
            return True
        known |= following
        waiting += following
    return False


@settings(max_examples=60, deadline=None)
@given(acceptors(), st.sampled_from([BYTE_TOKENS, NO_B]))
def test_tokens_are_legal_where_openfst_finds_a_text_and_cost_its_shortest_distance(
    acceptor: pywrapfst.VectorFst, spelled: list[bytes | None]
) -> None:
    check_against_openfst(acceptor, spelled)


@settings(max_examples=60, deadline=None)
@given(acceptors())
def test_over_token_ids_labels_are_tokens(acceptor: pywrapfst.VectorFst) -> None:
    tokens: Any = Spelling([None] * 110)
    try:
        automaton = fst_constraint(acceptor, over_tokens=True).automaton(tokens, [0])
    except ValueError as error:
        assert "of at least one text" in str(error)  # noqa: PT017
        return
    for length in range(5):
        for labels in itertools.product((97, 98, 99), repeat=length):
            cost = cost_of(acceptor, labels)
            state, total = walk(automaton, [label - 1 for label in labels])
            if cost == math.inf:
                assert state == ILLEGAL or not automaton.legal(state)[0]
            else:
                assert walk(automaton, [*(label - 1 for label in labels), 0])[1] == pytest.approx(cost, abs=1e-3)
                assert total < math.inf


def test_a_lattice_of_fst_is_an_acceptor_over_token_ids() -> None:
    lattice = fst.Lattice.from_sausage([[4, 7], [2, 9]], [[-0.5, -1.0], [-0.25, -2.0]])
    tokens: Any = Spelling([None] * 10)
    automaton = fst_constraint(lattice, over_tokens=True).automaton(tokens, [])
    assert np.flatnonzero(automaton.legal(automaton.start)).tolist() == [4, 7]
    assert walk(automaton, [7, 2])[1] == 1.25
    assert automaton.weighted


def test_states_merge_and_texts_share_them() -> None:
    tokens: Any = Spelling(BYTE_TOKENS)
    constraint = fst_constraint(pynini.closure(pynini.union("ab", "ba")).optimize())
    automaton = constraint.automaton(tokens, [END])
    assert walk(automaton, [0, 1])[0] == walk(automaton, [2])[0] == walk(automaton, [8, 1])[0] == automaton.start
    assert constraint.automaton(tokens, [END, END]).core is automaton.core
    assert constraint.automaton(tokens, []).core is not automaton.core
    again = pickle.loads(pickle.dumps(constraint)).automaton(tokens, [END])
    assert again.legal(again.start).tolist() == automaton.legal(automaton.start).tolist()


def test_weights_that_no_finite_automaton_has_are_determinized_on_demand() -> None:
    """``a*`` at 1 each before ``b``, at 0 each before ``c``: after n times a the residual is n."""
    both = pynini.union(
        pynini.concat(pynini.closure(pynini.accep("a", weight=1)), "b"), pynini.concat(pynini.closure("a"), "c")
    )
    automaton = fst_constraint(both).automaton(Spelling(BYTE_TOKENS), [END])  # type: ignore[arg-type]
    assert walk(automaton, [0] * 40 + [1, END])[1] == 40
    assert walk(automaton, [0] * 40 + [5, END])[1] == 0


def test_one_of_weights_with_epsilons_costs_the_least_path() -> None:
    acceptor = pywrapfst.VectorFst()
    for _ in range(3):
        acceptor.add_state()
    acceptor.set_start(0)
    acceptor.set_final(2, 0.5)
    for source, label, weight, target in ((0, 0, 2.0, 1), (0, 97, 3.0, 2), (1, 97, 0.5, 2)):
        acceptor.add_arc(source, pywrapfst.Arc(label, label, weight, target))
    automaton = fst_constraint(acceptor).automaton(Spelling(BYTE_TOKENS), [END])  # type: ignore[arg-type]
    assert walk(automaton, [0, END])[1] == 3.0


@lru_cache
def bundled() -> ModelTokens:
    loaded = load()
    return model_tokens(loaded.tokenizer, loaded.target.vocab_size)


def dates() -> pynini.Fst:
    """A date of JSON: ``{"date": "2024-02-30"}``."""
    digit = pynini.union(*"0123456789")
    month = pynini.union(*(f"{number:02d}" for number in range(1, 13)))
    day = pynini.union(*(f"{number:02d}" for number in range(1, 32)))
    return '{"date": "' + digit**4 + "-" + month + "-" + day + pynini.accep('"}')


DATE = re.compile(r'\{"date": "\d{4}-(0[1-9]|1[0-2])-(0[1-9]|[12]\d|3[01])"\}')


def test_a_date_grammar_allows_what_begins_a_date_in_any_tokenization() -> None:
    automaton = fst_constraint(dates()).automaton(bundled(), [0])
    text = '{"date": "2024-12-31"}'
    state, spelled = automaton.start, b""
    days = itertools.product((1999, 2024), range(1, 13), (1, 19, 30, 31))
    samples = [f'{{"date": "{year}-{month:02d}-{day:02d}"}}' for year, month, day in days]
    for token in bundled().encode(text):
        mask = automaton.legal(state)
        assert mask[token]
        for other in np.flatnonzero(mask).tolist():
            grown = (spelled + (bundled().spelled[other] or b"")).decode()
            assert DATE.fullmatch(grown + text[len(grown) :]) or DATE.fullmatch(grown + samples[0][len(grown) :])
        begun = {sample.encode() for sample in samples if sample.encode().startswith(spelled)}
        assert all(mask[bundled().encode(sample[len(spelled) :].decode())[0]] for sample in begun)
        spelled += bundled().spelled[token] or b""
        state = after(automaton, state, token)
    assert np.flatnonzero(automaton.legal(state)).tolist() == [0]


def test_forced_tokens_are_the_tokenizers_own_and_end_before_a_choice() -> None:
    automaton = fst_constraint(dates()).automaton(bundled(), [0])
    texts = ['{"date": "1867-01-23"}', '{"date": "2024-12-05"}']
    written = [bundled().encode(text) for text in texts]
    common = [a for a, b in zip(*written, strict=False) if a == b]
    forced = automaton.forced(automaton.start).tolist()
    assert forced == common[: len(forced)]
    assert len(forced) >= 1
    state = automaton.start
    for token in written[0]:
        chain = automaton.forced(state).tolist()
        for follower in chain[:1]:
            assert automaton.legal(state)[follower]
        state = after(automaton, state, token)
    assert automaton.forced(state).tolist() == []  # the text may end


def test_a_forced_token_that_a_longer_one_may_replace_is_not_forced() -> None:
    spelled = [b"x", b"y", b"z", b"xy", b"yz", None, None]
    automaton = fst_constraint(pynini.accep("x") + pynini.union("y", "z")).automaton(Spelling(spelled), [END])  # type: ignore[arg-type]
    assert automaton.forced(automaton.start).tolist() == []  # x alone, or xy
    automaton = fst_constraint(pynini.accep("x") + pynini.union("x", "z")).automaton(Spelling(spelled), [END])  # type: ignore[arg-type]
    assert automaton.forced(automaton.start).tolist() == [0]


@pytest.mark.parametrize(
    ("automaton", "over_tokens", "message"),
    [
        (pynini.union("a", "b") - pynini.union("a", "b"), False, "expected an automaton with paths|at least one text"),
        (pynini.cross("a", "b"), False, "expected an acceptor, got an arc"),
        (pynini.arcmap(pynini.accep("a"), map_type="to_log"), False, "expected tropical weights"),
        ("abc", False, "expected an FST of pynini or pywrapfst"),
        (None, True, "expected an FST of pynini or pywrapfst"),
    ],
)
def test_what_is_no_acceptor_is_refused(automaton: Any, over_tokens: bool, message: str) -> None:
    with pytest.raises(ValueError, match=message) as error:
        fst_constraint(automaton, over_tokens)
    assert "\n" not in str(error.value)


def test_labels_beyond_bytes_and_tokens_are_refused() -> None:
    acceptor = pywrapfst.VectorFst()
    acceptor.set_start(acceptor.add_state())
    acceptor.set_final(acceptor.add_state())
    acceptor.add_arc(0, pywrapfst.Arc(2**31 - 1, 2**31 - 1, 0, 1))
    with pytest.raises(ValueError, match=r"expected labels of bytes, .*; pass over_tokens=True"):
        fst_constraint(acceptor)
    with pytest.raises(ValueError, match="expected labels of tokens, id"):
        fst_constraint(acceptor, over_tokens=True).automaton(Spelling([None] * 10), [])  # type: ignore[arg-type]


def test_epsilons_in_a_cycle_below_zero_are_refused() -> None:
    acceptor = pywrapfst.VectorFst()
    acceptor.set_start(acceptor.add_state())
    acceptor.set_final(acceptor.add_state())
    for source, target in ((0, 1), (1, 0)):
        acceptor.add_arc(source, pywrapfst.Arc(0, 0, -0.5, target))
    with pytest.raises(ValueError, match="expected epsilons in cycles of weight 0 or more"):
        fst_constraint(acceptor)


def test_an_acceptor_that_the_tokens_cannot_spell_is_refused() -> None:
    with pytest.raises(ValueError, match="expected an acceptor of a text that the model's tokens spell"):
        fst_constraint(pynini.accep("q")).automaton(Spelling(BYTE_TOKENS), [END])  # type: ignore[arg-type]


def test_an_acceptor_whose_deterministic_form_explodes_is_refused_by_name() -> None:
    any_byte = pynini.union("a", "b")
    late = pynini.closure(any_byte) + "a" + any_byte**24
    automaton = fst_constraint(late.rmepsilon()).automaton(Spelling(BYTE_TOKENS), [END])  # type: ignore[arg-type]

    def explore() -> None:
        states, known = [automaton.start], {automaton.start}
        while states:
            following = set(automaton.successors(states.pop(), np.array([0, 1, 2, 3])).tolist()) - known - {ILLEGAL}
            known |= following
            states += following

    with pytest.raises(ValueError, match=r"expected an acceptor of fewer than 2\^17 deterministic states"):
        explore()


def test_the_core_refuses_arrays_that_are_no_acceptor() -> None:
    good: list[Any] = [[0, 1, 1], [97], [1], [0.0], [math.inf, 0.0], 0, None, 200, []]
    fst._core.AcceptorOverTokens(*good)
    bad = [
        (0, [0, 2, 1]), (0, [0, 1]), (1, [97, 98]), (1, [-2]), (2, [2]), (2, [-1]), (3, [math.nan]), (3, [-math.inf]),
        (4, [math.inf, math.inf]), (4, [math.nan, 0.0]), (5, 2), (5, -1), (7, 50), (8, [200]), (8, [-1]),
    ]  # fmt: skip
    for place, value in bad:
        with pytest.raises(ValueError, match="expected"):
            fst._core.AcceptorOverTokens(*good[:place], value, *good[place + 1 :])
    core = fst._core.AcceptorOverTokens(*good)
    for state in (-1, 99):
        with pytest.raises(ValueError, match="expected a state below"):
            core.legal(state)
