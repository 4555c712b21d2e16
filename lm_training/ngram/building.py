"""From files to a model file, in stages that a restarted job does not repeat.

corpus     every input becomes one flat file of token ids (``lm_training.ngram.inputs``)
counts     n-grams of all orders, counted in memory, or on a Spark cluster with the same result to the bit
estimated  probabilities and backoff weights (``lm_training.ngram.backoff``)
model      pruned, converted to an automaton, written
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from fst.automaton import MAX_ORDER
from fst.files import locked, require_writable
from fst.model import NgramModel, table_to_fst
from fst.processors import ignore
from fst.table import UNK, NgramTable
from latticebpd.checks import expect
from lm_training.ngram.array_store import ArrayStore
from lm_training.ngram.backoff import estimate_backoff
from lm_training.ngram.counts import DEFAULT_MEMORY, MIN_COUNTS, OrderCounts, TokenStream, count_ngrams, minimum_of
from lm_training.ngram.inputs import Encoder, Inputs, load_corpus, write_corpus
from lm_training.ngram.pruning import prune
from lm_training.ngram.smoothing import SMOOTHINGS, Smoothing
from lm_training.ngram.work_folder import WorkFolder, file_facts, work_folder

ENGINES = ("auto", "sort", "spark")
UNSEEN = ("smoothed", "floor")
LARGEST_ID = 2**31 - 3
LARGEST_IMPLIED_VOCABULARY = 1 << 20
"""Higher ids need an explicit vocabulary size: one stray id must not allocate memory for all ids below it."""

Report = Callable[[str, int, int | None], object]
"""Called with the name of the step, the amount done, and the total or None if it is unknown."""


@dataclass(frozen=True)
class Recipe:
    """The model to build.

    smoothing: a name in ``lm_training.ngram.smoothing.SMOOTHINGS``.
    min_counts: of each order the count from which on n-grams are kept; the last also of higher orders.
    max_ngrams, prune_theta: the limits of entropy pruning.
    unknown_word: whether the model has ``<unk>``, with mass for it.
    unseen: token ids that never occur: "smoothed", each gets a share of the mass; "floor", natural log -1000 (Kim et
        al. 2024, section 7.2).  Not for words.
    vocab_size: ids must be below it; None for up to the highest that occurs.  Not for words.
    end_of_text: the id between the documents of token files; None without one.
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
        expect(1 <= self.order <= MAX_ORDER, f"an order from 1 to {MAX_ORDER}", self.order)
        expect(self.smoothing in SMOOTHINGS, f"a smoothing method among {', '.join(SMOOTHINGS)}", repr(self.smoothing))
        expect(self.unseen in UNSEEN, f"{' or '.join(UNSEEN)} for token ids that never occur", repr(self.unseen))
        minimum_of(self.min_counts, 1)  # raises for invalid counts
        if self.prune_theta is not None and not self.prune_theta >= 0:
            raise ValueError(f"expected a threshold of at least 0 for pruning, got {self.prune_theta}")

    @property
    def method(self) -> Smoothing:
        return SMOOTHINGS[self.smoothing]

    @property
    def pruned(self) -> bool:
        return self.max_ngrams is not None or self.prune_theta is not None


@dataclass(frozen=True)
class CountingOptions:
    """How n-grams are counted.

    engine: one of ``ENGINES``: sort, in memory, in as many passes over the tokens as it requires; spark; auto is sort.
    memory: bytes for counting. master: of the Spark cluster.
    """

    engine: str = "auto"
    memory: int = DEFAULT_MEMORY
    threads: int = 1
    master: str = "local[*]"

    def __post_init__(self) -> None:
        expect(self.engine in ENGINES, f"an engine among {', '.join(ENGINES)}", repr(self.engine))
        wanted = "at least one thread and 1 MiB of memory"
        expect(self.threads >= 1 and self.memory >= 1 << 20, wanted, f"{self.threads} and {self.memory} bytes")


def build(
    inputs: Inputs,
    encoder: Encoder | None,
    recipe: Recipe,
    counting: CountingOptions,
    output: Path,
    work: Path,
    report: Report = ignore,
) -> list[int]:
    """Build a model of the inputs; returns the number of n-grams of each order.

    An interrupted job continues after its last finished stage if it gets the same folder ``work``, which is removed
    when the model is written.  ``output`` appears when it is complete.
    Raises ValueError: the input cannot be read, is empty or holds ids outside the vocabulary, an option is out of
    range, the output cannot be written, or another process is writing it.
    """
    require_writable(output, "file")
    require_writable(work, "folder")
    job = {"inputs": file_facts(inputs.paths), "field": inputs.field, "recipe": asdict(recipe)}
    with locked(output), work_folder(work, job) as folder:
        return _Job(inputs, encoder, recipe, counting, folder, report).write(output)


@dataclass(frozen=True)
class _Job:
    """The stages of one job."""

    inputs: Inputs
    encoder: Encoder | None
    recipe: Recipe
    counting: CountingOptions
    work: WorkFolder
    report: Report

    def write(self, output: Path) -> list[int]:
        recipe, orders = self.recipe, range(1, self.recipe.order + 1)
        self.report("reading", 0, None)
        stream, symbols = load_corpus(self.work.stage("corpus", self._read))
        folder = self.work.stage("counts", lambda folder: self._count(stream, ArrayStore(folder)))
        names = [field.name for field in fields(OrderCounts)]
        counts = [OrderCounts(*(np.load(folder / f"{name}-{order}.npy", "r") for name in names)) for order in orders]
        self.report("estimating", 0, None)
        folder = self.work.stage("estimated", lambda path: self._estimate(counts, stream, symbols, ArrayStore(path)))
        names = ["ngrams", "log_probs", "backoffs"]
        arrays: Any = {name: [np.load(folder / f"{name}-{order}.npy", "r") for order in orders] for name in names}
        table = NgramTable(**arrays, symbols=symbols, fingerprint=recipe.fingerprint)
        if recipe.pruned:
            self.report("pruning", 0, None)
            table = prune(table, recipe.prune_theta, recipe.max_ngrams)
        self.report("writing", 0, None)
        automaton = output if output.suffix == ".fst" else self.work.path / "model.fst"
        num_ngrams = table_to_fst(table, automaton)
        if automaton != output:
            NgramModel.load(automaton).to_arpa(output)
        return num_ngrams

    def _read(self, folder: Path) -> None:
        recipe = self.recipe
        stream, symbols = write_corpus(
            self.inputs, self.encoder, recipe.end_of_text, folder, lambda done: self.report("reading", done, None)
        )
        if symbols is not None:
            return
        wanted = f"token ids of at most {LARGEST_ID}"
        expect(stream.highest <= LARGEST_ID, wanted, stream.highest, "an automaton has no label for it")
        if recipe.vocab_size is not None:
            wanted = f"token ids below {recipe.vocab_size} (the vocabulary's size)"
            expect(stream.highest < recipe.vocab_size, wanted, stream.highest, "name the tokenizer that made them")
        elif recipe.unseen == "smoothed":
            remedy = "if it is no stray one, give the vocabulary with --tokenizer or --vocab-size, or ids that never "
            remedy += "occur no mass (--unseen floor)"
            most = LARGEST_IMPLIED_VOCABULARY
            expect(stream.highest < most, f"token ids below {most}", stream.highest, remedy)

    def _count(self, stream: TokenStream, store: ArrayStore) -> list[OrderCounts]:
        order, min_counts, counting = self.recipe.order, self.recipe.min_counts, self.counting
        progress = partial(self.report, "counting")
        if counting.engine != "spark":
            return count_ngrams(stream, order, min_counts, counting.memory, counting.threads, progress, store)
        from lm_training.ngram.spark_counts import SparkCounter

        counter = SparkCounter(self.work.path / "spark", counting.master, counting.memory, counting.threads)
        return counter.count(stream, order, min_counts, progress, store)

    def _estimate(
        self, counts: list[OrderCounts], stream: TokenStream, symbols: list[str] | None, store: ArrayStore
    ) -> NgramTable:
        recipe = self.recipe
        ids = 0 if symbols is not None or recipe.unseen == "floor" else recipe.vocab_size or stream.highest + 1
        vocabulary = np.arange(ids, dtype=np.int32)
        if recipe.unknown_word:
            vocabulary = np.append(vocabulary, np.int32(UNK))
        return estimate_backoff(counts, recipe.method, vocabulary, store, self.counting.threads)
