"""Files of OpenFst: what pywrapfst reads of ours, what we read of pywrapfst's, and what is refused."""

from __future__ import annotations

import random
import struct
from pathlib import Path

import numpy as np
import pytest
import pywrapfst
from hypothesis import HealthCheck, given, settings

import fst
from fst.const_file import ALIGNMENT, ARC, STATE, read_fst
from tests.helpers.ngram_models import Ngrams, arpa, ngrams

fixture_is_shared = settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=60
)
MODEL: Ngrams = {
    ("<s>",): (-99.0, -0.5),
    ("</s>",): (-0.75, 0.0),
    ("<unk>",): (-2.0, 0.0),
    ("the",): (-0.5, -0.25),
    ("cat",): (-1.0, 0.125),
    ("<s>", "the"): (-0.125, -0.5),
    ("the", "cat"): (-0.25, 0.0),
    ("cat", "</s>"): (-0.5, 0.0),
    ("<s>", "the", "cat"): (-0.0625, 0.0),
}


def model_of(model: Ngrams, folder: Path) -> fst.NgramModel:
    (folder / "lm.arpa").write_text(arpa(model))
    return fst.NgramModel.from_arpa(folder / "lm.arpa")


def saved(folder: Path, model: Ngrams | None = None) -> Path:
    model_of(model or MODEL, folder).save(folder / "lm.fst")
    return folder / "lm.fst"


def float32(weight: pywrapfst.Weight) -> float:
    """The exact weight, which pywrapfst gives as text."""
    return float(np.float32(float(weight)))


def arcs_of(automaton: pywrapfst.Fst) -> list[list[tuple[int, int, float, int]]]:
    return [
        [(arc.ilabel, arc.olabel, float32(arc.weight), arc.nextstate) for arc in automaton.arcs(s)]
        for s in automaton.states()
    ]


def assert_scores_alike(a: fst.NgramModel, b: fst.NgramModel) -> None:
    for tokens in ([0], [1], [0, 1], [0, 1, 0, 1, 7], [7, 1, 1], []):
        for bos in (False, True):
            assert a.score(tokens, bos=bos, eos=True) == b.score(tokens, bos=bos, eos=True)


@given(model=ngrams())
@fixture_is_shared
def test_openfst_reads_the_same_states_and_arcs(model: Ngrams, tmp_path: Path) -> None:
    path = saved(tmp_path, model)
    lm = fst.NgramModel.load(path)
    read = pywrapfst.Fst.read(str(path))
    assert read.fst_type() == "const"
    assert pywrapfst.convert(read, "vector").verify()
    assert read.start() == lm.start_state
    rows = [
        lm.arcs[int(begin) : int(begin) + int(count)].tolist()
        for begin, count in zip(lm.states["pos"], lm.states["narcs"], strict=True)
    ]
    assert arcs_of(read) == rows
    assert [float32(read.final(state)) for state in read.states()] == lm.states["final"].tolist()


@given(model=ngrams())
@fixture_is_shared
def test_header_promises_only_what_openfst_finds(model: Ngrams, tmp_path: Path) -> None:
    read = pywrapfst.Fst.read(str(saved(tmp_path, model)))
    everything = pywrapfst.FstProperties.FST_PROPERTIES
    properties = pywrapfst.convert(read, "vector").properties(everything, True)
    promised = read.properties(everything, False)
    assert promised & ~properties == pywrapfst.FstProperties(0)


def test_words_are_embedded_where_openfst_finds_them(tmp_path: Path) -> None:
    symbols = pywrapfst.Fst.read(str(saved(tmp_path))).input_symbols()
    assert [symbols.find(label) for label in range(4)] == ["<epsilon>", "the", "cat", "<unk>"]
    assert symbols.num_symbols() == 4


def test_records_are_aligned_and_mapped(tmp_path: Path) -> None:
    file = read_fst(saved(tmp_path))
    for records in (file.states, file.arcs):
        assert records.ctypes.data % ALIGNMENT == 0
        assert not records.flags.writeable
        assert not records.flags.owndata


@pytest.mark.parametrize("fst_type", ["const", "vector"])
def test_what_openfst_writes_loads(fst_type: str, tmp_path: Path) -> None:
    path = saved(tmp_path)
    ours = fst.NgramModel.load(path)
    pywrapfst.convert(pywrapfst.Fst.read(str(path)), fst_type).write(str(tmp_path / "theirs.fst"))
    theirs = fst.NgramModel.load(tmp_path / "theirs.fst")
    assert theirs.states.tobytes() == ours.states.tobytes()
    assert theirs.arcs.tobytes() == ours.arcs.tobytes()
    assert theirs.symbols == ours.symbols
    assert_scores_alike(ours, theirs)


def opengrm_like(path: Path) -> pywrapfst.VectorFst:
    """A model as OpenGrm lays it out: state 0 is the unigram state's neighbour, arcs come unsorted."""
    automaton = pywrapfst.VectorFst()
    start, unigram, the = (automaton.add_state() for _ in range(3))
    automaton.set_start(start)
    for source, label, cost, target in [
        (unigram, 2, 2.0, unigram),
        (unigram, 1, 1.0, the),
        (start, 1, 0.5, the),
        (start, 0, 0.25, unigram),
        (the, 2, 0.125, unigram),
        (the, 0, 0.75, unigram),
    ]:
        automaton.add_arc(source, pywrapfst.Arc(label, label, cost, target))
    automaton.set_final(unigram, 1.5)
    automaton.write(str(path))
    return automaton


def test_unsorted_model_in_opengrm_form_loads(tmp_path: Path) -> None:
    automaton = opengrm_like(tmp_path / "lm.fst")
    for _ in range(2):
        lm = fst.NgramModel.load(tmp_path / "lm.fst")
        assert (lm.start_state, lm.unigram_state, lm.order, lm.num_ngrams) == (0, 1, 2, [4, 2])
        assert lm.score([0, 1, 0], bos=True, eos=True) == -(0.5 + 0.125 + 1.0 + 0.75 + 1.5)
        pywrapfst.convert(automaton, "const").write(str(tmp_path / "lm.fst"))


def test_failure_arcs_of_kaldi_load(tmp_path: Path) -> None:
    automaton = opengrm_like(tmp_path / "plain.fst")
    kaldi = pywrapfst.VectorFst()
    for _ in range(3):
        kaldi.add_state()
    kaldi.set_start(automaton.start())
    kaldi.set_final(1, 1.5)
    for state in automaton.states():
        for arc in automaton.arcs(state):
            kaldi.add_arc(state, pywrapfst.Arc(arc.ilabel or 9, arc.olabel, arc.weight, arc.nextstate))
    kaldi.write(str(tmp_path / "kaldi.fst"))
    plain, kaldis = (fst.NgramModel.load(tmp_path / name) for name in ("plain.fst", "kaldi.fst"))
    assert kaldis.arcs.tobytes() == plain.arcs.tobytes()
    assert_scores_alike(plain, kaldis)


def test_transducers_are_refused(tmp_path: Path) -> None:
    automaton = opengrm_like(tmp_path / "lm.fst")
    automaton.add_arc(1, pywrapfst.Arc(3, 4, 1.0, 1))
    automaton.write(str(tmp_path / "lm.fst"))
    with pytest.raises(ValueError, match="expected an acceptor, got a transducer"):
        fst.NgramModel.load(tmp_path / "lm.fst")


def test_other_kinds_of_fst_are_refused_with_the_way_out(tmp_path: Path) -> None:
    automaton = opengrm_like(tmp_path / "lm.fst")
    pywrapfst.convert(automaton, "compact_acceptor").write(str(tmp_path / "lm.fst"))
    with pytest.raises(ValueError, match="fstconvert --fst_type=const"):
        fst.NgramModel.load(tmp_path / "lm.fst")
    pywrapfst.arcmap(automaton, map_type="to_log").write(str(tmp_path / "lm.fst"))
    with pytest.raises(ValueError, match="fstmap --map_type=to_standard"):
        fst.NgramModel.load(tmp_path / "lm.fst")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"mmap lm http://kheafield.com/code format version 5\n\0", "KenLM binary"),
        (b"\x7fELF\0\0\0", "some other binary file"),
        (b"", "no ARPA model"),
        (b"once upon a time\n", "no ARPA model"),
        (struct.pack("<i", 2125659606), "truncated"),
    ],
)
def test_other_files_are_refused_by_name(content: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / "lm.bin").write_bytes(content)
    with pytest.raises(ValueError, match=message) as refused:
        fst.NgramModel.load(tmp_path / "lm.bin")
    assert "lm.bin" in str(refused.value)


def test_missing_file_is_an_oserror(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        fst.NgramModel.load(tmp_path / "none.fst")


def test_cyclic_backoff_is_refused(tmp_path: Path) -> None:
    path = saved(tmp_path)
    lm = fst.NgramModel.load(path)
    data = bytearray(path.read_bytes())
    arcs_begin = len(data) - lm.arcs.nbytes
    failure = int(lm.states["pos"][lm.start_state])
    struct.pack_into("<i", data, arcs_begin + failure * ARC.itemsize + ARC.fields["nextstate"][1], lm.start_state)
    path.write_bytes(data)
    with pytest.raises(ValueError, match="cycle"):
        fst.NgramModel.load(path)


@pytest.mark.parametrize("fst_type", ["const", "vector"])
def test_mutated_files_load_or_are_refused(fst_type: str, tmp_path: Path) -> None:
    rng = random.Random(7)
    path = saved(tmp_path)
    pywrapfst.convert(pywrapfst.Fst.read(str(path)), fst_type).write(str(path))
    data = path.read_bytes()
    outcomes = set()
    for _ in range(400):
        mutated = bytearray(data)
        match rng.randrange(4):
            case 0:
                mutated[rng.randrange(len(data))] = rng.choice([0, 1, 127, 128, 255, rng.randrange(256)])
            case 1:
                at = rng.randrange(0, len(data) - 4)
                mutated[at : at + 4] = struct.pack(
                    "<I", rng.choice([0, 1, 2, 2**31 - 1, 2**31, 2**32 - 1, 0x7FC00000, 0xFF800000])
                )
            case 2:
                at = rng.randrange(0, len(data) - 8)
                mutated[at : at + 8] = struct.pack("<q", rng.choice([-1, 2**31, 2**32, 2**40, 2**63 - 1]))
            case 3:
                del mutated[rng.randrange(len(data)) :]
        path.unlink()  # the old one is still mapped
        path.write_bytes(mutated)
        try:
            lm = fst.NgramModel.load(path)
            lm.score([0, 1, 0, 1, 9], bos=True, eos=True)
            fst.nbest_paths(np.array([[0, 1], [0, 1], [1, 9]]), np.zeros((3, 2)), lm, p=4)
            table = lm.to_table()
            assert lm.num_ngrams[0] > 0
            assert all(np.isfinite(values).all() for values in (*table.log_probs, *table.backoffs))
            outcomes.add("read")
        except ValueError as error:
            assert "\n" not in str(error)  # noqa: PT017
            outcomes.add("refused")
    assert outcomes == {"refused", "read"}


def test_record_types_have_the_sizes_of_openfst() -> None:
    assert (STATE.itemsize, ARC.itemsize) == (20, 16)
