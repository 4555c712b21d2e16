"""The whole way from files to a model file, in stages that need not be done twice.

    corpus     every input becomes one flat file of token ids (``lm_training.ngram.inputs``)
    counts     n-grams of all orders, counted by one of three engines that give the same result to the bit
    estimated  probabilities and backoff weights (``lm_training.ngram.backoff``)
    model      pruned, turned into an automaton, written

An engine is chosen for where the work happens, not for what comes out: ``sort`` in memory, in as many passes over the
tokens as the memory asks for; ``duckdb`` out of core; ``spark`` on a cluster.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np

from fst.automaton import MAX_ORDER
from fst.files import locked, require_writable
from fst.model import NgramModel, table_to_fst
from fst.table import UNK, NgramTable
from lm_training.ngram.backoff import estimate_backoff
from lm_training.ngram.columns import OnDisk, Store, load_array
from lm_training.ngram.counts import NgramCounts, Resources, TokenStream, count_windows, minimum_of
from lm_training.ngram.estimation import MIN_COUNTS, refuse_scores
from lm_training.ngram.inputs import Encoder, Inputs, load_corpus, write_corpus
from lm_training.ngram.pruning import prune
from lm_training.ngram.smoothing import SMOOTHINGS, Smoothing
from lm_training.ngram.sql_counts import DuckDb, Engine, count_with
from lm_training.ngram.work import WorkDirectory, file_facts, working

ENGINES = ("auto", "sort", "duckdb", "spark")

Report = Callable[[str, int, int | None], object]
"""Called with what is being done, how much of it is done, and how much there is, None where that is not known."""


LARGEST_ID = 2**31 - 3
LARGEST_IMPLIED_VOCABULARY = 1 << 20
"""Ids above this are taken for vocabulary only if someone says so: one stray id must not want memory for all below it."""


@dataclass(frozen=True)
class Recipe:
    """What the model shall be.

    order: the longest n-grams.
    smoothing: a name in ``lm_training.ngram.smoothing.SMOOTHINGS``.
    min_counts: for each order the count from which on an n-gram is kept; the last entry serves higher orders.
    max_ngrams, prune_theta: the limits of entropy pruning.
    unknown_word: whether the model has ``<unk>``, and mass for it.
    unseen: token ids that never occur: "smoothed", each has a share of the mass; "floor", the natural log -1000 (Kim et
        al. 2024, section 7.2).  Not for words.
    vocab_size: ids must be below it; None for those up to the highest one.  Not for words.
    end_of_text: the id between the documents of token files; None where there is none.
    fingerprint: of the tokenizer, stored with the model.
    """

    order: int = 4
    smoothing: str = "katz"
    min_counts: tuple[int, ...] = MIN_COUNTS
    max_ngrams: int | None = None
    prune_theta: float | None = None
    unknown_word: bool = False
    unseen: str = "smoothed"
    vocab_size: int | None = None
    end_of_text: int | None = 0
    fingerprint: str | None = None

    def __post_init__(self) -> None:
        if not 1 <= self.order <= MAX_ORDER:
            raise ValueError(f"expected an order from 1 to {MAX_ORDER}, got {self.order}")
        if self.smoothing not in SMOOTHINGS:
            raise ValueError(f"expected a smoothing method among {', '.join(SMOOTHINGS)}, got {self.smoothing!r}")
        if self.unseen not in UNSEEN:
            raise ValueError(f"expected {' or '.join(UNSEEN)} for token ids that never occur, got {self.unseen!r}")
        minimum_of(self.min_counts, 1)  # refuses what cannot be
        if self.prune_theta is not None and not self.prune_theta >= 0:
            raise ValueError(f"expected a threshold of at least 0 for pruning, got {self.prune_theta}")
        if self.pruned:
            refuse_scores(self.method)

    @property
    def method(self) -> Smoothing:
        return SMOOTHINGS[self.smoothing]

    @property
    def pruned(self) -> bool:
        return self.max_ngrams is not None or self.prune_theta is not None


UNSEEN = ("smoothed", "floor")


@dataclass(frozen=True)
class CountingOptions:
    """How n-grams are counted.

    engine: one of ``ENGINES``; auto is sort as long as that takes few passes, and duckdb then.
    memory: bytes for counting.
    threads: threads for counting.
    master: of the Spark cluster.
    """

    engine: str = "auto"
    memory: int = 4 << 30
    threads: int = 1
    master: str = "local[*]"

    def __post_init__(self) -> None:
        if self.engine not in ENGINES:
            raise ValueError(f"expected an engine among {', '.join(ENGINES)}, got {self.engine!r}")
        Resources(self.threads, self.memory)  # refuses what cannot be

    @property
    def resources(self) -> Resources:
        return Resources(self.threads, self.memory)


MANY_PASSES = 64
"""So many passes over the tokens take longer than a database."""


def build(
    inputs: Inputs,
    encoder: Encoder | None,
    recipe: Recipe,
    counting: CountingOptions,
    output: Path,
    work: Path,
    report: Report | None = None,
) -> list[int]:
    """Make a model of the inputs; returns the number of n-grams of each order.

    A job that was interrupted goes on behind its last finished stage if it is given the same directory ``work``, which
    goes when the model is written.  ``output`` appears when it is complete.

    Raises:
        ValueError: the input cannot be read, is empty or holds ids outside the vocabulary, an option is out of range, the
            output cannot be written, or another process is writing it.
    """
    require_writable(output, "file")
    require_writable(work, "folder")
    reading = [inputs.field, inputs.invalid_utf8, inputs.dtype, getattr(encoder, "start", None)]
    job = {"inputs": file_facts(inputs.paths), "reading": reading, "recipe": asdict(recipe)}
    with locked(output), working(work, job) as stages:
        return _Build(inputs, encoder, recipe, counting, stages, report or (lambda what, done, total: None)).write(output)


@dataclass(frozen=True)
class _Build:
    """One job: its stages, from the inputs to the model file."""

    inputs: Inputs
    encoder: Encoder | None
    recipe: Recipe
    counting: CountingOptions
    work: WorkDirectory
    report: Report

    def write(self, output: Path) -> list[int]:
        self.report("reading", 0, None)
        stream, symbols = load_corpus(self.work.stage("corpus", self._read))
        counts = self.work.stage("counts", lambda directory: self._count(stream, OnDisk(directory)))
        self.report("estimating", 0, None)
        estimated = self.work.stage("estimated", lambda directory: self._estimate(counts, stream, symbols, OnDisk(directory)))
        table = replace(_load_table(estimated), symbols=symbols, fingerprint=self.recipe.fingerprint)
        if self.recipe.pruned:
            self.report("pruning", 0, None)
            table = prune(table, self.recipe.prune_theta, self.recipe.max_ngrams)
        self.report("writing", 0, None)
        if output.suffix == ".fst":
            return table_to_fst(table, output)
        automaton = self.work.path / "model.fst"
        num_ngrams = table_to_fst(table, automaton)
        NgramModel.load(automaton).to_arpa(output)
        return num_ngrams

    def _read(self, directory: Path) -> None:
        write_corpus(self.inputs, self.encoder, self.recipe.end_of_text, directory, lambda done: self.report("reading", done, None))
        self._check(*load_corpus(directory))

    def _check(self, stream: TokenStream, symbols: list[str] | None) -> None:
        recipe = self.recipe
        if not len(stream.ids):
            raise ValueError(f"expected some text, got none in {', '.join(map(str, self.inputs.paths))}")
        if symbols is not None:
            return
        if stream.highest > LARGEST_ID:
            raise ValueError(f"expected token ids of at most {LARGEST_ID}, got {stream.highest}; an automaton has no label for it")
        if recipe.vocab_size is not None and stream.highest >= recipe.vocab_size:
            raise ValueError(
                f"expected token ids below {recipe.vocab_size} (the vocabulary's size), got {stream.highest}; "
                "name the tokenizer that made them"
            )
        if recipe.vocab_size is None and recipe.unseen == "smoothed" and stream.highest >= LARGEST_IMPLIED_VOCABULARY:
            raise ValueError(
                f"expected token ids below {LARGEST_IMPLIED_VOCABULARY}, got {stream.highest}; if it is no stray one, tell the vocabulary "
                "with --tokenizer or --vocab-size, or give ids that never occur no mass (--unseen floor)"
            )

    def _count(self, stream: TokenStream, store: Store) -> NgramCounts:
        recipe, counting = self.recipe, self.counting
        engine = counting.engine
        if engine == "auto":
            minimums = [minimum_of(recipe.min_counts, order) for order in range(1, recipe.order + 1)]
            engine = "sort" if counting.resources.passes(stream.size, stream.bits, minimums) <= MANY_PASSES else "duckdb"

        def progress(done: int, total: int) -> None:
            self.report("counting", done, total)

        if engine == "sort":
            return count_windows(stream, recipe.order, recipe.min_counts, counting.resources, progress, store)
        directory = self.work.path / engine
        database: Engine
        if engine == "duckdb":
            database = DuckDb(directory, counting.memory, counting.threads)
        else:
            from lm_training.ngram.spark_counts import Spark

            database = Spark(directory, counting.master, counting.memory, counting.threads)
        try:
            return count_with(database, stream, recipe.order, recipe.min_counts, progress, store)
        finally:
            database.close()

    def _estimate(self, counts: Path, stream: TokenStream, symbols: list[str] | None, store: Store) -> NgramTable:
        recipe = self.recipe
        ids = 0 if symbols is not None or recipe.unseen == "floor" else recipe.vocab_size or stream.highest + 1
        vocabulary = np.arange(ids, dtype=np.int32)
        if recipe.unknown_word:
            vocabulary = np.append(vocabulary, np.int32(UNK))
        return estimate_backoff(_load_counts(counts), recipe.method, vocabulary, store, self.counting.threads)


def _load_counts(directory: Path) -> NgramCounts:
    names = ("ngrams", "counts", "totals", "types", "counts_of_counts")
    return NgramCounts(*(_load_orders(directory, name) for name in names))


def _load_table(directory: Path) -> NgramTable:
    ngrams, log_probs, backoffs = (_load_orders(directory, name) for name in ("ngrams", "log_probs", "backoffs"))
    return NgramTable(ngrams, log_probs, backoffs)


def _load_orders(directory: Path, name: str) -> list[np.ndarray]:
    count = sum(1 for _ in directory.glob(f"{name}-*.npy"))
    return [load_array(directory / f"{name}-{order}.npy") for order in range(1, count + 1)]
