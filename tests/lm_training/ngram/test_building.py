"""From files to model files: every kind of input, and what happens to a job that is killed."""

from __future__ import annotations

import gzip
import json
import lzma
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import fst
from fst.files import locked
from fst.table import EOS, UNK
from lm_training.data.corpus import train_tokenizer
from lm_training.ngram import building
from lm_training.ngram.building import CountingOptions, Recipe, build
from lm_training.ngram.inputs import Inputs, TokenizerEncoder, WordEncoder, load_corpus, write_corpus
from lm_training.ngram.smoothing import SMOOTHINGS
from lm_training.ngram.work_folder import WorkFolder, work_folder
from tests.helpers.backoff_reference import assert_proper, zipf_text
from tests.helpers.sentence_models import estimate


def read(paths: list[Path], encoder: object, tmp_path: Path, **options: object) -> tuple[list[int], list[str] | None]:
    """What a corpus made of these files holds."""
    directory = tmp_path / "corpus"
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir()
    write_corpus(Inputs(paths, **options), encoder, 0, directory)
    stream, symbols = load_corpus(directory)
    return stream.ids.tolist(), symbols


def test_words_come_out_of_every_kind_of_file(tmp_path: Path) -> None:
    import duckdb
    import zstandard

    text = "a b\n\nb  <unk>\tc\n<s> a </s>\n"
    expected = [0, 1, EOS, 1, UNK, 2, EOS, 0, EOS]
    record = json.dumps({"body": text}) + "\n"
    (tmp_path / "a.txt").write_text(text)
    (tmp_path / "crlf.txt").write_bytes(text.replace("\n", "\r\n").encode())
    (tmp_path / "a.jsonl").write_text(record)
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress(text.encode()))
    (tmp_path / "a.txt.xz").write_bytes(lzma.compress(text.encode()))
    (tmp_path / "a.jsonl.zst").write_bytes(zstandard.compress(record.encode()))
    duckdb.execute(f"COPY (SELECT ? AS body) TO '{tmp_path / 'a.parquet'}'", [text])
    for name in ("a.txt", "crlf.txt", "a.jsonl", "a.txt.gz", "a.txt.xz", "a.jsonl.zst", "a.parquet"):
        assert read([tmp_path / name], WordEncoder(), tmp_path, field="body") == (expected, ["a", "b", "c"]), name


def test_token_ids_come_out_of_arrays_of_every_type(tmp_path: Path) -> None:
    ids = np.array([5, 6, 0, 40_000, 0], dtype=np.uint16)
    np.save(tmp_path / "a.npy", ids)
    assert read([tmp_path / "a.npy"], None, tmp_path)[0] == ids.tolist()
    np.save(tmp_path / "b.npy", ids.astype(np.uint32))
    assert read([tmp_path / "a.npy", tmp_path / "b.npy"], None, tmp_path)[0] == ids.tolist() * 2


def test_documents_of_a_tokenizer_end_with_its_end_of_text(tmp_path: Path) -> None:
    tokenizer = train_tokenizer(["the cat sat"] * 3, vocab_size=280)
    (tmp_path / "a.txt").write_bytes(b"the cat\r\nsat")
    ids, symbols = read([tmp_path / "a.txt"], TokenizerEncoder(tokenizer, 0), tmp_path)
    assert ids == [*tokenizer.encode("the cat\nsat").ids, 0]
    assert symbols is None


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.txt", b"abc\r\ndef\xff", r"a.txt: cannot be read as UTF-8: 0xff at byte 8"),
        ("a.jsonl", b'{"text": "a"}\n{"text": "\xc3("}\n', r"a.jsonl:2: cannot be read as UTF-8: 0xc3 at byte 24"),
        ("a.txt", b"a <s> b", "only around a line"),
        ("a.jsonl", b'{"body": "a"}\n', r"a.jsonl:1: expected a string under 'text'"),
        ("a.jsonl", b"[" * 100_000, r"a.jsonl:1: expected a JSON object"),
        ("a.parquet", b"PAR1 or not", r"a.parquet: expected a Parquet file"),
        ("a.txt.zst", b"not zstd", r"a.txt.zst: cannot be read"),
    ],
)  # fmt: skip
def test_unreadable_input_is_named_with_the_place(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=message):
        read([tmp_path / name], WordEncoder(), tmp_path)


def test_ids_and_text_do_not_mix(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="got both"):
        read([tmp_path / "a.npy", tmp_path / "a.txt"], None, tmp_path)


def make(
    paths: list[Path],
    output: Path,
    recipe: Recipe | None = None,
    counting: CountingOptions | None = None,
    words: bool = True,
) -> fst.NgramModel:
    encoder = WordEncoder() if words else None
    build(
        Inputs(paths), encoder, recipe or Recipe(), counting or CountingOptions(), output, output.with_suffix(".work")
    )
    assert not output.with_suffix(".work").exists()
    return fst.NgramModel.load(output)


CORPORA = {
    "one word": b"a",
    "one word repeated": b"a " * 500,
    "one sentence repeated": b"a b c\n" * 200,
    "CRLF": b"a b c\r\nc b a\r\n" * 9,
    "empty lines only but one": b"\n\n\nx\n\n",
}


@pytest.mark.parametrize("corpus", CORPORA)
@pytest.mark.parametrize("smoothing", [*SMOOTHINGS])
def test_odd_corpora_give_proper_models(tmp_path: Path, corpus: str, smoothing: str) -> None:
    (tmp_path / "a.txt").write_bytes(CORPORA[corpus])
    for unk in (False, True):
        table = make(
            [tmp_path / "a.txt"], tmp_path / "lm.fst", Recipe(smoothing=smoothing, unknown_word=unk)
        ).to_table()
        assert (UNK in table.ngrams[0]) == unk
        assert_proper(table)
        assert "\r" not in "".join(table.symbols or [])


@pytest.mark.parametrize("content", [b"", b"\n \n"])
def test_empty_corpus_is_refused_and_leaves_nothing(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.txt").write_bytes(content)
    with pytest.raises(ValueError, match=r"expected some text, got none in .*a.txt"):
        make([tmp_path / "a.txt"], tmp_path / "lm.fst")
    assert not (tmp_path / "lm.fst").exists()


def test_model_of_bytes_sums_to_one_before_and_after_pruning(tmp_path: Path) -> None:
    data = (Path(__file__).parent / "test_building.py").read_bytes()[:6000]
    np.save(tmp_path / "bytes.npy", np.frombuffer(data, np.uint8))
    for limits in ({}, {"max_ngrams": 600}, {"prune_theta": 1e-5}):
        table = make(
            [tmp_path / "bytes.npy"], tmp_path / "lm.fst", Recipe(order=3, vocab_size=256, **limits), words=False
        ).to_table()
        assert_proper(table)


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    np.save(tmp_path / "ids.npy", zipf_text(40_000).astype(np.uint16))
    return tmp_path / "ids.npy"


def test_memory_and_threads_do_not_change_the_model(corpus: Path, tmp_path: Path) -> None:
    models = []
    for counting in (
        CountingOptions("sort"),
        CountingOptions("sort", memory=1 << 20, threads=2),
        CountingOptions("auto", memory=1 << 20),
    ):
        make([corpus], tmp_path / "lm.fst", Recipe(min_counts=(1, 1, 2), max_ngrams=3000), counting, words=False)
        models.append((tmp_path / "lm.fst").read_bytes())
    assert len(models[0]) > 10_000
    assert all(model == models[0] for model in models)


def test_counting_options_without_threads_or_memory_are_refused() -> None:
    for options in ({"threads": 0}, {"memory": (1 << 20) - 1}):
        with pytest.raises(ValueError, match="at least one thread and 1 MiB"):
            CountingOptions(**options)


def test_pipeline_builds_what_estimate_does(corpus: Path, tmp_path: Path) -> None:
    model = make([corpus], tmp_path / "lm.fst", Recipe(order=3, max_ngrams=2000), words=False)
    expected = fst.NgramModel.from_table(estimate(np.load(corpus), 3, max_ngrams=2000, vocab_size=61))
    np.testing.assert_array_equal(model.arcs, expected.arcs)


@pytest.mark.parametrize("stage", ["_count", "_estimate", "prune"])
def test_interrupted_job_continues_after_its_last_stage(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stage: str
) -> None:
    recipe, output = Recipe(order=3, max_ngrams=2000), tmp_path / "lm.fst"
    make([corpus], output, recipe, words=False)
    expected = output.read_bytes()
    output.unlink()

    def fail(*arguments: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(building if stage == "prune" else building._Job, stage, fail)
        with pytest.raises(OSError, match="No space left"):
            make([corpus], output, recipe, words=False)
    assert not output.exists()
    finished = sorted(path.name for path in output.with_suffix(".work").iterdir() if path.is_dir())
    stages = {"_count": ["corpus"], "_estimate": ["corpus", "counts"], "prune": ["corpus", "counts", "estimated"]}[
        stage
    ]
    assert finished == stages
    again = []
    with monkeypatch.context() as patch:
        patch.setattr(building, "write_corpus", lambda *arguments: again.append("corpus"))
        make([corpus], output, recipe, words=False)
    assert again == []
    assert output.read_bytes() == expected


def test_killed_process_continues_and_makes_the_same_model(tmp_path: Path) -> None:
    """The same command, killed at several moments, ends with the model of one that was not."""
    np.save(tmp_path / "ids.npy", zipf_text(400_000).astype(np.uint16))
    reference = make([tmp_path / "ids.npy"], tmp_path / "reference.fst", Recipe(max_ngrams=20_000), words=False)
    assert sum(reference.num_ngrams) == 20_000
    output = tmp_path / "lm.fst"
    command = [
        sys.executable, "-m", "latticebpd", "lm", "train", str(tmp_path / "ids.npy"), "-o", str(output),
        "--max-ngrams", "20000", "--memory", "512M", "--threads", "1",
    ]  # fmt: skip
    work = tmp_path / "lm.fst.work"
    for stage in ("corpus", "counts", "estimated"):
        process = subprocess.Popen(command, stderr=subprocess.PIPE)
        deadline = time.monotonic() + 60
        while not (work / stage).exists() and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.002)
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
        process.communicate()
        assert not output.exists() or process.returncode == 0
    left = subprocess.run(command, capture_output=True, text=True, check=False)
    assert left.returncode == 0, left.stderr
    assert output.read_bytes() == (tmp_path / "reference.fst").read_bytes()
    assert not work.exists()


def test_full_disk_is_one_line_and_leaves_no_model(tmp_path: Path) -> None:
    """A limit on the size of files stands for the disk's end: to the program both are a write that fails."""
    np.save(tmp_path / "ids.npy", np.random.default_rng(0).integers(0, 60_000, 300_000))

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))

    command = [sys.executable, "-m", "latticebpd", "lm", "train", "ids.npy", "-o", "lm.fst", "--memory", "512M"]
    failed = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, preexec_fn=limit, check=False)
    assert failed.returncode == 2
    (line,) = failed.stderr.strip().splitlines()
    assert line.startswith("latticebpd: error: ")
    assert "File too large" in line
    assert not (tmp_path / "lm.fst").exists()


def test_work_of_another_job_is_not_taken_over(tmp_path: Path) -> None:
    WorkFolder(tmp_path / "w", {"order": 3}).stage("counts", lambda directory: None)
    with pytest.raises(ValueError, match="another order"):
        WorkFolder(tmp_path / "w", {"order": 4})
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("x")
    with pytest.raises(ValueError, match="found other files"):
        WorkFolder(tmp_path / "mine", {})
    assert (tmp_path / "mine" / "thesis.tex").exists()


@pytest.mark.parametrize("name", ["job.json", "finished-job.json"])
@pytest.mark.parametrize(
    "content",
    [
        "",
        "{}",
        "no JSON",
        "[" * 100_000,
        "null",
        '{"made_by": "someone", "job": {}}',
        '{"made_by": "latticebpd lm train"}',
        "\xff",
    ],
)
def test_a_users_folder_is_never_deleted_whatever_its_job_file_holds(tmp_path: Path, name: str, content: str) -> None:
    mine = tmp_path / "mine"
    (mine / "corpus").mkdir(parents=True)
    (mine / "corpus" / "thesis.tex").write_text("x")
    (mine / "half.unfinished").mkdir()
    (mine / name).write_bytes(content.encode("latin-1"))
    np.save(tmp_path / "ids.npy", np.arange(9))
    for job in (lambda: WorkFolder(mine, {}), lambda: build_in(tmp_path / "ids.npy", mine)):
        with pytest.raises(ValueError, match=r"expected (a directory for|the) intermediate files"):
            job()
    assert sorted(str(path.relative_to(mine)) for path in mine.rglob("*")) == sorted(
        ["corpus", "corpus/thesis.tex", "half.unfinished", name]
    )


def test_a_users_file_next_to_the_stages_stays(tmp_path: Path) -> None:
    work = WorkFolder(tmp_path / "w", {})
    work.stage("counts", lambda directory: None)
    (tmp_path / "w" / "thesis.tex").write_text("x")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "w" / "spark").symlink_to(tmp_path / "elsewhere")
    work.remove()
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["elsewhere", "thesis.tex", "w"]


def build_in(ids: Path, work: Path) -> Path:
    """A tiny model next to the ids, built in the work folder."""
    build(Inputs([ids]), None, Recipe(order=2, max_ngrams=80), CountingOptions("sort"), ids.with_name("lm.fst"), work)
    return ids.with_name("lm.fst")


@pytest.mark.long
def test_job_continues_after_a_kill_at_any_file_operation(tmp_path: Path) -> None:
    """Also during the final clean-up: the process dies before the n-th opening, renaming or deletion of a file."""
    np.save(tmp_path / "ids.npy", zipf_text(300).astype(np.uint16))
    work = tmp_path / "deep" / "work"
    expected = build_in(tmp_path / "ids.npy", work).read_bytes()
    deaths: list[str] = []
    while len(deaths) < 500:
        (tmp_path / "lm.fst").unlink(missing_ok=True)
        event = killed_at(len(deaths), lambda: build_in(tmp_path / "ids.npy", work))
        if event is None:
            break
        deaths.append(event)
        assert not (tmp_path / "lm.fst").exists() or (tmp_path / "lm.fst").read_bytes() == expected
        assert build_in(tmp_path / "ids.npy", work).read_bytes() == expected, deaths
        assert not work.exists(), deaths
        for left in (
            *tmp_path.glob(".lm.fst.*"),
            *tmp_path.glob("lm.fst"),
        ):  # a temporary file, a lock: hidden, and in nobody's way
            left.unlink()
        shutil.rmtree(tmp_path / "deep")
    assert 30 < len(deaths) < 500
    assert {"open", "os.mkdir", "os.rename", "os.remove", "os.rmdir"} <= set(deaths)


def killed_at(number: int, work: Callable[[], object]) -> str | None:
    """Do the work in a process that dies before its file operation of this number; returns the operation, if any."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        seen = 0

        def die(event: str, arguments: tuple[object, ...]) -> None:
            nonlocal seen
            writes = (
                event == "open"
                and isinstance(arguments[2], int)
                and arguments[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
            )
            if writes or event in {"os.mkdir", "os.rename", "os.remove", "os.rmdir", "shutil.rmtree"}:
                if seen == number:
                    os.write(writer, event.encode())
                    os._exit(9)
                seen += 1

        sys.addaudithook(die)
        try:
            work()
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as file:
        event = file.read().decode()
    os.waitpid(child, 0)
    return event or None


def test_second_job_of_one_output_is_refused_at_once(tmp_path: Path) -> None:
    np.save(tmp_path / "ids.npy", zipf_text(300).astype(np.uint16))
    with locked(tmp_path / "lm.fst"), pytest.raises(ValueError, match=r"lm.fst: another process is writing it"):
        build_in(tmp_path / "ids.npy", tmp_path / "w")
    (tmp_path / "w").mkdir()
    with locked(tmp_path / "w"), pytest.raises(ValueError, match="w: another process is writing it"):
        build_in(tmp_path / "ids.npy", tmp_path / "w")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["ids.npy", "w"]


def test_one_stray_id_does_not_want_memory_for_all_below_it(tmp_path: Path) -> None:
    np.save(tmp_path / "ids.npy", np.array([1, 2, 3, 2**31 - 3, 0] * 20))
    with pytest.raises(
        ValueError, match=r"got 2147483645; if it is no stray one, give the vocabulary with --tokenizer or --vocab-size"
    ):
        make([tmp_path / "ids.npy"], tmp_path / "lm.fst", words=False)
    np.save(tmp_path / "ids.npy", np.arange(9))
    with pytest.raises(ValueError, match="expected token ids below 1048576, got 99999999"):
        make([tmp_path / "ids.npy"], tmp_path / "lm.fst", Recipe(end_of_text=99_999_999), words=False)
    with pytest.raises(ValueError, match="expected token ids below 5"):
        make([tmp_path / "ids.npy"], tmp_path / "lm.fst", Recipe(vocab_size=5), words=False)


def test_unseen_ids_have_a_share_of_the_mass_or_the_papers_floor(tmp_path: Path) -> None:
    np.save(tmp_path / "ids.npy", np.array([1, 2, 1, 3, 0] * 20 + [2**21, 0]))
    floor = make(
        [tmp_path / "ids.npy"],
        tmp_path / "floor.fst",
        Recipe(order=2, vocab_size=2**21 + 9, unseen="floor"),
        words=False,
    )
    assert floor.num_ngrams[0] == 5
    assert floor.log_prob(4) == floor.log_prob(2**21 + 1) == -1000
    assert sum(np.exp(floor.log_prob(token)) for token in (0, 1, 2, 3, 2**21)) == pytest.approx(1)
    np.save(tmp_path / "ids.npy", np.array([1, 2, 1, 3, 0] * 20))
    smoothed = make([tmp_path / "ids.npy"], tmp_path / "smoothed.fst", Recipe(order=2, vocab_size=9), words=False)
    assert smoothed.num_ngrams[0] == 9
    assert -1000 < smoothed.log_prob(4) == smoothed.log_prob(8) < smoothed.log_prob(3)
    assert sum(np.exp(smoothed.log_prob(token)) for token in range(9)) == pytest.approx(1)
    assert_proper(floor.to_table())


def test_job_that_fails_before_its_first_stage_leaves_nothing(tmp_path: Path) -> None:
    def fail(directory: Path) -> None:
        (directory / "half").write_text("x")
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"), work_folder(tmp_path / "w", {}) as work:
        work.stage("corpus", fail)
    assert not (tmp_path / "w").exists()
