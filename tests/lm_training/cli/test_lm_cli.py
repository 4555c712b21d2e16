"""`latticebpd lm` as a user types it: words, subwords and ids in, a model out, mixed and measured."""

from __future__ import annotations

import gzip
import json
import math
from pathlib import Path

import numpy as np
import pytest

import fst
from fst.table import UNK
from latticebpd.lattices.texts import Texts
from lm_training.data.corpus import train_tokenizer
from tests.helpers.commands import Run

TEXT = "the cat sat on the mat\nthe dog sat on the cat\na dog ran\n" * 20


@pytest.fixture
def text(tmp_path: Path) -> Path:
    (tmp_path / "a.txt").write_text(TEXT)
    return tmp_path / "a.txt"


def test_words_are_counted_between_sentence_marks(run: Run, text: Path, tmp_path: Path) -> None:
    status, out, err = run("lm", "train", text, "--words", "--order", 3, "--min-count", 1, "-o", tmp_path / "lm.fst")
    assert (status, out) == (0, ""), err
    assert len([line for line in err.splitlines() if line.startswith("2-grams: ")]) == 1  # what was done, said once
    model = fst.NgramModel.load(tmp_path / "lm.fst")
    assert model.symbols == ["the", "cat", "sat", "on", "mat", "dog", "a", "ran"]
    assert math.exp(model.score([0], bos=True)) == pytest.approx(2 / 3, abs=0.05)
    assert not (tmp_path / "lm.fst.work").exists()
    record = json.loads(run("lm", "perplexity", tmp_path / "lm.fst", text, "--json")[1])
    assert (record["num_tokens"], record["num_oov"]) == (20 * 18, 0)
    assert record["log10_prob"] == pytest.approx(record["log_prob"] / math.log(10))
    (tmp_path / "other.txt").write_text("the bird sat\n")
    record = json.loads(run("lm", "perplexity", tmp_path / "lm.fst", tmp_path / "other.txt", "--json")[1])
    assert (record["num_tokens"], record["num_oov"]) == (3, 1)


def test_unknown_words_have_mass_only_where_that_is_asked_for(run: Run, text: Path, tmp_path: Path) -> None:
    for options in ((), ("--unk",)):
        assert run("lm", "train", text, "--words", *options, "-o", tmp_path / "lm.arpa")[0] == 0
        model = fst.NgramModel.load(tmp_path / "lm.arpa")
        assert (UNK in model.to_table().ngrams[0]) == bool(options)
        assert (model.log_prob(999) == -1000) != bool(options)


@pytest.mark.parametrize("smoothing", ["katz", "katz-opengrm"])
def test_every_smoothing_method_has_a_name(run: Run, text: Path, tmp_path: Path, smoothing: str) -> None:
    status, _, err = run("lm", "train", text, "--words", "--smoothing", smoothing, "-o", tmp_path / "lm.arpa.gz")
    assert status == 0, err
    assert fst.NgramModel.load(tmp_path / "lm.arpa.gz").order >= 3


def test_tokenizers_ids_are_stored_with_their_fingerprint(run: Run, text: Path, tmp_path: Path) -> None:
    train_tokenizer([TEXT], vocab_size=300).save(str(tmp_path / "tokenizer.json"))
    command = (
        "lm",
        "train",
        text,
        "--tokenizer",
        tmp_path / "tokenizer.json",
        "--engine",
        "sort",
        "--memory",
        "300M",
        "-o",
    )
    assert run(*command, tmp_path / "lm.fst")[0] == 0
    info = json.loads(run("lm", "info", tmp_path / "lm.fst", "--json")[1])
    assert info["fingerprint"].startswith("sha256:")
    assert info["num_ngrams"][0] == info["vocab_size"]  # ids that never occur have a probability too


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ("the", "cat"),
            "expected the ids of a tokenizer as words, got words such as 'the'; convert without a tokenizer",
        ),
        (("0", "007"), "expected the ids of a tokenizer as words, got words such as '0'"),  # "007" is no number of ours
        (("0", "{size}"), "expected token ids below {size}, the tokenizer's size, got {size}"),
        (("0", "299"), None),
    ],
)
def test_words_that_are_no_ids_of_the_tokenizer_are_not_stamped_with_it(
    run: Run, tmp_path: Path, words: tuple[str, str], message: str | None
) -> None:
    tokenizer = train_tokenizer([TEXT * 9, "".join(map(chr, range(200, 400)))], vocab_size=300)
    tokenizer.add_tokens([f"<{number}>" for number in range(300 - tokenizer.get_vocab_size())])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    size = tokenizer.get_vocab_size()
    assert size == 300
    lines = "".join(f"-0.5\t{word}\n".format(size=size) for word in words)
    (tmp_path / "lm.arpa").write_text(f"\\data\\\nngram 1=2\n\n\\1-grams:\n{lines}\n\\end\\\n")
    status, _, err = run(
        "lm", "arpa2fst", tmp_path / "lm.arpa", tmp_path / "lm.fst", "--tokenizer", tmp_path / "tokenizer.json"
    )
    if message is None:
        assert status == 0, err
        assert fst.NgramModel.load(tmp_path / "lm.fst").fingerprint is not None
        return
    assert status == 2
    assert len(err.splitlines()) == 1
    assert message.format(size=size) in err
    assert not (tmp_path / "lm.fst").exists()


def test_tokenizer_directories_are_read_by_autotokenizer(run: Run, text: Path, tmp_path: Path) -> None:
    from transformers import PreTrainedTokenizerFast

    tokenizer = train_tokenizer([TEXT], vocab_size=300)
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|endoftext|>").save_pretrained(tmp_path / "hub")
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    for name, source in (("a", tmp_path / "hub"), ("b", tmp_path / "tokenizer.json")):
        status, _, err = run("lm", "train", text, "--tokenizer", source, "-o", tmp_path / f"{name}.fst")
        assert status == 0, err
    assert (tmp_path / "a.fst").read_bytes() == (tmp_path / "b.fst").read_bytes()


def test_models_of_words_are_mixed_whatever_their_numbering(run: Run, text: Path, tmp_path: Path) -> None:
    (tmp_path / "b.txt").write_text("a bird ran\nthe bird sat\n" * 20)
    for name in ("a", "b"):
        assert (
            run("lm", "train", tmp_path / f"{name}.txt", "--words", "--order", 2, "-o", tmp_path / f"{name}.fst")[0]
            == 0
        )
    mix = ("lm", "interpolate", tmp_path / "a.fst", tmp_path / "b.fst", "-o", tmp_path / "mixed.fst")
    status, _, err = run(*mix, "--weight", 0.25)
    assert status == 0, err
    ours, theirs, mixed = (fst.NgramModel.load(tmp_path / f"{name}.fst") for name in ("a", "b", "mixed"))
    for word in ("the", "bird", "mat"):
        parts = [math.exp(m.log_prob(m.symbols.index(word))) if word in m.symbols else 0.0 for m in (ours, theirs)]
        assert math.exp(mixed.log_prob(mixed.symbols.index(word))) == pytest.approx(
            0.25 * parts[0] + 0.75 * parts[1], rel=1e-5
        )
    status, _, err = run(*mix, "--held-out", text)
    assert status == 0, err
    assert float(err.rsplit(": ", 1)[1]) > 0.9  # the text that the first was made from


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--smoothing", "best"), "expected a smoothing method among katz, katz-opengrm"),
        (("--engine", "quantum"), "expected an engine among auto, sort, spark"),
        (("--memory", "lots"), "expected --memory as a number of bytes such as 500M"),
        (("--memory", "1K"), "1 MiB of memory"),
        (("--tokenizer", "/nowhere/tokenizer.json"), "no such file"),
        (("--words", "--tokenizer", "x"), "expected either --words or --tokenizer, got both"),
        (("--unseen", "maybe"), "expected smoothed or floor for token ids that never occur"),
        (("--min-count", "1,0"), "expected --min-count as numbers >= 1"),
        ((), "give --tokenizer or --words"),
    ],
)
def test_mistaken_options_end_with_one_line(
    run: Run, text: Path, tmp_path: Path, options: tuple[str, ...], message: str
) -> None:
    words = () if not options or "--tokenizer" in options else ("--words",)
    before = sorted(path.name for path in tmp_path.iterdir())
    status, out, err = run("lm", "train", text, *words, *options, "-o", tmp_path / "lm.fst")
    assert (status, out) == (2, "")
    (line,) = err.strip().splitlines()
    assert line.startswith("latticebpd: error: ")
    assert message in line
    assert sorted(path.name for path in tmp_path.iterdir()) == before


def test_unseen_ids_score_what_the_help_says(run: Run, tmp_path: Path) -> None:
    help_text = " ".join(run("lm", "train", "--help")[1].replace("│", " ").split())
    assert "smoothed, each has a share of the mass, or floor, natural log -1000" in help_text
    np.save(tmp_path / "ids.npy", np.array([1, 2, 1, 4, 0] * 20))
    for options, size in ((("--vocab-size", 9), 9), ((), 5), (("--unseen", "floor", "--vocab-size", 9), 4)):
        status, _, err = run("lm", "train", tmp_path / "ids.npy", *options, "-o", tmp_path / "lm.fst")
        assert status == 0, err
        model = fst.NgramModel.load(tmp_path / "lm.fst")
        assert model.num_ngrams[0] == size
        assert (model.log_prob(3) == -1000) == ("floor" in options)
        assert (model.log_prob(8) == -1000) == (9 not in options or "floor" in options)


def test_end_of_text_beyond_the_tokenizer_is_refused(run: Run, text: Path, tmp_path: Path) -> None:
    tokenizer = train_tokenizer([TEXT], vocab_size=300)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    size = tokenizer.get_vocab_size()
    options = ("--tokenizer", tmp_path / "tokenizer.json", "--end-of-text", 99_999_999, "-o", tmp_path / "lm.fst")
    status, _, err = run("lm", "train", text, *options)
    assert status == 2
    assert f"expected --end-of-text below {size}, the tokenizer's size, got 99999999" in err


def test_job_refused_for_its_options_leaves_nothing_behind(run: Run, tmp_path: Path) -> None:
    np.save(tmp_path / "ids.npy", np.array([1, 2, 2**30, 0] * 20))
    status, _, err = run("lm", "train", tmp_path / "ids.npy", "-o", tmp_path / "lm.fst")
    assert status == 2
    assert "--unseen floor" in err
    assert [path.name for path in tmp_path.iterdir()] == ["ids.npy"]
    assert run("lm", "train", tmp_path / "ids.npy", "--unseen", "floor", "-o", tmp_path / "lm.fst")[0] == 0


def test_words_with_nul_are_refused_for_arpa_in_a_true_line(run: Run, tmp_path: Path) -> None:
    (tmp_path / "words.txt").write_text("a b\0c d\na b\0c a\n" * 3)
    command = ("lm", "train", tmp_path / "words.txt", "--words", "--order", 2, "-o")
    status, out, err = run(*command, tmp_path / "lm.arpa")
    assert (status, out) == (2, "")
    wanted = "token 1: expected a word without white space or NUL that is no marker, got another or none"
    assert err.splitlines()[-1] == f"latticebpd: error: {wanted}; ARPA cannot hold it, an .fst file can"
    assert run(*command, tmp_path / "lm.fst")[0] == 0


def test_invalid_utf8_names_the_byte(run: Run, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"one two\n\xfe three\n")
    status, _, err = run("lm", "train", tmp_path / "a.txt", "--words", "-o", tmp_path / "lm.fst")
    assert status == 2
    assert "a.txt: cannot be read as UTF-8: 0xfe at byte 8" in err


def test_half_a_surrogate_pair_is_refused_before_anything_is_counted(run: Run, tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "one"}\n{"text": "a \\ud800 b \\ud83d\\ude00"}\n')
    status, _, err = run("lm", "train", tmp_path / "a.jsonl", "--words", "-o", tmp_path / "lm.fst")
    assert status == 2
    assert "a.jsonl:2: expected text, got half of a surrogate pair" in err
    assert [path.name for path in tmp_path.iterdir()] == ["a.jsonl"]
    (tmp_path / "a.jsonl").write_text('{"text": "one"}\n{"text": "a b \\ud83d\\ude00"}\n')
    assert run("lm", "train", tmp_path / "a.jsonl", "--words", "-o", tmp_path / "lm.fst")[0] == 0
    assert "\U0001f600" in (fst.NgramModel.load(tmp_path / "lm.fst").symbols or ())


NPY = b"\x93NUMPY\x01\x00v\x00"
DAMAGED = {
    "deep.jsonl": b'{"text": ' + b"[" * 100_000,
    "deep-object.jsonl": b'{"a":' * 100_000,
    "number.jsonl": b'{"text": 5}',
    "empty.txt": b"",
    "marks.txt": b"a <s> b\n",
    "cut.txt.gz": gzip.compress(b"a b c\n" * 999)[:30],
    "bad.txt.xz": b"\xfd7zXZ\x00garbage",
    "bad.txt.zst": b"\x28\xb5\x2f\xfdgarbage",
    "bad.parquet": b"PAR1xxxxPAR1",
    "cut.npy": NPY + b"{'descr'",
    "token.npy": NPY + b"{'descr': ((".ljust(118) + b"\n" * 99,
    "objects.npy": NPY + b"{'descr': '|O8', 'fortran_order': False, 'shape': (9,), }".ljust(118) + bytes(72),
    "long.npy": NPY + b"{'descr': '<i8', 'fortran_order': False, 'shape': (1000000000000,), }".ljust(118) + bytes(72),
    "negative.npy": NPY + b"{'descr': '<i8', 'fortran_order': False, 'shape': (-3,), }".ljust(118) + bytes(72),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_damaged_inputs_are_named_in_one_line_and_leave_nothing(run: Run, tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(DAMAGED[name])
    words = () if name.endswith(".npy") else ("--words",)
    status, out, err = run("lm", "train", tmp_path / name, *words, "-o", tmp_path / "lm.fst")
    assert (status, out) == (2, "")
    (line,) = err.strip().splitlines()
    assert name in line or name == "marks.txt"
    assert [path.name for path in tmp_path.iterdir()] == [name]


@pytest.mark.parametrize(
    "options",
    [("--memory", "²"), ("--memory", "9" * 30 + "T"), ("--min-count", "9" * 5000), ("--min-count", "1" + "0" * 20)],
)
def test_numbers_within_texts_are_of_ordinary_size(run: Run, tmp_path: Path, options: tuple[str, str]) -> None:
    np.save(tmp_path / "ids.npy", np.array([1, 2, 0] * 9))
    status, _, err = run("lm", "train", tmp_path / "ids.npy", *options, "-o", tmp_path / "lm.fst")
    assert status == 2
    assert f"expected {options[0]} as" in err
    assert len(err) < 200


def written_texts(folder: Path, start: int | None = None) -> Texts:
    """Prompts and what a model wrote, as `latticebpd distill` stores them."""
    texts = Texts.of_rows([[7, 8, 9, 5, 6, 0], [8, 9, 5, 6], [9, 5, 6, 5, 0]] * 6, [2, 1, 1] * 6, np.uint16)
    folder.mkdir()
    settings = {
        "options": {"shard_prompts": 99},
        "prompts": len(texts),
        **({} if start is None else {"start_id": start}),
    }
    (folder / "distill.json").write_text(json.dumps(settings))
    texts.save(folder / "shard-00000.npz")
    return texts


@pytest.mark.parametrize("start", [None, 4])
def test_ngram_models_learn_what_a_model_wrote_from_its_folder(run: Run, tmp_path: Path, start: int | None) -> None:
    """The same as from a corpus of its texts; those of an encoder-decoder follow its start token, not their sources."""
    texts = written_texts(tmp_path / "written", start)
    corpus = texts.corpus(0, 2) if start is None else texts.answers(start).corpus(0, 2)
    np.save(tmp_path / "corpus.npy", corpus)
    options = ("--order", 3, "--vocab-size", 12, "--end-of-text", 0, "-o")
    for name, source in (("a", "written"), ("b", "corpus.npy")):
        status, _, err = run("lm", "train", tmp_path / source, *options, tmp_path / f"{name}.fst")
        assert status == 0, err
    assert (tmp_path / "a.fst").read_bytes() == (tmp_path / "b.fst").read_bytes()
    status, _, err = run("lm", "train", tmp_path / "written", "-o", tmp_path / "c.fst")
    assert status == 2
    assert "written: expected the token that ends these texts, got none; give --tokenizer, or --end-of-text" in err
    assert not (tmp_path / "c.fst").exists()


def test_what_a_model_wrote_is_measured_as_it_is_learnt(run: Run, tmp_path: Path) -> None:
    train_tokenizer([TEXT], vocab_size=300).save(str(tmp_path / "tokenizer.json"))
    np.save(tmp_path / "corpus.npy", written_texts(tmp_path / "written").corpus(0, 3))
    tokenizer = ("--tokenizer", tmp_path / "tokenizer.json")
    assert run("lm", "train", tmp_path / "written", *tokenizer, "-o", tmp_path / "lm.fst")[0] == 0
    folder, corpus = (
        run("lm", "perplexity", tmp_path / "lm.fst", tmp_path / name, *tokenizer, "--json")
        for name in ("written", "corpus.npy")
    )
    assert folder[0] == 0
    assert folder == corpus
