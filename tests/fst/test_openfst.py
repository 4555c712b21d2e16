"""Lattices to and from OpenFst, and the failure-resolved product against full enumeration and the compiled search."""

from __future__ import annotations

import itertools
import lzma
from pathlib import Path

import numpy as np
import pynini
import pytest
import pywrapfst
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import fst
from tests.helpers.backoff_reference import golden_file
from tests.helpers.ngram_models import Ngrams, arpa, ngrams
from tests.helpers.products import ModelWalk, product, shortest_paths
from tests.helpers.trigrams import trigram

fixture_is_shared = settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=60
)
Lattice = tuple[np.ndarray, np.ndarray]


@st.composite
def lattices(draw: st.DrawFn) -> Lattice:
    """Up to 4 slots of up to 3 tokens, padded; log-probabilities that float32 holds exactly."""
    k = draw(st.integers(1, 3))
    tokens, log_probs = [], []
    for _ in range(draw(st.integers(1, 4))):
        slot = draw(st.lists(st.sampled_from([0, 1, 3, 4, 8]), min_size=1, max_size=k, unique=True))
        tokens.append(slot + [-1] * (k - len(slot)))
        log_probs.append([-draw(st.integers(0, 640)) / 64 for _ in slot] + [0.0] * (k - len(slot)))
    return np.array(tokens), np.array(log_probs)


@given(
    lattice=lattices(),
    model=ngrams(),
    alpha=st.sampled_from([0.0, 0.5, 1.0]),
    context=st.lists(st.sampled_from([0, 1, 3, 9]), max_size=4),
)
@fixture_is_shared
def test_shortest_paths_of_the_product_are_all_paths_in_order(
    lattice: Lattice, model: Ngrams, alpha: float, context: list[int], tmp_path: Path
) -> None:
    (tmp_path / "lm.arpa").write_text(arpa(model))
    lm = fst.NgramModel.from_arpa(tmp_path / "lm.arpa")
    slots = [[(int(t), float(v)) for t, v in zip(*slot, strict=True) if t >= 0] for slot in zip(*lattice, strict=True)]
    want = {}
    for path in itertools.product(*slots):
        tokens = tuple(token for token, _ in path)
        score = sum(log_prob for _, log_prob in path)
        for i, token in enumerate(tokens):
            # A token unknown to a model without <unk> wipes the history out, so the core is given the whole of it.
            score += alpha * lm.log_prob(token, [*context, *tokens[:i]]) if alpha else 0
        want[tokens] = score
    paths, scores = shortest_paths(product(*lattice, lm, alpha, context), p=200)
    got = dict(zip(map(tuple, paths.tolist()), scores.tolist(), strict=True))
    assert got.keys() == want.keys()
    assert len(paths) == len(got)
    for tokens, score in got.items():
        assert score == pytest.approx(want[tokens], abs=1e-3, rel=1e-6)
    assert (np.diff(scores) <= 0).all()
    _, searched = fst.nbest_paths(*lattice, lm, p=5, alpha=alpha, context=context)
    np.testing.assert_allclose(searched, scores[:5], atol=1e-3, rtol=1e-6)


@given(lattice=lattices())
def test_lattice_and_acceptor_turn_into_each_other(lattice: Lattice) -> None:
    automaton = fst.lattice_to_fst(*lattice)
    assert automaton.verify()
    tokens, log_probs = fst.fst_to_lattice(automaton)
    again = fst.lattice_to_fst(tokens, log_probs)
    assert pywrapfst.equal(automaton, again)
    slots = [{(int(t), float(v)) for t, v in zip(*slot, strict=True) if t >= 0} for slot in zip(*lattice, strict=True)]
    assert [
        {(int(t), float(v)) for t, v in zip(*slot, strict=True) if t >= 0}
        for slot in zip(tokens, log_probs, strict=True)
    ] == slots
    assert (log_probs[:, 1:] <= log_probs[:, :-1]).all()


def resolved(lm: fst.NgramModel, tokens: np.ndarray, context: list[int]) -> pywrapfst.VectorFst:
    """The model as an automaton without failure arcs: from every history that the tokens reach, an arc for each of
    them."""
    automaton, states = pywrapfst.VectorFst(), {}
    walk = ModelWalk(lm.automaton)
    history = lm.automaton.unigram_state
    for token in context:
        _, history = walk.step(history, token)
    queue = [history]
    states[history] = automaton.add_state()
    automaton.set_start(states[history])
    for history in queue:
        automaton.set_final(states[history])
        for token in np.unique(tokens[tokens >= 0]).tolist():
            cost, following = walk.step(history, token)
            if following not in states:
                states[following] = automaton.add_state()
                queue.append(following)
            automaton.add_arc(states[history], pywrapfst.Arc(token + 1, token + 1, cost, states[following]))
    return automaton.arcsort("ilabel")


@pytest.mark.parametrize("seed", range(6))
def test_lattice_with_transitions_composed_by_openfst_has_our_paths(seed: int) -> None:
    rng = np.random.default_rng(seed)
    lm, slots, k = trigram(20, seed), 5, 6
    tokens = np.stack([rng.permutation(22)[:k] for _ in range(slots)])  # 20 and 21 are unknown to the model
    log_probs, transitions = rng.normal(-2, 1, (slots, k)), rng.normal(0, 1.5, (slots - 1, k, k))
    transitions[rng.random(transitions.shape) < 0.2] = -np.inf
    tokens[2, 4:], log_probs[3, 1] = -1, -np.inf
    context = [3, 8]
    lattice = fst.lattice_to_fst(tokens, log_probs, transitions)
    assert lattice.verify()
    assert lattice.num_states() == 1 + ((tokens >= 0) & (log_probs > -np.inf)).sum()  # one for each column
    composed = pywrapfst.compose(lattice.arcsort("olabel"), resolved(lm, tokens, context))
    for automaton in (composed, product(tokens, log_probs, lm, 1.0, context, transitions)):
        expected, costs = shortest_paths(automaton, 40)
        paths, scores = fst.nbest_paths(tokens, log_probs, lm, 40, 1.0, context, transitions)
        assert paths.tolist() == expected.tolist()
        np.testing.assert_allclose(scores, costs, atol=1e-4)


@given(lattice=lattices(), data=st.data())
def test_transitions_go_to_an_automaton_and_back(lattice: Lattice, data: st.DataObject) -> None:
    tokens, log_probs = lattice
    slots, k = tokens.shape
    values = st.sampled_from([0.0, 0.5, -0.25, -3.0, -np.inf])
    transitions = np.array(data.draw(st.lists(values, min_size=(slots - 1) * k * k, max_size=(slots - 1) * k * k)))
    transitions = transitions.reshape(slots - 1, k, k)
    expected = fst.nbest_paths(tokens, log_probs, None, 200, transitions=transitions)
    automaton = fst.lattice_to_fst(tokens, log_probs, transitions)
    assert automaton.verify()
    if not len(expected[0]):
        with pytest.raises(ValueError, match=r"final state at its end|without a start state"):
            fst.fst_to_lattice(automaton.connect())
        return
    again = fst.fst_to_lattice(automaton.connect())
    paths = fst.nbest_paths(*again[:2], None, 200, transitions=again[2] if len(again) > 2 else None)
    assert sorted(map(tuple, paths[0].tolist())) == sorted(map(tuple, expected[0].tolist()))
    np.testing.assert_allclose(paths[1], expected[1], atol=1e-5)
    assert pywrapfst.equivalent(fst.lattice_to_fst(*again).connect(), automaton, delta=1e-5)


def test_pyninis_own_acceptors_are_lattices() -> None:
    automaton = pynini.union("a", "b") + pynini.accep("c")
    automaton = pynini.determinize(automaton.rmepsilon()).minimize()
    tokens, log_probs = fst.fst_to_lattice(automaton)
    assert tokens.tolist() == [[ord("a") - 1, ord("b") - 1], [ord("c") - 1, -1]]
    assert log_probs.tolist() == [[0, 0], [0, -np.inf]]


def test_final_weight_goes_to_the_last_slot() -> None:
    automaton = fst.lattice_to_fst([[1], [2]], [[-1.0], [-2.0]])
    automaton.set_final(2, 0.5)
    assert fst.fst_to_lattice(automaton)[1].tolist() == [[-1.0], [-2.5]]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "without a start state"),
        ("0 1 3 3\n0 2 4 4\n0 2 5 5\n1\n2", "2 states for 3 tokens of slot 0; it is no sausage"),
        ("0 1 3 3\n0 2 4 4\n1 3 5 5\n2 4 5 5\n3\n4", "2 states for 1 tokens of slot 1"),
        ("0 1 3 3\n0 2 4 4\n1 2 5 5\n2 3 6 6\n3", "paths of two lengths to it"),
        ("0 1 3 3\n1 2 4 4\n1\n2", "state 1 that is final and has arcs"),
        ("0 1 3 3\n1 0 4 4\n", "a cycle through state 0"),
        ("0 1 3 3\n", "a final state at its end"),
        ("0", "at least one arc"),
        ("0 1 3 4\n1", "an arc 3:4 at state 0"),
        ("0 1 0 0\n1", "labels above 0, got 0 at state 0"),
        ("0 1 3 3\n0 1 3 3 0.5\n1", "one twice at state 0"),
    ],
)
def test_automata_that_are_no_sausage_are_refused(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        fst.fst_to_lattice(compiled(text))


def test_other_semirings_are_refused() -> None:
    with pytest.raises(ValueError, match="arc type log"):
        fst.fst_to_lattice(pywrapfst.VectorFst("log"))


@pytest.mark.parametrize(
    ("tokens", "log_probs", "message"),
    [
        ([[1, 2]], [[0.0]], r"one shape \[slots, k\], got \(1, 2\) and \(1, 1\)"),
        ([[1.5]], [[0.0]], "tokens as integers"),
        ([[-2]], [[0.0]], "slot 0: expected token ids"),
        ([[1], [2**31]], [[0.0], [0.0]], "slot 1: expected token ids"),
        ([[1]], [[np.nan]], "slot 0: expected a log-probability of at most 1e.30 for token 1, got nan"),
        ([[1]], [[np.inf]], "got inf"),
        ([[1]], [[-np.inf]], "at least one token"),
        ([[-1]], [[0.0]], "at least one token"),
        ([[1, 1]], [[0.0, -1.0]], "every token once"),
    ],
)
def test_arrays_that_are_no_lattice_are_refused(tokens: list, log_probs: list, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        fst.lattice_to_fst(tokens, log_probs)


@given(model=ngrams(suffixes=True))
@fixture_is_shared
def test_models_go_to_objects_and_back(model: Ngrams, tmp_path: Path) -> None:
    (tmp_path / "lm.arpa").write_text(arpa(model))
    lm = fst.NgramModel.from_arpa(tmp_path / "lm.arpa")
    automaton = lm.to_fst()
    assert isinstance(automaton, pynini.Fst)
    assert automaton.verify()
    assert automaton.properties(pynini.ACCEPTOR | pynini.I_LABEL_SORTED, True)
    lm.save(tmp_path / "lm.fst")
    for each in (automaton, pywrapfst.Fst.read(str(tmp_path / "lm.fst")), pywrapfst.convert(automaton, "vector")):
        again = fst.NgramModel.from_fst(each)
        assert again.symbols == lm.symbols
        assert again.unk_label == lm.unk_label
        assert again.core.has_end == lm.core.has_end
        assert again.states.tolist() == lm.states.tolist()
        assert again.arcs.tolist() == lm.arcs.tolist()
    finals = [float(automaton.final(state)) for state in automaton.states()]
    assert ("</s>",) in model or finals == [0.0] * len(finals)


def test_models_whose_arcs_are_unsorted_are_sorted() -> None:
    lm = trigram(9)
    automaton = lm.to_fst()
    unsorted = pynini.Fst()
    unsorted.add_states(automaton.num_states())
    unsorted.set_start(automaton.start())
    for state in automaton.states():
        unsorted.set_final(state)
        for arc in reversed(list(automaton.arcs(state))):
            unsorted.add_arc(state, pynini.Arc(arc.ilabel, arc.olabel, arc.weight, arc.nextstate))
    assert fst.NgramModel.from_fst(unsorted).arcs.tolist() == lm.arcs.tolist()


def compiled(text: str) -> pywrapfst.VectorFst:
    compiler = pywrapfst.Compiler()
    compiler.write(text + "\n")
    return compiler.compile()


def altered(change: str) -> pynini.Fst:
    automaton = trigram(9).to_fst()
    state = next(state for state in automaton.states() if automaton.num_arcs(state) > 3 and state)
    arcs = list(automaton.arcs(state))
    if change == "repeat":
        automaton.add_arc(state, arcs[-1])
    elif change == "two failures":
        automaton.add_arc(state, pynini.Arc(0, 0, 0.5, 0))
    elif change == "no failure":
        automaton.delete_arcs(state)
        for arc in arcs[1:]:
            automaton.add_arc(state, arc)
    elif change == "cycle":
        other = next(other for other in automaton.states() if other not in (0, state) and automaton.num_arcs(other))
        for one, to in ((state, other), (other, state)):
            kept = [arc for arc in automaton.arcs(one) if arc.ilabel]
            automaton.delete_arcs(one)
            for arc in (pynini.Arc(0, 0, 0.5, to), *kept):
                automaton.add_arc(one, arc)
    elif change == "unknown label":
        automaton.add_arc(state, pynini.Arc(99, 99, 0.5, 0))
    elif change == "negative":
        automaton.add_arc(state, pynini.Arc(-5, -5, 0.5, 0))
    elif change == "transducer":
        automaton.add_arc(state, pynini.Arc(3, 4, 0.5, 0))
    return automaton


@pytest.mark.parametrize(
    ("automaton", "message"),
    [
        (altered("repeat"), r"a deterministic backoff model, got two arcs labelled \d+ at state \d+; determinize it"),
        (altered("two failures"), r"got two arcs labelled 0 at state \d+"),
        (altered("no failure"), r"got state \d+ without a failure arc \(label 0\)"),
        (altered("cycle"), "a cycle"),
        (altered("unknown label"), "label 99 at state .* which the unigram state 0 lacks"),
        (compiled("0 0 3 3 nan\n0"), "expected weights above -inf, got nan at state 0"),
        (compiled("0 0 3 3\n0 nan"), "expected final weights above -inf, got nan at state 0"),
        (altered("negative"), "expected labels of 0 and above, got -5 at state"),
        (altered("transducer"), "expected an acceptor, got a transducer"),
        (pynini.accep("abc"), "got state 1 without a failure arc"),
        (pynini.Fst(), "got one without a start state"),
        (pywrapfst.VectorFst("log"), "arc type log"),
        ("lm.fst", "expected an FST of pynini or pywrapfst, got str"),
    ],
)
def test_automata_that_are_no_backoff_model_are_refused_by_name(automaton: object, message: str) -> None:
    with pytest.raises(ValueError, match=message) as error:
        fst.NgramModel.from_fst(automaton)
    assert "\n" not in str(error.value)


def test_what_openfst_composes_a_sequence_model_to_is_not_empty() -> None:
    lm, tokens, log_probs = trigram(9), np.array([[1, 2], [3, 4], [5, 6]]), np.zeros((3, 2))
    expected, scores = fst.nbest_paths(tokens, log_probs, lm, p=8)
    lattice = fst.lattice_to_fst(tokens, log_probs)
    resolved_paths = shortest_paths(pynini.compose(lattice, lm.to_fst(tokens)), 8)
    assert resolved_paths[0].tolist() == expected.tolist()
    np.testing.assert_allclose(resolved_paths[1], scores, atol=1e-5)
    by_epsilon = pynini.compose(lattice, lm.to_fst().set_start(lm.unigram_state))
    assert by_epsilon.num_states() > 0  # every state of the model is final
    assert -float(pynini.shortestdistance(by_epsilon, reverse=True)[by_epsilon.start()]) >= scores[0] - 1e-5


def test_golden_models_give_the_same_through_objects_as_through_files(tmp_path: Path) -> None:
    (tmp_path / "lm.arpa").write_bytes(lzma.decompress(golden_file("a3.katz.arpa.xz").read_bytes()))
    lm = fst.NgramModel.load(tmp_path / "lm.arpa")
    lm.save(tmp_path / "lm.fst")
    objects = [fst.NgramModel.from_fst(each.read(str(tmp_path / "lm.fst"))) for each in (pynini.Fst, pywrapfst.Fst)]
    rng = np.random.default_rng(0)
    for _ in range(50):
        tokens = np.stack([rng.choice(lm.vocab_size, 4, replace=False) for _ in range(4)])
        log_probs = np.log(rng.dirichlet(np.ones(4), 4))
        expected, scores = fst.nbest_paths(tokens, log_probs, lm, p=10)
        for each in (lm, *objects):
            paths = fst.nbest_paths(tokens, log_probs, each, p=10)
            assert paths[0].tolist() == expected.tolist()
            assert paths[1].tolist() == scores.tolist()
        automaton = lm.to_fst(tokens)
        for state in automaton.states():
            automaton.set_final(state)  # the golden model's </s> is no part of a draft
        composed = pynini.compose(fst.lattice_to_fst(tokens, log_probs), automaton)
        np.testing.assert_allclose(shortest_paths(composed, 10)[1], scores, atol=1e-4)
    assert objects[0].num_ngrams == lm.num_ngrams
    assert objects[0].to_fst().num_states() == len(lm.states)


@pytest.mark.parametrize("words", [None, ["the", "cat", "sat", "on", "a", "mat", "and", "then", "slept"]])
def test_kenlm_opens_what_is_written_and_scores_as_we_do(words: list[str] | None, tmp_path: Path) -> None:
    kenlm = pytest.importorskip("kenlm")
    lm = fst.NgramModel(trigram(9).automaton, words)
    log10 = np.log(10)
    for name in ("lm.arpa", "lm.arpa.gz"):
        lm.to_arpa(tmp_path / name, markers=True)
    oracle = kenlm.Model(str(tmp_path / "lm.arpa"))
    again = fst.NgramModel.load(tmp_path / "lm.arpa.gz")
    rng = np.random.default_rng(0)
    for _ in range(100):
        tokens = rng.integers(0, 10, rng.integers(1, 8)).tolist()  # 9 is unknown
        text = " ".join((words[token] if token < 9 else "dog") if words else str(token) for token in tokens)
        assert oracle.score(text, bos=False, eos=False) * log10 == pytest.approx(lm.score(tokens), abs=1e-3)
        assert oracle.score(text, bos=True, eos=True) * log10 == pytest.approx(lm.score(tokens, True, True), abs=1e-3)
        assert again.score(tokens, True, True) == pytest.approx(lm.score(tokens, True, True), abs=1e-3)
        full = [score * log10 for score, _, _ in oracle.full_scores(text, bos=False, eos=False)]
        expected = [lm.log_prob(token, tokens[:i]) for i, token in enumerate(tokens)]
        assert full == pytest.approx(expected, abs=1e-3)


def test_a_byte_order_mark_is_read_over(tmp_path: Path) -> None:
    lm = trigram(9)
    lm.to_arpa(tmp_path / "lm.arpa")
    (tmp_path / "bom.arpa").write_bytes(b"\xef\xbb\xbf" + (tmp_path / "lm.arpa").read_bytes())
    assert fst.NgramModel.load(tmp_path / "bom.arpa").num_ngrams == lm.num_ngrams


def test_a_model_whose_end_is_certain_still_ends(tmp_path: Path) -> None:
    """A final cost of 0 everywhere means no </s>; a </s> of probability 1 is written as the smallest cost above 0."""
    (tmp_path / "lm.arpa").write_text("\\data\\\nngram 1=2\n\n\\1-grams:\n0\t</s>\n-1\t4\n\n\\end\\\n")
    lm = fst.NgramModel.load(tmp_path / "lm.arpa")
    lm.save(tmp_path / "lm.fst")
    for each in (lm, fst.NgramModel.load(tmp_path / "lm.fst"), fst.NgramModel.from_fst(lm.to_fst())):
        assert each.core.has_end
        assert each.score([4], eos=True) == pytest.approx(np.log(0.1))
        assert each.num_ngrams == [2]


def test_old_files_whose_states_are_not_final_score_as_new_ones() -> None:
    lm = trigram(9)
    states = lm.states.copy()
    assert (states["final"] == 0).all()
    states["final"] = np.inf
    old = fst.NgramModel(lm.automaton._replace(states=states))
    assert old.score([1, 2, 3], True, True) == lm.score([1, 2, 3], True, True)
    assert old.num_ngrams == lm.num_ngrams
