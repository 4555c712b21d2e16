"""`latticebpd lm kenlm`: the real lmplz where it is on the PATH, and a stand-in everywhere."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import numpy as np
import pytest

import fst
from fst.table import UNK
from lm_training.ngram.counts import SEPARATOR, TokenStream
from lm_training.ngram.kenlm import estimate_arpa, program, write_sentences
from tests.helpers.backoff_reference import zipf_text

STAND_IN = """#!/usr/bin/env python3
import pathlib, sys
sys.stdin.read()
arguments = dict(zip(sys.argv[1::1], sys.argv[2::1]))
pathlib.Path({log!r}).write_text(" ".join(sys.argv[1:]))
{action}
"""
ARPA = "\\data\\\nngram 1=3\n\n\\1-grams:\n-0.5\t4\n-99\t<s>\n-0.3\t</s>\n\n\\end\\\n"


def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, action: str) -> Path:
    """An lmplz that runs ``action``; returns the file to which it writes its arguments."""
    log = tmp_path / "arguments"
    path = tmp_path / "bin" / "lmplz"
    path.parent.mkdir()
    path.write_text(STAND_IN.format(log=str(log), action=action))
    path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{path.parent}{os.pathsep}{os.environ['PATH']}")
    return log


def test_program_that_is_missing_is_named_with_the_way_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(ValueError, match=r"lmplz on the PATH, found none\. .*pip download --no-deps --no-binary kenlm"):
        program("lmplz")


def test_texts_are_written_a_line_each(tmp_path: Path) -> None:
    with open(tmp_path / "text", "w+b") as file:
        write_sentences(TokenStream.of(np.array([5, 6, 0, 7, 0], np.uint16), 0), None, file)
        write_sentences(
            TokenStream.of(np.array([0, UNK, SEPARATOR, 1, SEPARATOR], np.int32), SEPARATOR), ["a", "b"], file
        )
        file.seek(0)
        assert file.read() == b"5 6 0\n7 0\na <unk> \nb \n"


def test_options_reach_lmplz_and_its_arpa_comes_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = stand_in(tmp_path, monkeypatch, f"pathlib.Path(arguments['--arpa']).write_text({ARPA!r})")
    stream = TokenStream.of(np.array([4, 0]), 0)
    estimate_arpa(stream, None, tmp_path / "lm.arpa", tmp_path, order=3, prune=(0, 1), memory=1 << 30)
    assert (tmp_path / "lm.arpa").read_text() == ARPA
    assert log.read_text() == (
        f"-o 3 -S {1 << 30}b -T {tmp_path}/lmplz --arpa {tmp_path}/lm.arpa --discount_fallback --prune 0 1 1"
    )


def test_failure_of_lmplz_ends_with_its_last_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(tmp_path, monkeypatch, "sys.exit('first\\nERROR: the discounts are out of range\\n')")
    with pytest.raises(ValueError, match="lmplz failed with status 1: ERROR: the discounts are out of range"):
        estimate_arpa(TokenStream.of(np.array([4, 0]), 0), None, tmp_path / "lm.arpa", tmp_path, 4, (0,))


@pytest.mark.skipif(
    shutil.which("lmplz") is None, reason="lmplz is not on the PATH; `latticebpd lm kenlm` says how to get it"
)
def test_automaton_of_lmplz_scores_held_out_text_as_kenlm_does(tmp_path: Path) -> None:
    """The oracle is kenlm.Model with the same ARPA file."""
    kenlm = pytest.importorskip("kenlm", reason="the extra is not installed: pip install 'latticebpd[kenlm]'")
    text = np.append(zipf_text(20_000), 0)
    text[::25] = 0
    text[-1] = 0
    train, held_out = text[:18_000], text[18_001:18_500]
    arpa = tmp_path / "lm.arpa"
    estimate_arpa(TokenStream.of(train, 0), None, arpa, tmp_path, 4, (0, 0, 1), 1 << 28)
    theirs = kenlm.Model(str(arpa))
    fst.arpa_to_fst(arpa, tmp_path / "lm.fst")
    ours = fst.NgramModel.load(tmp_path / "lm.fst")
    assert ours.order == 4
    sentences = [part.tolist() for part in np.split(held_out, np.flatnonzero(held_out == 0) + 1) if len(part)]
    assert len(sentences) > 10
    for sentence in sentences:
        for bos, eos in ((True, True), (False, False)):
            expected = theirs.score(" ".join(map(str, sentence)), bos=bos, eos=eos) * np.log(10)
            assert ours.score(sentence, bos=bos, eos=eos) == pytest.approx(expected, abs=1e-4)
