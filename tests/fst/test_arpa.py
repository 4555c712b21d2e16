"""Reading and writing ARPA text: what is understood, what is refused and where, and that nothing is lost."""

from __future__ import annotations

import gzip
import lzma
import math
import random
import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

import fst
from fst import files
from tests.helpers.backoff_reference import golden_file
from tests.helpers.ngram_models import Ngrams, ngrams
from tests.helpers.ngram_models import arpa as arpa_text

BIGRAMS = """\\data\\
ngram 1=4
ngram 2=3

\\1-grams:
-99\t<s>\t-0.25
-1.5\t</s>
-0.5\ta\t-0.125
-0.75\tb

\\2-grams:
-0.25\t<s> a
-0.375\ta b
-1\ta </s>

\\end\\
"""

fixture_is_shared = settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=60
)


def model_of(text: str | bytes, folder: Path, **options: object) -> fst.NgramModel:
    path = folder / "lm.arpa"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return fst.NgramModel.from_arpa(path, **options)


def entries(table: fst.NgramTable) -> dict[tuple[int, ...], tuple[float, float]]:
    """log10 values of every n-gram."""
    return {
        tuple(row): (log_prob / math.log(10), backoff / math.log(10))
        for rows, log_probs, backoffs in zip(table.ngrams, table.log_probs, table.backoffs, strict=True)
        for row, log_prob, backoff in zip(rows.tolist(), log_probs.tolist(), backoffs.tolist(), strict=True)
    }


def test_reader_turns_log10_into_natural_logs_and_numbers_words_by_appearance(tmp_path: Path) -> None:
    model = model_of(BIGRAMS, tmp_path)
    assert model.symbols == ["a", "b"]
    assert model.num_ngrams == [4, 3]
    assert model.log_prob(1, [0]) == pytest.approx(-0.375 * math.log(10), rel=1e-6)
    assert model.score([0, 1], bos=True, eos=True) == pytest.approx((-0.25 - 0.375 - 1.5) * math.log(10), rel=1e-6)


@pytest.mark.parametrize(
    "variant",
    [
        BIGRAMS.replace("\n", "\r\n"),
        "made by hand\n\n" + BIGRAMS,
        BIGRAMS.replace("\n", "\n\n \t\n"),
        BIGRAMS.replace("\t", "   "),
        BIGRAMS.replace("-0.75\tb", "-7.5e-1\tb\t0"),
        BIGRAMS.replace("-0.75\tb", "-0.75\tb\t+0.0"),
        BIGRAMS.replace("-99", "-100.5"),
        BIGRAMS.replace("-99", "-inf"),
        BIGRAMS.replace("ngram 1=4", "ngram  1 = 4"),
        BIGRAMS.replace("-0.25\t<s> a\n-0.375\ta b\n-1\ta </s>", "-1\ta </s>\n-0.25\t<s> a\n-0.375\ta b"),
        BIGRAMS.rstrip("\n"),
        BIGRAMS + "\nanything \\data\\ after the end\n",
        gzip.compress(BIGRAMS.encode()),
    ],
)
def test_reader_understands_what_tools_write(variant: str | bytes, tmp_path: Path) -> None:
    assert entries(model_of(variant, tmp_path).to_table()) == entries(model_of(BIGRAMS, tmp_path).to_table())


@pytest.mark.parametrize(
    ("old", "new", "line", "message"),
    [
        ("-0.5\ta", "-O.5\ta", 8, "expected a log-probability (log10), got '-O.5'"),
        ("-0.5\ta", "nan\ta", 8, "got 'nan'"),
        ("-0.5\ta", "0.5\ta", 8, "log-probability of at most 0, got 0.5"),
        ("\t-0.125", "\tinf", 8, "expected a backoff weight (log10), got 'inf'"),
        ("\t-0.125", "\t1e3", 8, "backoff weight (log10) of at most 434, got 1e3"),
        ("\t-0.125", "\t0x1p3", 8, "got '0x1p3'"),
        ("-0.5\ta\t", "-0.5\ta a\t", 8, "1 word and perhaps a backoff weight, got 4 fields"),
        ("-0.75\tb", "-0.75", 9, "got 1 fields"),
        ("-0.75\tb", "-0.75\ta", 9, "'a' occurs twice"),
        ("<s> a", "<s> c", 12, "expected words of the unigrams, got 'c'"),
        ("a b", "b <s>", 13, "<s> only at the beginning"),
        ("a b", "</s> b", 13, "</s> only at its end"),
        ("a b", "a </s>", 16, "'a </s>' occurs twice"),
        ("ngram 2=3", "ngram 2=4", 16, "the 4 2-grams that \\data\\ announces, got 3"),
        ("ngram 2=3", "ngram 3=3", 3, "expected 'ngram 2=<count>', got 'ngram 3=3'"),
        ("ngram 2=3", "ngram 2=-3", 3, "expected 'ngram 2=<count>'"),
        ("ngram 2=3", "", 11, "expected \\end\\, got '\\2-grams:'"),
        ("\\2-grams:", "\\3-grams:", 11, "expected \\2-grams:, got '\\3-grams:'"),
        ("\\end\\", "", 16, "the end of the file; it is truncated"),
        ("\\data\\", "", 16, "expected \\data\\, got the end of the file"),
    ],
)
def test_reader_names_the_line_of_what_it_refuses(old: str, new: str, line: int, message: str, tmp_path: Path) -> None:
    assert old in BIGRAMS
    with pytest.raises(ValueError, match="line") as refused:
        model_of(BIGRAMS.replace(old, new, 1), tmp_path)
    assert f"line {line}: " in str(refused.value)
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)


def test_reader_refuses_an_ngram_without_its_context(tmp_path: Path) -> None:
    text = BIGRAMS.replace("ngram 2=3\n", "ngram 2=3\nngram 3=1\n").replace(
        "\\end\\", "\\3-grams:\n-1\tb a b\n\n\\end\\"
    )
    with pytest.raises(ValueError, match="line 18: expected the context of 'b a b' among the 2-grams"):
        model_of(text, tmp_path)


def test_reader_warns_of_a_wrong_count_when_not_strict(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="the 4 2-grams that .* announces, got 3"):
        model = model_of(BIGRAMS.replace("ngram 2=3", "ngram 2=4"), tmp_path, strict=False)
    assert model.num_ngrams == [4, 3]


def test_reader_refuses_lines_without_end(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="line 1: expected lines of at most"):
        model_of(b"x" * (3 << 20), tmp_path)


def test_reader_refuses_damaged_gzip(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="expected a whole gzip stream"):
        model_of(gzip.compress(BIGRAMS.encode())[:-12], tmp_path)


def test_reader_quotes_words_that_are_no_utf8(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="expected words in UTF-8"):
        model_of(BIGRAMS.encode().replace(b"\tb", b"\t\xff"), tmp_path)
    with pytest.raises(ValueError, match="got '\ufffd'"):
        model_of(BIGRAMS.encode().replace(b"a b", b"a \xff"), tmp_path)


def test_words_with_no_break_spaces_stay_whole(tmp_path: Path) -> None:
    assert model_of(BIGRAMS.replace("b", "b\u00a0c"), tmp_path).symbols == ["a", "b\u00a0c"]


def test_decimal_words_are_token_ids(tmp_path: Path) -> None:
    model = model_of(
        BIGRAMS.replace("a", "7").replace("\\d7t7\\", "\\data\\").replace("gr7m", "gram").replace("b", "31"), tmp_path
    )
    assert model.symbols is None
    assert model.vocab_size == 32
    assert model.log_prob(31, [7]) == pytest.approx(-0.375 * math.log(10), rel=1e-6)


def test_numbers_among_other_words_are_words(tmp_path: Path) -> None:
    assert model_of(BIGRAMS.replace("b", "31"), tmp_path).symbols == ["a", "31"]


def test_vocabulary_gives_the_ids(tmp_path: Path) -> None:
    model = model_of(BIGRAMS, tmp_path, vocab={"b": 0, "a": 5, "unused": 9})
    assert model.symbols == ["b", "", "", "", "", "a"]
    assert model.log_prob(0, [5]) == pytest.approx(-0.375 * math.log(10), rel=1e-6)


def test_words_outside_the_vocabulary_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="'b', which it lacks"):
        model_of(BIGRAMS, tmp_path, vocab={"a": 0})
    for wrong in (-1, 1 << 20, 2**31, 2**40, 2**70):
        with pytest.raises(ValueError, match="token ids from 0 to 1048575"):
            model_of(BIGRAMS, tmp_path, vocab={"a": 0, "b": wrong})
    with pytest.raises(ValueError, match="occurs twice"):
        model_of(BIGRAMS, tmp_path, vocab={"a": 0, "b": 0})


def test_missing_suffixes_are_added_at_the_probability_they_have(tmp_path: Path) -> None:
    text = BIGRAMS.replace("ngram 2=3\n", "ngram 2=3\nngram 3=1\n").replace(
        "\\end\\", "\\3-grams:\n-1\t<s> a a\n\n\\end\\"
    )
    model = model_of(text, tmp_path)
    assert model.num_ngrams == [4, 4, 1]
    table = model.to_table()
    assert entries(table)[0, 0] == pytest.approx((-0.5 - 0.125, 0))


@given(model=ngrams(suffixes=True))
@fixture_is_shared
def test_writing_and_reading_back_keeps_every_ngram(model: Ngrams, tmp_path: Path) -> None:
    ids = {"<s>": fst.BOS, "</s>": fst.EOS, "<unk>": fst.UNK}
    want = {tuple(ids.get(word) or int(word) for word in gram): values for gram, values in model.items()}
    model_of(arpa_text(model), tmp_path).save(tmp_path / "lm.fst")
    fst.NgramModel.load(tmp_path / "lm.fst").to_arpa(tmp_path / "again.arpa.gz")
    again = fst.NgramModel.load(tmp_path / "again.arpa.gz").to_table()
    got = entries(again)
    highest = max(map(len, want))
    assert got.keys() == want.keys()
    for gram, (log10_prob, log10_backoff) in want.items():
        if gram != (fst.BOS,):
            assert got[gram][0] == pytest.approx(log10_prob, abs=1e-6)
        assert got[gram][1] == pytest.approx(log10_backoff if len(gram) < highest else 0, abs=1e-6)


def test_backoffs_of_the_longest_ngrams_survive(tmp_path: Path) -> None:
    """The highest order may be empty: what it backs off with counts all the same."""
    text = (
        BIGRAMS.replace("ngram 2=3\n", "ngram 2=3\nngram 3=0\n")
        .replace("a b\n", "a b\t-0.5\n")
        .replace("\\end\\", "\\3-grams:\n\n\\end\\")
    )
    model = model_of(text, tmp_path)
    assert (model.num_ngrams, model.order) == ([4, 3, 0], 3)
    assert model.log_prob(0, [0, 1]) == pytest.approx((-0.5 - 0.5) * math.log(10), rel=1e-6)
    model.to_arpa(tmp_path / "again.arpa")
    for again in (fst.NgramModel.from_arpa(tmp_path / "again.arpa"), fst.NgramModel.from_table(model.to_table())):
        assert again.states.tobytes() == model.states.tobytes()
        assert again.arcs.tobytes() == model.arcs.tobytes()


def test_backoff_weights_above_one_survive_where_suffixes_are_missing(tmp_path: Path) -> None:
    """`a a`, `a b` and `a b </s>` are added as suffixes, at 10^(2 - 0.5) and what backing off gives."""
    text = (
        BIGRAMS.replace("-0.5\ta\t-0.125", "-0.5\ta\t2")
        .replace("-0.375\ta b\n", "")
        .replace("-1\ta </s>", "-1\tb b\t0.5")
    )
    text = text.replace("\n-0.25\t<s> a", "\n-0.25\t<s> a\t-0.125").replace(
        "ngram 2=3\n", "ngram 2=2\nngram 3=2\nngram 4=1\n"
    )
    text = text.replace("\\end\\", "\\3-grams:\n-1\t<s> a a\n-1\t<s> a b\n\n\\4-grams:\n-1\t<s> a b </s>\n\n\\end\\")
    model = model_of(text, tmp_path)
    assert model.log_prob(0, [0]) == pytest.approx(1.5 * math.log(10), rel=1e-6)
    assert model.num_ngrams == [4, 5, 3, 1]
    model.to_arpa(tmp_path / "again.arpa")
    assert "ngram 2=3\nngram 3=2\nngram 4=1\n" in (tmp_path / "again.arpa").read_text()
    again = fst.NgramModel.from_arpa(tmp_path / "again.arpa")
    assert again.states.tobytes() == model.states.tobytes()
    np.testing.assert_array_equal(again.arcs["nextstate"], model.arcs["nextstate"])
    np.testing.assert_allclose(again.arcs["weight"], model.arcs["weight"], rtol=1e-6)


@pytest.mark.parametrize("log10_backoff", [98.9, 99, 200, 434.2])
def test_every_backoff_weight_that_a_table_may_have_is_read_back(log10_backoff: float, tmp_path: Path) -> None:
    rows = [np.array([[0], [1]], np.int32), np.array([[0, 1]], np.int32)]
    table = fst.NgramTable(
        rows, [np.log([0.5, 0.5]), np.log([0.25])], [np.array([log10_backoff * math.log(10), 0]), np.zeros(1)]
    )
    fst.NgramModel.from_table(table).to_arpa(tmp_path / "lm.arpa")
    again = fst.NgramModel.from_arpa(tmp_path / "lm.arpa")
    assert again.log_prob(0, [0]) == pytest.approx(log10_backoff * math.log(10) + math.log(0.5), rel=1e-6)


def test_probability_above_one_that_is_no_backing_off_is_not_written(tmp_path: Path) -> None:
    model = model_of(BIGRAMS, tmp_path)
    arcs = model.arcs.copy()
    arcs["weight"][(arcs["ilabel"] == 2) & (arcs["weight"] > 0)] = -0.5
    with pytest.raises(ValueError, match="probability of at most 1"):
        fst.NgramModel(model.automaton._replace(arcs=arcs), model.symbols).to_arpa(tmp_path / "out.arpa")
    assert not (tmp_path / "out.arpa").exists()


@pytest.mark.parametrize("what", ["tokens of longer n-grams", "</s>"])
def test_automaton_whose_ngrams_the_unigrams_lack_is_not_written(what: str, tmp_path: Path) -> None:
    """The reader would refuse the text."""
    model = model_of(BIGRAMS.replace("a b\n", "a b\n-0.5\t<s> </s>\n").replace("2=3", "2=4"), tmp_path)
    states, arcs = model.states.copy(), model.arcs.copy()
    if what == "</s>":
        states["final"][model.unigram_state] = np.inf
    else:
        arcs["ilabel"][-1] = arcs["olabel"][-1] = 77
    for use in (lambda lm: lm.to_arpa(tmp_path / "out.arpa"), fst.NgramModel.to_table):
        with pytest.raises(ValueError, match="this is no backoff model"):
            use(fst.NgramModel(model.automaton._replace(states=states, arcs=arcs), model.symbols))


@pytest.mark.parametrize("word", ["a b", "a\tb", "a\nb", "a\0b", "</s>", ""])
def test_words_that_could_not_be_read_back_are_not_written(word: str, tmp_path: Path) -> None:
    model = model_of(BIGRAMS, tmp_path)
    with pytest.raises(ValueError, match=r"token 1: expected a word without white space or NUL .* ARPA cannot hold"):
        fst.NgramModel(model.automaton, ["a", word]).to_arpa(tmp_path / "out.arpa")


def test_gzip_that_unpacks_to_far_more_than_any_text_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fst.files.LARGEST_SMALL_FILE", 1 << 20)
    bomb = gzip.compress(b"\n" * (16 << 20))
    assert len(bomb) < 1 << 15
    with pytest.raises(ValueError, match=r"lm\.arpa: its \d+ bytes would unpack to \d+ or more"):
        model_of(bomb, tmp_path)


def test_canonical_form(tmp_path: Path) -> None:
    model_of(BIGRAMS, tmp_path).to_arpa(tmp_path / "out.arpa")
    assert (tmp_path / "out.arpa").read_bytes() == BIGRAMS.replace("-0.75\tb\n", "-0.75\tb\t0\n").replace(
        "-99\t<s>\t-0.25\n-1.5\t</s>\n", "-1.5\t</s>\n-99\t<s>\t-0.25\n"
    ).replace("-0.375\ta b\n-1\ta </s>", "-1\ta </s>\n-0.375\ta b").encode()


@pytest.mark.parametrize("name", ["a3.katz", "a4.katz", "a3.shrunk-1e-6"])
def test_models_of_opengrm_survive_the_round_trip(name: str, tmp_path: Path) -> None:
    text = lzma.decompress(golden_file(f"{name}.arpa.xz").read_bytes()).decode()
    model_of(text, tmp_path).save(tmp_path / "lm.fst")
    fst.NgramModel.load(tmp_path / "lm.fst").to_arpa(tmp_path / "again.arpa")
    again = (tmp_path / "again.arpa").read_text()
    want, got = (
        dict(map(spelled_entry, re.findall(r"^(-\S+)\t([^\t\n]+)(?:\t(\S+))?$", lines, re.MULTILINE)))
        for lines in (text, again)
    )
    assert len(want) > 30_000
    assert got.keys() == want.keys()
    np.testing.assert_allclose([got[words] for words in want], list(want.values()), rtol=0, atol=1e-6)


def spelled_entry(fields: tuple[str, str, str]) -> tuple[str, tuple[float, float]]:
    log10_prob, words, log10_backoff = fields
    return words, (float(log10_prob), float(log10_backoff or 0))


def test_pieces_of_any_size_read_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    want = entries(model_of(BIGRAMS, tmp_path).to_table())
    progress = []
    for size in (1, 2, 7, 64):
        monkeypatch.setattr(files, "PIECE", size)
        model = model_of(BIGRAMS, tmp_path, progress=lambda done, total: progress.append((done, total)))
        assert entries(model.to_table()) == want
    assert progress[-1] == (len(BIGRAMS), len(BIGRAMS))


def test_conversion_writes_what_loading_and_saving_does(tmp_path: Path) -> None:
    model_of(BIGRAMS, tmp_path).save(tmp_path / "saved.fst")
    assert fst.arpa_to_fst(tmp_path / "lm.arpa", tmp_path / "converted.fst") == [4, 3]
    assert (tmp_path / "converted.fst").read_bytes() == (tmp_path / "saved.fst").read_bytes()


def test_failed_conversion_leaves_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / "lm.arpa").write_text(BIGRAMS[:-8])
    with pytest.raises(ValueError, match="truncated"):
        fst.arpa_to_fst(tmp_path / "lm.arpa", tmp_path / "lm.fst")
    assert [path.name for path in tmp_path.iterdir()] == ["lm.arpa"]


def test_mutated_text_is_read_or_refused(tmp_path: Path) -> None:
    rng = random.Random(5)
    text = BIGRAMS.replace("a", "1").replace("\\d1t1\\", "\\data\\").replace("gr1m", "gram").encode()
    pieces = [
        b"\\",
        b"-",
        b"99",
        b"1e308",
        b"\n",
        b"\t",
        b" ",
        b"<s>",
        b"</s>",
        b"<unk>",
        b"\0",
        b"\xff",
        b"ngram 3=1\n",
        b"4294967295",
        b"1",
    ]
    outcomes = set()
    for _ in range(800):
        mutated = bytearray(text)
        for _ in range(rng.randint(1, 3)):
            at = rng.randrange(len(mutated))
            match rng.randrange(4):
                case 0:
                    mutated[at] = rng.randrange(256)
                case 1:
                    mutated[at:at] = rng.choice(pieces)
                case 2:
                    del mutated[at : at + rng.randint(1, 12)]
                case 3:
                    del mutated[at:]
            mutated = mutated or bytearray(b"\n")
        try:
            model = model_of(bytes(mutated), tmp_path)
        except ValueError as error:
            assert "\n" not in str(error)  # noqa: PT017
            outcomes.add("refused")
        else:
            table = model.to_table()
            assert all(np.isfinite(values).all() for values in (*table.log_probs, *table.backoffs))
            assert np.isfinite(model.score([1, 31, 5], bos=True, eos=True))
            outcomes.add("read")
    assert outcomes == {"refused", "read"}
