"""Counting n-grams with a database: the same counts as ``lm_training.ngram.counts``, out of core or on a cluster.

The counting and joining is SQL, the same for every engine, and each statement makes one table that is written to disk
before the next begins.  For windows of N tokens (``lm_training.ngram.counts``), packed into columns ``k0, k1, ...``:

    windows        one row a position
    ngrams_N       the distinct windows and their number n
    ngrams_o       the same for their first o tokens, made from ngrams_{o+1}
    kept_o         those seen often enough, with the sum (total) and the number (types) of all n-grams of their context
    frequencies_o  how many n-grams occur r times

Only ``kept_o`` and ``frequencies_o`` leave the engine, the former in order.  A table that is there is not made again,
so a job that was killed goes on behind the last one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np

from lm_training.ngram.columns import InMemory, Store
from lm_training.ngram.counts import (
    CODE_OF_ZERO,
    COMMON,
    PIECE,
    NgramCounts,
    OrderCollector,
    Part,
    Progress,
    TokenStream,
    collected,
    minimum_of,
    unigram_part,
)
from lm_training.ngram.links import first_of_each

if TYPE_CHECKING:
    import duckdb

COLUMN_BITS = 63
"""Databases count with signed integers of 64 bits."""


@dataclass(frozen=True)
class Packing:
    """How the codes of an n-gram lie in integer columns: ``per_column`` each, the first in the highest bits."""

    bits: int

    @property
    def per_column(self) -> int:
        return COLUMN_BITS // self.bits

    def columns(self, order: int) -> list[int]:
        """How many codes each column of an n-gram of ``order`` holds."""
        full, rest = divmod(order, self.per_column)
        return [self.per_column] * full + [rest] * (rest > 0)

    def names(self, order: int) -> list[str]:
        return [f"k{i}" for i in range(len(self.columns(order)))]

    def pack(self, stream: TokenStream, order: int, begin: int, end: int) -> dict[str, np.ndarray]:
        """The windows at positions ``begin`` to ``end`` - 1, column by column, ``[end - begin]`` int64 each; 0 after a text's end."""
        codes = stream.codes(begin, end + order)
        size = end - begin
        inside = np.ones(size, dtype=bool)
        result, offset = {}, 0
        for name, width in zip(self.names(order), self.columns(order), strict=True):
            keys = np.zeros(size, dtype=np.int64)
            for _ in range(width):
                following = codes[offset : offset + size]
                keys <<= self.bits
                keys |= following * inside
                if offset > 0:
                    inside &= following != stream.code
                offset += 1
            result[name] = keys
        return result

    def unpack(self, columns: dict[str, np.ndarray], order: int) -> np.ndarray:
        """``[n, order]`` int32 ids of packed n-grams."""
        rows = np.empty((len(columns["k0"]), order), dtype=np.int32)
        place = 0
        for name, width in zip(self.names(order), self.columns(order), strict=True):
            for i in range(width):
                rows[:, place] = ((columns[name] >> (self.bits * (width - 1 - i))) & (2**self.bits - 1)) - CODE_OF_ZERO
                place += 1
        return rows


class Engine(Protocol):
    """A database that makes tables from queries, once, and keeps them."""

    def close(self) -> None:
        """Let go of files and processes."""
        ...

    def windows(self, stream: TokenStream, packing: Packing, order: int) -> None:
        """Make the table ``windows``."""
        ...

    def table(self, name: str, query: str) -> None:
        """Make a table of a query's result, if it is not there yet."""
        ...

    def drop(self, name: str) -> None:
        """Forget a table that nothing needs any more; it still counts as made."""
        ...

    def shifted(self, column: str, bits: int) -> str:
        """The SQL of ``column >> bits``, which dialects spell differently."""
        ...

    def rows(self, query: str, keys: Sequence[str]) -> Iterator[dict[str, np.ndarray]]:
        """The rows of a query on one table, ordered by ``keys``, in pieces: ``[n]`` int64 by column."""
        ...


def count_with(
    engine: Engine,
    stream: TokenStream,
    order: int,
    min_counts: Sequence[int],
    progress: Progress | None = None,
    store: Store | None = None,
) -> NgramCounts:
    """Count with an engine; the result is that of ``lm_training.ngram.counts``, to the bit."""
    if order < 1:
        raise ValueError(f"expected an order of at least 1, got {order}")
    packing = Packing(stream.bits)
    steps = iter(range(1, 3 * order + 2))

    def report() -> None:
        if progress is not None:
            progress(next(steps), 3 * order + 1)

    engine.windows(stream, packing, order)
    report()
    orders: list[Part] = []
    for o in range(order, 0, -1):
        engine.table(f"ngrams_{o}", _distinct(engine, packing, o, order))
        engine.drop("windows" if o == order else f"ngrams_{o + 1}")
        report()
        engine.table(f"kept_{o}", _kept(engine, packing, o, minimum_of(min_counts, o)))
        engine.table(
            f"frequencies_{o}", f"SELECT least(n, {COMMON}) AS r, count(*) AS n FROM ngrams_{o} WHERE {_whole(packing, o)} GROUP BY 1"
        )
        report()
    engine.drop("ngrams_1")
    for o in range(1, order + 1):
        orders.append(_fetched(engine, stream, packing, o, store or InMemory()))
        report()
    return collected(orders)


def _distinct(engine: Engine, packing: Packing, order: int, longest: int) -> str:
    names = packing.names(order)
    if order == longest:
        return f"SELECT {', '.join(names)}, count(*) AS n FROM windows GROUP BY {', '.join(names)}"
    last = names[-1]
    parts = list(names)
    if len(packing.names(order + 1)) == len(names):  # else the longer n-gram's last column goes as a whole
        parts[-1] = f"{engine.shifted(last, packing.bits)} AS {last}"
    inner = f"SELECT {', '.join(parts)}, n FROM ngrams_{order + 1}"
    return f"SELECT {', '.join(names)}, CAST(sum(n) AS BIGINT) AS n FROM ({inner}) AS longer GROUP BY {', '.join(names)}"


def _whole(packing: Packing, order: int) -> str:
    """The n-grams that are none shorter, padded."""
    return f"({packing.names(order)[-1]} & {2**packing.bits - 1}) <> 0"


def _kept(engine: Engine, packing: Packing, order: int, minimum: int) -> str:
    names = packing.names(order)
    if order == 1:
        return f"SELECT k0, n, CAST(0 AS BIGINT) AS total, CAST(0 AS BIGINT) AS types FROM ngrams_1 WHERE {_whole(packing, 1)}"
    widths = packing.columns(order)
    context = [*names[:-1], *([engine.shifted(names[-1], packing.bits)] if widths[-1] > 1 else [])]
    aliases = [f"c{i}" for i in range(len(context))]
    named = ", ".join(f"{expression} AS {alias}" for expression, alias in zip(context, aliases, strict=True))
    contexts = (
        f"SELECT {', '.join(aliases)}, CAST(sum(n) AS BIGINT) AS total, count(*) AS types "
        f"FROM (SELECT {named}, n FROM ngrams_{order} WHERE {_whole(packing, order)}) AS seen GROUP BY {', '.join(aliases)}"
    )
    frequent = f"SELECT {', '.join(names)}, {named}, n FROM ngrams_{order} WHERE n >= {minimum} AND {_whole(packing, order)}"
    columns = ", ".join(f"frequent.{name}" for name in names)
    on = " AND ".join(f"frequent.{alias} = contexts.{alias}" for alias in aliases)
    return f"SELECT {columns}, frequent.n, total, types FROM ({frequent}) AS frequent JOIN ({contexts}) AS contexts ON {on}"


def _fetched(engine: Engine, stream: TokenStream, packing: Packing, order: int, store: Store) -> Part:
    """One order of `NgramCounts`."""
    names = packing.names(order)
    collector = OrderCollector(store, stream, order)
    columns = [*names, "n", "total", "types"]
    pieces = engine.rows(f"SELECT {', '.join(columns)} FROM kept_{order}", names)
    if order == 1:
        unigrams = list(pieces)
        empty = np.zeros(0, dtype=np.int64)
        tokens = np.concatenate([empty.astype(np.int32), *(packing.unpack(piece, 1)[:, 0] for piece in unigrams)])
        collector.add(unigram_part(stream, tokens, np.concatenate([empty, *(piece["n"] for piece in unigrams)])))
        return collector.finish()
    nothing = np.zeros(COMMON + 1, dtype=np.int64)
    last_context: np.ndarray | None = None
    for piece in pieces:
        ids = packing.unpack(piece, order)
        first = first_of_each(ids[:, :-1])
        if len(ids):
            if last_context is not None and np.array_equal(ids[0, :-1], last_context):
                first[0] = False
            last_context = ids[-1, :-1].copy()
        collector.add(Part(ids, piece["n"], piece["total"][first], piece["types"][first], nothing))
    for piece in engine.rows(f"SELECT r, n FROM frequencies_{order}", ["r"]):
        collector.counts_of_counts[piece["r"]] += piece["n"]
    return collector.finish()


class DuckDb:
    """The embedded engine: one file, a memory limit, and room on disk for what exceeds it."""

    def __init__(self, directory: Path, memory: int, threads: int) -> None:
        """Open or make the database in ``directory``, where it also spills to."""
        import duckdb

        self.directory = directory
        directory.mkdir(parents=True, exist_ok=True)
        self.connection = duckdb.connect(
            str(directory / "counts.duckdb"),
            config={
                "memory_limit": f"{memory}B",
                "threads": threads,
                "temp_directory": str(directory / "spill"),
                "preserve_insertion_order": False,
            },
        )
        self._execute("CREATE TABLE IF NOT EXISTS made (name VARCHAR)")

    def close(self) -> None:
        self.connection.close()

    @contextmanager
    def _telling(self) -> Iterator[None]:
        """Turn the database's errors, a full disk among them, into one line."""
        import duckdb

        try:
            yield
        except duckdb.Error as error:
            reason = str(error).splitlines()[0]
            raise ValueError(f"{self.directory}: the database stopped: {reason}; what it finished is kept, mend that and repeat") from None

    def _execute(self, query: str, parameters: Sequence[object] = ()) -> duckdb.DuckDBPyConnection:
        with self._telling():
            return self.connection.execute(query, parameters)

    def _made(self, name: str) -> bool:
        return bool(self._execute("SELECT count(*) FROM made WHERE name = ?", [name]).fetchall()[0][0])

    def windows(self, stream: TokenStream, packing: Packing, order: int) -> None:
        if self._made("windows"):
            return
        names = packing.names(order)
        self._execute("BEGIN")
        self._execute(f"CREATE TABLE windows ({', '.join(f'{name} BIGINT' for name in names)})")
        for begin in range(0, stream.size, PIECE):
            self.connection.register("piece", packing.pack(stream, order, begin, min(begin + PIECE, stream.size)))
            self._execute(f"INSERT INTO windows SELECT {', '.join(names)} FROM piece")
            self.connection.unregister("piece")
        self._commit("windows")

    def table(self, name: str, query: str) -> None:
        if not self._made(name):
            self._execute("BEGIN")
            self._execute(f"CREATE TABLE {name} AS {query}")
            self._commit(name)

    def _commit(self, name: str) -> None:
        self._execute("INSERT INTO made VALUES (?)", [name])
        self._execute("COMMIT")

    def drop(self, name: str) -> None:
        self._execute(f"DROP TABLE IF EXISTS {name}")

    def shifted(self, column: str, bits: int) -> str:
        return f"({column} >> {bits})"

    def rows(self, query: str, keys: Sequence[str]) -> Iterator[dict[str, np.ndarray]]:
        with self._telling():
            yield from rows_in_order(self.connection, query, keys)


def rows_in_order(
    connection: duckdb.DuckDBPyConnection, query: str, keys: Sequence[str], piece: int = 1 << 19
) -> Iterator[dict[str, np.ndarray]]:
    """A query's rows in order of ``keys``, about ``piece`` at a time: each holds a range of the first key, sorted by itself."""
    (count,) = connection.execute(f"SELECT count(*) FROM ({query}) AS q").fetchall()[0]
    if not count:
        return
    parts = -(-count // piece)
    shares = [i / parts for i in range(1, parts)]
    (bounds,) = connection.execute(f"SELECT quantile_disc({keys[0]}, ?) FROM ({query}) AS q", [shares]).fetchall()[0] if shares else ([],)
    edges = [None, *sorted(set(bounds)), None]
    for low, high in pairwise(edges):
        conditions = [f"{keys[0]} >= {low}"] * (low is not None) + [f"{keys[0]} < {high}"] * (high is not None)
        where = f" WHERE {' AND '.join(conditions)}" if conditions else ""
        columns = connection.execute(f"SELECT * FROM ({query}) AS q{where} ORDER BY {', '.join(keys)}").fetchnumpy()
        yield {name: np.asarray(values, dtype=np.int64) for name, values in columns.items()}
