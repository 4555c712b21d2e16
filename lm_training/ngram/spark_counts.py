"""The counting engine on a Spark cluster, or on Spark's local mode.

The driver and all workers must see the work directory (a shared file system) and have latticebpd installed; workers map
the token file, pack the windows of their pieces, and everything after is the SQL of ``lm_training.ngram.sql_counts``.  Tables
are Parquet files in the work directory; the driver reads the n-grams that are kept, with DuckDB.
"""

from __future__ import annotations

import mmap
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from lm_training.ngram.counts import PIECE, TokenStream
from lm_training.ngram.sql_counts import Packing, rows_in_order

if TYPE_CHECKING:
    import pyarrow


class Spark:
    """Counts on a cluster; made tables are directories that hold Spark's ``_SUCCESS``."""

    def __init__(self, directory: Path, master: str, memory: int, threads: int) -> None:
        """Start a session, or use the one that is running.

        Raises:
            ValueError: pyspark, pyarrow or Java is missing.
        """
        try:
            import pyarrow  # noqa: F401
            from pyspark.errors import PySparkException
            from pyspark.sql import SparkSession
        except ImportError as error:
            raise ValueError(f"expected the packages of the extra spark, lacking {error.name}: pip install 'latticebpd[spark]'") from None
        self.directory = directory
        directory.mkdir(parents=True, exist_ok=True)
        builder = SparkSession.builder.master(master).appName("latticebpd").config("spark.driver.memory", f"{memory >> 20}m")
        for name, value in {
            "spark.local.dir": str((directory / "spill").resolve()),
            "spark.sql.shuffle.partitions": str(max(8, 4 * threads)),
            "spark.sql.warehouse.dir": str((directory / "warehouse").resolve()),
            "spark.ui.enabled": "false",
            "spark.ui.showConsoleProgress": "false",
            "spark.pyspark.python": sys.executable,
            "spark.log.level": "ERROR",
        }.items():
            builder = builder.config(name, value)
        try:
            self.session = builder.getOrCreate()
        except PySparkException as error:
            reason = str(error).strip().splitlines()[0]
            raise ValueError(f"{master}: expected to reach Spark there, got {reason}; is Java installed, and the master running?") from None

    def close(self) -> None:
        self.session.stop()

    def windows(self, stream: TokenStream, packing: Packing, order: int) -> None:
        if self._made(f"ngrams_{order}"):
            return
        names = packing.names(order)
        pieces = -(-stream.size // PIECE)
        schema = ", ".join(f"{name} BIGINT" for name in names)
        frame = self.session.range(0, pieces, 1, max(1, pieces)).mapInArrow(_packer(self._source(stream), stream, packing, order), schema)
        frame.createOrReplaceTempView("windows")

    def _source(self, stream: TokenStream) -> Callable[[], np.ndarray]:
        """How a worker gets the ids: from the file that they are mapped from, or one made of them."""
        ids = stream.ids
        mapped: object = ids.base
        if isinstance(ids, np.memmap) and isinstance(mapped, mmap.mmap) and ids.filename:  # a view's offset is not its own
            path, offset = Path(ids.filename), ids.offset
        else:
            path, offset = self.directory / "ids.bin", 0
            np.ascontiguousarray(ids).tofile(path)
        where, dtype, size = str(path.resolve()), ids.dtype, len(ids)
        return lambda: np.memmap(where, dtype=dtype, mode="r", offset=offset, shape=(size,)) if size else np.zeros(0, dtype)

    def table(self, name: str, query: str) -> None:
        path = self.directory / name
        if not self._made(name):
            self.session.sql(query).write.mode("overwrite").parquet(str(path))
        self.session.read.parquet(str(path)).createOrReplaceTempView(name)

    def _made(self, name: str) -> bool:
        return (self.directory / name / "_SUCCESS").exists()

    def drop(self, name: str) -> None:
        """Tables stay: a job that goes on may need them, and the directory goes with the job."""

    def shifted(self, column: str, bits: int) -> str:
        return f"shiftright({column}, {bits})"

    def rows(self, query: str, keys: Sequence[str]) -> Iterator[dict[str, np.ndarray]]:
        import duckdb

        name = query.rsplit(" ", 1)[-1]
        with duckdb.connect() as connection:
            files = str(self.directory / name / "*.parquet").replace("'", "''")
            connection.execute(f"CREATE VIEW {name} AS SELECT * FROM read_parquet('{files}')")
            yield from rows_in_order(connection, query, keys)


def _packer(source: Callable[[], np.ndarray], stream: TokenStream, packing: Packing, order: int) -> Any:
    """What workers do: the numbers of pieces in, the windows of the pieces out, as Arrow batches."""
    separator, highest = stream.separator, stream.highest

    def pack(batches: Iterator[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
        import pyarrow

        local_stream = TokenStream(source(), separator, highest)
        for batch in batches:
            for number in batch.column(0).to_pylist():
                begin = number * PIECE
                columns = packing.pack(local_stream, order, begin, min(begin + PIECE, local_stream.size))
                yield pyarrow.RecordBatch.from_pydict({name: pyarrow.array(keys) for name, keys in columns.items()})

    return pack
