"""Counting on Spark, in its local mode, against counting in memory."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from fst.table import UNK
from lm_training.ngram.array_store import ArrayStore
from lm_training.ngram.building import CountingOptions, Recipe, build
from lm_training.ngram.counts import TokenStream, count_ngrams
from lm_training.ngram.inputs import Inputs
from lm_training.ngram.spark_counts import SparkCounter
from tests.helpers.backoff_reference import zipf_text
from tests.helpers.sentence_models import assert_same_counts, sentence_stream

pytestmark = pytest.mark.slow
STREAMS = {
    "documents": TokenStream.of(zipf_text(5000) % 40, 0),
    "ids of 31 bits": TokenStream.of(np.array([0, 1, 2**31 - 3, 2, 0, 0, 1, 2**31 - 3, 2, 1] * 3), 0),
    "one endless text": TokenStream.of(zipf_text(500), None),
    "sentences": sentence_stream([[1, 2, UNK], [], [1, 2]]),
    "nothing": TokenStream.of(np.zeros(0, dtype=np.uint16), None),
}


@pytest.fixture(autouse=True)
def _spark() -> None:
    pytest.importorskip("pyspark", reason="the extra is not installed: pip install 'latticebpd[spark]'")
    if shutil.which("java") is None and "JAVA_HOME" not in os.environ:
        pytest.skip("Spark needs Java, which is not on the PATH")


def counter(folder: Path) -> SparkCounter:
    return SparkCounter(folder, "local[2]", 1 << 30, 2)


@pytest.mark.parametrize("name", STREAMS)
def test_spark_counts_are_those_of_sorting(tmp_path: Path, name: str) -> None:
    steps: list[int] = []
    counts = counter(tmp_path).count(STREAMS[name], 4, (1, 1, 2), lambda done, total: steps.append(done), ArrayStore())
    assert_same_counts(counts, count_ngrams(STREAMS[name], 4, (1, 1, 2)))
    assert steps == [1, 2, 3, 4]


def test_killed_counter_continues_after_its_last_table(tmp_path: Path) -> None:
    def kill(done: int, total: int) -> None:
        raise KeyboardInterrupt

    stream = STREAMS["sentences"]
    with pytest.raises(KeyboardInterrupt):
        counter(tmp_path).count(stream, 3, (1,), kill, ArrayStore())
    written = {path: path.stat().st_mtime_ns for path in tmp_path.glob("*/_SUCCESS")}
    assert {path.parent.name for path in written} == {"ngrams_3", "kept_3", "frequencies_3"}
    counts = counter(tmp_path).count(stream, 3, (1,), lambda done, total: None, ArrayStore())
    assert_same_counts(counts, count_ngrams(stream, 3))
    assert {path: path.stat().st_mtime_ns for path in written} == written


def test_spark_builds_the_same_model_to_the_byte(tmp_path: Path) -> None:
    np.save(tmp_path / "ids.npy", zipf_text(40_000).astype(np.uint16))
    for counting in (CountingOptions("sort"), CountingOptions("spark", 1 << 30, 2, "local[2]")):
        inputs, recipe = Inputs([tmp_path / "ids.npy"]), Recipe(min_counts=(1, 1, 2))
        build(inputs, None, recipe, counting, tmp_path / f"{counting.engine}.fst", tmp_path / "work")
    assert (tmp_path / "sort.fst").read_bytes() == (tmp_path / "spark.fst").read_bytes()
