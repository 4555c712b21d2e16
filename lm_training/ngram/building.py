"""The whole way from files to a model file, in stages that need not be done twice.

    corpus     every input becomes one flat file of token ids (``lm_training.ngram.inputs``)
    counts     n-grams of all orders, counted by one of three engines that give the same result to the bit
    estimated  probabilities and backoff weights (``lm_training.ngram.backoff``)
    model      pruned, turned into an automaton, written

An engine is chosen for where the work happens, not for what comes out: ``sort`` in memory, in as many passes over the
tokens as the memory asks for; ``duckdb`` out of core; ``spark`` on a cluster.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np

from fst.model import NgramModel, table_to_fst
from fst.table import UNK, NgramTable
from lm_training.ngram.backoff import Smoothing, estimate_backoff
from lm_training.ngram.columns import OnDisk, Store, load_array
from lm_training.ngram.counts import NgramCounts, Resources, TokenStream, count_windows, minimum_of
from lm_training.ngram.estimation import MIN_COUNTS, SMOOTHINGS, refuse_scores
from lm_training.ngram.inputs import Encoder, Inputs, load_corpus, write_corpus
from lm_training.ngram.pruning import prune
from lm_training.ngram.sql_counts import DuckDb, Engine, count_with
from lm_training.ngram.work import WorkDirectory, file_facts, working

logger = logging.getLogger(__name__)

ENGINES = ("auto", "sort", "duckdb", "spark")

Report = Callable[[str, int, int | None], object]
"""Called with what is being done, how much of it is done, and how much there is, None where that is not known."""


@dataclass(frozen=True)
class Recipe:
    """What the model shall be.

    order: the longest n-grams.
    smoothing: a name in ``lm_training.ngram.estimation.SMOOTHINGS``.
    min_counts: for each order the count from which on an n-gram is kept; the last entry serves higher orders.
    max_ngrams, prune_theta: the limits of entropy pruning.
    unknown_word: whether the model has ``<unk>``, and mass for it.
    vocab_size: every id below it gets a probability; None for those up to the highest one.  Not for words.
    end_of_text: the id between the documents of token files; None where there is none.
    fingerprint: of the tokenizer, stored with the model.
    """

    order: int = 4
    smoothing: str = "katz"
    min_counts: tuple[int, ...] = MIN_COUNTS
    max_ngrams: int | None = None
    prune_theta: float | None = None
    unknown_word: bool = False
    vocab_size: int | None = None
    end_of_text: int | None = 0
    fingerprint: str | None = None

    def __post_init__(self) -> None:
        if self.smoothing not in SMOOTHINGS:
            raise ValueError(f"expected a smoothing method among {', '.join(SMOOTHINGS)}, got {self.smoothing!r}")
        if self.pruned:
            refuse_scores(self.method)

    @property
    def method(self) -> Smoothing:
        return SMOOTHINGS[self.smoothing]

    @property
    def pruned(self) -> bool:
        return self.max_ngrams is not None or self.prune_theta is not None


@dataclass(frozen=True)
class Means:
    """What the work may use.

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
    inputs: Inputs, encoder: Encoder | None, recipe: Recipe, means: Means, output: Path, work: Path, report: Report | None = None
) -> list[int]:
    """Make a model of the inputs; returns the number of n-grams of each order.

    A job that was interrupted goes on behind its last finished stage if it is given the same directory ``work``, which
    goes when the model is written.  ``output`` appears when it is complete.

    Raises:
        ValueError: the input cannot be read, is empty or holds ids outside the vocabulary, or an option is out of range.
    """
    report = report or (lambda what, done, total: None)
    job = {"inputs": file_facts(inputs.paths), "reading": [inputs.field, inputs.invalid_utf8, inputs.dtype], "recipe": asdict(recipe)}
    with working(work, job) as stages:
        report("reading", 0, None)
        corpus = stages.stage(
            "corpus", lambda at: write_corpus(inputs, encoder, recipe.end_of_text, at, lambda done: report("reading", done, None))
        )
        stream, symbols = load_corpus(corpus)
        _check(stream, symbols, inputs, recipe)
        counted = stages.stage("counts", lambda at: _count(stream, recipe, means, stages, OnDisk(at), report))
        report("estimating", 0, None)
        estimated = stages.stage(
            "estimated", lambda at: _estimate(_load_counts(counted), stream, symbols, recipe, OnDisk(at), means.threads)
        )
        table = _load_table(estimated)
        if recipe.pruned:
            report("pruning", 0, None)
            table = prune(table, recipe.prune_theta, recipe.max_ngrams)
        report("writing", 0, None)
        table = replace(table, symbols=symbols, fingerprint=recipe.fingerprint)
        if output.suffix == ".fst":
            return table_to_fst(table, output)
        automaton = stages.path / "model.fst"
        num_ngrams = table_to_fst(table, automaton)
        NgramModel.load(automaton).to_arpa(output)
        return num_ngrams


def _check(stream: TokenStream, symbols: list[str] | None, inputs: Inputs, recipe: Recipe) -> None:
    if not len(stream.ids):
        raise ValueError(f"expected some text, got none in {', '.join(map(str, inputs.paths))}")
    if symbols is None and recipe.vocab_size is not None and stream.highest >= recipe.vocab_size:
        raise ValueError(
            f"expected token ids below {recipe.vocab_size} (the tokenizer's), got {stream.highest}; name the tokenizer that made them"
        )


def _count(stream: TokenStream, recipe: Recipe, means: Means, stages: WorkDirectory, store: Store, report: Report) -> NgramCounts:
    engine = means.engine
    if engine == "auto":
        minimums = [minimum_of(recipe.min_counts, order) for order in range(1, recipe.order + 1)]
        engine = "sort" if means.resources.passes(stream.size, stream.bits, minimums) <= MANY_PASSES else "duckdb"

    def progress(done: int, total: int) -> None:
        report("counting", done, total)

    if engine == "sort":
        return count_windows(stream, recipe.order, recipe.min_counts, means.resources, progress, store)
    directory = stages.path / engine
    database: Engine
    if engine == "duckdb":
        database = DuckDb(directory, means.memory, means.threads)
    else:
        from lm_training.ngram.spark_counts import Spark

        database = Spark(directory, means.master, means.memory, means.threads)
    try:
        return count_with(database, stream, recipe.order, recipe.min_counts, progress, store)
    finally:
        database.close()


def _estimate(
    counts: NgramCounts, stream: TokenStream, symbols: list[str] | None, recipe: Recipe, store: Store, threads: int
) -> NgramTable:
    vocabulary = np.arange(recipe.vocab_size or stream.highest + 1) if symbols is None else np.zeros(0, dtype=np.int64)
    if recipe.unknown_word:
        vocabulary = np.append(vocabulary, UNK)
    return estimate_backoff(counts, recipe.method, vocabulary, store, threads)


def _load_counts(directory: Path) -> NgramCounts:
    names = ("ngrams", "counts", "totals", "types", "counts_of_counts")
    return NgramCounts(*(_load_orders(directory, name) for name in names))


def _load_table(directory: Path) -> NgramTable:
    ngrams, log_probs, backoffs = (_load_orders(directory, name) for name in ("ngrams", "log_probs", "backoffs"))
    return NgramTable(ngrams, log_probs, backoffs)


def _load_orders(directory: Path, name: str) -> list[np.ndarray]:
    count = sum(1 for _ in directory.glob(f"{name}-*.npy"))
    return [load_array(directory / f"{name}-{order}.npy") for order in range(1, count + 1)]
