"""A language model of another vocabulary is refused by every command that reads lattices, as `generate` refuses it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import fst
from latticebpd import LatticeSet
from tests.helpers.commands import Run

WORDS = "\\data\\\nngram 1=3\n\n\\1-grams:\n-1\t</s>\n-0.5\tthe\n-0.5\tcat\n\n\\end\\\n"


@pytest.fixture
def lattices(tmp_path: Path) -> Path:
    tokens = np.tile(np.arange(3, dtype=np.int32), (8, 2, 1))
    log_probs = np.tile(np.log(np.array([0.5, 0.3, 0.2], np.float32)), (8, 2, 1))
    continuation, context = np.zeros((8, 2), np.int32), np.full((8, 2), -1, np.int32)
    LatticeSet(tokens, log_probs, continuation, context, "sha256:0", vocab_size=10).save(tmp_path / "l.npz")
    return tmp_path / "l.npz"


def model_file(folder: Path, kind: str) -> Path:
    if kind == "words in ARPA":
        (folder / "lm.arpa").write_text(WORDS)
        return folder / "lm.arpa"
    size, fingerprint = {
        "words": (2, None),
        "more ids": (11, None),
        "another hash": (10, "sha256:1"),
        "fits": (10, "sha256:0"),
    }[kind]
    rows = np.arange(size, dtype=np.int32)[:, None]
    symbols = ["the", "cat"] if kind == "words" else None
    table = fst.NgramTable([rows], [np.full(size, -np.log(size))], [np.zeros(size)], symbols, fingerprint)
    fst.NgramModel.from_table(table).save(folder / "lm.fst")
    return folder / "lm.fst"


@pytest.mark.parametrize("command", ["rescore", "compare", "tune", "report"])
@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("words in ARPA", "over 2 words of its own"),
        ("words", "over 2 words of its own"),
        ("more ids", "expected an n-gram model over at most 10 tokens"),
        ("another hash", "got one over sha256:1"),
        ("fits", None),
    ],
)
def test_commands_refuse_models_of_another_vocabulary(
    command: str, kind: str, message: str | None, lattices: Path, tmp_path: Path, run: Run
) -> None:
    options = ("-o", tmp_path / "report") if command == "report" else ()
    status, _, err = run(command, lattices, "--lm", model_file(tmp_path, kind), *options)
    assert status == (2 if message else 0), err
    assert message is None or message in " ".join(err.split())


def test_words_with_the_ids_of_a_vocabulary_are_no_words_of_their_own(tmp_path: Path) -> None:
    (tmp_path / "lm.arpa").write_text(WORDS)
    assert fst.NgramModel.from_arpa(tmp_path / "lm.arpa").own_ids
    mapped = fst.NgramModel.from_arpa(tmp_path / "lm.arpa", vocab={"cat": 7, "the": 9, "dog": 8})
    assert not mapped.own_ids
    mapped.fingerprint = "sha256:0"  # of that vocabulary; kept with the file
    mapped.save(tmp_path / "lm.fst")
    assert not fst.NgramModel.load(tmp_path / "lm.fst").own_ids


def test_number_of_tokens_is_kept_with_lattices_and_checked(lattices: Path, tmp_path: Path) -> None:
    loaded = LatticeSet.load(lattices)
    assert loaded.vocab_size == 10
    with pytest.raises(ValueError, match="tokens: expected ids below vocab_size 2, got 2"):
        LatticeSet(loaded.tokens, loaded.log_probs, loaded.continuation, loaded.context, vocab_size=2)
