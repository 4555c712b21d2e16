"""Everything that a report tells, measured.

A report is about one or more data sets of lattices, all of one model.  Of each, some texts are set aside to choose the
language model's weight on; no number in the report is of those.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from latticebpd.drafters.strategies import Vanilla
from latticebpd.drafters.system_names import CALIBRATED, ORACLE, VANILLA, SystemName, strategy_named
from latticebpd.lattices.lattice_set import LatticeSet
from latticebpd.lattices.sausage import SausageLattice
from latticebpd.measuring.comparison import Comparison, compare, describe
from latticebpd.measuring.entropy import HeadEntropy, head_entropy
from latticebpd.measuring.fitted_records import FittedRecord, exclude_examples
from latticebpd.measuring.latency import Latency, rescoring_latency
from latticebpd.measuring.lattice_files import blocks, watched
from latticebpd.measuring.oracle_tally import OracleTally, tally
from latticebpd.measuring.sweep import ALPHAS
from latticebpd.measuring.systems import outcome
from latticebpd.measuring.tuning import lattices_fingerprint, tune
from latticebpd.scoring.ngram import NgramScorer
from latticebpd.scoring.posteriors import arc_posteriors
from latticebpd.scoring.rescoring import (
    LanguageModel,
    as_scorer,
    check_vocabulary,
    is_calibrated,
    set_aside_by,
    tuned,
    tunings_of,
)
from latticebpd.scoring.weights import Tuning

PATHS = (1, 2, 4, 8, 16, 32, 64)
NODES = (8, 16, 32, 64, 128)
WIDTHS = (1, 2, 4, 8, 16)
HEADS = (3, 6, 9)
MOST_EXAMPLES = 100
"""As many as the paper sets aside for each task."""

Watch = Callable[[str, int], None]
"""Told what is being done, and how many lattices of it are done since the last time."""


@dataclass(frozen=True)
class DataSet:
    """Lattices of one task: a name, and files or directories."""

    name: str
    paths: tuple[str | os.PathLike[str], ...]


@dataclass(frozen=True)
class Options:
    """What to measure.

    alpha: weight of every language model; None takes for each system what is stored with it, else the best on the
        examples set aside.
    by: count the calls of decodes (``decode``) or all ``position``s; by default by decode where texts are known.
    tuning_examples: texts (or lattices, where the files do not number texts) to set aside, at most; never more than a
        quarter.
    budget: verified tokens per call that the system named best may need, at most.
    step: number of the lattice to draw, among those that are not set aside; None looks for a telling one.
    latency: whether to time rescoring.
    """

    alpha: float | None = None
    tuning_examples: int = MOST_EXAMPLES
    seed: int = 0
    budget: int = 64
    step: int | None = None
    latency: bool = True
    latency_lattices: int = 50
    by: str | None = None


@dataclass(frozen=True, eq=False)
class Example:
    """One step of a decode: its lattice, what the model wrote, and what two systems drafted.

    index: number of the lattice.  after: ``[slots, k]``, its weights after rescoring; None without a language model.
    accepted: drafted tokens that the vanilla draft, and the best system, got right.
    """

    index: int
    lattice: SausageLattice
    context: list[int]
    continuation: list[int]
    system: str
    draft: list[int]
    accepted: tuple[int, int]
    after: np.ndarray | None


@dataclass(frozen=True)
class Measured:
    """One data set.

    texts: how many, where it is known. aside: what was fitted to examples that are in no other number; set_aside: how
        many examples.
    models: language models by name, each at its own weight for every system. tunings: how these were, or would have
        been, tuned.
    """

    name: str
    texts: int | None
    aside: tuple[FittedRecord, ...]
    oracle: OracleTally
    comparison: Comparison
    entropy: HeadEntropy | None
    models: dict[str, LanguageModel]
    tunings: dict[str, tuple[Tuning, ...]] = field(default_factory=dict)

    @property
    def set_aside(self) -> int:
        return len({number for tuning in self.aside for number in tuning.examples})

    @property
    def counted(self) -> str:
        """What all its numbers are about, in words: the calls of a decode, or positions."""
        return self.comparison.signature.counted

    @property
    def efficiency(self) -> dict[str, float]:
        """Tokens per call of every system."""
        return dict(zip(self.comparison.systems, self.comparison.block_efficiency.tolist(), strict=True))

    @property
    def recovered(self) -> dict[str, float]:
        """Share of the headroom between vanilla and the oracle; NaN where there is none."""
        return dict(zip(self.comparison.systems, self.comparison.headroom_recovered.tolist(), strict=True))

    @property
    def verified(self) -> dict[str, float]:
        """Verified tokens per call of every system."""
        return dict(zip(self.comparison.systems, self.comparison.verified_tokens.tolist(), strict=True))

    def best_system(self, budget: int) -> str:
        """The system with the most tokens a call of those that verify at most ``budget`` tokens; of equal ones the
        first."""
        efficiency, verified = self.efficiency, self.verified
        allowed = [name for name in efficiency if name != ORACLE and verified[name] <= max(budget, verified[VANILLA])]
        return max(allowed, key=efficiency.__getitem__)


@dataclass(frozen=True)
class Measurements:
    """All data sets, and what is measured once."""

    sets: tuple[Measured, ...]
    models: dict[str, str]
    example: Example
    latency: Latency | None
    options: Options


def systems_of(models: Mapping[str, LanguageModel]) -> list[str]:
    """What is compared: p-best drafts and trees of several sizes, with the first language model and without; others at
    the usual sizes.

    Models with a calibration draft calibrated trees of the trees' sizes as well.
    """
    names = list(models)
    with_model = [f"{p}-best" for p in PATHS] + [f"{n}-tree" for n in NODES] if names else []
    without = [f"{p}-best:0-gram" for p in PATHS[1:]] + [f"{n}-tree:0-gram" for n in NODES]
    others = [f"{system}:{name}" for name in names[1:] for system in ("1-best", "16-best", "64-tree")]
    calibrated = [name for name in names if is_calibrated(models[name])]
    known = [f"{n}-{CALIBRATED}{'' if name == names[0] else f':{name}'}" for name in calibrated for n in NODES]
    return [*with_model, *known, *without, *others]


def measure(
    datasets: Sequence[DataSet],
    models: Mapping[str, LanguageModel],
    options: Options | None = None,
    vocab_size: int | None = None,
    watch: Watch | None = None,
) -> Measurements:
    """Measure everything.

    Args:
        datasets: at least one.
        models: language models by name; the first is the one that most of the report is about. Tunings that are stored
            with a model's file are used.
        vocab_size: for entropies of lattices that do not carry them; by default the first n-gram model's.
        watch: for progress.

    Raises:
        ValueError: no data set, one without lattices, lattices of several shapes or origins in one, or another
            vocabulary.
    """
    options = options or Options()
    if not datasets:
        raise ValueError("expected at least one data set of lattices, got none")
    ngrams = {
        name: scorer.lm
        for name, model in models.items()
        if isinstance(scorer := as_scorer(model), NgramScorer) and scorer.lm
    }
    if vocab_size is None:
        vocab_size = next((lm.vocab_size for lm in ngrams.values()), None)
    found = tuple(_measure_one(dataset, models, options, vocab_size, watch) for dataset in datasets)
    first = next(exclude_examples(blocks(datasets[0].paths), found[0].aside))
    words = {name: describe(model) for name, model in models.items()}
    latency = None
    if options.latency:
        timed = (
            as_scorer(found[0].models[next(iter(ngrams))], options.alpha, "16-best") if ngrams else NgramScorer(None)
        )
        assert isinstance(timed, NgramScorer)
        latency = rescoring_latency(first, timed, count=options.latency_lattices)
    return Measurements(found, words, _example(first, found[0], options), latency, options)


def _measure_one(
    dataset: DataSet,
    models: Mapping[str, LanguageModel],
    options: Options,
    vocab_size: int | None,
    watch: Watch | None,
) -> Measured:
    def watching(doing: str) -> Callable[[int], None]:
        return (lambda _: None) if watch is None else (lambda done: watch(f"{dataset.name}: {doing}", done))

    def read(doing: str) -> Iterator[LatticeSet]:
        for block in watched(exclude_examples(blocks(dataset.paths), tunings), watching(doing)):
            for name, model in models.items():
                check_vocabulary(model, block.fingerprint, block.vocab_size, f"{dataset.name}'s model ({name})")
            yield block

    tunings: list[FittedRecord] = []
    lattices, texts, has_entropy = _counted(read("texts"), dataset)
    fingerprint = lattices_fingerprint(dataset.paths)
    count = min(options.tuning_examples, (lattices if texts is None else texts) // 4)
    names = systems_of(models)
    own: dict[str, tuple[Tuning, ...]] = {}
    for name, model in models.items():
        if stored := tunings_of(model):
            own[name] = stored
        elif count:
            asking = [system for system in map(SystemName.parse, names) if system.chosen(models) == name]
            wanted = dict.fromkeys(str(system) for system in asking if system.kind != CALIBRATED)
            watcher = watching(f"weights of {name}")
            own[name] = tuple(
                tune(dataset.paths, model, each, ALPHAS, count, options.seed, watcher)[0] for each in wanted
            )
    # Tuned on other files, a weight costs these no examples.
    records = [record for name, model in models.items() for record in (*own.get(name, ()), *set_aside_by(model))]
    tunings = [record for record in dict.fromkeys(records) if record.lattices == fingerprint]
    weighed: dict[str, LanguageModel] = {name: tuned(model, own.get(name, ())) for name, model in models.items()}
    oracle = tally(read("oracle"), *_sizes(next(blocks(dataset.paths))), options.by)
    comparison = compare(read("systems"), names, weighed or None, options.alpha, options.seed, by=options.by)
    entropy = head_entropy(read("entropy"), vocab_size, options.by) if has_entropy or vocab_size is not None else None
    measured = Measured(dataset.name, texts, tuple(tunings), oracle, comparison, entropy, weighed, own)
    return measured if texts is None else replace(measured, texts=texts - measured.set_aside)


def _sizes(block: LatticeSet) -> tuple[list[int], list[int]]:
    """Widths and numbers of heads for the oracle."""
    _, slots, k = block.tokens.shape
    return sorted({w for w in WIDTHS if w <= k} | {k}), sorted({h for h in HEADS if h <= slots + 1} | {slots + 1})


def _counted(found: Iterator[LatticeSet], dataset: DataSet) -> tuple[int, int | None, bool]:
    """Lattices; texts, where they are known; whether the files tell entropies."""
    texts: set[int] = set()
    lattices, has_entropy, numbered = 0, True, True
    for block in found:
        lattices += len(block)
        has_entropy &= block.entropy is not None
        numbered &= block.sequence is not None
        texts.update([] if block.sequence is None else np.unique(block.sequence).tolist())
    if not lattices:
        raise ValueError(f"{dataset.name}: expected at least one lattice, got files without any")
    return lattices, len(texts) if numbered else None, has_entropy


def _example(block: LatticeSet, measured: Measured, options: Options) -> Example:
    step = options.step
    if step is not None and not 0 <= step < len(block):
        raise ValueError(f"expected a step from 0 to {len(block) - 1}, got {step}")
    name = "16-best" if measured.models else "16-best:0-gram"
    found, vanilla = (
        outcome(strategy_named(name, measured.models or None, options.alpha), block),
        outcome(Vanilla(), block),
    )
    # Much is to be seen where the system gains much and the text does not repeat itself; not at a text's end.
    ordered = np.sort(block.continuation, axis=1)
    distinct = 1 + (ordered[:, 1:] != ordered[:, :-1]).sum(axis=1)
    telling = 2 * (found.lengths - vanilla.lengths) + distinct - 100 * (ordered[:, 0] < 0)
    index = int(np.argmax(telling)) if step is None else step
    first = next(iter(measured.models), None)
    scorer = None if first is None else as_scorer(measured.models[first], options.alpha, name)
    after = None if scorer is None else arc_posteriors(block[index], scorer, context=block.context_of(index))
    return Example(
        index,
        block[index],
        block.context_of(index),
        block.continuation[index].tolist(),
        name,
        found.first[index].tolist(),
        (int(vanilla.lengths[index]), int(found.lengths[index])),
        after,
    )
