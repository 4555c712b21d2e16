"""Kim 2024's tables and figures on SmolLM2-135M-Instruct: one resumable command.

    latticebpd models get smollm2-135m
    python -m benchmarks.study.kim --data DIR --work WORK [--neural]
    python -m benchmarks.study.kim                         # tables and figures of the committed counts, in seconds

``--neural`` trains and measures neural rescorers as well. ``DIR`` holds the data that `kim_tasks.py` names. ``WORK``
then holds, stage by stage, prompts, lattices of the model's own greedy text, n-gram models, weights and calibrations;
finished stages are not repeated. The counts, text by text, go to ``results/kim-*.csv`` next to this file, and every
table and figure is made from these alone (`kim_tables.py`).
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import numpy as np
import torch

import fst
from benchmarks.common import latticebpd, options, read_json, read_lines, stage, stored, write_csv, write_json
from benchmarks.decodes import RESULTS
from benchmarks.smollm2.make import END, HELD_OUT, MODEL, PEOPLE, conversations, people_corpus, stored_answers
from benchmarks.smollm2.more_text import STORED
from benchmarks.smollm2.trees import ALL, VARIANTS, narrowed
from benchmarks.study import kim_tables
from benchmarks.study.kim_tasks import HELD, TASKS, Task, chosen, held, own_prompts
from fst.fingerprint import vocabulary_fingerprint
from latticebpd import BlockwiseLM, LatticeSet, NeuralRescorer, load
from latticebpd.drafters.heads.blockwise import load_blockwise
from latticebpd.drafters.text_states import entropy
from latticebpd.lattices.shards import lattice_directory
from latticebpd.lattices.texts import Texts
from latticebpd.measuring.calibrate import calibrate
from latticebpd.measuring.comparison import compare
from latticebpd.measuring.entropy import BIN, head_entropy
from latticebpd.measuring.examples import draw_examples
from latticebpd.measuring.oracle_tally import tally
from latticebpd.measuring.quality import exact_match, f1, perplexity, rouge_l
from latticebpd.measuring.tuning import ALPHAS, tune
from latticebpd.models.catalogue import resolved
from latticebpd.models.chat import ChatTemplate
from latticebpd.models.load_target import load_tokenizer
from latticebpd.models.target_model import TargetModel
from latticebpd.models.weight_kinds import TORCH
from latticebpd.scoring.calibrated import CalibratedScorer
from latticebpd.scoring.calibration import Calibration
from latticebpd.scoring.ngram import NgramScorer
from latticebpd.scoring.rescoring import Tuned, as_scorer
from lm_training.ngram.building import CountingOptions, Recipe, build
from lm_training.ngram.inputs import Inputs
from lm_training.ngram.perplexity import perplexity as ngram_perplexity

OWN_TEXT = Path(__file__).parents[1] / "smollm2" / "own-text.npz"
TUNING, TEST = 8, 100
"""Texts of a task."""
NEW_TOKENS = 64
WIDEST, K = 64, 16
"""Arcs of a slot that are kept, for the oracle; arcs of a slot in all systems, the paper's."""
CONTEXT = 640
"""Tokens before a lattice that are kept with it: all."""
POSITIONS = 2000
"""The most that calibrations are fitted to."""
KS, HEADS = (1, 2, 4, 8, 16, 32, 64), tuple(range(2, 10))
GENERAL_NGRAMS = 2_000_000
EVERY = 4
LETTERS = 3_000_000
"""The most of in-domain text."""
Row = dict[str, Any]


# ---------------------------------------------------------------- texts and lattices
def prompts(work: Path, data: Path) -> Path:
    """Prompts of all tasks, tuning texts before test texts, with continuations; sources and references as JSON."""
    path = work / "prompts.npz"

    def make() -> None:
        known = own_prompts(conversations(work, data))
        chat = ChatTemplate(tokenizer(), None)
        rows: list[Row] = []
        about: dict[str, Row] = {}
        for task in TASKS.values():
            tuning, _ = chosen(task, task.tuning(data), TUNING, known, chat)
            test, refused = chosen(task, task.test(data), TEST, known, chat)
            if (len(tuning), len(test)) != (TUNING, TEST):
                raise ValueError(f"{task.name}: expected {TUNING} and {TEST} texts, got {len(tuning)} and {len(test)}")
            rows += tuning + test
            texts = [{name: row[name] for name in ("source", "references")} for row in tuning + test]
            about[task.name] = {"refused": refused, "texts": texts}
        write_json(path.with_suffix(".json"), about)
        Texts.of_rows([row["tokens"] for row in rows], [row["prompt_tokens"] for row in rows]).save(path)

    return stage(path, make)


def lattices(work: Path, data: Path, tasks: Sequence[str]) -> Path:
    """The lattices of the model's greedy text after the prompts, with whole contexts; a shard for each task."""
    folder, asked, each = work / "lattices", prompts(work, data), TUNING + TEST
    if not all(lattice_directory(folder).file(number).exists() for number, task in enumerate(TASKS) if task in tasks):
        sizes = f"-k {WIDEST} --context {CONTEXT} --max-prompt-tokens {CONTEXT} --max-new-tokens {NEW_TOKENS}"
        shards = f"--model {MODEL} --weights torch --no-bigram {sizes} --shard-size {each} --batch-size {each} -o"
        latticebpd("lattices", "--prompts", asked, shards, folder)
    return folder


@dataclass(frozen=True, eq=False)
class Part:
    """Tuning or test texts of a task: the model's text and its lattices, by the number of the text; texts of one
    token have none.

    lattices: 64 arcs a slot. cut: the file of the same with 16.
    """

    texts: list[tuple[list[int], int]]
    lattices: LatticeSet
    cut: Path


def parts(work: Path, task: str, shards: Path) -> tuple[Part, Part]:
    """Tuning and test texts."""
    number, size, directory = list(TASKS).index(task), TUNING + TEST, lattice_directory(shards)
    every, written = LatticeSet.load(directory.file(number)), Texts.load(directory.file(number, "texts"))
    asked = Texts.load(work / "prompts.npz").prompts()
    index = {tuple(asked[number * size + row].tolist()): row for row in range(size)}
    texts = list(written.items())
    numbers = np.array([index[tuple(text[:length])] for text, length in texts])
    every = replace(every, sequence=numbers[numbers_of(every)])

    def part(name: str, own: range) -> Part:
        lattices, path = every.take(np.isin(numbers_of(every), own)), work / "cut" / f"{shards.name}-{task}-{name}.npz"
        stage(path, lambda: narrowed(lattices, K).save(path))
        return Part([text for text, row in zip(texts, numbers, strict=True) if row in own], lattices, path)

    return part("tuning", range(TUNING)), part("test", range(TUNING, size))


def numbers_of(lattices: LatticeSet) -> np.ndarray:
    assert lattices.sequence is not None
    return lattices.sequence


@cache
def tokenizer() -> Any:
    return load_tokenizer(MODEL)


# ---------------------------------------------------------------- n-gram models
def general_corpus(work: Path, data: Path) -> Path:
    """Every fourth document of human text (`smollm2/make.py`), without those of tuning and test passages."""
    path, people = work / "general.npy", people_corpus(work, data)

    def make() -> None:
        ids = np.load(people)
        documents = np.split(ids, np.flatnonzero(ids == END) + 1)[:-1]
        others = [held(row) not in HELD for name in PEOPLE if "books" not in name for row in read_lines(data / name)]
        free = [True] * (len(documents) - len(others)) + others  # the books come first
        np.save(path, np.concatenate([each for each, is_free in zip(documents, free, strict=True) if is_free][::EVERY]))

    return stage(path, make)


def own_corpus(work: Path) -> Path:
    """The model's answers that its heads learnt from; nothing of their prompts."""

    def make() -> None:
        numbers, first, _ = stored_answers(OWN_TEXT)
        learnt = [answer for number, answer in zip(numbers.tolist(), first, strict=True) if number % HELD_OUT]
        rows = [np.append(answer[answer != END], END) for answer in (*learnt, *stored_answers(STORED)[1])]
        np.save(work / "own.npy", np.concatenate(rows).astype(np.uint16))

    return stage(work / "own.npy", make)


def domain_corpus(work: Path, data: Path, task: Task) -> Path:
    """Text of the task's kind, up to so many letters."""

    def make() -> None:
        texts = list(task.domain(data))
        ends = np.cumsum([len(text) for text in texts])
        rows = tokenizer()(texts[: 1 + int(np.searchsorted(ends, LETTERS))], add_special_tokens=False)["input_ids"]
        np.save(path, np.concatenate([[*row, END] for row in rows]).astype(np.uint16))

    path = work / "domains" / f"{task.name}.npy"
    return stage(path, make)


def ngram_model(work: Path, corpus: Path, order: int, **options: Any) -> Path:
    """Katz, as `latticebpd lm train` estimates it; by default the paper's minimum counts: trigrams 2, 4-grams 4."""
    path = work / "lm" / f"{corpus.stem}-{order}.fst"
    vocabulary = tokenizer().get_vocab()
    known = {"vocab_size": len(vocabulary), "fingerprint": vocabulary_fingerprint(vocabulary)}
    recipe = Recipe(order=order, end_of_text=END, **known, **options)
    counting = CountingOptions("sort", 3 << 30, 1)
    return stage(path, lambda: build(Inputs([corpus]), None, recipe, counting, path, path.with_suffix(".work")))


def language_models(work: Path, data: Path, task: Task) -> dict[str, Path]:
    """General and in-domain n-gram models of each order, and a 4-gram of the model's text: g4, d2, own4."""
    models, few = {}, (1, 1, 1, 2)
    for order in (2, 3, 4):
        models[f"g{order}"] = ngram_model(work, general_corpus(work, data), order, max_ngrams=GENERAL_NGRAMS)
        models[f"d{order}"] = ngram_model(work, domain_corpus(work, data, task), order, min_counts=few)
    return models | {"own4": ngram_model(work, own_corpus(work), 4, min_counts=few, max_ngrams=GENERAL_NGRAMS)}


def neural_rescorer(work: Path, data: Path, task: Task, name: str) -> Path:
    """A small neural rescorer of the n-gram models' text; that of a task goes on from the general one (appendix D)."""
    corpora = {"general": general_corpus(work, data), "own": own_corpus(work)}
    corpus = corpora[name] if name in corpora else domain_corpus(work, data, task)
    directory, updates = work / "rescorers" / corpus.stem, NEURAL_UPDATES[name]

    def make() -> None:
        learnt, held_out = directory.with_suffix(".npy"), directory.with_suffix(".held-out.npy")
        text = np.load(corpus)
        for path, part in zip((learnt, held_out), np.split(text, [len(text) * 49 // 50]), strict=True):
            np.save(path, part)
        start = "--preset tiny" if name in corpora else f"--model {neural_rescorer(work, data, task, 'general')}"
        about = ("--validation", held_out, "--tokenizer", Path(resolved(MODEL)) / "tokenizer.json", start)
        steps = f"--steps {updates} --batch-size 8 --warmup-steps 20 --validation-every {updates}"
        latticebpd("train rescorer", learnt, *about, steps, "-o", directory)

    stage(directory / "rescorer.json", make)
    return directory


# ---------------------------------------------------------------- systems
RESCORED = {
    "g2": ("1-best",),
    "g3": ("1-best",),
    "g4": ("1-best", "2-best", "4-best", "8-best", "16-best", "16-tree", "64-tree"),
    "d2": ("1-best",),
    "d3": ("1-best",),
    "d4": ("1-best", "16-best", "16-tree"),
    "own4": ("1-best", "16-best", "16-tree", "64-tree"),
}
"""By language model, its systems, each with a weight of its own."""
PLAIN = ("2-best", "4-best", "8-best", "16-best", "16-tree", "64-tree")
CALIBRATED = ("16-calibrated:g4-all", "16-calibrated:own4-text", "16-calibrated:own4-all", "64-calibrated:own4-all")
"""Fitted to the tuning texts of all tasks; ``text`` has no features of the text so far, ``all`` has."""
NEURAL_UPDATES = {"general": 300, "in-domain": 60, "own": 300}
"""Neural rescorers and their updates of eight texts; a task's follow the general ones.  They choose best paths greedily
from slot to slot, the paper's local rescoring."""
NEURAL_ALPHAS = (0.1, 0.25, 0.5, 1.0, 2.0)
"""Their weights, and further ones where the best is the first or the last."""
LOOKED_AT = ("vanilla", "1-best:g2", "1-best:g4", "1-best:own4", "16-best:g4")
"""Systems whose wins, losses and repetitions are kept."""
SYSTEMS = (
    *(f"{system}:{name}" for name, systems in RESCORED.items() for system in systems),
    *(f"{system}:0-gram" for system in PLAIN),
)


def tuned_models(
    paths: Sequence[Path],
    models: Mapping[str, Any],
    rescored: Mapping[str, Sequence[str]] = RESCORED,
    alphas: Sequence[float] = ALPHAS,
) -> dict[str, Tuned]:
    """Every language model with the weight of each of its systems, that of the fewest calls on the tuning texts."""
    tuned, examples = {}, len(draw_examples(paths, 10_000, 0)[1])
    for name, systems in rescored.items():
        records_ = tuple(tune(paths, models[name], system, alphas, examples)[0] for system in systems)
        tuned[name] = Tuned(as_scorer(models[name]), records_)
    return tuned


def calibrations(work: Path, paths: Sequence[Path], models: Mapping[str, Path]) -> dict[str, CalibratedScorer]:
    """One calibration for all tasks, with and without the text so far."""
    scorers = {}
    for name, suffix in (("g4", "all"), ("own4", "text"), ("own4", "all")):
        lm, features = fst.NgramModel.load(models[name]), VARIANTS[ALL] if suffix == "all" else VARIANTS["+ its orders"]
        path = work / f"calibration-{name}-{suffix}-{len(paths)}.json"
        stage(path, lambda: calibrate(paths, lm, 10_000, POSITIONS, 0, features)[0].save(path))  # noqa: B023
        scorers[f"{name}-{suffix}"] = CalibratedScorer(NgramScorer(lm), Calibration.load(path))
    return scorers


def by_text(lattices: LatticeSet) -> Iterator[tuple[int, LatticeSet]]:
    for number in np.unique(numbers_of(lattices)).tolist():
        yield number, lattices.take(numbers_of(lattices) == number)


# ---------------------------------------------------------------- counts
def compared(
    task: str, cut_test: LatticeSet, models: Mapping[str, Any], systems: Sequence[str] = SYSTEMS
) -> tuple[list[Row], ...]:
    """Of every text: calls and verified tokens of every system, and what became of the drafts of some."""
    calls, verified, drafts = list[Row](), list[Row](), list[Row]()
    ends = ("win_repair", "win_regress", "tie_repair", "tie_regress", "loss_repair", "loss_regress")
    for number, lattices in by_text(cut_test):
        result = compare([lattices], systems, models)
        about = {"task": task, "text": number, "tokens": int(result.decode_totals[0, 0])}
        calls.append(about | dict(zip(result.systems, result.decode_totals[:, 1].tolist(), strict=True)))
        verified.append(about | dict(zip(result.systems, result.nodes.tolist(), strict=True)))
        for i, system in enumerate(result.systems):
            if system in LOOKED_AT:
                row = {"task": task, "text": number, "system": system}
                row |= dict(zip(("wins", "ties", "losses"), result.outcomes[i].tolist(), strict=True))
                row |= dict(zip(ends, result.repetition_changes[i].ravel().tolist(), strict=True))
                drafts.append(row | dict(zip(("equal", "neighbours", "run"), result.repeats[i].tolist(), strict=True)))
    return calls, verified, drafts


def line_breaks(task: str, cut_test: LatticeSet, scorer: Any) -> list[Row]:
    """Of every text: tokens that repeat the one before in the first drafts of a 1-best decode, and the line breaks
    among them."""
    rows, breaks = list[Row](), {index for token, index in tokenizer().get_vocab().items() if {*token} == {"Ċ"}}
    for number, lattices in by_text(cut_test):
        at, repeated = 0, list[int]()
        while at < len(lattices):
            context = lattices.context_of(at)
            draft = scorer.paths([lattices[at]], [context], 1)[0].tokens[0]
            repeated += [two for one, two in pairwise([context[-1], *draft.tolist()]) if one == two]
            at += 1 + int(np.logical_and.accumulate(draft == lattices.continuation[at]).sum())
        row = {"task": task, "text": number, "equal": len(repeated)}
        rows.append(row | {"line_breaks": sum(token in breaks for token in repeated)})
    return rows


def oracles(task: str, test: LatticeSet) -> list[Row]:
    rows = []
    for number, lattices in by_text(test):
        counts = tally([lattices], KS, HEADS)
        for k, walked in zip(KS, counts.decode_totals, strict=True):
            heads = dict(zip((f"h{heads}" for heads in HEADS), walked[:, 1].tolist(), strict=True))
            rows.append({"task": task, "text": number, "tokens": int(walked[0, 0]), "k": k, **heads})
    return rows


def entropies(task: str, test: LatticeSet) -> tuple[list[Row], list[Row]]:
    """Mean entropy of each head over the calls of every text, nats; histograms over all of them."""
    rows = []
    for number, lattices in by_text(test):
        measured = head_entropy([lattices])
        calls = round(len(lattices) / measured.text_efficiency[0])
        means = {f"h{head}": f"{mean:.5f}" for head, mean in zip(measured.heads, measured.text_means[0], strict=True)}
        rows.append({"task": task, "text": number, "calls": calls, **means})
    measured = head_entropy([test])
    bins = []
    for head, counts in zip(measured.heads, measured.histogram, strict=True):
        for number, count in enumerate(counts.tolist()):
            if count:
                bins.append({"task": task, "head": head, "from": round(number * BIN, 2), "calls": count})
    return rows, bins


@torch.inference_mode()
def coverage(task: str, test: Part, heads: BlockwiseLM) -> list[Row]:
    """Of every text: tokens after the first; those of them that the heads' shortlist lacks; those that head 2 foresees;
    and head 1's mean entropy over the shortlist alone, nats, at the calls of vanilla drafts."""
    rows, shortlist = list[Row](), heads.shortlist
    texts = {tuple(text[: length + 1]): text for text, length in test.texts}
    for number, lattices in by_text(test.lattices):
        begin = tuple(lattices.context_of(0))
        logits = heads.base(torch.tensor([texts[begin]])).logits[0, len(begin) - 2 :][: len(lattices), shortlist]
        nats = np.repeat(entropy(logits).numpy()[:, None], lattices.tokens.shape[1] + 1, axis=1)
        following = lattices.continuation[:, 0]
        row = {"task": task, "text": number, "tokens": len(lattices)}
        row["outside"] = int((~np.isin(following, shortlist)).sum())
        row["foreseen"] = int((narrowed(lattices, 1).tokens[:, 0, 0] == following).sum())
        measured = head_entropy([replace(lattices, entropy=nats)])
        calls = round(len(lattices) / measured.text_efficiency[0])
        rows.append(row | {"calls": calls, "h1": f"{measured.text_means[0, 0]:.5f}"})
    return rows


def qualities(work: Path, task: Task, test: Part, target: TargetModel) -> list[Row]:
    """Quality of the texts: of passages the perplexity of their own continuation, in nats; else percentages."""
    about = read_json(work / "prompts.json")[task.name]["texts"]
    asked, first = Texts.load(work / "prompts.npz"), list(TASKS).index(task.name) * (TUNING + TEST)
    written = {tuple(text[:length]): text[length : length + NEW_TOKENS] for text, length in test.texts}
    rows: list[Row] = []
    for number in range(TUNING, TUNING + TEST):
        text, length = asked[first + number].tolist(), int(asked.prompt_lengths[first + number])
        answer = [token for token in written.get(tuple(text[:length]), []) if token != END]
        row: Row = {"task": task.name, "text": number, "source": about[number]["source"], "prompt": length}
        row["written"] = len(answer)
        answers, references = [tokenizer().decode(answer).strip()], [about[number]["references"]]
        if task.kind == "continue":
            count = len(text) - length
            nats = math.log(perplexity(target, [(text, length)])) * count
            row |= {"measure": "nats", "value": f"{nats:.3f}", "of": count, "f1": ""}
        elif task.kind == "answer":
            exact, share = exact_match(answers, references), f1(answers, references)
            row |= {"measure": "exact match", "value": exact, "of": 1, "f1": f"{share:.2f}"}
        else:
            row |= {"measure": "ROUGE-L", "value": f"{rouge_l(answers, references):.2f}", "of": 1, "f1": ""}
        rows.append(row)
    return rows


def weights(task: str, models: Mapping[str, Tuned]) -> list[Row]:
    rows = []
    for name, record in ((name, record) for name, tuned in models.items() for record in tuned.tunings):
        about = {"task": task, "lm": name, "system": record.system}
        for alpha, value in zip(record.alphas, record.block_efficiency, strict=True):
            rows.append(about | {"alpha": f"{alpha:g}", "tokens_per_call": value, "chosen": int(alpha == record.alpha)})
    return rows


def ngram_rows(task: str, models: Mapping[str, fst.NgramModel], test: Part) -> list[Row]:
    """Sizes of the n-gram models, and their perplexity of what the model wrote."""
    texts = np.concatenate([np.array(text[max(0, length - 3) :][: NEW_TOKENS + 3]) for text, length in test.texts])
    rows = []
    for name, lm in models.items():
        value = f"{ngram_perplexity(lm, texts).perplexity:.1f}"
        rows.append({"task": task, "lm": name, "ngrams": sum(lm.num_ngrams), "perplexity": value})
    return rows


# ---------------------------------------------------------------- everything
def count_task(work: Path, data: Path, task: Task, shards: Path) -> dict[str, list[Row]]:
    """All counts of a task but those of calibrated trees."""
    tuning, test = parts(work, task.name, shards)
    models = {name: fst.NgramModel.load(path) for name, path in language_models(work, data, task).items()}
    tuned = tuned_models([tuning.cut], models)
    counted = compared(task.name, LatticeSet.load(test.cut), tuned)
    means, bins = entropies(task.name, test.lattices)
    return {
        **dict(zip(("calls", "verified", "drafts"), counted, strict=True)),
        "breaks": line_breaks(task.name, LatticeSet.load(test.cut), as_scorer(tuned["g2"], system="1-best")),
        "oracle": oracles(task.name, test.lattices),
        "entropy": means,
        "entropy-bins": bins,
        "coverage": coverage(task.name, test, load_blockwise(MODEL)),
        "quality": qualities(work, task, test, load(MODEL, weights=TORCH).target),
        "weights": weights(task.name, tuned),
        "ngrams": ngram_rows(task.name, models, test),
    }


def count_calibrated(work: Path, data: Path, task: Task, shards: Path, tasks: Sequence[str]) -> dict[str, list[Row]]:
    """Calls and verified tokens of calibrated trees, which are fitted to the tuning texts of all tasks."""
    fitted = calibrations(work, [parts(work, each, shards)[0].cut for each in tasks], language_models(work, data, task))
    calls, verified, _ = compared(task.name, LatticeSet.load(parts(work, task.name, shards)[1].cut), fitted, CALIBRATED)
    return {"calls": calls, "verified": verified}


def count_rescorer(work: Path, data: Path, task: Task, name: str, shards: Path) -> dict[str, list[Row]]:
    """Calls of a neural rescorer's systems at its own weights, its size, its perplexity of the model's text."""
    tuning, test = parts(work, task.name, shards)
    rescorer = neural_rescorer(work, data, task, name)
    scorer = NeuralRescorer.from_pretrained(rescorer)
    tuned = tuned_models([tuning.cut], {name: scorer}, {name: ("1-best",)}, NEURAL_ALPHAS)
    calls, _, _ = compared(task.name, LatticeSet.load(test.cut), tuned, [f"1-best:{name}"])
    rows = [{"rescorer": name, **{key.removesuffix(f":{name}"): value for key, value in row.items()}} for row in calls]
    log = read_lines(rescorer / "training-log.jsonl")
    held_out = [row["validation"]["perplexity"] for row in log if "validation" in row][-1]
    about = {"rescorer": name, "parameters": scorer.model.num_parameters(), "updates": log[-1]["step"]}
    about |= {"held_out": f"{held_out:.1f}", "task": task.name}
    about["perplexity"] = f"{perplexity(scorer.model, test.texts):.1f}"
    return {"rescorers": rows, "rescorers-models": [about], "rescorers-weights": weights(task.name, tuned)}


def gather(parts: Iterable[Mapping[str, list[Row]]], results: Path) -> None:
    """One file of every kind of count, task after task."""
    joined: dict[str, list[Row]] = {}
    for part in parts:
        for name, rows in part.items():
            joined.setdefault(name, []).extend(rows)
    for name, rows in joined.items():
        write_csv(results / f"kim-{name}.csv", rows, digits=6)


def count_all(work: Path, data: Path, tasks: Sequence[str], results: Path, neural: bool) -> None:
    """The counts of all tasks, each from its file where that exists, into the files of the results."""
    shards = lattices(work, data, tasks)

    def counted(name: str, suffix: str, count: Callable[..., dict[str, list[Row]]], *args: Any) -> Any:
        path = work / "counts" / f"{name}{suffix}.json"
        return stored(path, lambda: count(work, data, TASKS[name], *args))

    rows = {name: counted(name, "", count_task, shards) for name in tasks}
    gather(rows.values(), results)
    for name in tasks:
        calibrated = counted(name, f"-calibrated-{len(tasks)}", count_calibrated, shards, tasks)
        for kind, further in calibrated.items():
            rows[name][kind] = [one | other for one, other in zip(rows[name][kind], further, strict=True)]
    gather(rows.values(), results)
    if neural:
        pairs = product(NEURAL_UPDATES, tasks)
        gather((counted(name, f"-rescorer-{which}", count_rescorer, which, shards) for which, name in pairs), results)


def folders(parser: argparse.ArgumentParser) -> argparse.Namespace:
    """The options of a program that measures in a folder, or without one makes the tables of existing counts."""
    parser.add_argument("--data", type=Path, help="folder of the data that kim_tasks.py names")
    parser.add_argument("--work", type=Path, help="folder of all stages' results")
    args = parser.parse_args()
    if (args.data is None) != (args.work is None):
        parser.error("expected --data and --work, or neither for the tables of existing counts")
    return args


def main() -> None:
    parser = options(__doc__, whole=True)
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS))
    parser.add_argument("--neural", action="store_true", help="train and measure neural rescorers")
    parser.add_argument("--results", type=Path, help="folder of counts, tables, figures; of some tasks WORK/results")
    parser.add_argument("--tables", nargs="+", help="which to print, such as 4 figure-3; all by default")
    args = folders(parser)
    every = args.work is None or len(args.tasks) == len(TASKS)
    results = args.results or (RESULTS if every else args.work / "results")
    if args.work is not None:
        args.work.mkdir(parents=True, exist_ok=True)
        count_all(args.work, args.data, args.tasks, results, args.neural)
    kim_tables.show(results, args.tables, args.tasks)


if __name__ == "__main__":
    main()
