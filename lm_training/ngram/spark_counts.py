"""Counting n-grams on a Spark cluster or in Spark's local mode; the result is that of ``lm_training.ngram.counts``.

Windows of N tokens, padded after a text's end, lie in columns t0, t1, ...; each SQL statement writes one table:

    ngrams_N       the distinct windows and their number n
    ngrams_o       the same for their first o tokens, from ngrams_{o+1}
    kept_o         those that reach the minimum count, sorted, with the sum (total) and the number (types) of all
                   n-grams of their context
    frequencies_o  how many n-grams occur r times

Tables are directories of Parquet files in the work folder.  An existing table is not rebuilt, so a killed job
continues after the last one.  The driver and all workers must see the folder (a shared file system) and have latticebpd
installed; workers map the token file and cut the windows of their pieces.
"""

from __future__ import annotations

import mmap
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fst.table import UNK
from latticebpd.checks import extra_module
from lm_training.ngram import counts as counting
from lm_training.ngram.array_store import ArrayStore
from lm_training.ngram.counts import NgramCounts, OrderCollector, OrderCounts, Progress, TokenStream, minimum_of
from lm_training.ngram.trie import first_of_each

if TYPE_CHECKING:
    import pyarrow

PADDING = UNK - 1


class SparkCounter:
    """Counts one stream in a session of its own, or in the one that is running."""

    def __init__(self, folder: Path, master: str, memory: int, threads: int) -> None:
        """Start a session with its files in ``folder``; ValueError where pyspark, pyarrow or Java is missing."""
        extra_module("pyarrow", "spark", "counts by Spark")
        session = extra_module("pyspark.sql", "spark", "counts by Spark").SparkSession
        from pyspark.errors import PySparkException

        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        builder = session.builder.master(master).appName("latticebpd")
        for name, value in {
            "spark.driver.memory": f"{memory >> 20}m",
            "spark.local.dir": str((folder / "spill").resolve()),
            "spark.sql.shuffle.partitions": str(max(8, 4 * threads)),
            "spark.sql.warehouse.dir": str((folder / "warehouse").resolve()),
            "spark.ui.enabled": "false",
            "spark.ui.showConsoleProgress": "false",
            "spark.pyspark.python": sys.executable,
            "spark.log.level": "ERROR",
        }.items():
            builder = builder.config(name, value)
        try:
            self.session = builder.getOrCreate()
        except PySparkException as error:
            got = f"{str(error).strip().splitlines()[0]}; is Java installed, and the master running?"
            raise ValueError(f"{master}: expected to reach Spark there, got {got}") from None

    def count(
        self, stream: TokenStream, order: int, min_counts: Sequence[int], progress: Progress, store: ArrayStore
    ) -> NgramCounts:
        """What ``lm_training.ngram.counts.count_ngrams`` counts, to the bit."""
        try:
            if not self._exists(f"ngrams_{order}"):
                pieces = -(-stream.size // counting.PIECE)
                schema = ", ".join(f"t{i} INT" for i in range(order))
                frame = self.session.range(0, pieces, 1, max(1, pieces))
                frame = frame.mapInArrow(_window_cutter(self._source(stream), stream, order), schema)
                frame.createOrReplaceTempView("windows")
            for o in range(order, 0, -1):
                tokens, context = _columns(o), _columns(o - 1) or "0"
                source, number = ("windows", "count(*)") if o == order else (f"ngrams_{o + 1}", "sum(n)")
                self._table(f"ngrams_{o}", f"SELECT {tokens}, {number} AS n FROM {source} GROUP BY {tokens}")
                complete = f"SELECT * FROM ngrams_{o} WHERE t{o - 1} <> {PADDING}"
                counted = (
                    f"SELECT *, sum(n) OVER (PARTITION BY {context}) AS total, "
                    f"count(*) OVER (PARTITION BY {context}) AS types FROM ({complete})"
                )
                minimum = minimum_of(min_counts, o)
                self._table(f"kept_{o}", f"SELECT * FROM ({counted}) WHERE n >= {minimum} ORDER BY {tokens}")
                frequencies = f"SELECT least(n, {counting.COMMON}) AS r, count(*) AS n FROM ({complete}) GROUP BY 1"
                self._table(f"frequencies_{o}", frequencies)
                progress(order - o + 1, order)
            return [self._fetch(stream, o, store) for o in range(1, order + 1)]
        finally:
            self.session.stop()

    def _source(self, stream: TokenStream) -> Callable[[], np.ndarray]:
        """Opens the ids in a worker: the file that they are mapped from, or one written from them."""
        ids = stream.ids
        mapped: object = ids.base  # of a view an array, and its offset is unknown
        if isinstance(ids, np.memmap) and isinstance(mapped, mmap.mmap) and ids.filename:
            path, offset = Path(ids.filename), ids.offset
        else:
            path, offset = self.folder / "ids.bin", 0
            path.write_bytes(np.ascontiguousarray(ids).data)
        name, dtype, size = str(path.resolve()), ids.dtype, len(ids)
        return lambda: np.memmap(name, dtype, "r", offset, (size,)) if size else np.zeros(0, dtype)

    def _exists(self, name: str) -> bool:
        return (self.folder / name / "_SUCCESS").exists()

    def _table(self, name: str, query: str) -> None:
        path = str(self.folder / name)
        if not self._exists(name):
            self.session.sql(query).write.mode("overwrite").parquet(path)
        self.session.read.parquet(path).createOrReplaceTempView(name)

    def _rows(self, name: str) -> Iterator[dict[str, np.ndarray]]:
        """The rows of a table in pieces, in the order of its files: ``[n]`` by column."""
        from pyarrow import parquet

        for path in sorted((self.folder / name).glob("part-*.parquet")):
            for batch in parquet.ParquetFile(path).iter_batches(batch_size=1 << 19):
                yield {column: batch.column(column).to_numpy() for column in batch.schema.names}

    def _fetch(self, stream: TokenStream, order: int, store: ArrayStore) -> OrderCounts:
        collector = OrderCollector(store, stream, order)
        if order == 1:
            empty: dict[str, np.ndarray] = {"t0": np.zeros(0, np.int32), "n": np.zeros(0, np.int64)}
            pieces = [empty, *self._rows("kept_1")]
            collector.add_unigrams(*(np.concatenate([piece[name] for piece in pieces]) for name in empty))
            return collector.finish()
        last_context = np.zeros(0, dtype=np.int32)
        for piece in self._rows(f"kept_{order}"):
            ids = np.stack([piece[f"t{i}"] for i in range(order)], axis=1).astype(np.int32, copy=False)
            first = first_of_each(ids[:, :-1])
            first[0] = not np.array_equal(ids[0, :-1], last_context)
            last_context = ids[-1, :-1].copy()
            totals, types = piece["total"][first], piece["types"][first]
            collector.add(OrderCounts(ids, piece["n"], totals, types, np.zeros(counting.COMMON + 1, dtype=np.int64)))
        for piece in self._rows(f"frequencies_{order}"):
            collector.counts_of_counts[piece["r"]] += piece["n"]
        return collector.finish()


def _columns(order: int) -> str:
    return ", ".join(f"t{i}" for i in range(order))


def _window_cutter(source: Callable[[], np.ndarray], stream: TokenStream, order: int) -> Any:
    """What workers do: numbers of pieces in, the windows of the pieces out, as Arrow batches."""
    separator, highest = stream.separator, stream.highest

    def cut(batches: Iterator[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
        import pyarrow

        local_stream = TokenStream(source(), separator, highest)
        for batch in batches:
            for number in batch.column(0).to_pylist():
                begin, end = number * counting.PIECE, min((number + 1) * counting.PIECE, local_stream.size)
                codes, inside = local_stream.codes(begin, end + order), np.ones(end - begin, dtype=bool)
                columns = {}
                for i in range(order):
                    token = codes[i : i + end - begin]
                    columns[f"t{i}"] = pyarrow.array((token * inside - counting.CODE_OF_ZERO).astype(np.int32))
                    inside &= (token != local_stream.separator_code) | (i == 0)
                yield pyarrow.RecordBatch.from_pydict(columns)

    return cut
