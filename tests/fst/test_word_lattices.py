"""Word lattices against every path enumerated, against OpenFst, and through files and objects."""

from __future__ import annotations

import gzip
import math
from pathlib import Path

import numpy as np
import pynini
import pytest
import pywrapfst
from hypothesis import given, settings
from hypothesis import strategies as st

import fst
from fst import _core
from fst.confusion import aligned_slots
from tests.helpers.random_tables import tables
from tests.helpers.reference import ReferenceLM
from tests.helpers.trigrams import trigram
from tests.helpers.word_lattices import all_paths, random_lattice

EXACT = st.integers(-320, 0).map(lambda n: n / 64)


@st.composite
def lattices(draw: st.DrawFn, max_states: int = 6, max_arcs: int = 10) -> fst.Lattice:
    """Acyclic lattices with epsilons, arcs of any span, several arcs of one token, several final states."""
    states = draw(st.integers(1, max_states))
    pairs = [(a, b) for a in range(states) for b in range(a + 1, states)]
    spine = [(a, a + 1) for a in range(states - 1)]
    chosen = spine + (draw(st.lists(st.sampled_from(pairs), max_size=max_arcs - len(spine))) if pairs else [])
    arcs = [(a, b, draw(st.integers(-1, 7)), draw(EXACT)) for a, b in chosen]
    ends = {states - 1, *draw(st.lists(st.integers(0, states - 1), max_size=2))}
    return fst.Lattice.from_arcs(arcs, [(state, draw(EXACT)) for state in ends])


def lm_score(lm: ReferenceLM | None, tokens: tuple[int, ...], context: list[int]) -> float:
    return 0.0 if lm is None else sum(lm.log_prob(token, [*context, *tokens[:i]]) for i, token in enumerate(tokens))


def as_dict(tokens: np.ndarray, scores: np.ndarray) -> dict[tuple[int, ...], float]:
    return {tuple(t for t in row if t >= 0): score for row, score in zip(tokens.tolist(), scores.tolist(), strict=True)}


@settings(max_examples=200, deadline=None)
@given(
    lattices(), tables(), st.sampled_from([0.0, 0.5, 1.0]), st.lists(st.integers(0, 7), max_size=3), st.integers(1, 40)
)
def test_nbest_is_the_order_of_all_token_sequences(
    lattice: fst.Lattice, table: fst.NgramTable, alpha: float, context: list[int], p: int
) -> None:
    lm = ReferenceLM(table)
    best: dict[tuple[int, ...], float] = {}
    for tokens, log_prob, _ in all_paths(lattice):
        best[tokens] = max(best.get(tokens, -math.inf), log_prob + alpha * lm_score(lm, tokens, context))
    expected = sorted(best.items(), key=lambda item: (-item[1], item[0]))[:p]
    paths, scores = lattice.nbest_paths(fst.NgramModel.from_table(table), p, alpha, context)
    assert [tuple(token for token in row if token >= 0) for row in paths.tolist()] == [tokens for tokens, _ in expected]
    assert scores.tolist() == [score for _, score in expected]


@settings(max_examples=150, deadline=None)
@given(lattices(), tables(), st.sampled_from([0.0, 1.0]), st.lists(st.integers(0, 7), max_size=3))
def test_posteriors_are_the_shares_of_all_paths(
    lattice: fst.Lattice, table: fst.NgramTable, alpha: float, context: list[int]
) -> None:
    lm, expected = ReferenceLM(table), np.full(len(lattice.tokens), -np.inf)
    paths = [(arcs, log_prob + alpha * lm_score(lm, tokens, context)) for tokens, log_prob, arcs in all_paths(lattice)]
    for arcs, score in paths:
        np.logaddexp.at(expected, np.array(arcs, int), score)
    expected -= np.logaddexp.reduce([score for _, score in paths])
    posteriors = lattice.arc_posteriors(fst.NgramModel.from_table(table), alpha, context)
    np.testing.assert_allclose(posteriors, expected, atol=1e-9)


@st.composite
def references(draw: st.DrawFn, lattice: fst.Lattice) -> list[int]:
    """A path of the lattice with up to three edits; sometimes any tokens."""
    token = st.integers(0, 7)
    if draw(st.integers(0, 7)) == 0:
        return draw(st.lists(token, max_size=5))
    reference = list(draw(st.sampled_from(sorted({tokens for tokens, _, _ in all_paths(lattice)}))))
    for _ in range(draw(st.integers(0, 3))):
        begin = draw(st.integers(0, len(reference)))
        removed, added = draw(st.sampled_from([(0, 1), (1, 0), (1, 1)]))
        reference[begin : begin + removed] = [draw(token) for _ in range(added)]
    return reference


@settings(max_examples=300, deadline=None)
@given(lattices(), st.data())
def test_oracle_has_the_fewest_edits_of_all_paths(lattice: fst.Lattice, data: st.DataObject) -> None:
    reference = data.draw(references(lattice))

    def edits(tokens: tuple[int, ...]) -> int:
        row = list(range(len(reference) + 1))
        for i, token in enumerate(tokens, 1):
            previous, row[0] = row[0], i
            for q, word in enumerate(reference, 1):
                previous, row[q] = row[q], min(row[q] + 1, row[q - 1] + 1, previous + (token != word))
        return row[-1]

    sequences = {tokens for tokens, _, _ in all_paths(lattice)}
    tokens, fewest = lattice.oracle(reference)
    assert fewest == min(map(edits, sequences))
    assert tuple(tokens.tolist()) in sequences
    assert edits(tuple(tokens.tolist())) == fewest


@pytest.mark.parametrize(
    ("reference", "fewest"),
    [([5, 6, 7], 0), ([6, 7], 1), ([5, 7], 1), ([5, 6], 1), ([6], 2), ([], 3), ([5, 1, 7], 1), ([5, 6, 6, 7], 1)],
)
def test_an_edit_inserts_deletes_or_replaces_one_token(reference: list[int], fewest: int) -> None:
    lattice = fst.Lattice.from_arcs([(0, 1, 5, 0.0), (1, 2, 6, 0.0), (2, 3, 7, 0.0)], [(3, 0.0)])
    tokens, edits = lattice.oracle(reference)
    assert (tokens.tolist(), edits) == ([5, 6, 7], fewest)


@settings(deadline=None)
@given(lattices())
def test_a_network_counts_every_token_as_often_as_the_lattice(lattice: fst.Lattice) -> None:
    counts = np.zeros(8)
    posteriors = np.exp(lattice.arc_posteriors())
    np.add.at(counts, lattice.tokens[lattice.tokens >= 0], posteriors[lattice.tokens >= 0])
    counted, best = np.zeros(8), lattice.nbest_paths(p=1)[0][0].tolist()
    shares = np.exp(_core.lattice_posteriors(lattice._with_ends, None, 1.0, []))
    for position, slot in enumerate(aligned_slots(lattice._with_ends, shares, best)):
        assert position % 2 == 0 or sum(slot.values()) <= 1 + 1e-9  # several insertions may share a slot
        for token, probability in slot.items():
            counted[token] += probability
    np.testing.assert_allclose(counted, counts, atol=1e-9)


def test_sausages_are_one_case() -> None:
    rng, lm = np.random.default_rng(0), trigram(20)
    for trial in range(20):
        tokens = np.stack([rng.permutation(22)[:5] for _ in range(6)])
        log_probs = rng.normal(-2, 1, (6, 5))
        transitions = rng.normal(0, 1, (5, 5, 5)) if trial % 2 else None
        lattice = fst.Lattice.from_sausage(tokens, log_probs, transitions)
        expected = fst.nbest_paths(tokens, log_probs, lm, 30, 0.7, [3, 8], transitions)
        paths = lattice.nbest_paths(lm, 30, 0.7, [3, 8])
        assert paths[0].tolist() == expected[0].tolist()
        np.testing.assert_allclose(paths[1], expected[1], atol=1e-6)
        if transitions is None:
            order = np.argsort(tokens, axis=1)
            expected_posteriors = np.take_along_axis(fst.arc_posteriors(tokens, log_probs, lm, 0.7, [3, 8]), order, 1)
            np.testing.assert_allclose(lattice.arc_posteriors(lm, 0.7, [3, 8]), expected_posteriors.ravel(), atol=1e-9)


def test_sausages_of_distinct_tokens_are_their_own_confusion_networks() -> None:
    log_probs = np.sort(np.log(np.random.default_rng(0).dirichlet(np.ones(5), 6)))[:, ::-1]
    tokens = np.arange(30).reshape(6, 5)
    network, weights = fst.Lattice.from_sausage(tokens, log_probs).to_sausage()
    assert network.tolist() == tokens.tolist()
    np.testing.assert_allclose(weights, log_probs, atol=1e-9)


def test_slots_that_likely_hold_nothing_are_left_out_of_the_network() -> None:
    text = [(0, 1, 5, -0.1), (1, 2, -1, math.log(0.7)), (1, 2, 6, math.log(0.3)), (2, 3, 7, -0.1), (2, 3, 8, -2.0)]
    tokens, log_probs = fst.Lattice.from_arcs(text, [(3, 0.0)]).to_sausage()
    assert tokens.tolist() == [[5, -1], [7, 8]]
    assert np.exp(log_probs[1]).sum() == pytest.approx(1)
    with pytest.raises(ValueError, match="one that most likely holds none"):
        fst.Lattice.from_arcs([(0, 1, -1, 0.0)], [(1, 0.0)]).to_sausage()


@pytest.mark.parametrize(("share", "slots"), [(0.45, [[5, -1], [7, 8]]), (0.55, [[5, -1], [6, -1], [7, 8]])])
def test_a_slot_stays_in_the_network_from_half_of_the_probability_on(share: float, slots: list[list[int]]) -> None:
    text = [(0, 1, 5, 0.0), (1, 2, -1, math.log(1 - share)), (1, 2, 6, math.log(share))]
    text += [(2, 3, 7, math.log(0.9)), (2, 3, 8, math.log(0.1))]
    assert fst.Lattice.from_arcs(text, [(3, 0.0)]).to_sausage()[0].tolist() == slots


def test_states_may_be_numbered_with_small_gaps_only() -> None:
    """Up to 1024 and eight times as many as are named: start, both ends of the arc, and the final state."""
    last = 1024 + 8 * 4
    assert fst.Lattice.from_arcs([(0, last, 5, -1.0)], [(last, 0.0)]).nbest_paths()[0].tolist() == [[5]]
    with pytest.raises(ValueError, match=f"numbered without large gaps, got {last + 1} with 1 arcs"):
        fst.Lattice.from_arcs([(0, last + 1, 5, -1.0)], [(last + 1, 0.0)])


def openfst_paths(automaton: pynini.Fst, p: int) -> dict[tuple[int, ...], float]:
    best = labelled(pynini.shortestpath(automaton, nshortest=p, unique=True))
    return {tuple(label - 1 for label in labels): -weight for labels, weight in best}


def labelled(automaton: pynini.Fst) -> list[tuple[list[int], float]]:
    paths = automaton.paths()
    sequences = []
    while not paths.done():
        sequences.append(([label for label in paths.ilabels() if label], float(paths.weight())))
        paths.next()
    return sequences


@pytest.mark.parametrize("seed", range(6))
def test_openfst_composes_to_the_same_paths_and_posteriors(seed: int) -> None:
    lattice, lm, context = random_lattice(seed), trigram(18), [3, 5]  # tokens 18 and 19 are unknown to the model
    automaton = lattice.to_fst()
    composed = pynini.compose(automaton, lm.to_fst(lattice.tokens, context))
    expected = openfst_paths(composed, 50)
    paths = as_dict(*lattice.nbest_paths(lm, 50, 1.0, context))
    assert len(paths) == 50
    np.testing.assert_allclose(sorted(paths.values()), sorted(expected.values()), atol=1e-3)
    assert len(paths.keys() & expected.keys()) >= 48  # ties may be cut elsewhere
    log = pynini.arcmap(composed, map_type="to_log64")
    total = -float(pynini.shortestdistance(log, reverse=True)[composed.start()])
    posteriors = lattice.arc_posteriors(lm, 1.0, context)
    masked = lattice.log_probs.copy()
    arc = int(np.argmax(np.where(np.exp(posteriors) < 0.9, posteriors, -np.inf)))
    keep = np.arange(len(masked)) != arc
    without = fst.Lattice.from_arcs(
        zip(
            lattice.sources[keep].tolist(),
            lattice.targets[keep].tolist(),
            lattice.tokens[keep].tolist(),
            masked[keep].tolist(),
            strict=True,
        ),
        [(s, float(w)) for s, w in enumerate(lattice.finals) if w > -np.inf],
    )
    rest = pynini.arcmap(pynini.compose(without.to_fst(), lm.to_fst(lattice.tokens, context)), map_type="to_log64")
    left = -float(pynini.shortestdistance(rest, reverse=True)[rest.start()])
    assert math.exp(posteriors[arc]) == pytest.approx(1 - math.exp(left - total), abs=1e-4)


WORDS = ["", "the", "cat", "sat"]


def test_kaldi_text_is_read(tmp_path: Path) -> None:
    text = """first
0 1 the 4.5,2.0,1_2_2
0 1 <eps> 1.0,0.5,
1 2 dog 1.25
1 2 cat 0.5,0
2 0.25,0.5,

second
0 1 12 the 1,1
1

"""
    for path in (tmp_path / "lat.txt", tmp_path / "lat.txt.gz"):
        path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
        (name, first), (other, second) = fst.read_lattices(path, WORDS, acoustic_scale=0.5)
        assert (name, other) == ("first", "second")
        tokens, scores = first.nbest_paths()
        assert first.words(tokens[0]) == "cat"
        expected = {"the dog": -7.25, "the cat": -6.5, "dog": -3.0, "cat": -2.25}
        assert {first.words(row): score for row, score in zip(tokens, scores, strict=True)} == expected
        assert first.symbols == [*WORDS, "dog"]
        assert second.nbest_paths()[0].tolist() == [[1]]
        assert second.nbest_paths()[1].tolist() == [-1.5]


def test_fstprints_text_is_read_and_labels_are_ids_above_zero(tmp_path: Path) -> None:
    lattice = random_lattice(3)
    (tmp_path / "lat.txt").write_text(str(lattice.to_fst().print(acceptor=True)))
    (name, again), *_ = fst.read_lattices(tmp_path / "lat.txt")
    assert name == ""
    for column, expected in zip(again.nbest_paths(p=20), lattice.nbest_paths(p=20), strict=True):
        np.testing.assert_allclose(column, expected, atol=1e-5)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("0 1 the 1", "line 1: expected a word's number .* got 'the'"),
        ("u\n0 1 -3 1\n1", "line 2, entry u: expected a word's number .* got '-3'"),
        ("0 1 2147483648 1\n1", "from 0 to 2.31 - 1, got '2147483648'"),
        ("0 1 4294967297 1\n1", "from 0 to 2.31 - 1, got '4294967297'"),
        ("0 -1 3 1\n1", "expected a state from 0 to 2.31 - 1, got '-1'"),
        ("0 2000000000 3 1\n2000000000", "without large gaps, got 2000000000"),
        ("0 1 3 nan\n1", "expected log-probabilities below 1e30, got nan"),
        ("0 1 3 -inf\n1", "expected log-probabilities below 1e30, got inf"),
        ("0 1 3 x,1\n1", "graph,acoustic"),
        ("0 1 3 1", "a path from its start to a final state, got none"),
        ("0 1 3 1\n1 0 3 1\n1", "expected an acyclic lattice, got one with a cycle"),
        ("0 1 3 1\n1 2 3 1\n2 1 3 1\n2", "got one with a cycle"),
        ("0 1 2 3 4 5", "at most 5 fields, got 6"),
        ("name\n\n", "got none"),
    ],
)
def test_text_that_is_no_lattice_is_refused_by_line(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "lat.txt").write_text(text)
    with pytest.raises(ValueError, match=message) as error:
        list(fst.read_lattices(tmp_path / "lat.txt"))
    assert "\n" not in str(error.value)


def acceptor(text: str, **tables: pywrapfst.SymbolTable) -> pywrapfst.VectorFst:
    compiler = pywrapfst.Compiler(acceptor=True, **tables)
    compiler.write(text + "\n")
    return compiler.compile()


@pytest.mark.parametrize(
    ("automaton", "message"),
    [
        (acceptor("0 1 3\n1 0 3\n1"), "expected an acyclic lattice, got one with a cycle"),
        (acceptor("0 1 3\n0 1 4 nan\n1"), "expected weights above -inf, got nan at state 0"),
        (acceptor("0 1 3\n1 nan"), "expected final weights above -inf, got nan at state 1"),
        (acceptor("0 1 3\n"), "a path from its start to a final state"),
        (acceptor(""), "without a start state"),
        (pynini.cross("a", "b"), "an arc 97:98 at state 0; project it"),
        (pywrapfst.VectorFst("log"), "arc type log; use arcmap"),
        ([[1, 2]], "expected an FST of pynini or pywrapfst, got list"),
    ],
)
def test_automata_that_are_no_lattice_are_refused(automaton: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        fst.Lattice.from_fst(automaton)


def test_symbol_tables_are_read_and_must_fit() -> None:
    table = pywrapfst.SymbolTable()
    for word in ("<eps>", "cat", "the", "dog"):
        table.add_symbol(word)
    automaton = acceptor("0 1 the\n1 2 cat 0.5\n1 2 dog 1\n2", isymbols=table, keep_isymbols=True)
    lm = trigram(4)
    words = fst.NgramModel(lm.automaton, WORDS)
    lattice = fst.Lattice.from_fst(automaton, words.symbols)
    assert lattice.symbols == [*WORDS, "dog"]
    assert [lattice.words(row) for row in lattice.nbest_paths()[0]] == ["the cat", "the dog"]
    tokens, scores = lattice.nbest_paths(words)
    for row, score in zip(tokens, scores, strict=True):
        assert score == pytest.approx(words.score(row) - (0.5 if row[-1] == 2 else 1.0))
    with pytest.raises(ValueError, match=r"got .cat. as token 0, which the model has as .x."):
        fst.Lattice.from_fst(automaton).nbest_paths(fst.NgramModel(lm.automaton, ["x", "y", "z", "w"]))
    with pytest.raises(ValueError, match=r"an FST with an input symbol table, .* got none"):
        fst.Lattice.from_fst(acceptor("0 1 3\n1"), words.symbols)
    short = pywrapfst.SymbolTable()
    short.add_symbol("<eps>")
    automaton.set_input_symbols(short)
    with pytest.raises(ValueError, match="a symbol for every label, got none for 1"):
        fst.Lattice.from_fst(automaton, words.symbols)


def test_lattices_that_have_too_many_deterministic_states_are_refused() -> None:
    arcs = [(0, 0 + 1, token, 0.0) for token in range(2)]
    for state in range(1, 61):  # (a|b)* a (a|b){30}: 2^30 subsets
        arcs += [(state, state + 1, token, -0.01 * state * token) for token in range(2)]
        arcs += [(state, state + 40, 0, -0.017 * state)] if state + 40 <= 61 else []
        arcs += (
            [(state, state + 2, 1, -0.013 * state), (state, state + 3, 0, -0.0171 * state)] if state + 3 <= 61 else []
        )
    with pytest.raises(ValueError, match=r"fewer than 2.24 arcs; prune the lattice"):
        fst.Lattice.from_arcs(arcs, [(61, 0.0)]).nbest_paths(p=2)


def test_what_is_out_of_range_is_refused() -> None:
    lattice = random_lattice(0)
    for call, message in (
        (lambda: lattice.nbest_paths(p=0), "expected a whole number p from 1"),
        (lambda: lattice.nbest_paths(trigram(), alpha=-1), "expected an alpha from 0 to 1e30"),
        (lambda: lattice.oracle([[1]]), "one sequence of token ids"),
        (lambda: fst.Lattice.from_arcs([(0, 1, -2, 0.0)], [(1, 0.0)]), "token ids from 0 to"),
        (lambda: fst.Lattice.from_arcs([(0, 1, 2**31, 0.0)], [(1, 0.0)]), "got 2147483648"),
        (lambda: fst.Lattice.from_arcs([(0, 1, 1, math.nan)], [(1, 0.0)]), "got nan"),
        (lambda: fst.Lattice.from_arcs([(-1, 1, 1, 0.0)], [(1, 0.0)]), "numbered from 0"),
        (lambda: lattice.oracle([2**70]), "expected a reference as one sequence of token ids"),
        (lambda: lattice.oracle([1.5]), "expected a reference as one sequence of token ids"),
        (lambda: lattice.oracle("text"), "expected a reference as .*, got text; encode it"),
        (lambda: lattice.nbest_paths(p=2.5), r"number p from 1 to 2\^31 - 1, got 2.5"),
        (lambda: lattice.nbest_paths(trigram(), context="text"), "a context as one .*, got text; encode it"),
        (lambda: lattice.arc_posteriors(trigram(), context=[[1, 2]]), "a context as one sequence"),
        (lambda: fst.Lattice.from_arcs([(0.5, 1, 2, 0.0)], [(1, 0.0)]), "every source of .* as an integer, got 0.5"),
        (lambda: fst.Lattice.from_arcs([(0, 1, 2.0, 0.0)], [(1, 0.0)]), "every token of .* as an integer, got 2.0"),
        (lambda: fst.Lattice.from_arcs([(0, 2**70, 2, 0.0)], [(1, 0.0)]), "every target of .*, got 1180591620717411"),
        (lambda: fst.Lattice.from_arcs([(0, 1, "the", 0.0)], [(1, 0.0)]), "every token of .*, got 'the'"),
        (lambda: fst.Lattice.from_arcs([(0, 1, 2, "low")], [(1, 0.0)]), "every log p of .* as a number"),
        (lambda: fst.Lattice.from_arcs([(0, 1, 2)], [(1, 0.0)]), r"arcs \(source, target, token, log p\) as numbers"),
        (lambda: fst.Lattice.from_arcs([(0, 1, 2, 0.0)], [(0.5, 0.0)]), "every state of the final states .*, got 0.5"),
        (
            lambda: fst.Lattice.from_arcs([(0, 1, 2, 0.0)], [(1, 0.0)], start=0.5),
            "every state of the start .*, got 0.5",
        ),
    ):
        with pytest.raises(ValueError, match=message):
            call()


def test_word_lattices_warn_of_what_they_do_not_mean() -> None:
    arcs = [(0, 1, token, 0.5) for token in (1, 2, 70)]
    with pytest.warns(UserWarning, match="3 of the lattice's 4 log-probabilities are above 0, up to 0.5"):
        lattice = fst.Lattice.from_arcs(arcs, [(1, 0.0)])
    for search in (lattice.nbest_paths, lattice.to_sausage):
        with pytest.warns(UserWarning, match="1 of the lattice's 3 tokens are not in the n-gram model, such as 70"):
            search(trigram())
