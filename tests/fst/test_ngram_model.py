"""`NgramModel` gives the probabilities that the recursive definition of backing off gives, however it was made."""

from __future__ import annotations

import doctest
import lzma
import math
import multiprocessing
import os
import pickle
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import fst
from fst.automaton import LOG_ZERO
from tests.helpers.backoff_reference import golden_file
from tests.helpers.ngram_models import Ngrams, arpa, log10_prob, ngrams, order_of

LN10 = math.log(10)
fixture_is_shared = settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=60
)


def model_of(model: Ngrams, folder: Path) -> fst.NgramModel:
    (folder / "lm.arpa").write_text(arpa(model))
    return fst.NgramModel.from_arpa(folder / "lm.arpa")


def words_of(model: Ngrams) -> list[str]:
    return [gram[0] for gram in model if len(gram) == 1 and gram[0] not in ("<s>", "</s>")]


@given(model=ngrams())
@fixture_is_shared
def test_log_prob_equals_the_recursive_definition(model: Ngrams, tmp_path: Path) -> None:
    lm = model_of(model, tmp_path)
    words = [word for word in words_of(model) if word != "<unk>"]
    for length in range(order_of(model) + 1):
        for context in product(words, repeat=length):
            for word in words:
                want = log10_prob(model, context, word) * LN10
                assert lm.log_prob(int(word), [int(before) for before in context]) == pytest.approx(want, abs=1e-5)


@given(
    model=ngrams(),
    tokens=st.lists(st.sampled_from([0, 1, 2, 3, 4, 9, 2**31 - 1]), max_size=6),
    bos=st.booleans(),
    eos=st.booleans(),
)
@fixture_is_shared
def test_score_is_the_sum_of_log_probs_with_markers_and_unknown_tokens(
    model: Ngrams, tokens: list[int], bos: bool, eos: bool, tmp_path: Path
) -> None:
    lm = model_of(model, tmp_path)
    known = words_of(model)
    history = ("<s>",) if bos and order_of(model) > 1 else ()
    want = 0.0
    for token in tokens:
        word = str(token) if str(token) in known else "<unk>"
        if word in known:
            want += log10_prob(model, history, word) * LN10
            history = (*history, word)
        else:
            want += LOG_ZERO + sum_of_backoffs(model, history)
            history = ()
    if eos:
        missing = ("</s>",) not in model
        want += LOG_ZERO + sum_of_backoffs(model, history) if missing else log10_prob(model, history, "</s>") * LN10
    assert lm.score(tokens, bos=bos, eos=eos) == pytest.approx(want, abs=1e-4)


def sum_of_backoffs(model: Ngrams, history: tuple[str, ...]) -> float:
    suffixes = (history[begin:] for begin in range(max(0, len(history) - order_of(model) + 1), len(history)))
    return LN10 * sum(model.get(suffix, (0.0, 0.0))[1] for suffix in suffixes)


@given(model=ngrams(suffixes=True))
@fixture_is_shared
def test_table_and_automaton_turn_into_each_other(model: Ngrams, tmp_path: Path) -> None:
    lm = model_of(model, tmp_path)
    again = fst.NgramModel.from_table(lm.to_table())
    assert lm.num_ngrams == again.num_ngrams == again.to_table().num_ngrams
    assert (lm.start_state, lm.unk_label) == (again.start_state, again.unk_label)
    assert lm.states.tobytes() == again.states.tobytes()
    assert lm.arcs.tobytes() == again.arcs.tobytes()


@given(model=ngrams())
@fixture_is_shared
def test_every_suffix_is_there(model: Ngrams, tmp_path: Path) -> None:
    """OpenGrm's rule for automata; pruned ARPA files may lack some, and scores do not change when they are added."""
    rows = {tuple(row) for ngrams in model_of(model, tmp_path).to_table().ngrams for row in ngrams.tolist()}
    assert all(row[1:] in rows and row[:-1] in rows for row in rows if len(row) > 1)


@given(model=ngrams())
@fixture_is_shared
def test_saved_model_loads_the_same(model: Ngrams, tmp_path: Path) -> None:
    lm = model_of(model, tmp_path)
    lm.save(tmp_path / "lm.fst")
    loaded = fst.NgramModel.load(tmp_path / "lm.fst")
    assert loaded.states.tobytes() == lm.states.tobytes()
    assert loaded.arcs.tobytes() == lm.arcs.tobytes()
    for name in (
        "num_ngrams",
        "order",
        "vocab_size",
        "unk_label",
        "start_state",
        "unigram_state",
        "symbols",
        "fingerprint",
    ):
        assert getattr(loaded, name) == getattr(lm, name), name


def table(*orders: dict[tuple[int, ...], tuple[float, float]], **options: object) -> fst.NgramTable:
    rows = [np.array(sorted(grams), np.int32).reshape(-1, order) for order, grams in enumerate(orders, 1)]
    values = [np.array([grams[gram] for gram in sorted(grams)]).reshape(-1, 2) for grams in orders]
    return fst.NgramTable(rows, [pair[:, 0] for pair in values], [pair[:, 1] for pair in values], **options)


UNIGRAMS = {(0,): (-1.0, 0.5), (1,): (-2.0, 0.0), (fst.EOS,): (-1.5, 0.0)}


def test_backing_off_early_is_no_alternative() -> None:
    """The trap of epsilon backoff: the explicit arc costs 5, the way round it 0.7; the model's answer is 5."""
    lm = fst.NgramModel.from_table(table({(1,): (-1.0, -0.5), (2,): (-0.2, 0.0)}, {(1, 2): (-5.0, 0.0)}))
    assert lm.log_prob(2, [1]) == -5.0
    assert lm.score([1, 2]) == -6.0


def test_context_with_only_a_backoff_weight_keeps_it() -> None:
    lm = fst.NgramModel.from_table(table(UNIGRAMS, {(1, 1): (-0.25, 0.0)}))
    assert lm.log_prob(1, [0]) == -1.5
    assert lm.num_ngrams == [3, 1]
    assert lm.to_table().backoffs[0].tolist() == [0.0, 0.5, 0.0]


def test_log_zero_stays_finite_and_is_written_as_minus_99(tmp_path: Path) -> None:
    lm = fst.NgramModel.from_table(table({(0,): (-np.inf, 0.0), (1,): (-1.0, 0.0)}))
    assert lm.log_prob(0) == LOG_ZERO
    lm.to_arpa(tmp_path / "lm.arpa")
    assert "-99\t0\n" in (tmp_path / "lm.arpa").read_text()
    assert fst.NgramModel.load(tmp_path / "lm.arpa").log_prob(0) == LOG_ZERO


def test_symbols_and_fingerprint_are_embedded(tmp_path: Path) -> None:
    words = fst.NgramModel.from_table(table(UNIGRAMS, symbols=["the", "cat"]))
    ids = fst.NgramModel.from_table(table(UNIGRAMS, fingerprint="sha256:0123"))
    for model in (words, ids):
        model.save(tmp_path / "lm.fst")
        loaded = fst.NgramModel.load(tmp_path / "lm.fst")
        assert (loaded.symbols, loaded.fingerprint) == (model.symbols, model.fingerprint)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (table({(0,): (0.5, 0.0)}), "log-probability of at most 0"),
        (table({(0,): (np.nan, 0.0)}), "log-probability of at most 0"),
        (table({(0,): (-1.0, np.nan)}), "backoff weight"),
        (table({(0,): (-1.0, np.inf)}), "backoff weight"),
        (table({(2**31 - 2,): (-1.0, 0.0)}), "token ids of at most 2147483645"),
        (table({(-1,): (-1.0, 0.0)}), "token ids of 0 and above or the markers"),
        (table(UNIGRAMS, {(0, fst.BOS): (-1.0, 0.0)}), "<s> only at the beginning"),
        (table(UNIGRAMS, {(fst.EOS, 0): (-1.0, 0.0)}), "</s> only at its end"),
        (table(UNIGRAMS, {(7, 0): (-1.0, 0.0)}), "expected tokens of the unigrams, whose highest id is"),
        (table(UNIGRAMS, {(0, 7): (-1.0, 0.0)}), "expected tokens of the unigrams, whose highest id is"),
        (table({**UNIGRAMS, (9,): (-1.0, 0.0)}, {(7, 0): (-1.0, 0.0)}), "expected its context"),
        (table({**UNIGRAMS, (9,): (-1.0, 0.0)}, {(0, 7): (-1.0, 0.0)}), "not among the unigrams"),
        (fst.NgramTable([np.zeros((2, 1), np.int32)], [np.zeros(2)], [np.zeros(2)]), "occurs twice"),
    ],
)
def test_tables_that_are_no_model_are_refused(wrong: fst.NgramTable, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        fst.NgramModel.from_table(wrong)


def test_largest_token_has_a_label_of_its_own() -> None:
    largest = 2**31 - 3
    lm = fst.NgramModel.from_table(table({(largest,): (-1.0, 0.0), (fst.UNK,): (-2.0, 0.0)}))
    assert (lm.log_prob(largest), lm.log_prob(3), lm.vocab_size) == (-1.0, -2.0, largest + 1)


def test_scores_equal_kenlms(tmp_path: Path) -> None:
    kenlm = pytest.importorskip("kenlm")
    text = lzma.decompress(golden_file("a3.katz.arpa.xz").read_bytes())
    (tmp_path / "lm.arpa").write_bytes(text)
    lm, oracle = fst.NgramModel.load(tmp_path / "lm.arpa"), kenlm.Model(str(tmp_path / "lm.arpa"))
    assert lm.symbols is not None
    rng = np.random.default_rng(0)
    sentences = [rng.integers(0, 200, rng.integers(0, 12)).tolist() for _ in range(300)]
    for tokens in sentences:
        sentence = " ".join(lm.symbols[token] for token in tokens)
        assert lm.score(tokens, bos=True, eos=True) / LN10 == pytest.approx(
            oracle.score(sentence, bos=True, eos=True), abs=1e-4
        )


def test_a_symbol_table_with_a_word_twice_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "lm.fst"
    fst.NgramModel.from_table(table(UNIGRAMS, symbols=["the", "cat"])).save(file)
    file.write_bytes(file.read_bytes().replace(b"cat", b"the"))
    with pytest.raises(ValueError, match="expected every symbol once, got 'the' 2 times"):
        fst.NgramModel.load(file)


def test_words_that_arpa_cannot_spell_are_refused(tmp_path: Path) -> None:
    model = fst.NgramModel.from_table(table(UNIGRAMS, symbols=["two words", "cat"]))
    with pytest.raises(ValueError, match="token 0: expected a word without white space"):
        model.to_arpa(tmp_path / "lm.arpa")
    assert not list(tmp_path.iterdir())


def test_every_name_of_the_package_exists() -> None:
    assert len(set(fst.__all__)) == len(fst.__all__)
    for name in fst.__all__:
        assert hasattr(fst, name)


def test_example_in_the_package_documentation_runs() -> None:
    assert doctest.testmod(fst).attempted > 5
    assert doctest.testmod(fst).failed == 0


def test_importing_leaves_torch_out() -> None:
    code = "import sys, fst; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_mapped_model_is_pickled_by_its_path(tmp_path: Path) -> None:
    path = tmp_path / "lm.fst"
    lm = fst.NgramModel.from_table(table({(0,): (-0.5, -0.25), (1,): (-1.0, 0.0)}, {(0, 1): (-0.125, 0.0)}))
    lm.save(path)
    mapped = fst.NgramModel.load(path)
    pickled = pickle.dumps(mapped)
    assert len(pickled) < 300
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        assert pool.submit(mapped.log_prob, 1, [0]).result() == mapped.log_prob(1, [0]) == pytest.approx(-0.125)
    fst.NgramModel.from_table(table({(0,): (-0.5, 0.0)})).save(path)
    with pytest.raises(
        ValueError, match=r"lm\.fst: expected the model of 2 states and 4 arcs that was pickled, .*replaced"
    ):
        pickle.loads(pickled)


def test_model_in_memory_is_pickled_whole(tmp_path: Path) -> None:
    lm = fst.NgramModel.from_table(
        table({(0,): (-0.5, -0.25), (1,): (-1.0, 0.0)}, {(0, 1): (-0.125, 0.0)}, fingerprint="v")
    )
    lm.save(tmp_path / "lm.fst")
    read = fst.NgramModel.load(tmp_path / "lm.fst", mmap=False)
    (tmp_path / "lm.fst").unlink()
    for model in (lm, read):
        again = pickle.loads(pickle.dumps(model))
        assert (again.arcs.tobytes(), again.states.tobytes(), again.fingerprint) == (
            lm.arcs.tobytes(),
            lm.states.tobytes(),
            "v",
        )
        assert again.log_prob(1, [0]) == lm.log_prob(1, [0])


def test_model_read_into_memory_outlives_its_file_being_cut_short(tmp_path: Path) -> None:
    path = tmp_path / "lm.fst"
    fst.NgramModel.from_table(table({(token,): (-7.0, 0.0) for token in range(2000)})).save(path)
    lm = fst.NgramModel.load(path, mmap=False)
    os.truncate(path, 0)
    assert lm.log_prob(1999) == pytest.approx(-7.0)
    assert lm.vocab_size == 2000


def test_words_become_ids_of_a_lattice_and_words_again(tmp_path: Path) -> None:
    lm = model_of({("the",): (-0.3, 0.0), ("cat",): (-0.6, 0.0)}, tmp_path)
    vocabulary = lm.vocabulary()
    ids = vocabulary.ids([["cat", "the"], ["ocelot", ""]])
    assert [[None if token < 0 else vocabulary.words[token] for token in slot] for slot in ids] == [
        ["cat", "the"],
        ["ocelot", None],
    ]
    assert ids[1] == [2, -1]
    assert vocabulary.text([*ids[0], *ids[1]]) == "cat the ocelot"
    assert vocabulary.ids("cat") == ids[0][0]
    assert lm.unseen(ids).tolist() == [2]
    assert lm.symbols == vocabulary.words[:2]  # the model's are not changed
    with pytest.raises(ValueError, match="expected a model of words, got one of token ids"):
        model_of({("3",): (-0.3, 0.0)}, tmp_path).vocabulary()
    for call in (lambda: lm.score("the cat"), lambda: lm.log_prob("cat"), lambda: lm.log_prob(0, "the")):
        with pytest.raises(ValueError, match="got text; encode it"):
            call()
