"""The numbers of a report: statistics of one or more data sets of lattices, all of one model.

Some texts of each data set are held out to tune the language model's weight; no number in the report is of those.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from fst.files import PathLike
from fst.processors import ignore
from latticebpd.checks import expect
from latticebpd.drafters.strategies import Vanilla
from latticebpd.drafters.system_names import CALIBRATED, ORACLE, VANILLA, SystemName, strategy_named
from latticebpd.lattices.lattice_set import LatticeSet
from latticebpd.lattices.sausage import SausageLattice
from latticebpd.measuring.comparison import Comparison, compare, describe
from latticebpd.measuring.entropy import HeadEntropy, head_entropy
from latticebpd.measuring.examples import FittedRecord, exclude_examples, lattices_fingerprint
from latticebpd.measuring.lattice_files import blocks, text_numbers, with_progress
from latticebpd.measuring.oracle_tally import OracleTally, tally
from latticebpd.measuring.replay import outcome
from latticebpd.measuring.tuning import ALPHAS, tune
from latticebpd.scoring import rescoring
from latticebpd.scoring.ngram import NgramScorer
from latticebpd.scoring.posteriors import arc_posteriors
from latticebpd.scoring.rescoring import LanguageModel, as_scorer, check_vocabulary
from latticebpd.scoring.weights import Tuning

PATHS = (1, 2, 4, 8, 16, 32, 64)
NODES = (8, 16, 32, 64, 128)
WIDTHS = (1, 2, 4, 8, 16)
HEADS = (3, 6, 9)
MOST_EXAMPLES = 100
"""Held-out examples of each task in the paper."""

Watch = Callable[[str, int], object]
"""Called with the task, and the number of its lattices that are done since the last call."""


@dataclass(frozen=True)
class DataSet:
    """Lattices of one task: a name, and files or directories."""

    name: str
    paths: tuple[PathLike, ...]


@dataclass(frozen=True)
class Options:
    """What to measure.

    alpha: weight of every language model; None takes each system's stored weight, else the best on held-out examples.
    by: count the calls of decodes (``decode``) or all ``position``s; by default by decode where texts are known.
    tuning_examples: texts (or lattices, where the files do not number texts) to hold out, at most a quarter.
    budget: verified tokens per call that the system named best may need, at most.
    step: number of the lattice to draw, among those not held out; None chooses one.
    """

    alpha: float | None = None
    tuning_examples: int = MOST_EXAMPLES
    seed: int = 0
    budget: int = 64
    step: int | None = None
    by: str | None = None


@dataclass(frozen=True, eq=False)
class Example:
    """One step of a decode: its lattice, the model's continuation, and a system's draft.

    index: number of the lattice. after: ``[slots, k]``, its weights after rescoring; None without a language model.
    accepted: drafted tokens of the vanilla draft, and of the system.
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

    texts: number of texts, None where it is not known. fitted: records whose examples are in no number;
        num_excluded: how many examples.
    models: language models by name, each with a weight for every system. tunings: the records of these weights.
    """

    name: str
    texts: int | None
    fitted: tuple[FittedRecord, ...]
    oracle: OracleTally
    comparison: Comparison
    entropy: HeadEntropy | None
    models: dict[str, LanguageModel]
    tunings: dict[str, tuple[Tuning, ...]] = field(default_factory=dict)

    @property
    def num_excluded(self) -> int:
        return len({number for tuning in self.fitted for number in tuning.examples})

    @property
    def counted(self) -> str:
        """What is counted, in words: the calls of a decode, or positions."""
        return self.comparison.signature.counted

    @property
    def efficiency(self) -> dict[str, float]:
        """Tokens per call of every system."""
        return self._by_system(self.comparison.block_efficiency)

    @property
    def recovered(self) -> dict[str, float]:
        """Share of the headroom between vanilla and the oracle; NaN where there is none."""
        return self._by_system(self.comparison.headroom_recovered)

    @property
    def verified(self) -> dict[str, float]:
        """Verified tokens per call of every system."""
        return self._by_system(self.comparison.verified_tokens)

    def _by_system(self, values: np.ndarray) -> dict[str, float]:
        return dict(zip(self.comparison.systems, values.tolist(), strict=True))

    def best_system(self, budget: int) -> str:
        """The system with the most tokens per call that verifies at most ``budget`` tokens; of equal ones the first."""
        efficiency, verified = self.efficiency, self.verified
        allowed = [name for name in efficiency if name != ORACLE and verified[name] <= max(budget, verified[VANILLA])]
        return max(allowed, key=efficiency.__getitem__)


@dataclass(frozen=True)
class Measurements:
    """All data sets, and what is measured once. models: descriptions of the language models, by name."""

    sets: tuple[Measured, ...]
    models: dict[str, str]
    example: Example
    options: Options

    @property
    def model(self) -> str | None:
        """The name of the first language model."""
        return next(iter(self.models), None)


def systems_of(models: Mapping[str, LanguageModel]) -> list[str]:
    """The systems compared: p-best drafts and trees of several sizes, with the first language model and without.

    Other models have the usual sizes only; models with a calibration also have calibrated trees.
    """
    names = list(models)
    with_model = [f"{p}-best" for p in PATHS] + [f"{n}-tree" for n in NODES] if names else []
    without = [f"{p}-best:0-gram" for p in PATHS[1:]] + [f"{n}-tree:0-gram" for n in NODES]
    others = [f"{system}:{name}" for name in names[1:] for system in ("1-best", "16-best", "64-tree")]
    calibrated = [name for name in names if rescoring.is_calibrated(models[name])]
    known = [f"{n}-{CALIBRATED}{'' if name == names[0] else f':{name}'}" for name in calibrated for n in NODES]
    return [*with_model, *known, *without, *others]


def measure(
    datasets: Sequence[DataSet],
    models: Mapping[str, LanguageModel],
    options: Options | None = None,
    watch: Watch = ignore,
) -> Measurements:
    """Measure one or more data sets; ValueError for none, one without lattices, or several shapes, origins or
    vocabularies in one.

    models: language models by name; most of the report is about the first. Stored tunings are used. Entropies of
        lattices without them are bounded by the vocabulary of the first n-gram model.
    """
    options = options or Options()
    expect(datasets, "at least one data set of lattices")
    scorers = {name: as_scorer(model) for name, model in models.items()}
    ngrams = {name: scorer.lm for name, scorer in scorers.items() if isinstance(scorer, NgramScorer) and scorer.lm}
    vocab_size = next((lm.vocab_size for lm in ngrams.values()), None)
    sets = tuple(_measure_one(dataset, models, options, vocab_size, watch) for dataset in datasets)
    first = next(exclude_examples(blocks(datasets[0].paths), sets[0].fitted))
    words = {name: describe(model) for name, model in models.items()}
    return Measurements(sets, words, _example(first, sets[0], options), options)


def _measure_one(
    dataset: DataSet, models: Mapping[str, LanguageModel], options: Options, vocab_size: int | None, watch: Watch
) -> Measured:
    def on_block(task: str) -> Callable[[int], object]:
        return lambda done: watch(f"{dataset.name}: {task}", done)

    def read(task: str) -> Iterator[LatticeSet]:
        for block in with_progress(exclude_examples(blocks(dataset.paths), fitted), on_block(task)):
            for name, model in models.items():
                check_vocabulary(model, block.fingerprint, block.vocab_size, f"{dataset.name}'s model ({name})")
            yield block

    fitted: list[FittedRecord] = []
    lattices, numbers = text_numbers(dataset.paths)
    texts = None if numbers is None else len(np.unique(numbers))
    first, fingerprint = next(blocks(dataset.paths)), lattices_fingerprint(dataset.paths)
    count = min(options.tuning_examples, (lattices if texts is None else texts) // 4)
    names = systems_of(models)
    tunings: dict[str, tuple[Tuning, ...]] = {}
    for name, model in models.items():
        if stored := rescoring.as_tuned(model).tunings:
            tunings[name] = stored
        elif count:
            own = [system for system in map(SystemName.parse, names) if system.chosen(models) == name]
            wanted = dict.fromkeys(str(system) for system in own if system.kind != CALIBRATED)
            on_piece = on_block(f"weights of {name}")
            results = (tune(dataset.paths, model, each, ALPHAS, count, options.seed, on_piece) for each in wanted)
            tunings[name] = tuple(tuning for tuning, _ in results)
    weighted: dict[str, LanguageModel] = {}
    records: dict[FittedRecord, None] = {}  # each once, in order
    for name, model in models.items():
        weighted[name] = rescoring.tuned(model, tunings.get(name, ()))
        records |= dict.fromkeys((*tunings.get(name, ()), *rescoring.fitted_records(model)))
    # Weights tuned on other files exclude none of these examples.
    fitted = [record for record in records if record.lattices == fingerprint]
    _, slots, k = first.tokens.shape
    widths = [*(width for width in WIDTHS if width < k), k]
    heads = [*(number for number in HEADS if number <= slots), slots + 1]
    oracle = tally(read("oracle"), widths, heads, options.by)
    comparison = compare(read("systems"), names, weighted or None, options.alpha, options.seed, by=options.by)
    is_known = first.entropy is not None or vocab_size is not None
    entropy = head_entropy(read("entropy"), vocab_size, options.by) if is_known else None
    measured = Measured(dataset.name, texts, tuple(fitted), oracle, comparison, entropy, weighted, tunings)
    return measured if texts is None else replace(measured, texts=texts - measured.num_excluded)


def _example(block: LatticeSet, measured: Measured, options: Options) -> Example:
    step, models = options.step, measured.models
    expect(step is None or 0 <= step < len(block), f"a step from 0 to {len(block) - 1}", step)
    name = "16-best" if models else "16-best:0-gram"
    system, vanilla = outcome(strategy_named(name, models or None, options.alpha), block), outcome(Vanilla(), block)
    # A good example has a large gain and few repetitions, and is not at a text's end.
    ordered = np.sort(block.continuation, axis=1)
    distinct = 1 + (ordered[:, 1:] != ordered[:, :-1]).sum(axis=1)
    quality = 2 * (system.lengths - vanilla.lengths) + distinct - 100 * (ordered[:, 0] < 0)
    index = int(np.argmax(quality)) if step is None else step
    lattice, context, continuation = block[index], block.context_of(index), block.continuation[index].tolist()
    after = None
    if models:
        after = arc_posteriors(lattice, as_scorer(next(iter(models.values())), options.alpha, name), context=context)
    accepted = int(vanilla.lengths[index]), int(system.lengths[index])
    return Example(index, lattice, context, continuation, name, system.first[index].tolist(), accepted, after)
